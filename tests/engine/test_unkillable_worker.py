"""An engine whose worker cannot be killed, from its start to its last word; the worker is played."""

import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from stentor.engine.channel import Endpoint
from stentor.engine.core import entry
from stentor.engine.processes.process import Child
from stentor.protocols.ipc.actors import (
    EngineReady,
    Failed,
    Shutdown,
    Stalled,
    StartEngine,
    StartWorker,
    Submit,
    TokensBatch,
    WorkerReady,
)
from stentor.protocols.ipc.codec import decode_client, decode_worker, encoder
from stentor.protocols.ipc.config import EngineConfig, StepLimits, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan
from stentor.tests.engine.channel.harness import both_ends
from stentor.tests.engine.unkillable import Unkillable, unkillable

pytestmark = pytest.mark.anyio

LIMITS = StepLimits(
    block_size=16, max_num_seqs=8, max_num_batched_tokens=64, max_mixed_prefill_tokens=64, max_prefill_chunk=64
)


class PlayedWorkers:
    """In place of a source of workers: one, whose messages the test sends, and whose process does not die."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.endpoint: Endpoint | None = None
        self.started = 0

    async def start(self, fds: tuple[int, ...], rank: int, meeting_fd: int | None) -> Child:
        self.started += 1
        self.endpoint = Endpoint.attach([os.dup(fd) for fd in fds], os.getpid())
        return self.child

    def close(self) -> None:
        if self.endpoint is not None:
            self.endpoint.close()

    async def messages(self) -> list[object]:
        assert self.endpoint is not None
        return [decode_worker.decode(frame) for frame in await self.endpoint.receive()]

    def send(self, message: object) -> None:
        assert self.endpoint is not None
        assert self.endpoint.try_send(encoder.encode(message))


class Running:
    def __init__(self, client: Endpoint, workers: PlayedWorkers) -> None:
        self.client = client
        self.workers = workers
        self.seen: list[object] = []
        self.codes: list[int] = []

    async def until(self, kind: type) -> None:
        while not any(isinstance(each, kind) for each in self.seen):
            self.seen += [decode_client.decode(frame) for frame in await self.client.receive()]


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    """An engine in this process, whose worker is ready; it must end within the block."""
    with unkillable(Unkillable) as child, both_ends() as (client, engine), anyio.fail_after(60):
        workers = PlayedWorkers(child)
        monkeypatch.setattr(entry, "WorkerSource", lambda *_: workers)
        monkeypatch.setattr(entry, "set_up_logging", lambda *_: None)
        monkeypatch.setattr(gc, "freeze", lambda: None)
        monkeypatch.setattr(gc, "set_threshold", lambda *_: None)
        on = Running(client, workers)

        async def run() -> None:
            on.codes.append(await entry.run(engine))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            assert client.try_send(encoder.encode(StartEngine(EngineConfig(WorkerConfig("m")))))
            while workers.endpoint is None:
                await anyio.sleep(0.001)
            (message,) = await workers.messages()
            assert isinstance(message, StartWorker)
            workers.send(WorkerReady(64, 256, [], [], LIMITS))
            await on.until(EngineReady)
            yield on


async def test_an_engine_whose_worker_cannot_be_killed_says_so_and_ends_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # longer than `serving` allows: what was given up is not asked to end once more
    monkeypatch.setattr(entry, "_SHUTDOWN_SECONDS", 20.0)
    async with serving(monkeypatch) as on:
        submit = Submit(0, [1, 2, 3], SamplingParams(max_tokens=9), [1], 0, "", 0.0)
        assert on.client.try_send(encoder.encode(submit))
        assert any(isinstance(message, StepPlan) for message in await on.workers.messages())
        on.workers.send(Failed("the worker failed in step 0: RuntimeError"))
        await on.until(Failed)
    assert on.codes == [1]
    assert on.workers.started == 1
    ends = [each for each in on.seen if isinstance(each, Stalled | TokensBatch | Failed)]
    why = "the worker failed in step 0: RuntimeError"
    stuck = f"{why}; the process does not die"
    assert [type(each) for each in ends] == [Stalled, TokensBatch, Failed]
    assert isinstance(ends[0], Stalled)
    assert ends[0].message == why
    assert isinstance(ends[1], TokensBatch)
    assert [(end.reason, end.message) for end in ends[1].finished] == [("error", stuck)]
    assert ends[2] == Failed(stuck, final=True)


async def test_an_engine_that_is_told_to_end_ends_though_its_worker_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entry, "_SHUTDOWN_SECONDS", 0.01)
    async with serving(monkeypatch) as on:
        assert on.client.try_send(encoder.encode(Shutdown()))
    assert on.codes == [0]
    assert on.workers.child.given_up
