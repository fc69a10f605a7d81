"""Whether an engine process still turns, not only whether it lives."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio

_TICK_SECONDS = 1.0
_TICKS = 8
"""That a shorter limit is divided into."""


class Heartbeat:
    """Asks an engine that has said nothing for a while to say something; one that stays silent hangs.

    It is only asked while it has requests, so that an idle server sleeps. Silence is counted in ticks rather than
    read from a clock: if this process stood still itself, that is one tick and no more.
    """

    def __init__(self, limit: float, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        """``limit``: seconds of silence; 0 is for ever."""
        self._limit = limit
        self._sleep = sleep
        self._heard = 0
        self._busy = asyncio.Event()

    def heard(self) -> None:
        """The engine has said something."""
        self._heard += 1

    def wake(self) -> None:
        """There may be requests again."""
        self._busy.set()

    async def stopped(self, busy: Callable[[], bool], ask: Callable[[], None]) -> None:
        """Returns once the engine is ``busy`` and has been silent too long though it was asked."""
        if not self._limit:
            await anyio.sleep_forever()
        tick = min(_TICK_SECONDS, self._limit / _TICKS)
        silence, heard = 0.0, self._heard
        while silence < self._limit:
            await self._sleep(tick)
            if self._heard != heard:
                silence, heard = 0.0, self._heard
            elif busy():
                silence += tick
                ask()
            else:
                self._busy.clear()
                await self._busy.wait()
                silence = 0.0
