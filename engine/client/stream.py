"""A live request on the side of its client: what its reader is handed, and what a new engine would have to know."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

import msgspec

from stentor.protocols.ipc.actors import (
    Append,
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

Event = PromptDone | SequenceTokens | Finished


class RoutedExperts:
    """Which experts have computed a request's tokens: of the prompt once, and of what each sequence has drawn. What an
    engine tells again after another was lost is known already."""

    def __init__(self, first: int, prompt_len: int) -> None:
        """``first`` is the first position that was asked for, at most ``prompt_len``."""
        self._prompt_len = prompt_len
        self._ends = {-1: first}
        self._data: dict[int, bytearray] = {}
        """By index of :class:`~stentor.protocols.ipc.actors.SequenceExperts`."""

    def add(self, routed: SequenceExperts) -> None:
        """What comes behind a gap is dropped: :meth:`of` says what is missing, to the one who asks for it."""
        known = self._ends.setdefault(routed.index, self._prompt_len)
        end = routed.start + routed.count
        if routed.start <= known < end:
            each = len(routed.data) // routed.count
            self._data.setdefault(routed.index, bytearray()).extend(routed.data[(known - routed.start) * each :])
            self._ends[routed.index] = end

    def of(self, index: int, drawn: int) -> bytes:
        """Of the positions that a sequence has computed to draw so many tokens, from the first that was asked for on;
        the last token has not been computed. Raises ValueError where they have not all come."""
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
    """Events of one request, each sequence's in order. Iterate until it ends, or call :meth:`abort`.

    Each item is the list of everything that has come since the last one: at most one event of each kind
    a sequence, so that a slow reader costs the memory of the tokens and no more. A reader that is cancelled
    in the moment in which an item comes loses it.

    What has been added to those events counts as delivered: if the engine is lost, :meth:`resubmission` makes the
    next one go on from there. All that is no reader's business is the :class:`.journal.Journal`'s.
    """

    __slots__ = (
        "_aborted",
        "_events",
        "_experts",
        "_input",
        "_on_abort",
        "_on_append",
        "_open",
        "_parts",
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
        """``on_abort``: told of an abort, by index or -1 for all, that concerns a sequence which has not ended.

        ``on_append``: told of what is appended to ``streamed``, the audio of a streaming transcription.
        """
        self._submit = submit
        self._on_abort = on_abort
        self._on_append = on_append
        self._input = streamed
        outputs = [[] for _ in submit.seeds] if submit.resumed is None else submit.resumed.outputs
        self._open: dict[int, list[int]] = {index: [*tokens] for index, tokens in enumerate(outputs)}
        """Tokens delivered, by sequence, of those that have not ended."""
        self._aborted: set[int] = set()
        self._prompt_done = False
        self._parts: PromptParts | None = None
        first = submit.params.routed_experts
        self._experts = None if first is None else RoutedExperts(first, len(submit.prompt))
        self._events: list[Event] = []
        self._unread: dict[int, SequenceTokens] = {}
        """By sequence: its tokens among the events, where more are appended."""
        self._reader: asyncio.Future[list[Event]] | None = None

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[list[Event]]:
        # no coroutine around the future: it would be one more to walk through at every token
        reader = asyncio.get_running_loop().create_future()
        if self._events:
            reader.set_result(self._take())
        elif self._open:
            self._reader = reader
        else:
            reader.set_exception(StopAsyncIteration())
        return reader

    def abort(self, index: int = -1) -> None:
        """Ends one sequence, or with -1 all of them; what has ended or been aborted already is left alone."""
        asked = self._open.keys() if index < 0 else self._open.keys() & {index}
        if asked <= self._aborted:
            return
        self._aborted.update(asked)
        self._on_abort(self, index)

    def append(self, pcm: bytes, *, last: bool = False) -> None:
        """More of what the request hears, or with ``last`` the end of it; of a request that has ended nobody hears it.

        Raises ValueError where the request takes no such input, has had its end, or would have more than
        ``MAX_STREAM_BYTES``, and :class:`..channel.arena.ArenaFull`.
        """
        if self._input is None or self._on_append is None:
            raise ValueError("the request was submitted without streamed audio: nothing can be appended to it")
        pieces = self._input.append(pcm, last=last, live=bool(self._open))
        if self._open and (pcm or last):
            self._on_append(Append(self.rid, pieces, last))

    def routed_experts(self, index: int, drawn: int) -> bytes:
        """Which experts have computed the prompt and all but the last of so many tokens that a sequence has drawn, from
        the first position on that was asked for: :class:`~stentor.protocols.ipc.steps.RowExperts` one after another.

        Raises ValueError where they were not asked for, or are not all there.
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
        """Whether an engine must know the model's tokens to serve it."""
        return is_constrained(self._submit)

    @property
    def name(self) -> str:
        """In logs."""
        return self._submit.name

    @property
    def open_indices(self) -> list[int]:
        """Sequences that have not ended."""
        return [*self._open]

    @property
    def delivered(self) -> int:
        """Tokens of the sequences that have not ended."""
        return sum(map(len, self._open.values()))

    @property
    def open_sequences(self) -> int:
        """How many have not ended."""
        return len(self._open)

    def push_part(self, part: PromptPart) -> None:
        """Keeps what comes ahead of the prompt's event."""
        if not self._prompt_done and self._open:
            self._parts = self._parts or PromptParts()
            self._parts.add(part)

    def push_experts(self, event: SequenceExperts) -> None:
        """Keeps what the reader asks for when a sequence has ended."""
        if self._experts is not None and self._open:
            self._experts.add(event)

    def push_prompt(self, event: PromptDone) -> bool:
        """Adds an event, as the next two do; whether it is the first since the reader took all, so has to be woken."""
        if self._prompt_done or not self._open:
            return False
        self._prompt_done = True
        parts, self._parts = self._parts or PromptParts(), None
        self._events.append(parts.joined(event))
        return len(self._events) == 1

    def push_tokens(self, event: SequenceTokens) -> bool:
        """Adds tokens to those of the same sequence that nobody has read yet, or as an event of their own."""
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
        """Hands the reader what has been added, if one waits."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(self._take())

    def end(self, reason: FinishReason, why: str | None, fault: Fault = "") -> None:
        """Ends every sequence that is open."""
        for index in sorted(self._open):
            self.push_end(Finished(self.rid, index, reason, None, why, fault))
        self.wake()

    def end_aborted(self) -> list[int]:
        """Ends every sequence that has been aborted, and returns them: no engine is there to do it."""
        ended = sorted(self._open.keys() & self._aborted)
        for index in ended:
            self.push_end(Finished(self.rid, index, "abort", None, None))
        self.wake()
        return ended

    def resubmission(self) -> Submit:
        """What makes another engine go on after what has been delivered.

        Valid until something is added: it holds the very lists of tokens.
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

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        self._unread.clear()
        return events


def _append(unread: SequenceTokens, event: SequenceTokens) -> bool:
    """Adds the tokens of one event to another; false where only one of the two has log-probabilities."""
    if unread.logprobs is None:
        if event.logprobs is not None:
            return False
    elif event.logprobs is None:
        return False
    else:
        unread.logprobs.extend(event.logprobs)
    unread.tokens.extend(event.tokens)
    return True
