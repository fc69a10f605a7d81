"""A live request at its client: the events for its reader, and the state to resubmit it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

import msgspec

from stentor.protocols.ipc.actors import (
    Append,
    EngineEvent,
    Fault,
    Finished,
    FinishReason,
    PromptDone,
    PromptPart,
    Resumed,
    SequenceExperts,
    SequenceTokens,
    Submit,
)

from ..channel.pieces import PromptParts
from ..core.grammar.constraint import is_constrained
from .media import StreamedMedia


class RoutedExperts:
    """The experts that computed a request's tokens: of the prompt once, and of each sequence's outputs.

    Repeated reports, after the loss of an engine, are ignored.
    """

    def __init__(self, first: int, prompt_len: int) -> None:
        """``first``: the first position asked for, at most ``prompt_len``."""
        self._prompt_len = prompt_len
        self._ends = {-1: first}
        self._data: dict[int, bytearray] = {}
        """By index of :class:`~stentor.protocols.ipc.actors.SequenceExperts`."""

    def add(self, routed: SequenceExperts) -> None:
        """Add experts. Positions behind a gap are dropped; :meth:`of` reports the gap."""
        known = self._ends.setdefault(routed.index, self._prompt_len)
        end = routed.start + routed.count
        if routed.start <= known < end:
            each = len(routed.data) // routed.count
            self._data.setdefault(routed.index, bytearray()).extend(routed.data[(known - routed.start) * each :])
            self._ends[routed.index] = end

    def of(self, index: int, drawn: int) -> bytes:
        """The experts of all positions from the first asked for that a sequence computed for ``drawn`` tokens.

        The last token is not computed. Raises ValueError if some are missing.
        """
        end = self._prompt_len + max(0, drawn - 1)
        known = min(self._ends[-1], self._prompt_len)
        if known == self._prompt_len:
            known = max(known, self._ends.get(index, 0))
        if known < end:
            raise ValueError(f"the engine told the experts of {known} of {end} positions")
        own = self._data.get(index, bytearray())
        if own:
            each = len(own) // (self._ends[index] - self._prompt_len)
            own = own[: (end - self._prompt_len) * each]
        return bytes(self._data.get(-1, b"")) + bytes(own)


class RequestStream:
    """Events of one request, in order for each sequence. Iterate until it ends, or call :meth:`abort`.

    Each item is the list of all events since the last one, with at most one of each kind a sequence, so that a slow
    reader only costs the memory of its tokens. If a reader is cancelled just when an item comes, that item is lost.

    Events that were added count as delivered: after the loss of an engine, :meth:`resubmission` makes the next one
    continue from there. Methods that readers do not need are for the :class:`.journal.Journal`.
    """

    __slots__ = (
        "_aborted",
        "_computed",
        "_events",
        "_experts",
        "_input",
        "_on_abort",
        "_on_append",
        "_open",
        "_parts",
        "_pooled",
        "_prompt_done",
        "_reader",
        "_submit",
        "_unread",
    )

    def __init__(
        self,
        submit: Submit,
        on_abort: Callable[["RequestStream", int], None],
        on_append: Callable[[Append], None] | None = None,
        streamed: StreamedMedia | None = None,
    ) -> None:
        """
        Args:
            on_abort: called with the index, or -1 for all, if an aborted sequence has not ended.
            on_append: called with audio appended to ``streamed``.
            streamed: the audio of a streaming transcription.
        """
        self._submit = submit
        self._on_abort = on_abort
        self._on_append = on_append
        self._input = streamed
        outputs = [[] for _ in submit.seeds] if submit.resumed is None else submit.resumed.outputs
        self._open: dict[int, list[int]] = {index: [*tokens] for index, tokens in enumerate(outputs)}
        """Delivered tokens of the sequences that have not ended."""
        self._aborted: set[int] = set()
        self._prompt_done = False
        self._parts: PromptParts | None = None
        self._pooled = self._computed = 0
        """Bytes of results of streamed audio, and positions computed, that the reader has been sent."""
        first = submit.params.routed_experts
        self._experts = None if first is None else RoutedExperts(first, len(submit.prompt))
        self._events: list[EngineEvent] = []
        self._unread: dict[int, SequenceTokens] = {}
        """Unread tokens by sequence, to which more are appended."""
        self._reader: asyncio.Future[list[EngineEvent]] | None = None

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[list[EngineEvent]]:
        # no coroutine around the future, which would cost time at every token
        reader = asyncio.get_running_loop().create_future()
        if self._events:
            reader.set_result(self._take())
        elif self._open:
            self._reader = reader
        else:
            reader.set_exception(StopAsyncIteration())
        return reader

    def abort(self, index: int = -1) -> None:
        """End one sequence, or all with -1; ignored for those that have ended or been aborted."""
        asked = self._open.keys() if index < 0 else self._open.keys() & {index}
        if asked <= self._aborted:
            return
        self._aborted.update(asked)
        self._on_abort(self, index)

    def append(self, pcm: bytes, *, last: bool = False) -> None:
        """Append streamed audio; with ``last`` it is complete. Ignored if the request has ended.

        Raises ValueError if the request has no streamed audio, if it is complete already, or beyond
        ``MAX_STREAM_BYTES``; and :class:`..channel.arena.ArenaFull`.
        """
        if self._input is None or self._on_append is None:
            raise ValueError("the request was submitted without streamed audio: nothing can be appended to it")
        pieces = self._input.append(pcm, last=last, live=bool(self._open))
        if self._open and (pcm or last):
            self._on_append(Append(self.rid, pieces, last))

    def routed_experts(self, index: int, drawn: int) -> bytes:
        """The experts of the prompt and of all but the last of a sequence's ``drawn`` tokens.

        They begin at the first position asked for; data as in :class:`~stentor.protocols.ipc.steps.RowExperts`. Raises
        ValueError if the request did not ask for experts, or if some are missing.
        """
        if self._experts is None:
            raise ValueError("the request did not ask for its experts")
        return self._experts.of(index, drawn)

    # ---- for the journal

    @property
    def rid(self) -> int:
        return self._submit.rid

    @property
    def needs_vocabulary(self) -> bool:
        """Whether the engine needs the vocabulary to serve it."""
        return is_constrained(self._submit)

    @property
    def name(self) -> str:
        """The request's id in logs."""
        return self._submit.name

    @property
    def open_indices(self) -> list[int]:
        """Sequences that have not ended."""
        return [*self._open]

    @property
    def delivered(self) -> int:
        """Delivered tokens of the sequences that have not ended."""
        return sum(map(len, self._open.values()))

    @property
    def open_sequences(self) -> int:
        """Number of sequences that have not ended."""
        return len(self._open)

    def push_part(self, part: PromptPart) -> bool:
        """Keep a part that comes ahead of the prompt's event. Of streamed audio, what it has that is new is an event;
        returns as the next three methods do."""
        if self._prompt_done or not self._open:
            return False
        if not part.computed:
            self._parts = self._parts or PromptParts()
            self._parts.add(part)
            return False
        known = self._pooled
        self._pooled = max(known, part.start + len(part.pooled))
        self._computed = max(self._computed, part.computed)
        data = part.pooled[known - part.start :] if known > part.start else part.pooled
        last = self._events[-1] if self._events else None
        if isinstance(last, PromptPart):  # the reader has not read it
            self._events[-1] = PromptPart(self.rid, last.start, [], last.pooled + data, self._computed)
            return False
        self._events.append(PromptPart(self.rid, known, [], data, self._computed))
        return len(self._events) == 1

    def push_experts(self, event: SequenceExperts) -> None:
        """Keep experts, which the reader asks for after a sequence has ended."""
        if self._experts is not None and self._open:
            self._experts.add(event)

    def push_prompt(self, event: PromptDone) -> bool:
        """Add an event. As for the next two methods, returns whether it is the first unread one, so that the reader
        must be woken."""
        if self._prompt_done or not self._open:
            return False
        self._prompt_done = True
        parts, self._parts = self._parts or PromptParts(), None
        self._events.append(parts.joined(event))
        return len(self._events) == 1

    def push_tokens(self, event: SequenceTokens) -> bool:
        """Add tokens to the sequence's unread event, or as a new event."""
        index = event.index
        delivered = self._open.get(index)
        if delivered is None:
            return False
        delivered.extend(event.tokens)
        unread = self._unread.get(index)
        if unread is not None and _append(unread, event):
            return False
        self._unread[index] = event
        self._events.append(event)
        return len(self._events) == 1

    def push_end(self, event: Finished) -> bool:
        if self._open.pop(event.index, None) is None:
            return False
        self._events.append(event)
        return len(self._events) == 1

    def wake(self) -> None:
        """Give the unread events to the reader, if one waits."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(self._take())

    def end(self, reason: FinishReason, why: str | None, fault: Fault = "") -> None:
        """End every open sequence."""
        for index in sorted(self._open):
            self.push_end(Finished(self.rid, index, reason, None, why, fault))
        self.wake()

    def end_aborted(self) -> list[int]:
        """End the aborted sequences, since no engine will; returns their indices."""
        ended = sorted(self._open.keys() & self._aborted)
        for index in ended:
            self.push_end(Finished(self.rid, index, "abort", None, None))
        self.wake()
        return ended

    def resubmission(self) -> Submit:
        """The request in its present state, for another engine to continue.

        Valid until events are added, because it shares the lists of tokens.
        """
        submit = self._submit
        if self._input is not None:
            submit = msgspec.structs.replace(submit, streamed=self._input.streamed())
        sequences = range(len(submit.seeds))
        ended = [index for index in sequences if index not in self._open]
        if not self._prompt_done and not ended:
            return submit
        outputs = [self._open.get(index, []) for index in sequences]
        return msgspec.structs.replace(submit, resumed=Resumed(outputs, ended, self._prompt_done))

    def _take(self) -> list[EngineEvent]:
        events, self._events = self._events, []
        self._unread.clear()
        return events


def _append(unread: SequenceTokens, event: SequenceTokens) -> bool:
    """Append the tokens of one event to another; False if only one of them has log-probabilities."""
    if unread.logprobs is None:
        if event.logprobs is not None:
            return False
    elif event.logprobs is None:
        return False
    else:
        unread.logprobs.extend(event.logprobs)
    unread.tokens.extend(event.tokens)
    return True
