"""Long work on the event loop, in slices of a few milliseconds.

A thread would not help: encoding holds the interpreter's lock throughout. So a slice runs, the loop serves its sockets,
and the work continues. All requests with such work together run one slice between two turns of the loop, in order.
"""

import asyncio
from collections import deque
from typing import Final

SLICE_ENTRIES: Final = 2048
"""Log-probabilities that are written in one slice: 1 to 3 ms."""
SLICE_BYTES: Final = 1 << 20
"""Bytes of text or numbers that are encoded in one slice."""


class LoopTurns:
    """One serves all requests of a server."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._handing = False

    async def take(self) -> None:
        """Returns when the next slice may be done, at once."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._handing:
            self._handing = True
            loop.call_soon(self._hand, loop)
        await turn

    def _hand(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # a cancelled waiter has gone
                turn.set_result(None)
                loop.call_soon(self._hand, loop)
                return
        self._handing = False


class Slices:
    """One piece of long work."""

    def __init__(self, loop_turns: LoopTurns) -> None:
        self._loop_turns = loop_turns
        self._done = 0

    async def did(self, amount: int) -> None:
        """Counts ``amount`` of work; waits for a turn once that is enough for one."""
        self._done += amount
        if self._done >= SLICE_BYTES:
            self._done = 0
            await self._loop_turns.take()
