"""Measures how long a process that owes an answer has been silent, in CPU time that it got."""

import time
from collections.abc import Callable
from typing import Final

_STANDS_STILL: Final = 0.001
"""Share of a CPU below which a process is idle: one that waits for a CPU gets more."""
_LEAST: Final = 0.1
"""Least share of the time that counts, so that the wait for a starved process is bounded."""


class Silence:
    """Silence, counted from one look to the next.

    A look counts at most twice the CPU time that the process got in it: killing a starved process, and loading another,
    would only take more from whatever starves it. If it got none it hangs, and all of the time counts.
    """

    def __init__(
        self, cpu_seconds: Callable[[], float], longest_look: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            cpu_seconds: CPU time of the process so far.
            longest_look: seconds; a longer look counts as this, because the caller itself stood still.
        """
        self._cpu_seconds = cpu_seconds
        self._longest_look = longest_look
        self._clock = clock
        self.end()

    def end(self) -> None:
        """Reset: the process sent something, or got work."""
        self.seconds = 0.0
        """Seconds that count."""
        self.waited = 0.0
        """Seconds by the clock."""
        self._looked = self._clock()
        self._had = self._cpu_seconds()

    def look(self) -> None:
        now, had = self._clock(), self._cpu_seconds()
        passed, used = min(now - self._looked, self._longest_look), had - self._had
        self._looked, self._had = now, had
        self.waited += passed
        self.seconds += passed if used < _STANDS_STILL * passed else min(passed, max(2 * used, _LEAST * passed))
