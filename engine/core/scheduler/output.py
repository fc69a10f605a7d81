"""What a completed step means for its choices: tokens gained, prompts done, choices ended."""

from stentor.protocols.ipc.actors import (
    ChoiceTokens,
    Fault,
    Finished,
    FinishReason,
    PromptDone,
    PromptPart,
    TokensBatch,
)
from stentor.protocols.ipc.steps import StepResult, TokenLogprobs

from ..grammar.rule import RuleBroken
from ..request import Choice, ChoiceState, Request
from .kv_cache_manager import KVCacheManager
from .step import InFlightStep, Owner


class Output:
    """The living requests, and the one place where a choice ends.

    Each ``(rid, index)`` of an accepted request gets exactly one :class:`Finished`: :meth:`finish`
    makes it, moves the choice to FINISHED and thereby refuses to make another.
    """

    __slots__ = ("live_choices", "memory", "requests")

    def __init__(self, memory: KVCacheManager) -> None:
        self.memory = memory
        self.requests: dict[int, Request] = {}
        self.live_choices = 0

    def accept(self, request: Request) -> None:
        """From here on every choice of the request is owed a terminal message."""
        self.requests[request.rid] = request
        self.live_choices += request.live
        if not request.prompt_done:
            if request.begins:
                self.memory.queue.push(request.leader)
            return
        for choice in request.choices:
            if choice.state is ChoiceState.HELD:
                self.memory.queue.push(choice)

    def finish(
        self,
        choice: Choice,
        reason: FinishReason,
        stop_token: int | None = None,
        message: str | None = None,
        fault: Fault = "",
    ) -> Finished:
        """End a choice in whatever state it lives; gives back all it holds."""
        request = choice.request
        match choice.state:
            case ChoiceState.WAITING:
                self.memory.queue.discard(choice)
            case ChoiceState.RUNNING:
                self.memory.release(choice)
                choice.move((ChoiceState.RUNNING,), ChoiceState.FINISHED)
            case _:
                choice.move((ChoiceState.HELD, ChoiceState.PREEMPTED), ChoiceState.FINISHED)
        self.memory.settle_fork(choice)
        request.live -= 1
        self.live_choices -= 1
        if not request.live:
            del self.requests[request.rid]
            # Without this cycle the request goes when its last result has come, garbage collector or not.
            request.choices = []
        return Finished(request.rid, choice.index, reason, stop_token, message, fault)

    def heard_more(self, request: Request) -> list[Finished]:
        """Input has come for a request: its choice begins where that was what it lacked, or ends where it has all."""
        request.hear()
        choice = request.leader
        if choice.state is ChoiceState.HELD:
            if request.begins:
                self.memory.queue.push(choice)
            return []
        if choice.pending or (end := request.end_of(choice)) is None:
            return []
        return [self.finish(choice, *end)]

    def finish_all(self, request: Request, reason: FinishReason, message: str | None = None) -> list[Finished]:
        """End every choice of a request that still lives."""
        return [
            self.finish(choice, reason, None, message)
            for choice in request.choices
            if choice.state is not ChoiceState.FINISHED
        ]

    def replace_leader(self, request: Request) -> None:
        """The leader ended before the prompt was done: another choice prefills it anew."""
        if not request.live or request.prompt_done or request.leader.state is not ChoiceState.FINISHED:
            return
        for choice in request.choices:
            if choice.state is ChoiceState.HELD:
                request.leading = choice.index
                request.forget_prompt()
                self.memory.queue.push(choice)
                return

    def settle(self, flight: InFlightStep, result: StepResult, now: float) -> TokensBatch:
        """Apply the result of a step to its owners; mutates them."""
        batch = TokensBatch([], [], [])
        if result.prompt_logprobs:
            self._pass_on_prompt_logprobs(flight, result, batch)
        if result.heard:
            self._gather_heard(flight, result)
        if result.pooled:
            self._gather_pooled(flight, result)
        block_size = self.memory.block_size
        cache_enabled = self.memory.prefix.enabled
        sampled = -1
        for choice, row_generation, end, samples in flight.owners:
            if samples:
                sampled += 1
            if choice.row_generation == row_generation:
                choice.num_computed_tokens = end
                if (
                    cache_enabled
                    and choice.request.input is None
                    and end >= (choice.num_hashed_blocks + 1) * block_size
                ):
                    self._label_blocks(choice)
            elif choice.state is not ChoiceState.PREEMPTED or not samples:
                # It has ended, or this is a chunk of a row that it has lost.
                continue
            if samples:
                logprobs = result.logprobs[sampled] if result.logprobs is not None else None
                self._append(choice, result.tokens[sampled], logprobs, batch, now)
            elif end == choice.length and not choice.samples:
                self._finish_prompt(choice.request, batch, now)
                if choice.state is not ChoiceState.FINISHED:
                    reason: FinishReason = "length" if choice.request.pooling is None else "stop"
                    batch.finished.extend(self.finish_all(choice.request, reason))
        return batch

    def _append(
        self, choice: Choice, token: int, logprobs: TokenLogprobs | None, batch: TokensBatch, now: float
    ) -> None:
        """A choice gains a token, and ends or goes on."""
        request = choice.request
        choice.pending -= 1
        choice.outputs.append(token)
        if not request.prompt_done:
            self._finish_prompt(request, batch, now)
            if choice.state is ChoiceState.FINISHED:
                return
        if choice.rule is not None:
            try:
                choice.rule.accept(token)
            except RuleBroken as broken:
                batch.finished.append(self.finish(choice, "error", None, str(broken), broken.fault))
                return
        batch.tokens.append(ChoiceTokens(request.rid, choice.index, [token], None if logprobs is None else [logprobs]))
        if (end := request.end_of(choice)) is not None:
            batch.finished.append(self.finish(choice, *end))
        elif choice.state is ChoiceState.PREEMPTED and not choice.pending:
            self.memory.queue.push(choice)

    def _finish_prompt(self, request: Request, batch: TokensBatch, now: float) -> None:
        """The leader's last prompt position has been computed: tell the client, and let the other choices go."""
        told = request.logprobs_told
        heard, pooled, lacks = request.heard, request.pooled, request.lacks
        request.forget_prompt()
        if lacks:
            batch.finished.extend(self.finish_all(request, "error", f"the worker returned {lacks}"))
            return
        if request.params.prompt_logprobs is not None and told < request.prompt_len:
            message = f"the worker's log-probabilities of the prompt end at {told} of {request.prompt_len} tokens"
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
                heard,
                pooled,
            )
        )
        leader = request.leader
        forks = [choice for choice in request.choices if choice.state is ChoiceState.HELD]
        if not forks:
            return
        for choice in forks:
            choice.forked = True
            self.memory.queue.push(choice)
        request.forks_left = len(forks)
        if leader.state is ChoiceState.RUNNING:
            self.memory.pin_shared_prefix(leader)

    def _label_blocks(self, choice: Choice) -> None:
        """Tell the prefix cache of blocks that completed steps have filled with known tokens."""
        full = choice.num_computed_tokens // self.memory.block_size
        digests = choice.block_digests(full, self.memory.block_size)
        for block in range(choice.num_hashed_blocks, full):
            self.memory.pool.label(choice.blocks[block], digests[block])
        choice.num_hashed_blocks = full

    def _pass_on_prompt_logprobs(self, flight: InFlightStep, result: StepResult, batch: TokensBatch) -> None:
        """The client gets them as they come: those of a prompt still being prefilled by the row that computed them."""
        owners = flight.by_slot()
        for piece in result.prompt_logprobs:
            request = owners[piece.slot][0].request
            if _gathers(owners[piece.slot]) and piece.start == request.logprobs_told:
                request.logprobs_told += len(piece.positions)
                batch.parts.append(PromptPart(request.rid, piece.start, piece.positions))

    def _gather_pooled(self, flight: InFlightStep, result: StepResult) -> None:
        """The same for what was made of the whole of it."""
        owners = flight.by_slot()
        for row in result.pooled:
            if _gathers(owners[row.slot]):
                owners[row.slot][0].request.pooled = row.pooled

    def _gather_heard(self, flight: InFlightStep, result: StepResult) -> None:
        """The same for what the prompt's positions say of the audio."""
        owners = flight.by_slot()
        for row in result.heard:
            if _gathers(owners[row.slot]):
                owners[row.slot][0].request.gather_heard(row.heard)


def _gathers(owner: Owner) -> bool:
    """Whether what a row has said of its prompt is still waited for."""
    choice, row_generation, _, samples = owner
    # The row that drew the first token may have been lost since; its work still stands.
    current = choice.row_generation == row_generation or (choice.state is ChoiceState.PREEMPTED and samples)
    return current and not choice.request.prompt_done
