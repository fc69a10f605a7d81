"""The events of one response as they come, and whoever reads them: from any place, while they come and afterwards."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Final

import msgspec

from ..store import responses as table
from ..store.database import Database

FLUSH_SECONDS: Final = 0.05
"""How often they are written where that must happen before anybody reads them."""
FLUSH_BYTES: Final = 256 << 10
"""How much is held in memory where it need not."""

Steps = list[list[int]]
"""Tokens of one choice, as they were delivered."""


class EventLog:
    """Events have the sequence numbers from ``first`` on. What is in the store is not held in memory.

    Where the store outlives the server and the response goes on after its end (``ahead``), nobody is shown an event
    before it is written: otherwise it could come again, after a restart, as another one.
    """

    def __init__(self, store: Database | None, response: str, *, ahead: bool = False, first: int = 0) -> None:
        """``store`` None keeps all of them in memory."""
        self._store = store
        self._response = response
        self._ahead = ahead
        self._base = first
        """Sequence number of the first one that is held."""
        self._held: list[bytes] = []
        self._steps: Steps = []
        self._bytes = 0
        self._changed = asyncio.Event()
        self._flushing = asyncio.Lock()
        self.ended = False
        self.failure: Exception | None = None
        """Raised to readers that have read everything, in place of an end."""

    @property
    def end(self) -> int:
        """The sequence number that the next event has."""
        return self._base + len(self._held)

    @property
    def full(self) -> bool:
        """Whether it is time to :meth:`flush`."""
        return self._store is not None and self._bytes >= FLUSH_BYTES

    def add(self, events: Sequence[bytes]) -> None:
        self._held += events
        self._bytes += sum(map(len, events))
        if not self._ahead:
            self._wake()

    def add_step(self, tokens: list[int]) -> None:
        """Tokens that events added from now on come from."""
        self._steps.append(tokens)

    def close(self, failure: Exception | None = None) -> None:
        """Nothing more comes."""
        self.ended = True
        self.failure = failure
        self._wake()

    async def flush(self) -> None:
        """Writes what is held. Raises StoreFailed."""
        store = self._store
        if store is None:
            return
        async with self._flushing:
            events, steps = len(self._held), len(self._steps)
            if not events:
                return
            first, held = self._base, b"\n".join(self._held)
            packed = zlib.compress(held, 1), zlib.compress(msgspec.json.encode(self._steps), 1)
            await store.write(partial(_add, response=self._response, first=first, packed=packed))
            del self._held[:events], self._steps[:steps]
            self._base += events
            self._bytes -= len(held) - events + 1
            self._wake()

    async def flush_for_ever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

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


def _add(db: "table.sqlite3.Connection", *, response: str, first: int, packed: tuple[bytes, bytes]) -> None:
    table.add_events(db, response, first, *packed)


def unpacked(stretch: bytes) -> list[bytes]:
    """The events of one stored stretch."""
    return zlib.decompress(stretch).split(b"\n")


def unpacked_steps(stretch: bytes) -> Steps:
    return msgspec.json.decode(zlib.decompress(stretch), type=Steps)


async def stored_events(
    store: Database, response: str, wanted: int, before: int | None = None
) -> AsyncGenerator[list[bytes], None]:
    """Those from number ``wanted`` on, up to ``before`` or as many as are stored. Raises StoreFailed."""
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
