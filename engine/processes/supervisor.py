"""Supervision: children run in one task group; each has a policy for what follows its failure.

A child is any async callable that returns when it is done and raises when it failed, as an actor's
``run`` does. When a child may not be started again, the supervisor's task group ends: the siblings
are cancelled, and :class:`ChildFailed` is raised (in an exception group, as task groups do) to the
supervisor's own owner. So failures climb the tree.
"""

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

import anyio


class Restart(Enum):
    NEVER = "never"
    ON_FAILURE = "on_failure"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """What follows a failure. Delays and spans are seconds."""

    restart: Restart = Restart.NEVER
    max_failures: int = 5
    """Failures in a row after which the child is given up. Progress ends a row: see :meth:`ChildStatus.progressed`."""
    first_delay: float = 0.1
    """Before the start that follows the second failure in a row; the one after the first follows at once."""
    delay_factor: float = 2.0
    max_delay: float = 10.0
    healthy_after: float = math.inf
    """A life at least this long ends the row of failures, too."""

    def delay(self, failures: int) -> float:
        """How long to wait before the start that follows the ``failures``-th failure in a row."""
        if failures <= 1:
            return 0.0
        exponent = min(failures - 2, 1000)
        try:
            return min(self.first_delay * self.delay_factor**exponent, self.max_delay)
        except OverflowError:
            return self.max_delay


class Phase(Enum):
    RUNNING = "running"
    BACKING_OFF = "backing off"
    DONE = "done"
    GIVEN_UP = "given up"


@dataclass(slots=True)
class ChildStatus:
    """Where a child stands; written by its supervisor, and by :meth:`progressed`."""

    name: str
    phase: Phase = Phase.RUNNING
    starts: int = 0
    failures: int = 0
    """In a row."""
    last_error: Exception | None = None
    excused: bool = False
    """Whether the next failure is not counted."""

    def excuse(self) -> None:
        """The failure that the child is about to raise says nothing of it: it does not count as one of a row."""
        self.excused = True

    def progressed(self) -> None:
        """The child has done what it is for: the failures before are no row with those to come."""
        self.failures = 0


class PermanentFailure(Exception):
    """Raised by a child that would fail in the same way if it were started again, so that it is not."""


class ChildFailed(Exception):
    """A child failed and is not started again; the failure is the cause."""

    def __init__(self, name: str, failures: int) -> None:
        times = "" if failures == 1 else f" {failures} times in a row"
        super().__init__(f"{name} failed{times} and is not started again")
        self.name = name
        self.failures = failures


class Supervisor:
    """Runs children while its ``async with`` block lasts; leaving the block waits for all of them."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        report: Callable[[ChildStatus], None] | None = None,
    ) -> None:
        """``report`` is called at every change of phase, for logs and metrics."""
        self._clock = clock
        self._sleep = sleep
        self._report = report
        self._tasks = anyio.create_task_group()
        self.children: dict[str, ChildStatus] = {}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._tasks.__aexit__(kind, error, traceback)

    def start(
        self, name: str, child: Callable[[], Awaitable[None]], policy: RestartPolicy | None = None
    ) -> ChildStatus:
        """Run ``child()`` under ``policy`` (default: never restarted); each start calls it anew."""
        if name in self.children:
            raise ValueError(f"a child named {name!r} is already supervised")
        status = self.children[name] = ChildStatus(name)
        self._tasks.start_soon(self._keep, status, child, policy or RestartPolicy(), name=name)
        return status

    def cancel(self) -> None:
        """Cancel every child."""
        self._tasks.cancel_scope.cancel()

    async def _keep(self, status: ChildStatus, child: Callable[[], Awaitable[None]], policy: RestartPolicy) -> None:
        while True:
            status.starts += 1
            self._enter(status, Phase.RUNNING)
            began = self._clock()
            try:
                await child()
            except Exception as error:
                status.last_error = error
                if self._clock() - began >= policy.healthy_after:
                    status.failures = 0
                status.failures += not status.excused
                status.excused = False
                final = policy.restart is Restart.NEVER or isinstance(error, PermanentFailure)
                if final or status.failures >= policy.max_failures:
                    self._enter(status, Phase.GIVEN_UP)
                    raise ChildFailed(status.name, status.failures) from error
            else:
                self._enter(status, Phase.DONE)
                return
            self._enter(status, Phase.BACKING_OFF)
            await self._sleep(policy.delay(status.failures))

    def _enter(self, status: ChildStatus, phase: Phase) -> None:
        status.phase = phase
        if self._report is not None:
            self._report(status)
