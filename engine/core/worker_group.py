"""The workers that run one model together, from spawn to death.

::

              plans, masks ──► rank 0 ── results ──► engine
    engine ──┤                   ║  collectives
              plans, masks ──► rank 1 ── reports only failures

All workers get every plan and compute the same step, each with its part of the weights. Rank 0 sends the results. The
end of one ends all, since the others would wait for it in their next collective. The engine then recovers as from the
loss of one worker.

A group of one adds nothing to its worker.
"""

import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio
import msgspec

from stentor.protocols.ipc.actors import Profile, Progress, WorkerAnswer, WorkerReady
from stentor.protocols.ipc.adapters import DropAdapter, LoadAdapter
from stentor.protocols.ipc.cache_groups import HostSizes
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.steps import Masks, StepPlan

from .worker_life import OnProgress, Sleep, WorkerLife, WorkerLost
from .worker_source import WorkerSource

_CAUSE_SECONDS: Final = 1.0
"""Seconds to wait for the cause after a worker reported the loss of a peer, which may be noticed later."""


class WorkerGroup:
    """Presents several :class:`.worker_life.WorkerLife` as one. Its owner must :meth:`end` it."""

    def __init__(self, members: Sequence[WorkerLife]) -> None:
        """``members`` are in order of rank."""
        self._members = tuple(members)
        self._first, *self._others = members
        self._lost: list[WorkerLost] = []
        """Losses of workers other than rank 0."""
        self._cause: WorkerLost | None = None
        """The first of these losses that was not due to the loss of a peer."""
        self._caused, self._all_lost = anyio.Event(), anyio.Event()

    @classmethod
    async def spawn(cls, source: WorkerSource, size: int = 1, patience: float = 1.0) -> "WorkerGroup":
        """Start ``size`` processes; see :meth:`.worker_life.WorkerLife.spawn`.

        Raises :class:`.worker_life.WorkerLost`.
        """
        meeting = os.memfd_create("stentor-group") if size > 1 else None
        members: list[WorkerLife] = []
        try:
            for rank in range(size):
                members.append(await WorkerLife.spawn(source, rank, meeting, patience))
        except BaseException:
            for member in members:
                await member.end(0.0)
            raise
        finally:
            if meeting is not None:
                os.close(meeting)
        return cls(members)

    @property
    def verdict(self) -> str | None:
        """Why the group was killed; None if it was not, or if the cause is not known yet."""
        return self._first.verdict

    @property
    def graphs_failed(self) -> bool:
        """Whether a worker reported that it could not capture a CUDA graph."""
        return any(member.graphs_failed for member in self._members)

    async def start(
        self,
        config: WorkerConfig,
        on_progress: OnProgress,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = anyio.sleep,
    ) -> WorkerReady:
        """Wait until all workers are ready. The reported progress is that of the slowest.

        Raises :class:`.worker_life.WorkerLost`.
        """
        if not self._others:
            return await self._first.start(config, on_progress, clock=clock, sleep=sleep)
        slowest = _Slowest(on_progress)
        ready: dict[int, WorkerReady] = {}
        losses: list[WorkerLost] = []

        async def start_one(rank: int, member: WorkerLife) -> None:
            own = msgspec.structs.replace(config, rank=rank)
            try:
                ready[rank] = await member.start(own, partial(slowest.take, rank), clock=clock, sleep=sleep)
            except WorkerLost as lost:  # not through the group, which would wrap it
                losses.append(lost)
                tasks.cancel_scope.deadline = anyio.current_time() + (_CAUSE_SECONDS if lost.of_peer else 0.0)

        async with anyio.create_task_group() as tasks:
            for rank, member in enumerate(self._members):
                tasks.start_soon(start_one, rank, member)
        if losses:
            raise min(losses, key=lambda lost: lost.of_peer)
        return _merged([ready[rank] for rank in range(len(self._members))])

    async def send(self, message: StepPlan | Masks | LoadAdapter | DropAdapter | Profile) -> None:
        """Send a message to all workers; wait while a ring is full. Dead workers get nothing; :meth:`receive` raises
        for them."""
        frame = encoder.encode(message)
        for member in self._members:
            await member.send(frame)

    @asynccontextmanager
    async def guarded(self) -> AsyncIterator[None]:
        """Context in which the loss of any worker ends the group; call :meth:`receive` within."""
        if not self._others:
            yield
            return
        async with anyio.create_task_group() as tasks:
            for member in self._others:
                tasks.start_soon(self._guard, member)
            yield
            tasks.cancel_scope.cancel()

    async def receive(self) -> list[WorkerAnswer]:
        """Results of rank 0; see :meth:`.worker_life.WorkerLife.receive`.

        Raises :class:`.worker_life.WorkerLost` once all workers are dead or given up.
        """
        try:
            return await self._first.receive()
        except WorkerLost as lost:
            if not self._others:
                raise
            raise await self._end_with(lost) from None

    def kill(self, why: str, *, hung: bool = False) -> None:
        """Kill all workers. ``why`` is reported in place of the signal; the first reason stands."""
        for member in self._members:
            member.kill(why, hung=hung)

    async def end(self, grace: float) -> bool:
        """End all workers, by force after ``grace`` seconds; False if one does not die.

        May be called again.
        """
        if not self._others:
            return await self._first.end(grace)
        dead: list[bool] = []

        async def end_one(member: WorkerLife) -> None:
            dead.append(await member.end(grace))

        async with anyio.create_task_group() as tasks:
            for member in self._members:
                tasks.start_soon(end_one, member)
        return all(dead)

    async def _guard(self, member: WorkerLife) -> None:
        try:
            while True:
                if await member.receive():
                    self.kill("a worker that is not the first of its group has sent results")
        except WorkerLost as lost:
            self._lost.append(lost)
            if not lost.of_peer and self._cause is None:
                self._cause = lost
                self._caused.set()
            cause = await self._cause_of(lost)
            self.kill(str(cause), hung=cause.hung)
            if len(self._lost) == len(self._others):
                self._all_lost.set()

    async def _end_with(self, lost: WorkerLost) -> WorkerLost:
        """End the others after the loss of rank 0; returns the loss to report."""
        cause = await self._cause_of(lost)
        self.kill(str(cause))
        await self._all_lost.wait()
        stuck = any(each.stuck for each in (lost, *self._lost))
        return cause if stuck == cause.stuck else WorkerLost(str(cause), hung=cause.hung, stuck=stuck)

    async def _cause_of(self, lost: WorkerLost) -> WorkerLost:
        """The loss to report: that of the peer, if ``lost`` is due to one and it is found in time."""
        if lost.of_peer:
            with anyio.move_on_after(_CAUSE_SECONDS):
                await self._caused.wait()
        return self._cause if lost.of_peer and self._cause is not None else lost


class _Slowest:
    """Merges the progress of several workers: a phase is as far as the slowest of those that have begun it."""

    def __init__(self, tell: OnProgress) -> None:
        self._tell = tell
        self._done: dict[str, dict[int, int]] = {}
        """Progress by phase and rank."""
        self._reported: dict[str, int] = {}

    async def take(self, rank: int, progress: Progress) -> None:
        done = self._done.setdefault(progress.phase, {})
        done[rank] = progress.done
        least = min(done.values())
        if self._reported.get(progress.phase) != least:
            self._reported[progress.phase] = least
            await self._tell(Progress(progress.phase, least, progress.total))


def _merged(ready: Sequence[WorkerReady]) -> WorkerReady:
    """The limits that hold for all workers. Raises :class:`.worker_life.WorkerLost` if their shapes differ."""
    first = ready[0]
    for rank, other in enumerate(ready):
        if (other.limits, other.groups) != (first.limits, first.groups):
            raise WorkerLost(
                f"the worker of rank {rank} takes steps of {other.limits} and keeps {other.groups}; "
                f"that of rank 0 takes {first.limits} and keeps {first.groups}",
                final=True,
            )
    return msgspec.structs.replace(
        first,
        num_blocks=min(each.num_blocks for each in ready),
        max_model_len=min(each.max_model_len for each in ready),
        host=HostSizes(
            min(each.host.blocks for each in ready),
            sum(each.host.block_bytes for each in ready),
            min(each.host.states for each in ready),
            sum(each.host.state_bytes for each in ready),
        ),
        notes=[*first.notes, f"{len(ready)} workers split the model; memory is that of the first"],
    )
