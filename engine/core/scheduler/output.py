"""Applies a completed step to its sequences: tokens gained, prompts done, sequences ended."""

from itertools import islice
from typing import Final, TypeVar

import msgspec

from stentor.protocols.ipc.actors import (
    Fault,
    Finished,
    FinishReason,
    PromptDone,
    PromptPart,
    SequenceTokens,
    Submit,
    TokensBatch,
)
from stentor.protocols.ipc.histograms import REQUEST_PREEMPTIONS, Counts
from stentor.protocols.ipc.pooling import Pooled
from stentor.protocols.ipc.steps import Masks, StepResult, TokenLogprobs

from ..cache.events import CacheEvents
from ..grammar.constraint import Complete, ConstraintBroken
from ..grammar.token_sets import MaskWriter
from ..request import Request
from ..sequence import Sequence, SequenceState
from .kv_cache_manager import KVCacheManager
from .step import InFlightStep, Owner

_T = TypeVar("_T")
_NUMBER_BYTES: Final = 4


class Output:
    """The living requests, and the one place where a sequence ends.

    Each ``(rid, index)`` of an accepted request gets exactly one :class:`Finished`: :meth:`finish` makes it and moves
    the sequence to FINISHED, from which it cannot be finished again.
    """

    __slots__ = ("kv_cache", "live_sequences", "preemptions", "requests", "unreleased")

    def __init__(self, kv_cache: KVCacheManager) -> None:
        self.kv_cache = kv_cache
        self.requests: dict[int, Request] = {}
        self.unreleased: set[int] = set()
        """Ended requests whose media the client still keeps."""
        self.live_sequences = 0
        self.preemptions: Final = Counts(REQUEST_PREEMPTIONS)
        """Of ended requests."""

    def accept(self, request: Request) -> None:
        """Register a request. From now on each of its sequences must get a terminal message."""
        self.requests[request.rid] = request
        self.live_sequences += request.live
        if not request.prompt_done:
            self.kv_cache.queue.push(request.leader)
            return
        for sequence in request.sequences:
            if sequence.state is SequenceState.HELD:
                self.kv_cache.queue.push(sequence)

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        stop_token: int | None = None,
        message: str | None = None,
        fault: Fault = "",
    ) -> Finished:
        """End a living sequence in any state, and free all that it holds."""
        request = sequence.request
        match sequence.state:
            case SequenceState.WAITING:
                self.kv_cache.queue.discard(sequence)
            case SequenceState.RUNNING:
                self.kv_cache.release(sequence)
                sequence.move((SequenceState.RUNNING,), SequenceState.FINISHED)
            case _:
                before = (SequenceState.HELD, SequenceState.LOADING, SequenceState.PREEMPTED)
                sequence.move(before, SequenceState.FINISHED)
        self.kv_cache.settle_fork(sequence)
        request.live -= 1
        self.live_sequences -= 1
        if not request.live:
            del self.requests[request.rid]
            self.preemptions.observe(request.num_preemptions)
            self.kv_cache.drop_hold(request)
            if request.adapter is not None:
                self.kv_cache.adapters.leave(request.adapter.number, request.rid)
            if request.media.spans or request.input is not None:
                self.unreleased.add(request.rid)
            # Breaks a reference cycle, so that the request is freed with its last result, without garbage collection.
            request.sequences = []
        return Finished(request.rid, sequence.index, reason, stop_token, message, fault)

    def refused(self, submit: Submit) -> None:
        """Record a refused request: its media will not be read."""
        if submit.inputs or submit.streamed is not None:
            self.unreleased.add(submit.rid)

    def input_appended(self, request: Request) -> list[Finished]:
        """Update a request after streamed input: its sequence is queued if the input suffices, or ends if it is
        complete."""
        request.take_input()
        sequence = request.leader
        if "input" in request.awaits:
            if request.begins:
                self.kv_cache.queue.has_come(request, "input")
            return []
        if sequence.num_in_flight or (end := request.end_of(sequence)) is None:
            return []
        return [self.finish(sequence, *end)]

    def finish_all(
        self, request: Request, reason: FinishReason, message: str | None = None, fault: Fault = ""
    ) -> list[Finished]:
        """End every living sequence of a request."""
        return [
            self.finish(sequence, reason, None, message, fault)
            for sequence in request.sequences
            if sequence.state is not SequenceState.FINISHED
        ]

    def replace_leader(self, request: Request) -> None:
        """After the leader ended before the prompt was done, let another sequence prefill it anew."""
        if not request.live or request.prompt_done or request.leader.state is not SequenceState.FINISHED:
            return
        for sequence in request.sequences:
            if sequence.state is SequenceState.HELD:
                request.leading = sequence.index
                request.forget_prompt()
                self.kv_cache.queue.push(sequence)
                return

    def settle(self, flight: InFlightStep, result: StepResult, now: float) -> TokensBatch:
        """Apply the result of a step to its owners; mutates them."""
        batch = TokensBatch([], [], [])
        if result.faults:
            self._end_faulty(flight, result, batch)
        if result.prompt_logprobs:
            self._pass_on_prompt_logprobs(flight, result, batch)
        if result.routed:
            self._pass_on_experts(flight, result, batch)
        if result.alignments:
            self._gather_alignments(flight, result)
        if result.pooled:
            self._gather_pooled(flight, result, batch)
        block_size = self.kv_cache.block_size
        tokens = _by_row(result.tokens, result.counts)
        logprobs = None if result.logprobs is None else _by_row(result.logprobs, result.counts)
        sampled = -1
        for sequence, row_generation, end, max_gained in flight.owners:
            if max_gained:
                sampled += 1
            if sequence.row_generation == row_generation:
                # with drafts, the step may have begun further on than was known when it was planned
                if end <= sequence.num_computed_tokens:
                    end = sequence.num_computed_tokens + 1
                sequence.num_computed_tokens = end
                if end >= (sequence.num_hashed_blocks + 1) * block_size:
                    self._hash_blocks(sequence)
                if sequence.recurrent.checkpoints:
                    self.kv_cache.settle_states(sequence)
            elif sequence.state is not SequenceState.PREEMPTED or not max_gained:
                # It has ended, or this is a chunk of a row that it has lost.
                continue
            if max_gained:
                own = None if logprobs is None else _requested(logprobs[sampled])
                self._append(sequence, tokens[sampled], own, max_gained, batch, now)
            elif end == sequence.length and not sequence.samples:
                self._finish_prompt(sequence.request, batch, now)
                if sequence.state is not SequenceState.FINISHED:
                    reason: FinishReason = "length" if sequence.request.pooling is None else "stop"
                    batch.finished.extend(self.finish_all(sequence.request, reason))
        if result.drafts:
            owners = flight.by_slot()
            for drafted in result.drafts:
                owner = owners[drafted.slot]
                if owner.has_row:
                    owner.sequence.drafts = len(owner.sequence.outputs), drafted.tokens
        return batch

    def _end_faulty(self, flight: InFlightStep, result: StepResult, batch: TokensBatch) -> None:
        """End the requests whose media the worker refused; the rest of the step's result does not count for them.

        The media are forgotten, so that another request with them tries again.
        """
        owners = flight.by_slot()
        for fault in result.faults:
            if not owners[fault.slot].has_row:
                continue
            request = owners[fault.slot].sequence.request
            ended = self.finish_all(request, "error", fault.message)
            for span in request.media.spans:
                if span.start == fault.start:
                    ended = [msgspec.structs.replace(end, fault="media", field=span.field) for end in ended]
                self.kv_cache.encoder_cache.forget(span.digest)
            batch.finished.extend(ended)

    def _append(
        self,
        sequence: Sequence,
        tokens: list[int],
        logprobs: list[TokenLogprobs] | None,
        max_gained: int,
        batch: TokensBatch,
        now: float,
    ) -> None:
        """Append a step's tokens to a sequence, which ends or goes on; tokens behind its end are dropped.

        ``max_gained``: the most tokens that the step could have gained.
        """
        request = sequence.request
        sequence.num_in_flight -= 1
        if not request.prompt_done:
            self._finish_prompt(request, batch, now)
            if sequence.state is SequenceState.FINISHED:
                return
        end = request.take(sequence, tokens)
        if max_gained > 1:
            self._settle_drafts(sequence, max_gained - 1, len(tokens) - 1)
            logprobs = None if logprobs is None else logprobs[: len(tokens)]
        if tokens:
            batch.tokens.append(SequenceTokens(request.rid, sequence.index, tokens, logprobs))
        if end is not None:
            batch.finished.append(self.finish(sequence, *end))
        elif not sequence.num_in_flight and sequence.state is SequenceState.PREEMPTED:
            self.kv_cache.queue.push(sequence)

    def _settle_drafts(self, sequence: Sequence, num_drafts: int, accepted: int) -> None:
        """Correct the minimum lengths after ``accepted`` of ``num_drafts`` drafts were appended to the outputs.

        Surplus blocks stay with the row, which needs them next.
        """
        sequence.num_drafts_in_flight -= num_drafts
        sequence.length += accepted
        if sequence.state is not SequenceState.RUNNING:
            return  # the row is gone
        sequence.num_scheduled_tokens += accepted
        sequence.length_capped = sequence.length >= sequence.limit_len
        # without the last token, which the next step computes
        sequence.num_computed_tokens = sequence.request.prompt_len + len(sequence.outputs) - 1
        if sequence.num_computed_tokens >= (sequence.num_hashed_blocks + 1) * self.kv_cache.block_size:
            self._hash_blocks(sequence)

    def _finish_prompt(self, request: Request, batch: TokensBatch, now: float) -> None:
        """Send the prompt's end to the client after its last position was computed, and queue the other sequences."""
        sent = request.num_logprobs_sent
        alignment, pooled, missing = request.alignment, request.pooled, request.missing_result
        request.forget_prompt()
        if missing:
            batch.finished.extend(self.finish_all(request, "error", f"the worker returned {missing}"))
            return
        if request.params.prompt_logprobs is not None and sent < request.prompt_len:
            message = f"the worker's log-probabilities of the prompt end at {sent} of {request.prompt_len} tokens"
            batch.finished.extend(self.finish_all(request, "error", message))
            return
        request.prompt_done = True
        scheduled = now if request.first_scheduled is None else request.first_scheduled
        batch.prompts.append(
            PromptDone(
                request.rid,
                request.cached_len or 0,
                max(0.0, scheduled - request.arrival),
                max(0.0, now - scheduled),
                None if request.params.prompt_logprobs is None else [],
                alignment,
                pooled,
            )
        )
        leader = request.leader
        if leader.state is SequenceState.RUNNING:
            self.kv_cache.name_tail(leader)
        forks = [sequence for sequence in request.sequences if sequence.state is SequenceState.HELD]
        if not forks:
            return
        for sequence in forks:
            sequence.forked = True
            self.kv_cache.queue.push(sequence)
        request.forks_left = len(forks)
        cross = self.kv_cache.cross
        # the rest of a prompt that sees itself whole would not see what a window has left behind
        whole = cross is not None and cross.whole_prompts
        if leader.state is SequenceState.RUNNING and not whole:
            self.kv_cache.pin_shared_prefix(leader)

    def _hash_blocks(self, sequence: Sequence) -> None:
        """Add blocks that completed steps have filled with known tokens to the prefix cache."""
        prefix = self.kv_cache.prefix
        if not prefix.enabled or sequence.request.input is not None:
            return
        size = self.kv_cache.block_size
        full = sequence.num_computed_tokens // size
        digests = sequence.block_digests(full, size)
        for group, (table, kept) in enumerate(zip(sequence.tables, sequence.kept, strict=True)):
            for block in range(max(kept, sequence.num_hashed_blocks), full):
                if group or not prefix.finds_tails:
                    prefix.name(group, block, digests[block], table)
                    continue
                contents = sequence.contents(block * size, (block + 1) * size)
                prefix.name(group, block, digests[block], table, sequence.parent_digest(block, size), contents)
        if self.kv_cache.pool.events is not None:
            self._tell_stored(self.kv_cache.pool.events, sequence, digests)
        sequence.num_hashed_blocks = full

    def _tell_stored(self, events: CacheEvents, sequence: Sequence, digests: list[bytes]) -> None:
        """Tell of a row's new full blocks."""
        size, request = self.kv_cache.block_size, sequence.request
        adapter = None if request.adapter is None else request.adapter.name
        for block in range(sequence.num_hashed_blocks, len(digests)):
            parent = digests[block - 1] if block else None
            tokens = sequence.tokens(block * size, (block + 1) * size)
            if self.kv_cache.pool.find(digests[block]) is not None:  # else a window has passed it
                events.stored(digests[block], parent, tokens, adapter, request.salt)

    def _pass_on_prompt_logprobs(self, flight: InFlightStep, result: StepResult, batch: TokensBatch) -> None:
        """Send new log-probabilities of prompts that are still being prefilled by the row that computed them."""
        owners = flight.by_slot()
        for piece in result.prompt_logprobs:
            request = owners[piece.slot].sequence.request
            if _gathers(owners[piece.slot]) and piece.start == request.num_logprobs_sent:
                request.num_logprobs_sent += len(piece.positions)
                batch.parts.append(PromptPart(request.rid, piece.start, piece.positions))

    def _pass_on_experts(self, flight: InFlightStep, result: StepResult, batch: TokensBatch) -> None:
        """Send experts as they come, with the tokens of their step.

        Those of a lost row are valid too, since its positions have not changed.
        """
        owners = flight.by_slot()
        for row in result.routed:
            sequence = owners[row.slot].sequence
            if sequence.state is not SequenceState.FINISHED:
                batch.experts.extend(sequence.take_experts(row))

    def _gather_pooled(self, flight: InFlightStep, result: StepResult, batch: TokensBatch) -> None:
        """Store the pooled results of prompts still being prefilled. Of streamed input each step adds to the result,
        which is sent as it comes."""
        owners = flight.by_slot()
        for row in result.pooled:
            if not _gathers(owners[row.slot]):
                continue
            sequence = owners[row.slot].sequence
            request = sequence.request
            if request.input is None:
                request.pooled = row.pooled
                continue
            # a row that was lost computes the same again, of which the client gets what it has not
            new = row.pooled.data[max(0, request.pooled_sent - sequence.pooled_len) :]
            sequence.pooled_len += len(row.pooled.data)
            total = max(request.pooled_sent, sequence.pooled_len)
            request.pooled = Pooled(total // (_NUMBER_BYTES * row.pooled.columns), row.pooled.columns, b"")
            batch.parts.append(PromptPart(request.rid, request.pooled_sent, [], new, owners[row.slot].end))
            request.pooled_sent = total

    def _gather_alignments(self, flight: InFlightStep, result: StepResult) -> None:
        """Store the alignment results of prompts still being prefilled."""
        owners = flight.by_slot()
        for row in result.alignments:
            if _gathers(owners[row.slot]):
                owners[row.slot].sequence.request.gather_alignment(row.alignment)


def _by_row(values: list[_T], counts: list[int] | None) -> list[list[_T]]:
    """Split a step's values by row."""
    if counts is None:
        return [[value] for value in values]
    rest = iter(values)
    return [list(islice(rest, count)) for count in counts]


def _requested(logprobs: list[TokenLogprobs | None]) -> list[TokenLogprobs] | None:
    """The log-probabilities of one row, which asked for all of them or for none."""
    return [each for each in logprobs if each is not None] or None


def _gathers(owner: Owner) -> bool:
    """Whether a row's results for its prompt are still wanted."""
    # The row that sampled the first token may have been lost since; its results are still valid.
    sampled_before_loss = owner.sequence.state is SequenceState.PREEMPTED and owner.max_gained
    if not owner.has_row and not sampled_before_loss:
        return False
    return not owner.sequence.request.prompt_done


_CROWDED = "too many requests with grammars run at once; try again, or lower --max-num-seqs"


def write_masks(flight: InFlightStep, epoch: int, output: Output) -> tuple[Masks, list[Finished]]:
    """The masks of the oldest step in flight, and the ends of sequences without an allowed token.

    A row with drafts gets a mask for each position that its worker's drafts may reach. Rows of ended sequences are left
    out: their tokens are dropped.
    """
    writer = MaskWriter()
    finished: list[Finished] = []
    masked = frozenset(flight.masked)
    for row, owner in zip(flight.rows, flight.owners, strict=True):
        sequence = owner.sequence
        # a sequence that has lost its row still gets the token in flight
        if row.slot not in masked or sequence.constraint is None or sequence.state is SequenceState.FINISHED:
            continue
        known, drafts = sequence.drafts
        drafts = drafts[: row.num_drafts] if known == len(sequence.outputs) else []
        try:
            allowed = sequence.constraint.allowed()
        except Complete:
            finished.append(output.finish(sequence, "stop"))
        except ConstraintBroken as broken:
            finished.append(output.finish(sequence, "error", None, str(broken), broken.fault))
        else:
            if allowed is None and not drafts:
                continue
            if writer.add(row.slot, allowed):
                for after in sequence.constraint.allowed_behind(allowed, drafts):
                    if not writer.add(row.slot, after):
                        break  # the row gains no more tokens than it has masks
                continue
            finished.append(output.finish(sequence, "error", None, _CROWDED))
        output.replace_leader(sequence.request)
    return writer.masks(epoch, flight.step), finished
