"""Long work on the event loop, cut into slices of a few milliseconds.

A thread would be no help: encoding holds the interpreter's lock from beginning to end. What helps is to do a slice, let
the loop see to its sockets, and go on. However many requests have such work, all of them together do one slice between
two looks at the sockets, in the order in which they asked.
"""

import asyncio
from collections import deque
from typing import Final

SLICE_ENTRIES: Final = 2048
"""Log-probabilities that are written in one slice: 1 to 3 ms."""
SLICE_BYTES: Final = 1 << 20
"""Of text or numbers that are written in one slice."""


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
            if not turn.done():  # who was cancelled has gone
                turn.set_result(None)
                loop.call_soon(self._hand, loop)
                return
        self._handing = False


class Slices:
    """One piece of long work."""

    def __init__(self, turns: LoopTurns, most: int = SLICE_BYTES) -> None:
        """``most`` may be done at a time."""
        self._turns = turns
        self._most = most
        self._done = 0

    async def did(self, amount: int) -> None:
        """So much has been done; waits for a turn where that is enough for one."""
        self._done += amount
        if self._done >= self._most:
            self._done = 0
            await self._turns.take()
