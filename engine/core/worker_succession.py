"""Reads the results of the engine's worker, and starts the next worker after a loss.

What happens is reported to the engine loop, which alone decides when a successor may start::

    results ── lost ──► WorkerDown ── its delay is set and over ──► start ── ready ──► WorkerUp, results
       │                    ▲                                         │
       │                    └────────── lost while it starts ─────────┤
       └── lost, and the process does not die ──► WorkerStuck ◄───────┘
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import anyio

from stentor.protocols.ipc.actors import Profiled, Progress, WorkerReady
from stentor.protocols.ipc.adapters import AdapterLoaded, ReadsAdapters
from stentor.protocols.ipc.steps import StepResult

from .operator import ASLEEP, Operator, WeightsOwner
from .watchdog import Watchdog
from .worker_group import WorkerGroup
from .worker_life import OnProgress, Sleep, WorkerLost


class WorkerDown(NamedTuple):
    """The worker is dead, or its successor failed to start."""

    why: str
    hung: bool
    delay: asyncio.Future[float]
    """Set by the loop: seconds to wait before the next start."""
    blameless: bool
    """Whether the cause is known not to be a request."""
    retired: bool = False
    """Whether it is a successor whose start was ended because the engine is to sleep."""


class WorkerStuck(NamedTuple):
    """The worker was killed but does not die; a successor could not get the memory that it holds."""

    why: str
    hung: bool


class WorkerUp(NamedTuple):
    """The next worker is ready."""

    ready: WorkerReady


WorkerMessage = StepResult | AdapterLoaded | Profiled | WorkerDown | WorkerStuck | WorkerUp


class Workers(WeightsOwner, Protocol):
    """Where workers come from (:class:`.entry.WorkerKeeper`)."""

    async def start(self, on_progress: OnProgress) -> tuple[WorkerGroup, WorkerReady]: ...


class WorkerSuccession:
    """The engine's worker group, and those that follow it."""

    def __init__(
        self,
        first: WorkerGroup,
        workers: Workers,
        operator: Operator,
        watchdog: Watchdog,
        *,
        report: Callable[[WorkerMessage], None],
        killed: Callable[[str], Awaitable[None]],
        sleep: Sleep,
    ) -> None:
        """
        Args:
            workers: starts successors of ``first``.
            operator: whether a start must end because the engine is to sleep.
            report: takes a message to the loop.
            killed: called with the reason after a worker was killed, whose process may take long to die.
            sleep: for the delay of a start.
        """
        self.worker = first
        """The current worker group. The caller of :meth:`run` ends it."""
        self._workers = workers
        self._operator = operator
        self._watchdog = watchdog
        self._report = report
        self._killed = killed
        self._sleep = sleep
        self._starting: anyio.CancelScope | None = None
        """Ends the start of the next worker; None unless one starts."""

    async def run(self) -> None:
        """Report results and losses until cancelled, or until a worker does not die."""
        while True:
            async with self.worker.guarded():
                lost: WorkerLost | None = await self._pump()
            await self.worker.end(0.0)
            while lost is not None:
                if lost.stuck:
                    self._report(WorkerStuck(str(lost), lost.hung))
                    return
                lost = await self._start_next(lost)

    def end_start(self) -> None:
        """End the start of the next worker, if one starts: the engine is to sleep."""
        if self._starting is not None:
            self._starting.cancel()

    async def _pump(self) -> WorkerLost:
        try:
            while True:
                for result in await self.worker.receive():
                    if isinstance(result, StepResult):
                        self._watchdog.steps.completed(result.step)
                    else:
                        self._watchdog.steps.answered(result)
                    if not isinstance(result, ReadsAdapters):
                        self._report(result)
                if self.worker.verdict is not None:
                    await self._killed(self.worker.verdict)
        except WorkerLost as lost:
            return lost

    async def _start_next(self, lost: WorkerLost) -> WorkerLost | None:
        """Start a successor of a lost worker. Returns how the successor was lost, or None if it is ready."""
        delay: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._report(WorkerDown(str(lost), lost.hung, delay, lost.graphs, lost.retired))
        seconds = await delay
        try:
            with anyio.CancelScope() as self._starting:
                if self._operator.asleep:  # again, before this task went on
                    self._starting.cancel()
                await self._sleep(seconds)
                self.worker, ready = await self._workers.start(_ignore)
                self._report(WorkerUp(ready))
                return None
        except WorkerLost as again:
            return again
        finally:
            self._starting = None
        return WorkerLost(ASLEEP, retired=True)


async def _ignore(progress: Progress) -> None:
    """Drop start-up progress: after the first start the client only learns that the engine is stalled."""
