"""How long a worker may take for a step, or for an order between steps, before it is taken to hang.

::

    deadline = since + floor + factor * predicted

``since`` is when the step became the oldest in flight. A step that waits for its masks has this time until they are
sent, and the same time again afterwards, so both waits are bounded.

The prediction is the step's work times the learned seconds per unit of work. A unit is one position with few before it;
each :data:`_CONTEXT` positions before it add one more. An encoding of media, or a slice of one, counts as
:data:`_WINDOW` units. Three kinds of steps are measured apart: decode is bound by memory, prefill by arithmetic, and a
step with a slice takes as long as the slice may. The pace of a kind is seconds over work, both summed over its steps
with a fading weight. Until enough steps of a kind have run, a pace is assumed that only a large model on a slow machine
has.

While no step is in flight, the same holds for orders that the worker has not answered. A worker that reads adapters
says so once a second, so the files may be large and their disk slow. One that begins or writes a profile says nothing.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Literal, NamedTuple

import anyio

from stentor.protocols.ipc.actors import Profile, Profiled
from stentor.protocols.ipc.adapters import AdapterLoaded, DropAdapter, LoadAdapter, ReadsAdapters
from stentor.protocols.ipc.config import RecoveryConfig
from stentor.protocols.ipc.steps import StepPlan

from ..sharing.co_tenants import CoTenants
from .worker_group import WorkerGroup
from .worker_life import Sleep

_CONTEXT: Final = 4096
_WINDOW: Final = 1500
_FADE: Final = 0.98
_WARM_STEPS: Final = 4
_COLD_PACE: Final = 0.02
"""Seconds per unit."""
_COLD_MOST: Final = 15.0
"""Seconds per step."""
_ADAPTER_SECONDS: Final = 1.0
"""Predicted time between two messages of a worker that reads adapters."""
_PROFILE_SECONDS: Final = 30.0
"""Predicted time in which a profile is begun or written."""
_LOOK_SECONDS: Final = 1.0
"""Longest sleep between two checks of a deadline: the next step may have a much shorter deadline."""
_SECOND_LOOK_SECONDS: Final = 0.25
"""Seconds between finding a step overdue and checking again. If the engine itself was delayed, every deadline has
passed although results wait to be read."""
_STOOD_STILL_SECONDS: Final = 1.0
"""A check later than this means that this process was stopped (``docker pause``) or starved of CPU time."""

_Kind = Literal["decode", "prefill", "slices"]


class _Sent(NamedTuple):
    step: int
    kind: _Kind
    work: float
    lacks_masks: bool


class _Pace:
    """Learned seconds per unit of one kind of work."""

    __slots__ = ("_seconds", "_steps", "_work")

    def __init__(self) -> None:
        self._seconds = self._work = 0.0
        self._steps = 0

    def learn(self, work: float, seconds: float) -> None:
        self._seconds = self._seconds * _FADE + seconds
        self._work = self._work * _FADE + work
        self._steps += 1

    def predict(self, work: float) -> float:
        """Predicted seconds for ``work``."""
        seen = self._seconds / self._work * work if self._work else 0.0
        if self._steps >= _WARM_STEPS:
            return seen
        return max(seen, min(_COLD_PACE * work, _COLD_MOST))


class StepWatch:
    """Tracks the steps in flight and the deadline of the oldest. Learned paces outlive a worker."""

    def __init__(self, config: RecoveryConfig, clock: Callable[[], float]) -> None:
        self._floor = config.watchdog_seconds
        self._factor = config.watchdog_factor
        self._clock = clock
        self._paces: dict[_Kind, _Pace] = {"decode": _Pace(), "prefill": _Pace(), "slices": _Pace()}
        self._in_flight: deque[_Sent] = deque()
        self._adapters: set[int] = set()
        """Adapters that the worker is to read."""
        self._profile = False
        """Whether the worker is to begin or write a profile."""
        self._since = 0.0
        self._waited = 0.0
        """Seconds since then during which the oldest step lacked its masks."""

    @property
    def oldest(self) -> int | None:
        """Number of the step that the worker must complete next; None if none is in flight."""
        return self._in_flight[0].step if self._in_flight else None

    @property
    def deadline(self) -> float | None:
        """Time by the clock; None if the worker owes nothing or the watchdog is off."""
        if not self.owed or not self._floor:
            return None
        return self._since + self._waited + self._floor + self._factor * self._predicted()

    def _predicted(self) -> float:
        if self._in_flight:
            oldest = self._in_flight[0]
            return self._paces[oldest.kind].predict(oldest.work)
        return _PROFILE_SECONDS if self._profile else _ADAPTER_SECONDS

    @property
    def owed(self) -> str:
        """What the worker must do next, for a message; empty if nothing."""
        if self._in_flight:
            return "a step"
        return "a profile" if self._profile else "reading an adapter" if self._adapters else ""

    @property
    def overdue(self) -> bool:
        deadline = self.deadline
        return deadline is not None and deadline <= self._clock()

    @property
    def lacks_masks(self) -> bool:
        """Whether the masks of the oldest step have not been sent, so that the worker may wait for them."""
        return bool(self._in_flight) and self._in_flight[0].lacks_masks

    def sent(self, plan: StepPlan) -> None:
        """Record that a step was sent to the worker."""
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
        """Record that the masks of a step were sent; only the oldest matters."""
        if self.oldest == step and self._in_flight[0].lacks_masks:
            self._in_flight[0] = self._in_flight[0]._replace(lacks_masks=False)
            self._waited = self._clock() - self._since

    def completed(self, step: int) -> None:
        """Record the result of a step."""
        if self.oldest != step:
            return  # the scheduler reports the wrong step
        done = self._in_flight.popleft()
        # The forward may have run while the masks were late: the learned time is too short then, never too long.
        self._paces[done.kind].learn(done.work, self._clock() - self._since - self._waited)
        self._begin()

    def ordered(self, order: LoadAdapter | DropAdapter | Profile) -> None:
        """Record that an order was sent to the worker. A dropped adapter is not answered."""
        if not self.owed:
            self._begin()
        match order:
            case LoadAdapter(adapter=adapter):
                self._adapters.add(adapter.number)
            case Profile():
                self._profile = True
            case DropAdapter():
                pass

    def answered(self, answer: AdapterLoaded | ReadsAdapters | Profiled) -> None:
        """Record the answer to an order, or that the worker still reads adapters."""
        match answer:
            case AdapterLoaded(number=number):
                self._adapters.discard(number)
            case Profiled():
                self._profile = False
            case ReadsAdapters():
                pass
        if not self._in_flight:  # the steps of a worker may hang while its adapters are read
            self._begin()

    def excuse(self) -> None:
        """Restart the time of what the worker owes, which could not begin through no fault of its worker."""
        self._begin()

    def _begin(self) -> None:
        self._since = self._clock()
        self._waited = 0.0

    def lost(self) -> None:
        """Forget what the worker owes: it is gone."""
        self._in_flight.clear()
        self._adapters.clear()
        self._profile = False


class Watchdog:
    """Kills a worker whose oldest step or order is overdue. Recovery is that of any other death."""

    def __init__(
        self, config: RecoveryConfig, clock: Callable[[], float], sleep: Sleep, co_tenants: CoTenants | None
    ) -> None:
        """``co_tenants``: other engines on the worker's device. A worker that waits for the device does not hang."""
        self.steps = StepWatch(config, clock)
        self._wanted = anyio.Event()
        self._clock = clock
        self._sleep = sleep
        self._co_tenants = co_tenants

    def sent(self, plan: StepPlan) -> None:
        """Record that a step was sent to the worker."""
        self.steps.sent(plan)
        self._wanted.set()

    def ordered(self, order: LoadAdapter | DropAdapter | Profile) -> None:
        """Record that an order was sent to the worker."""
        self.steps.ordered(order)
        self._wanted.set()

    def masked(self, step: int) -> None:
        """Record that the masks of a step were sent."""
        self.steps.masked(step)
        self._wanted.set()

    async def run(
        self,
        worker_now: Callable[[], WorkerGroup],
        is_telling: Callable[[], bool],
        killed: Callable[[str], Awaitable[None]],
    ) -> None:
        """Watch until cancelled.

        Args:
            worker_now: the current worker.
            is_telling: whether a message to the client is being sent.
            killed: called with the reason after a worker was killed.
        """
        while True:
            await self._wanted.wait()
            deadline, step, worker = self.steps.deadline, self.steps.oldest, worker_now()
            if deadline is None:
                self._wanted = anyio.Event()
                continue
            if (left := deadline - self._clock()) > 0:
                await self._wait_to_look(min(left, _LOOK_SECONDS))
                continue
            if self.steps.lacks_masks and is_telling():
                self.steps.excuse()  # masks are sent after messages that the client does not read
                continue
            await self._wait_to_look(_SECOND_LOOK_SECONDS)
            if self.steps.oldest != step or worker_now() is not worker or not self.steps.overdue:
                continue
            why = f"the worker process hung in {self.steps.owed}: it was killed"
            worker.kill(why, hung=True)
            self.steps.lost()
            await killed(why)

    async def _wait_to_look(self, seconds: float) -> None:
        """Sleep, then restart the deadline if the worker waits for the device or this process stood still.

        A worker has the full time for a step from when it gets the device. If this process was stopped, the worker most
        likely was too.
        """
        until = self._clock() + seconds
        await self._sleep(seconds)
        stood_still = self._clock() - until > _STOOD_STILL_SECONDS
        if stood_still or (self._co_tenants is not None and self._co_tenants.worker_waits()):
            self.steps.excuse()
