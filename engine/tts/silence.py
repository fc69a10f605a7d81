"""For how long a process that owes an answer has said nothing, by the time that it was given for it."""

import time
from collections.abc import Callable
from typing import Final

_STANDS_STILL: Final = 0.001
"""Share of a CPU below which a process does nothing: one that waits for a CPU gets more than that."""
_LEAST: Final = 0.1
"""Share of the time that counts at least: even a starved process is not waited for without a bound."""


class Silence:
    """Counted from one look to the next. A look counts no more than twice the CPU time that the process has had in it:
    to kill one that is starved, and to load another, would only take more from those that starve. One that has had none
    hangs, and has all of the time counted."""

    def __init__(
        self, cpu_seconds: Callable[[], float], longest_look: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``cpu_seconds`` says what the process has had by now. A look that took more than ``longest_look`` seconds
        counts as that: the one who looks stood still itself, and so, most likely, did the process."""
        self._cpu_seconds = cpu_seconds
        self._longest_look = longest_look
        self._clock = clock
        self.end()

    def end(self) -> None:
        """The process has said something, or is given something to do."""
        self.seconds = 0.0
        """That count."""
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
