"""Two models on one device: both go on side by side, and one that hangs is not held against the other."""

import os
import signal
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from stentor.engine.processes.supervisor import Supervisor
from stentor.loadtest.processes import tree
from stentor.protocols.ipc.actors import SequenceTokens
from stentor.protocols.ipc.config import EngineConfig, RecoveryConfig, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.server.app.engines import Engines
from stentor.server.app.first_engine import first_engines
from stentor.server.config.model_registry import ModelRole

pytestmark = [pytest.mark.alone, pytest.mark.anyio, pytest.mark.timeout(120)]

_HOLDER = struct.Struct("<24xQ")
"""Counted from 1; 0 while it is free."""
_LONG = SamplingParams(max_tokens=150, temperature=0.0)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@asynccontextmanager
async def two_models(model: Path) -> AsyncIterator[Engines]:
    worker = WorkerConfig(str(model), device="cpu", max_model_len=512, kv_cache_memory=64 << 20)
    recovery = RecoveryConfig(watchdog_seconds=1.5, watchdog_factor=5.0)
    chat = EngineConfig(worker, recovery=recovery)
    other = msgspec.structs.replace(chat, worker=msgspec.structs.replace(worker, lease_member=1))
    configs: dict[ModelRole, EngineConfig] = {"chat": chat, "transcription": other}
    with first_engines(configs) as processes:
        engines = Engines(configs, processes, lambda progress, model: None)
        async with Supervisor() as supervisor:
            engines.start(supervisor)
            await engines.wait_started()
            try:
                yield engines
            finally:
                supervisor.cancel()


async def generate(engines: Engines, kind: ModelRole, out: list[int]) -> list[int]:
    async for events in engines.clients[kind].submit([1, 2, 3, 4], _LONG, [7]):
        for event in events:
            if isinstance(event, SequenceTokens):
                out += event.tokens
    return out


def leases() -> set[int]:
    """Descriptors of the leases that this process has made, for other tests too."""
    return {
        int(link.name)
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and "stentor-lease" in os.readlink(link)
    }


def holder(fd: int) -> int:
    return int(_HOLDER.unpack(os.pread(fd, _HOLDER.size, 0))[0])


async def stop_a_holder(fd: int, others: set[int]) -> int:
    """Stops a worker while it has the lease, however often that must be tried; its number, from 1.

    ``others`` are processes of servers that other tests have left running.
    """
    workers = [pid for pid in tree(os.getpid()) if pid not in others and _name(pid) == "stentor-worker"]
    assert len(workers) == 2
    for _ in range(100):
        for pid in workers:
            before = holder(fd)
            os.kill(pid, signal.SIGSTOP)
            await anyio.sleep(0.05)  # the other one would have done a step by now
            if before and holder(fd) == before:
                await anyio.sleep(0.2)
                if holder(fd) == before:
                    return before
            os.kill(pid, signal.SIGCONT)
            await anyio.sleep(0.01)
    raise AssertionError("no worker was ever stopped with the lease")


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


async def test_models_on_one_device_go_on_side_by_side_and_one_that_hangs_with_it_is_replaced_alone(
    demo_model: Path,
) -> None:
    others, before = {*tree(os.getpid())}, leases()
    async with two_models(demo_model) as engines:
        (lease,) = leases() - before
        expected = await generate(engines, "chat", [])
        assert len(expected) > 100
        outs: dict[ModelRole, list[int]] = {"chat": [], "transcription": []}
        async with anyio.create_task_group() as tasks:
            for kind, out in outs.items():
                tasks.start_soon(generate, engines, kind, out)
            while not all(len(out) > 10 for out in outs.values()):
                await anyio.sleep(0.01)
            stopped = await stop_a_holder(lease, others)
        assert outs == {"chat": expected, "transcription": expected}
        kills = [client.stats.watchdog_kills for _, client in engines]
        assert kills == [int(stopped == 1), int(stopped == 2)], "the one that waited was not taken to hang"
