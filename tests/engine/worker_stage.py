"""A stage for the tests of a worker's life: an engine loop, workers that the test plays, and a clock that it moves."""

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from stentor.engine.channel import ChannelPair, Endpoint
from stentor.engine.core.loop import EngineLoop
from stentor.engine.core.scheduler import Scheduler
from stentor.engine.core.worker_group import WorkerGroup
from stentor.engine.core.worker_life import OnProgress, WorkerLife, WorkerLost
from stentor.engine.processes.process import Child
from stentor.engine.sharing.co_tenants import CoTenants
from stentor.protocols.ipc.actors import (
    Control,
    ControlDone,
    ControlOperation,
    Progress,
    Submit,
    WorkerReady,
)
from stentor.protocols.ipc.codec import decode_client, decode_worker, encoder
from stentor.protocols.ipc.config import EngineConfig, RecoveryConfig, StepLimits
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan
from stentor.tests.engine.channel.harness import both_ends
from stentor.tests.engine.loop_stage import Followers
from stentor.tests.engine.schedulers import CONFIG

LIMITS = StepLimits(
    block_size=16, max_num_seqs=8, max_num_batched_tokens=64, max_mixed_prefill_tokens=64, max_prefill_chunk=64
)
READY = WorkerReady(64, 256, [], [], LIMITS)


class Clock:
    """Time that passes when somebody moves it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self._moved = anyio.Event()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        until = self.now + seconds
        while self.now < until:
            await self._moved.wait()
        await anyio.lowlevel.checkpoint()

    async def run(self, seconds: float, look: float = 0.5) -> None:
        """Lets time pass for a process that runs and looks at the clock every ``look`` seconds."""
        until = self.now + seconds
        while (left := until - self.now) > 0:
            await self.move(min(left, look))

    async def move(self, seconds: float) -> None:
        """At once."""
        self.now += seconds
        moved, self._moved = self._moved, anyio.Event()
        moved.set()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()


@dataclass
class Played:
    """A worker whose process does nothing and whose messages the test sends."""

    life: WorkerLife
    worker: Endpoint
    process: Child
    group: WorkerGroup
    """Of it alone."""

    def send(self, message: object) -> None:
        assert self.worker.try_send(encoder.encode(message))

    async def plans(self) -> list[StepPlan]:
        found = [decode_worker.decode(frame) for frame in await self.worker.receive()]
        return [plan for plan in found if isinstance(plan, StepPlan)]

    async def orders(self) -> list[object]:
        """The next messages; waits for one."""
        with anyio.fail_after(60):
            return [decode_worker.decode(frame) for frame in await self.worker.receive()]


@asynccontextmanager
async def played(child: Child | None = None, patience: float = 1.0) -> AsyncIterator[Played]:
    pair = ChannelPair.create()
    process = child or Child(subprocess.Popen(["sleep", "60"]), "worker")
    try:
        pair.parent.watch(process.pid, process.pidfd)
        with Endpoint.attach([os.dup(fd) for fd in pair.child_fds], os.getpid()) as worker:
            life = WorkerLife(pair.parent, process, patience)
            yield Played(life, worker, process, WorkerGroup([life]))
            await life.end(0.0)
    finally:
        process.close()


async def ignore(progress: Progress) -> None:
    pass


@dataclass
class Stage:
    loop: EngineLoop
    client: Endpoint
    clock: Clock
    first: Played
    second: Played
    third: Played
    lost: list[WorkerLost] = field(default_factory=list)
    """What ended the loop."""
    seen: list[object] = field(default_factory=list)
    starts: int = 0
    """Successors whose start has begun."""
    may_start: anyio.Event = field(default_factory=anyio.Event)
    """Set: a start is done at once."""

    async def until(self, kind: type) -> None:
        with anyio.fail_after(60):
            while not any(isinstance(each, kind) for each in self.seen):
                self.seen += [decode_client.decode(frame) for frame in await self.client.receive()]

    def control(self, number: int, operation: ControlOperation) -> None:
        assert self.client.try_send(encoder.encode(Control(number, operation)))

    async def done(self, number: int) -> None:
        """Until the loop has answered this control."""
        with anyio.fail_after(60):
            while ControlDone(number) not in self.seen:
                self.seen += [decode_client.decode(frame) for frame in await self.client.receive()]

    def submit(self, tokens: int, prompt: int = 4) -> None:
        submit = Submit(0, list(range(prompt)), SamplingParams(max_tokens=tokens), [1], 0, "", 0.0)
        assert self.client.try_send(encoder.encode(submit))


@asynccontextmanager
async def stage(
    factor: float = 0.0,
    child: Child | None = None,
    co_tenants: CoTenants | None = None,
    max_deaths: int = 5,
    engine_config: EngineConfig = CONFIG,
) -> AsyncIterator[Stage]:
    """``child`` is the first worker's process."""
    clock = Clock()
    config = RecoveryConfig(max_deaths, watchdog_seconds=10.0, watchdog_factor=factor)
    scheduler = Scheduler(READY, engine_config)
    async with played(child) as first, played() as second, played() as third:
        followers = iter((second, third))

        async def start(on_progress: OnProgress) -> tuple[WorkerGroup, WorkerReady]:
            on.starts += 1
            await on.may_start.wait()
            return next(followers).group, READY

        with both_ends() as (client, engine):
            loop = EngineLoop(
                engine,
                first.group,
                Followers(start),
                scheduler,
                config,
                clock=clock,
                sleep=clock.sleep,
                co_tenants=co_tenants,
            )
            on = Stage(loop, client, clock, first, second, third)
            on.may_start.set()

            async def run() -> None:
                try:
                    await loop.run()
                except WorkerLost as lost:
                    on.lost.append(lost)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                yield on
                tasks.cancel_scope.cancel()
