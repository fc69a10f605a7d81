"""How long a step may take before its worker is taken to hang: learned from the steps before, as plain arithmetic.

::

    deadline = since + floor + factor * predicted

``since`` is when the step became the oldest one in flight. The prediction is work times the seconds that a unit of
such work has taken. A unit is one position with few before it; each further :data:`_CONTEXT` before it add one more.
Steps with prefill and steps of decode alone are measured apart, for one is bound by arithmetic and the other by memory;
in each kind the pace is seconds over work, summed over the latest steps with a weight that fades. Until enough steps of
a kind have been seen a pace is assumed that only a large model on a slow machine has.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from stentor.protocols.config import RecoveryConfig
from stentor.protocols.steps import StepPlan

_CONTEXT: Final = 4096
_FADE: Final = 0.98
_WARM_STEPS: Final = 4
_COLD_PACE: Final = 0.02
"""Seconds a unit."""
_COLD_MOST: Final = 15.0
"""Seconds a step."""


class _Pace:
    """Seconds a unit of one kind of work."""

    __slots__ = ("_seconds", "_steps", "_work")

    def __init__(self) -> None:
        self._seconds = self._work = 0.0
        self._steps = 0

    def learn(self, work: float, seconds: float) -> None:
        self._seconds = self._seconds * _FADE + seconds
        self._work = self._work * _FADE + work
        self._steps += 1

    def predict(self, work: float) -> float:
        """Seconds."""
        seen = self._seconds / self._work * work if self._work else 0.0
        if self._steps >= _WARM_STEPS:
            return seen
        return max(seen, min(_COLD_PACE * work, _COLD_MOST))


class StepWatch:
    """Knows the steps in flight and when the oldest of them is overdue. What it has learned outlives a worker."""

    def __init__(self, config: RecoveryConfig, clock: Callable[[], float]) -> None:
        self._floor = config.watchdog_seconds
        self._factor = config.watchdog_factor
        self._clock = clock
        self._paces = {True: _Pace(), False: _Pace()}
        """By whether a step has prefill."""
        self._in_flight: deque[tuple[int, bool, float]] = deque()
        """(step, whether it has prefill, work)."""
        self._since = 0.0

    @property
    def oldest(self) -> int | None:
        """The step that the worker must complete next."""
        return self._in_flight[0][0] if self._in_flight else None

    @property
    def deadline(self) -> float | None:
        """By the clock; None while nothing is in flight, or where nobody is ever taken to hang."""
        if not self._in_flight or not self._floor:
            return None
        _, prefill, work = self._in_flight[0]
        return self._since + self._floor + self._factor * self._paces[prefill].predict(work)

    def sent(self, plan: StepPlan) -> None:
        """A step goes to the worker."""
        work = 0.0
        prefill = False
        for row in plan.rows:
            work += row.count * (1 + (row.start + row.count) / _CONTEXT)
            prefill |= row.count > 1
        if not self._in_flight:
            self._since = self._clock()
        self._in_flight.append((plan.step, prefill, work))

    def completed(self, step: int) -> None:
        """The result of a step has come."""
        if self.oldest != step:
            return  # the scheduler says what is wrong with it
        _, prefill, work = self._in_flight.popleft()
        now = self._clock()
        self._paces[prefill].learn(work, now - self._since)
        self._since = now

    def lost(self) -> None:
        """The worker is gone, and with it all that was in flight."""
        self._in_flight.clear()
