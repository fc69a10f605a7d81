"""An engine loop between a client and a worker that a test plays."""

import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stentor.engine.channel import MAX_FRAME, ChannelPair, Endpoint
from stentor.engine.core.loop import EngineLoop
from stentor.engine.core.scheduler import Scheduler
from stentor.engine.core.worker_group import WorkerGroup
from stentor.engine.core.worker_life import OnProgress, WorkerLife
from stentor.engine.processes.process import Child
from stentor.protocols.ipc.actors import (
    ClientInbox,
    Finished,
    Stalled,
    Stats,
    Submit,
    TokensBatch,
    WorkerReady,
)
from stentor.protocols.ipc.codec import decode_client, decode_worker, encoder
from stentor.protocols.ipc.config import RecoveryConfig, Weights
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan
from stentor.tests.engine.channel.harness import both_ends
from stentor.tests.engine.odd_worker import answer
from stentor.tests.engine.schedulers import CONFIG, ready_of


@dataclass
class Stage:
    loop: EngineLoop
    client: Endpoint
    """The client's end of its channel."""
    worker: Endpoint
    """The worker's end of its channel."""
    process: Child
    """Whose death the loop takes for the worker's."""

    def submit(self, rid: int, *, tokens: int, prompt: int = 4) -> None:
        params = SamplingParams(max_tokens=tokens)
        message = Submit(rid, list(range(prompt)), params, [1], 0, "", 0.0)
        assert self.client.try_send(encoder.encode(message))

    async def plans(self, count: int) -> list[StepPlan]:
        found: list[StepPlan] = []
        while len(found) < count:
            for frame in await self.worker.receive():
                plan = decode_worker.decode(frame)
                assert isinstance(plan, StepPlan)
                found.append(plan)
        return found

    async def work(self) -> None:
        """Answers every plan at once."""
        while True:
            for plan in await self.plans(1):
                await self.worker.send(encoder.encode(answer(plan)))


@contextmanager
def stage(*, client_capacity: int = 1 << 16, num_blocks: int = 64, max_frame: int = MAX_FRAME) -> Iterator[Stage]:
    pair = ChannelPair.create()
    process = Child(subprocess.Popen(["sleep", "600"]), "worker")
    try:
        with (
            both_ends(client_capacity) as (client, engine_side),
            pair.parent as to_worker,
            _other_end(pair) as worker,
        ):
            to_worker.watch(process.pid, process.pidfd)
            scheduler = Scheduler(
                ready_of(
                    num_blocks=num_blocks,
                    block_size=16,
                    max_num_seqs=8,
                    max_num_batched_tokens=64,
                    max_model_len=256,
                ),
                CONFIG,
            )
            life = WorkerLife(to_worker, process)
            recovery = RecoveryConfig(max_worker_deaths=1)
            loop = EngineLoop(engine_side, WorkerGroup([life]), NO_OTHER, scheduler, recovery, max_frame=max_frame)
            yield Stage(loop, client, worker, process)
    finally:
        process.close()


class Followers:
    """The workers that follow the first one, as ``start`` starts them."""

    def __init__(self, start: Callable[[OnProgress], Awaitable[tuple[WorkerGroup, WorkerReady]]]) -> None:
        self._start = start

    async def start(self, on_progress: OnProgress) -> tuple[WorkerGroup, WorkerReady]:
        return await self._start(on_progress)

    def discard_weights(self) -> None:
        raise AssertionError("no weights are kept here")

    def use_weights(self, weights: Weights) -> None:
        raise AssertionError("there are no other weights here")

    def revert_weights(self) -> None:
        raise AssertionError("there are no other weights here")


async def _no_other(on_progress: OnProgress) -> tuple[WorkerGroup, WorkerReady]:
    raise AssertionError("one death is the end here")


NO_OTHER = Followers(_no_other)


def _other_end(pair: ChannelPair) -> Endpoint:
    return Endpoint.attach([os.dup(fd) for fd in pair.child_fds], os.getpid())


class Received:
    """What the client was sent, in order."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, Finished] = {}
        self.stats: Stats | None = None
        self.batches = 0

    def take(self, message: ClientInbox) -> None:
        if isinstance(message, Stats):
            self.stats = message
            return
        if isinstance(message, Stalled):
            return
        assert isinstance(message, TokensBatch)
        self.batches += 1
        for gained in message.tokens:
            assert gained.rid not in self.ends
            self.tokens.setdefault(gained.rid, []).extend(gained.tokens)
        for end in message.finished:
            assert end.rid not in self.ends
            self.ends[end.rid] = end

    async def until_ended(self, client: Endpoint, requests: int) -> None:
        while len(self.ends) < requests:
            for frame in await client.receive():
                self.take(decode_client.decode(frame))

    def take_all(self, client: Endpoint) -> None:
        for frame in client.try_receive():
            self.take(decode_client.decode(frame))
