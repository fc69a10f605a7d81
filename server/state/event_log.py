"""The events of one response, and their readers: from any event, during the run and afterwards."""

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Final

import anyio
import msgspec

from stentor.protocols.ipc.steps import TokenLogprobs

from ..storage import responses as table
from ..storage.database import Database

FULL_BYTES: Final = 256 << 10
"""How much is held in memory before it is written."""
_KIND_BEGINS: Final = len(b'{"type":"')


def kind_of(event: bytes) -> bytes:
    """``type`` of an event, with which its JSON begins."""
    return event[_KIND_BEGINS : event.index(b'"', _KIND_BEGINS)]


class Step(msgspec.Struct, array_like=True, frozen=True):
    """Tokens as they were delivered together."""

    tokens: list[int]
    logprobs: list[TokenLogprobs] | None


class EventRange(msgspec.Struct, frozen=True):
    """Some events in a row, and the steps that they come from, as they are stored."""

    first: int
    events: bytes
    steps: bytes
    counts: tuple[int, int]
    """Numbers of events and of steps."""


class Diverged(Exception):
    """The recomputed events differ from the stored ones."""


class EventLog:
    """Events have sequence numbers from ``first`` on. Stored events are not kept in memory.

    If the store and the response survive the server (``ahead``), no event is sent before it is stored: otherwise a
    different event could follow under its number after a restart.
    """

    def __init__(self, store: Database | None, response: str, *, ahead: bool = False, first: int = 0) -> None:
        """``store``: destination of :meth:`written` events; None keeps all in memory."""
        self._store = store
        self._response = response
        self._ahead = ahead
        self._base = first
        """Sequence number of the first one that is held."""
        self._known: deque[bytes] = deque()
        self._known_steps = 0
        self._held: list[bytes] = []
        self._steps: list[Step] = []
        self._bytes = 0
        self._changed = asyncio.Event()
        self.ended = False
        self.failure: Exception | None = None
        """Raised to readers that have read everything, in place of an end."""

    def expect(self, events: Iterable[bytes], steps: int) -> None:
        """These events, in ``steps`` steps, are stored already and will be added again first."""
        self._known.extend(events)
        self._known_steps = steps
        self._base = len(self._known)

    @property
    def end(self) -> int:
        """The sequence number that the next event has."""
        return self._base + len(self._held)

    @property
    def full(self) -> bool:
        """Whether the held events should be stored."""
        return self._bytes >= FULL_BYTES

    def add(self, events: Sequence[bytes], step: Step | None = None) -> None:
        """More events, and the step that they come from. Raises Diverged where others were expected."""
        if self._known:
            events = [event for event in events if not self._is_known(event)]
        if self._known_steps and step is not None:
            self._known_steps -= 1
            step = None
        self._held += events
        self._bytes += sum(map(len, events))
        if step is not None:
            self._steps.append(step)
        if not self._ahead:
            self._wake()

    def hold(self) -> None:
        """From now on no event is sent before it is stored, because storing takes noticeably long."""
        self._ahead = True

    def _is_known(self, event: bytes) -> bool:
        if not self._known:
            return False
        known = self._known.popleft()
        kind = kind_of(event)
        if kind != kind_of(known) or (kind.endswith(b".delta") and event != known):
            raise Diverged
        return True

    def close(self, failure: Exception | None = None) -> None:
        """Nothing more comes."""
        self.ended = True
        self.failure = failure
        self._wake()

    async def stretch(self) -> EventRange | None:
        """Held events to be stored; None without any."""
        if not self._held:
            return None
        base, held, steps_now = self._base, self._held[:], self._steps[:]
        # compressing gives back the interpreter's lock
        events = await self._packed(lambda: b"\n".join(held))
        steps = await self._packed(lambda: msgspec.json.encode(steps_now))
        return EventRange(base, events, steps, (len(held), len(steps_now)))

    async def _packed(self, joined: Callable[[], bytes]) -> bytes:
        if self.full:
            return await anyio.to_thread.run_sync(lambda: zlib.compress(joined(), 1))
        return zlib.compress(joined(), 1)

    def written(self, stretch: EventRange) -> None:
        """It need not be held any longer."""
        events, steps = stretch.counts
        self._bytes -= sum(map(len, self._held[:events]))
        del self._held[:events], self._steps[:steps]
        self._base += events
        self._wake()

    async def stored_beyond(self, count: int) -> None:
        """Returns once more than ``count`` events are stored, or no more will follow."""
        while self._base <= count and not self.ended:
            await self._changed.wait()

    def ended_by_others(self) -> None:
        """One more event is stored than passed through here; those held here never will be."""
        self._held.clear()
        self._base += 1
        self._wake()

    async def read(self, after: int = -1) -> AsyncGenerator[list[bytes], None]:
        """The events that follow number ``after``, to the last one. Raises StoreFailed."""
        wanted = after + 1
        while True:
            changed = self._changed
            if wanted < self._base and self._store is not None:
                async for events in stored_events(self._store, self._response, wanted, self._base):
                    wanted += len(events)
                    yield events
                if wanted < self._base:
                    return  # deleted meanwhile
            elif (visible := self._visible(wanted)) and not (self._ahead and not self.ended):
                wanted += len(visible)
                if self._store is None:  # there is no other reader
                    self._held, self._base, self._bytes = [], wanted, 0
                yield visible
            elif self.ended:
                if self.failure is not None:
                    raise self.failure
                return
            else:
                await changed.wait()

    def _visible(self, wanted: int) -> list[bytes]:
        return self._held[wanted - self._base :]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def unpacked(stretch: bytes) -> list[bytes]:
    """The events of one stored stretch."""
    return zlib.decompress(stretch).split(b"\n")


def unpacked_steps(stretch: bytes) -> list[Step]:
    return msgspec.json.decode(zlib.decompress(stretch), type=list[Step])


async def stored_events(
    store: Database, response: str, wanted: int, before: int | None = None
) -> AsyncGenerator[list[bytes], None]:
    """Events from number ``wanted`` on, up to ``before`` or the last stored one. Raises StoreFailed."""
    while before is None or wanted < before:
        stretches = await store.read(lambda db, at=wanted: table.events(db, response, at))  # type: ignore[misc]
        progressed = False
        for first, packed in stretches:
            events = unpacked(packed)
            if first <= wanted < first + len(events):
                fresh = events[wanted - first :]
                wanted += len(fresh)
                progressed = True
                yield fresh
        if not progressed:
            return
