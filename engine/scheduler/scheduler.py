"""The scheduler: what the engine loop calls, step by step."""

import math
from collections import deque

from stentor.protocols.actors import Finished, FinishReason, Stats, Submit, TokensBatch
from stentor.protocols.config import SchedulerConfig
from stentor.protocols.steps import StepPlan, StepResult

from ..cache.prefix import MAX_TOKEN_ID
from ..request import Choice, ChoiceState, Request
from .decode import plan_decodes
from .integrity import check_integrity
from .output import Output
from .preemption import Memory
from .prefill import admit_waiting, plan_chunks
from .rows import RowTable
from .step import Flight, StepDraft

MAX_IN_FLIGHT = 2
"""The step that the worker runs, and the one prepared meanwhile."""


class Scheduler:
    """Continuous batching over a paged KV pool, one step ahead of the worker.

    The loop alternates :meth:`plan` and :meth:`complete`; a plan may be made while one earlier step
    is still in flight. A row's position is always known though its last token may not be: a plan
    may decode it once more. If that token then ends the row, the extra result is dropped: never
    delivered, counted or cached. Rows that end by length are known beforehand and not planned again.

    Blocks freed by ``complete(N)`` go out only in plans made afterwards, though N+1 may still be
    running and may still write them for their old owner. That is safe because the worker runs steps
    in the order they were planned: the new owner's writes come after, and an unfinished block has
    no label by which another could find it.

    Who goes first is a constant: arrival plus ``priority * aging_seconds``. Each waiting request
    gains on new arrivals at the same rate, so every request is the most important one in the end;
    that one is never preempted and never overtaken, hence nobody starves. Times are the caller's,
    in seconds of ``time.monotonic()``.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        config: SchedulerConfig,
        max_mixed_prefill_tokens: int | None = None,
    ) -> None:
        """``max_mixed_prefill_tokens`` bounds the tokens of prompts beside rows that decode; None leaves them the
        whole budget."""
        mixed = max_num_batched_tokens if max_mixed_prefill_tokens is None else max_mixed_prefill_tokens
        for name, value in (
            ("block_size", block_size),
            ("max_num_seqs", max_num_seqs),
            ("max_num_batched_tokens", max_num_batched_tokens),
            ("max_model_len", max_model_len),
            ("max_mixed_prefill_tokens", mixed),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        aging = config.priority_aging_seconds
        if not math.isfinite(aging) or aging < 0:
            raise ValueError(f"priority_aging_seconds is {aging}; it must be a finite number of seconds, 0 or more")
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_mixed_prefill_tokens = mixed
        self._max_model_len = max_model_len
        self._aging_seconds = aging
        self._rows = RowTable(max_num_seqs)
        self._memory = Memory(num_blocks, block_size, config.prefix_cache, self._rows)
        self._output = Output(self._memory)
        self._flights: deque[Flight] = deque()
        self._epoch = 0
        self._steps = 0
        self._submitted = 0

    # ---- requests come and go

    def submit(self, request: Submit, now: float) -> TokensBatch | None:
        """Accept a request, or return the terminal messages that say why not."""
        refusal = self._refuse(request)
        if refusal is not None:
            indices = range(max(1, len(request.seeds)))
            return TokensBatch([], [], [Finished(request.rid, i, "error", None, refusal) for i in indices])
        accepted = Request(
            request, number=self._submitted, max_model_len=self._max_model_len, aging_seconds=self._aging_seconds
        )
        self._submitted += 1
        self._output.accept(accepted)
        return None

    def abort(self, rid: int, index: int) -> TokensBatch | None:
        """End a choice, or with ``index`` -1 all of a request; None where nothing of it lived."""
        request = self._output.requests.get(rid)
        if request is None:
            return None
        if index == -1:
            finished = self._output.finish_all(request, "abort")
        elif 0 <= index < len(request.choices) and request.choices[index].state is not ChoiceState.FINISHED:
            finished = [self._output.finish(request.choices[index], "abort")]
            self._output.replace_leader(request)
        else:
            return None
        return TokensBatch([], [], finished)

    def end_all(self, reason: FinishReason, message: str | None) -> TokensBatch:
        """End everything that lives, where no step can run any more. Steps in flight stay to be completed."""
        requests = list(self._output.requests.values())
        return TokensBatch([], [], [each for r in requests for each in self._output.finish_all(r, reason, message)])

    # ---- steps

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None if nothing can run before a result, an abort or a submission comes."""
        if len(self._flights) >= MAX_IN_FLIGHT:
            return None
        memory = self._memory
        draft = StepDraft(self._max_num_batched_tokens)
        unfinished = plan_decodes(draft, memory)
        if draft.rows:
            draft.budget = min(draft.budget, self._max_mixed_prefill_tokens)
        plan_chunks(draft, unfinished)
        admit_waiting(draft, memory, now)
        if not draft.rows:
            return None
        plan = StepPlan(self._epoch, self._steps, self._rows.take_freed(), draft.new, draft.rows)
        self._flights.append(Flight(self._steps, draft.rows, draft.owners, draft.sampled))
        self._steps += 1
        return plan

    def complete(self, result: StepResult, now: float) -> TokensBatch:
        """Take the result of the oldest step in flight.

        Results of an older epoch are ignored. Raises ValueError, with nothing changed, where the
        result is not that of the step expected.
        """
        if result.epoch < self._epoch:
            return TokensBatch([], [], [])
        if not self._flights or result.epoch != self._epoch or result.step != self._flights[0].step:
            expected = f"step {self._flights[0].step}" if self._flights else "none"
            raise ValueError(
                f"the worker sent the result of step {result.step} in epoch {result.epoch}; "
                f"expected was {expected} in epoch {self._epoch}"
            )
        flight = self._flights[0]
        flight.check(result)
        self._flights.popleft()
        return self._output.settle(flight, result, now)

    def recover(self, now: float) -> None:
        """The worker died: its rows, blocks and cached prefixes are gone, and so are results in flight.

        Every choice that ran waits again with the tokens that were delivered; a new epoch begins.
        """
        self._epoch += 1
        self._flights.clear()
        running = self._rows.running
        self._rows.reset()
        self._memory.reset()
        for choice in running:
            choice.drop_row()
        for choice in [*running, *self._preempted()]:
            choice.pending = 0
            choice.length = choice.request.prompt_len + len(choice.outputs)
            if not choice.request.prompt_done:
                choice.request.prompt_logprobs = None
            self._memory.queue.push(choice)

    # ---- what can be seen from outside

    @property
    def has_work(self) -> bool:
        """Whether any request lives. Steps in flight may remain when none does."""
        return bool(self._output.requests)

    @property
    def in_flight(self) -> int:
        """Steps planned and not completed."""
        return len(self._flights)

    @property
    def epoch(self) -> int:
        return self._epoch

    def stats(self) -> Stats:
        """Gauges of now and counters since start; rows count as running, all other living choices as waiting."""
        memory = self._memory
        free = memory.pool.free_count
        running = len(self._rows.running)
        return Stats(
            running=running,
            waiting=self._output.live_choices - running,
            kv_usage=1 - free / memory.pool.num_blocks,
            preemptions=memory.preemptions,
            prefix_queries=memory.prefix.queries,
            prefix_hits=memory.prefix.hits,
            steps=self._steps,
            free_blocks=free,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError with what is wrong, if anything is. Costs as much as all state; for tests and idling."""
        check_integrity(self._memory, self._output, self._flights)
        working = sum(not choice.exhausted for choice in self._rows.running)
        assert working <= self._max_num_batched_tokens, f"{working} rows have work, more than a step's budget"

    # ---- inside

    def _preempted(self) -> list[Choice]:
        return [
            choice
            for request in self._output.requests.values()
            for choice in request.choices
            if choice.state is ChoiceState.PREEMPTED
        ]

    def _refuse(self, submit: Submit) -> str | None:
        """Why a request can never run; None if it can."""
        prompt_len = len(submit.prompt)
        params = submit.params
        if submit.rid in self._output.requests:
            return f"request {submit.rid} is already running; request ids must not be reused"
        if not submit.seeds:
            return "the request has no seeds; one per choice is needed"
        if not prompt_len:
            return "the prompt is empty; at least one token is needed"
        if params.max_tokens < 0:
            return f"max_tokens is {params.max_tokens}; it must be 0 or more"
        if min(submit.prompt) < 0 or max(submit.prompt) > MAX_TOKEN_ID:
            return f"the prompt has a token id outside [0, {MAX_TOKEN_ID}]"
        if prompt_len + min(1, params.max_tokens) > self._max_model_len:
            return (
                f"the prompt has {prompt_len} tokens, but the model's context is {self._max_model_len}, "
                "prompt and output together: shorten the prompt"
            )
        block_size = self._memory.block_size
        num_blocks = self._memory.pool.num_blocks
        needed = min(prompt_len + params.max_tokens, self._max_model_len)
        if -(-needed // block_size) > num_blocks:
            return (
                f"the request may grow to {needed} tokens, but the KV cache holds {num_blocks * block_size}: "
                "shorten the prompt, lower max_tokens, or give the cache more memory"
            )
        return None
