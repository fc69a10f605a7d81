"""The scheduler's interface to the engine loop."""

from collections import Counter, deque

from stentor.protocols.ipc.actors import (
    Append,
    Fault,
    Finished,
    FinishReason,
    Resource,
    Stats,
    Submit,
    TokensBatch,
    WorkerReady,
)
from stentor.protocols.ipc.cache_groups import group_of
from stentor.protocols.ipc.config import EngineConfig
from stentor.protocols.ipc.histograms import STEP_TOKENS, Counts
from stentor.protocols.ipc.steps import Masks, StepPlan, StepResult

from ...channel import MAX_FRAME
from ..cache.events import CacheEvents, Change
from ..request import NOTHING, Request
from ..sequence import SequenceState
from .adapters import AdapterCache
from .decode import plan_decodes, plan_drafts
from .draft_control import DraftControl
from .integrity import check_integrity
from .kv_cache_manager import KVCacheManager
from .limits import Limits, kv_cache_refusal_of
from .media_encoding import lacks_media
from .output import Output, write_masks
from .prefill import find_prefix, plan_prompts
from .prerequisites import Prerequisites
from .prompt_budget import PromptBudget
from .recovery import RecoveryOutcome, WorkerRecovery
from .refusals import append_refusal_of, oversized
from .rows import RowTable
from .step import MAX_PLAN_BYTES, InFlightStep, StepBuilder
from .step_check import check_result

MAX_IN_FLIGHT = 2
"""The step that the worker runs, and the next one, prepared meanwhile."""


class Scheduler:
    """Continuous batching over a paged KV pool, one step ahead of the worker.

    The loop alternates :meth:`plan` and :meth:`complete`; a plan may be made while one earlier step is in flight. A
    row's position is always known though its last token may not be, so a plan may decode it once more. If that token
    ends the row, the extra result is dropped: never delivered, counted or cached. Rows that end by length are known
    beforehand and not planned again.

    A step may gain a row several tokens (:class:`stentor.protocols.ipc.steps.RowStep`). Until its result comes the row
    has a minimum and a maximum length. The next plan names the minimum, reserves blocks for the maximum, and does not
    start a step in which the maximum would pass the row's limit. Tokens behind one that ends the sequence are dropped.

    Blocks freed by ``complete(N)`` are given out only in later plans, though N+1 may still run and write them for their
    old owner. That is safe because the worker runs steps in order: the new owner writes later, and an unfinished block
    has no hash by which another could find it.

    Importance is a constant: arrival plus ``priority * aging_seconds``. Every request becomes the most important one
    eventually. That one is never preempted, and nobody is given what it lacks, so nobody starves. A request that awaits
    resources of its own (a grammar, input, a transfer) stands aside and holds nothing. Times are the caller's, in
    seconds of ``time.monotonic()``.

    A sequence with a constraint (a grammar, a thinking budget) is restricted by masks. Its allowed tokens in the oldest
    step in flight follow from all tokens before. :meth:`masks` computes them once the result before is complete, while
    the worker runs the forward of that step. Constraints live here, so none is lost with a row or a worker.

    After a worker's death (:meth:`recover`) its rows wait again, and :class:`~.recovery.WorkerRecovery` decides which
    may run.
    """

    def __init__(
        self,
        ready: WorkerReady,
        config: EngineConfig,
        *,
        max_plan_bytes: int = MAX_PLAN_BYTES,
        max_frame: int = MAX_FRAME,
    ) -> None:
        """Raises ValueError for limits that no scheduler can work with.

        Args:
            ready: the worker's KV cache, and its limits of a step.
            max_plan_bytes: bytes of the rows that enter in one step.
            max_frame: bytes of one row in a plan; requests that may need more are refused.
        """
        self._limits = limits = Limits.of(ready, config, max_plan_bytes=max_plan_bytes, max_frame=max_frame)
        self._groups = ready.groups
        self._rows = RowTable(ready.limits.max_num_seqs)
        # where tokens see later ones of their prompt, a cached prefix would be valid for the same prompt only
        cross = group_of(ready.groups, "cross")
        whole_prompts = limits.sees_all or (cross is not None and cross.whole_prompts)
        by_prompt = any(group.by_prompt for group in ready.groups)
        prefix_cache = config.scheduler.prefix_cache and not whole_prompts and not by_prompt
        block_size = ready.limits.block_size
        self._kv_cache = KVCacheManager(
            ready.num_blocks,
            block_size,
            prefix_cache,
            self._rows,
            ready.groups,
            chunk=max(min(limits.max_num_batched_tokens, limits.max_prefill_chunk), 1 + limits.max_drafts),
            adapters=AdapterCache(limits.max_loras, config.worker.max_cpu_loras),
            host=ready.host,
        )
        if config.scheduler.kv_events is not None and prefix_cache:
            self._kv_cache.pool.events = CacheEvents(block_size)
        self._output = Output(self._kv_cache)
        self._recovery = WorkerRecovery(self._rows, self._kv_cache, self._output)
        self.prerequisites = Prerequisites(self._kv_cache, self._output, self._recovery)
        drafts = config.worker.speculative
        self._drafts = DraftControl(
            limits.max_drafts, () if drafts is None else drafts.num_speculative_tokens_per_batch_size
        )
        self._lacked: list[Resource] = []
        """Resources that queued sequences lacked in the last plan."""
        self._prompt_budget = PromptBudget(self._limits)
        self._in_flight: deque[InFlightStep] = deque()
        self._unmasked_from = 0
        """The first step whose masks have not been made."""
        self._steps = 0
        self._step_tokens = Counts(STEP_TOKENS)
        self._submitted = 0

    # ---- requests

    def submit(self, request: Submit, *, awaits: frozenset[Resource] = NOTHING) -> TokensBatch | None:
        """Accept a request, or return the terminal messages of a refusal.

        Sequences of a resumed request that are complete end at once. ``awaits``: resources that must come before it
        runs: "grammar" (see :meth:`.Prerequisites.constrain`) or "transfer" (see :meth:`.Prerequisites.load`).
        """
        refusal = self._reused(request.rid) or self._limits.refusal_of(request, self._kv_cache)
        if refusal is None and request.streamed is not None and "grammar" in awaits:
            refusal = "what is drawn from audio that comes piece by piece follows no grammar"
        if refusal is not None:
            ended = () if request.resumed is None else request.resumed.ended
            indices = [index for index in range(max(1, len(request.seeds))) if index not in ended]
            large = oversized(request, self._kv_cache.cross)
            if large is None:
                return self._refused(request, indices, refusal)
            return self._refused(request, indices, refusal, "media", large.field)
        accepted = Request(
            request,
            number=self._submitted,
            max_model_len=self._limits.max_model_len,
            aging_seconds=self._limits.aging_seconds,
            stream=self._limits.stream,
            sees_all=self._limits.sees_all,
            awaits=awaits,
            cross=self._kv_cache.cross,
        )
        if not accepted.live:
            self._output.refused(request)
            return None
        if (why := self._limits.frame_refusal_of(accepted, self._kv_cache)) is not None:
            living = [each.index for each in accepted.sequences if each.state is not SequenceState.FINISHED]
            return self._refused(request, living, why)
        self._submitted += 1
        if request.adapter is not None and not self._kv_cache.adapters.hold(request.adapter, request.rid):
            accepted.awaits |= {"adapter"}
        self._output.accept(accepted)
        unwritten = any(not span.written for span in accepted.media.spans)
        if unwritten and lacks_media(accepted, self._kv_cache, find_prefix(accepted.leader, self._kv_cache).length):
            self.prerequisites.want_media(accepted)
        # without its grammar it is unknown whether a sequence is complete
        return None if request.resumed is None or "grammar" in awaits else self.prerequisites.end_satisfied(accepted)

    def _refused(
        self, request: Submit, indices: list[int], why: str, fault: Fault = "", field: str = ""
    ) -> TokensBatch:
        """The terminal messages of a refused request's sequences; its media are released."""
        self._output.refused(request)
        return TokensBatch([], [], [Finished(request.rid, each, "error", None, why, fault, field) for each in indices])

    def lives(self, rid: int) -> bool:
        """Whether the request was accepted and a sequence of it has not ended."""
        return rid in self._output.requests

    def append(self, more: Append) -> TokensBatch | None:
        """Add streamed input, or its end. Returns terminal messages, or None if nothing ends."""
        request = self._output.requests.get(more.rid)
        if request is None:
            return None
        refusal = append_refusal_of(request.input, more)
        if refusal is not None:
            return self._recovery.noted_ends(self._output.finish_all(request, "error", refusal))
        assert request.input is not None
        request.input.append(more.pieces, ended=more.last)
        finished = self._output.input_appended(request)
        return self._recovery.noted_ends(finished) if finished else None

    def abort(self, rid: int, index: int, error: str | None = None) -> TokensBatch | None:
        """End a sequence, or all of a request if ``index`` is -1; None if nothing of it was alive.

        ``error``: why it cannot go on; None if its client aborted it.
        """
        request = self._output.requests.get(rid)
        if request is None:
            return None
        reason: FinishReason = "abort" if error is None else "error"
        if index == -1:
            finished = self._output.finish_all(request, reason, error)
        elif 0 <= index < len(request.sequences) and request.sequences[index].state is not SequenceState.FINISHED:
            finished = [self._output.finish(request.sequences[index], reason, None, error)]
            self._output.replace_leader(request)
        else:
            return None
        return self._recovery.noted_ends(finished)

    def end_all(self, message: str) -> TokensBatch:
        """End all living requests, because no step can run any more. Steps in flight must still be completed."""
        requests, finish = list(self._output.requests.values()), self._output.finish_all
        return TokensBatch([], [], [each for r in requests for each in finish(r, "error", message, "engine")])

    # ---- steps

    def plan(self, now: float, *, crowded: bool = False) -> StepPlan | None:
        """Plan the next step; None if nothing can run before a result, an abort or a submission.

        ``crowded``: other engines wait for the device, so the step is kept as short as beside rows that decode.
        """
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            return None
        if not self._recovery.group_runs(in_flight=bool(self._in_flight)):
            return None
        kv_cache, limits = self._kv_cache, self._limits
        if kv_cache.cross is not None and not kv_cache.cross.window:
            kv_cache.drop_read_spans()
        step = StepBuilder(
            limits.max_num_batched_tokens,
            limits.max_prefill_chunk,
            kv_cache,
            streams=limits.stream is not None,
            max_bytes=limits.max_plan_bytes,
        )
        unfinished = plan_decodes(step, kv_cache, drafting=limits.max_drafts > 0)
        self._prompt_budget.bound(step, kv_cache, waiting=bool(unfinished or kv_cache.queue), crowded=crowded)
        self._lacked = plan_prompts(step, kv_cache, unfinished, limits.max_admitted_tokens, now)
        self.prerequisites.want_written(step.wanted)
        if not step.works:
            return None
        if limits.max_drafts:
            plan_drafts(step, kv_cache, self._drafts)
        if limits.stream is not None:
            step.feed()
        plan = StepPlan(
            epoch=self._recovery.epoch,
            step=self._steps,
            freed=self._rows.take_freed(),
            new=step.new,
            rows=step.rows,
            masked=step.masked,
            encode=step.encode,
            inputs=step.inputs,
            forks=step.forks,
            forgotten=kv_cache.encoder_cache.take_forgotten(),
            copies=kv_cache.pool.take_copies(),
            adapters=kv_cache.adapters.take_placed(),
            state_copies=[] if kv_cache.states is None else kv_cache.states.pool.take_copies(),
        )
        self._in_flight.append(step.in_flight(self._steps))
        self._steps += 1
        self._step_tokens.observe(step.tokens)
        return plan

    @property
    def wants_masks(self) -> bool:
        """Whether the worker needs :meth:`masks`, and they can be made."""
        if not self._in_flight:
            return False
        oldest = self._in_flight[0]
        return bool(oldest.masked) and oldest.step >= self._unmasked_from

    def masks(self) -> tuple[Masks, TokensBatch]:
        """The masks of the oldest step in flight; call once when :attr:`wants_masks`.

        Also returns the ends of sequences without an allowed token.
        """
        flight = self._in_flight[0]
        self._unmasked_from = flight.step + 1
        masks, finished = write_masks(flight, self._recovery.epoch, self._output)
        return masks, self._recovery.noted_ends(finished)

    def complete(self, result: StepResult, now: float) -> TokensBatch:
        """Apply the result of the oldest step in flight.

        Results of an older epoch are ignored. Raises ValueError, and changes nothing, if the result is of another step.
        """
        if result.epoch < self._recovery.epoch:
            return TokensBatch([], [], [])
        if not self._in_flight or result.epoch != self._recovery.epoch or result.step != self._in_flight[0].step:
            expected = f"step {self._in_flight[0].step}" if self._in_flight else "none"
            raise ValueError(
                f"the worker sent the result of step {result.step} in epoch {result.epoch}; "
                f"expected was {expected} in epoch {self._recovery.epoch}"
            )
        flight = self._in_flight[0]
        check_result(flight, result)
        self._in_flight.popleft()
        self._prompt_budget.learn(flight, result)
        if self._limits.max_drafts:
            self._drafts.learn(flight, result)
        for slot, digest, begun in flight.slices:
            if slot in result.encoded:
                self._kv_cache.encoder_cache.complete(digest, begun)
        return self._recovery.noted(self._output.settle(flight, result, now))

    def take_released(self) -> list[int]:
        """Ended requests whose media no step in flight reads, since the last call."""
        if not self._output.unreleased:
            return []
        free = self._output.unreleased.difference(*(flight.readers for flight in self._in_flight))
        self._output.unreleased -= free
        return sorted(free)

    def recover(self, *, blameless: bool = False) -> RecoveryOutcome:
        """Requeue everything after the worker's death; its rows, blocks, cached prefixes and results in flight are
        lost.

        Every running sequence waits again with its delivered tokens, and a new epoch begins. Transfers are void: their
        owner calls :meth:`.Prerequisites.load` again before the next plan. A request that was found to kill workers
        ends. ``blameless``: no request caused the death.
        """
        recovery = self._recovery.recover(self._in_flight, blameless=blameless)
        self._in_flight.clear()
        return recovery

    def resize(self, ready: WorkerReady) -> TokensBatch:
        """Adapt to a new worker with another number of blocks or other capacities of the same groups.

        Call it after :meth:`recover`, before the next plan. Ends the requests that no longer fit.
        """
        ended = TokensBatch([], [], [])
        kv_cache = self._kv_cache
        if (ready.num_blocks, ready.groups) == (kv_cache.pool.num_blocks, self._groups):
            kv_cache.resize_host(ready.host)
            return ended
        self._groups = ready.groups
        kv_cache.reset(ready.num_blocks, ready.groups)
        kv_cache.resize_host(ready.host)
        for request in list(self._output.requests.values()):
            refusal = kv_cache_refusal_of(request, kv_cache)
            if refusal is not None:
                ended.finished.extend(self._output.finish_all(request, "error", refusal))
        return self._recovery.noted(ended)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running rows do not cache their blocks either."""
        self._kv_cache.forget_prefixes()

    def take_cache_events(self) -> list[Change]:
        """Changes of the prefix cache since the last call; none if nobody subscribed to them."""
        return [] if self._kv_cache.pool.events is None else self._kv_cache.pool.events.take()

    def reset_encoder_cache(self) -> None:
        """Forget all encoded media that no row holds."""
        self._kv_cache.encoder_cache.forget_unheld()

    def recompute(self) -> None:
        """Preempt every row, so that all KV is computed anew."""
        for sequence in reversed(self._rows.running.copy()):
            self._kv_cache.preempt(sequence)

    # ---- observation

    @property
    def has_work(self) -> bool:
        """Whether a request is alive. Steps may be in flight even if none is."""
        return bool(self._output.requests)

    @property
    def in_flight(self) -> int:
        """Steps that are planned and not completed."""
        return len(self._in_flight)

    @property
    def epoch(self) -> int:
        return self._recovery.epoch

    def stats(self) -> Stats:
        """Gauges of now and counters since the start. Rows count as running, all other living sequences as waiting."""
        kv_cache = self._kv_cache
        free = kv_cache.free
        running = len(self._rows.running)
        return Stats(
            running=running,
            waiting=self._output.live_sequences - running,
            kv_usage=1 - free / kv_cache.pool.num_blocks,
            preemptions=kv_cache.preemptions,
            prefix_queries=kv_cache.prefix.queries,
            prefix_hits=kv_cache.prefix.hits,
            steps=self._steps,
            free_blocks=free,
            recovered=self._recovery.recovered,
            poisoned=self._recovery.poisoned,
            waiting_for=self._waiting_for(),
            running_adapters=kv_cache.adapters.running,
            waiting_adapters=kv_cache.adapters.waiting,
            num_drafts=self._drafts.num_drafts,
            num_draft_tokens=self._drafts.num_draft_tokens,
            accepted_by_position=self._drafts.accepted_by_position.copy(),
            prompt_computed=kv_cache.prefix.computed,
            host_queries=kv_cache.prefix.host_queries,
            host_hits=kv_cache.prefix.host_hits,
            host_usage=kv_cache.host_usage,
            host_stored_bytes=kv_cache.host_stored_bytes,
            host_loaded_bytes=kv_cache.host_loaded_bytes,
            step_tokens=self._step_tokens.so_far(),
            request_preemptions=self._output.preemptions.so_far(),
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if the state is inconsistent. Cost grows with all state; for tests and idle time."""
        check_integrity(self._kv_cache, self._output, self._in_flight)
        working = sum(not sequence.length_capped for sequence in self._rows.running)
        assert working <= self._limits.max_num_batched_tokens, f"{working} rows have work, more than a step's budget"

    # ---- internal

    def _waiting_for(self) -> dict[Resource, int]:
        """Waiting sequences by the resource that they, or sequences before them, lack. O(requests)."""
        found: Counter[Resource] = Counter()
        for needs, waiting in self._kv_cache.queue.waiting.items():
            # without a lacked resource, a sequence came after the last plan
            found[next((each for each in self._lacked if each in needs), "step")] += waiting
        for request in self._output.requests.values():
            if request.awaits:
                loading = sum(sequence.state is SequenceState.LOADING for sequence in request.sequences)
                found[min(request.awaits)] += loading
        return {resource: waiting for resource, waiting in found.items() if waiting}

    def _reused(self, rid: int) -> str | None:
        if rid not in self._output.requests:
            return None
        return f"request {rid} is already running; request ids must not be reused"
