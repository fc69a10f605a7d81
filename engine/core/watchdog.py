"""How long a step may take before its worker is taken to hang: learned from the steps before, as plain arithmetic.

::

    deadline = since + floor + factor * predicted

``since`` is when the step became the oldest one in flight. One that waits for its masks has this time for them, and
from their coming on what it would have had without: neither half of a step is waited for without a bound. The
prediction is work times the seconds that a unit of such work has taken. A unit is one position with few before it;
each further :data:`_CONTEXT` before it add one more. A window of audio to be encoded counts as :data:`_WINDOW` of
them, and so does a slice of an encoding. Steps with prefill and steps of decode alone are measured apart, for one is
bound by arithmetic and the other by memory, and steps with slices too, which take as long as a slice may; in each kind
the pace is seconds over work, summed over the latest steps with a weight that fades. Until enough steps of a kind have
been seen a pace is assumed that only a large model on a slow machine has.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from stentor.protocols.ipc.config import RecoveryConfig
from stentor.protocols.ipc.steps import StepPlan

_CONTEXT: Final = 4096
_WINDOW: Final = 1500
_FADE: Final = 0.98
_WARM_STEPS: Final = 4
_COLD_PACE: Final = 0.02
"""Seconds a unit."""
_COLD_MOST: Final = 15.0
"""Seconds a step."""


_Kind = Literal["decode", "prefill", "slices"]


class _Sent(NamedTuple):
    step: int
    kind: _Kind
    work: float
    lacks_masks: bool


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
        self._paces: dict[_Kind, _Pace] = {"decode": _Pace(), "prefill": _Pace(), "slices": _Pace()}
        self._in_flight: deque[_Sent] = deque()
        self._since = 0.0
        self._waited = 0.0
        """Seconds since then for which the oldest step lacked its masks."""

    @property
    def oldest(self) -> int | None:
        """The step that the worker must complete next."""
        return self._in_flight[0].step if self._in_flight else None

    @property
    def deadline(self) -> float | None:
        """By the clock; None while nothing is in flight, or where nobody is ever taken to hang."""
        if not self._in_flight or not self._floor:
            return None
        oldest = self._in_flight[0]
        predicted = self._paces[oldest.kind].predict(oldest.work)
        return self._since + self._waited + self._floor + self._factor * predicted

    @property
    def overdue(self) -> bool:
        deadline = self.deadline
        return deadline is not None and deadline <= self._clock()

    @property
    def lacks_masks(self) -> bool:
        """Whether the masks of the oldest step have not been sent, so that the worker may wait for them."""
        return bool(self._in_flight) and self._in_flight[0].lacks_masks

    def sent(self, plan: StepPlan) -> None:
        """A step goes to the worker."""
        work = float(_WINDOW * len(plan.encode))
        prefill = bool(plan.encode)
        for row in plan.rows:
            work += (row.count + row.num_drafts) * (1 + (row.start + row.count) / _CONTEXT)
            prefill |= row.count > 1
        kind: _Kind = "prefill" if prefill else "decode"
        if any(job.sliced for job in plan.encode):
            kind = "slices"
        if not self._in_flight:
            self._begin()
        self._in_flight.append(_Sent(plan.step, kind, work, bool(plan.masked)))

    def masked(self, step: int) -> None:
        """The masks of the oldest step have been sent."""
        if self.oldest == step and self._in_flight[0].lacks_masks:
            self._in_flight[0] = self._in_flight[0]._replace(lacks_masks=False)
            self._waited = self._clock() - self._since

    def completed(self, step: int) -> None:
        """The result of a step has come."""
        if self.oldest != step:
            return  # the scheduler says what is wrong with it
        done = self._in_flight.popleft()
        # a step whose masks are late has run its forward meanwhile: less is learned than it took, never more
        self._paces[done.kind].learn(done.work, self._clock() - self._since - self._waited)
        self._begin()

    def excuse(self) -> None:
        """The oldest step has not been begun yet, through no fault of its worker."""
        self._begin()

    def _begin(self) -> None:
        self._since = self._clock()
        self._waited = 0.0

    def lost(self) -> None:
        """The worker is gone, and with it all that was in flight."""
        self._in_flight.clear()
