"""Rate of partial transcripts: lower with more callers and a slower model.

Final transcripts come first: while one waits, a partial one begins only now and then, so that a caller with constant
turns does not block others' partial transcripts.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import anyio

MIN_SECONDS: Final = 0.5
"""Between the beginnings of two hypotheses of one turn."""
MAX_SECONDS: Final = 15.0
AT_ONCE: Final = 2
"""Most hypotheses that are computed at the same time."""
SHARE: Final = 0.5
"""Fraction of the model's rate at this concurrency; the rest is for final transcripts."""
PATIENCE_SECONDS: Final = 5.0
"""Longest time for which a partial transcript lets final ones go first."""
_WEIGHT: Final = 0.3
"""Weight of the last hypothesis in the mean duration."""


class PartialPace:
    """Shared by all sessions that one model transcribes."""

    def __init__(
        self,
        observe: Callable[[float], object] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``observe`` gets the seconds between two hypotheses of one turn."""
        self._clock = clock
        self.observe: Final = observe
        self._listening = 0
        """Turns that are being guessed at."""
        self._cost = 0.0
        self._slots = anyio.Semaphore(AT_ONCE)
        self._awaited = 0
        self._nothing_awaited = anyio.Event()

    @property
    def interval(self) -> float:
        """Seconds from one hypothesis of a turn to the next."""
        return min(MAX_SECONDS, max(MIN_SECONDS, self._cost * self._listening / (AT_ONCE * SHARE)))

    def join(self) -> None:
        """Count one more turn, until :meth:`leave`."""
        self._listening += 1

    def leave(self) -> None:
        self._listening -= 1

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Around the wait for a final transcript: partial ones let it go first."""
        self._awaited += 1
        try:
            yield
        finally:
            self._awaited -= 1
            if not self._awaited:
                self._nothing_awaited.set()
                self._nothing_awaited = anyio.Event()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A slot for one hypothesis, in the order of requests. Measures its time, unless it is cancelled."""
        async with self._slots:
            with anyio.move_on_after(PATIENCE_SECONDS):
                while self._awaited:
                    await self._nothing_awaited.wait()
            began = self._clock()
            yield
            took = self._clock() - began
        self._cost = took if not self._cost else self._cost + _WEIGHT * (took - self._cost)
