"""Two models on one device: both go on side by side, and one that hangs is not held against the other."""

import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from stentor.engine.client.request import EngineRequest
from stentor.engine.processes.supervisor import Supervisor
from stentor.engine.sharing.lease import peek
from stentor.protocols.ipc.actors import SequenceTokens
from stentor.protocols.ipc.config import EngineConfig, RecoveryConfig, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.server.app.engines import Engines
from stentor.server.app.first_engine import first_engines
from stentor.server.config.model_registry import ModelRole
from stentor.tests.e2e.made_up import describe
from stentor.tests.e2e.processes import GUARD, below, locks_of, number_of

pytestmark = pytest.mark.anyio

_LONG = SamplingParams(max_tokens=500, temperature=0.0)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@asynccontextmanager
async def two_models(model: Path) -> AsyncIterator[Engines]:
    worker = WorkerConfig(
        str(model), load_format="dummy", device="cpu", max_model_len=1024, kv_cache_memory=64 << 20, threads=1
    )
    recovery = RecoveryConfig(watchdog_seconds=3.0)
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
    async for events in engines.clients[kind].submit(EngineRequest([1, 2, 3, 4], _LONG, [7])):
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


async def stop_a_holder(fd: int, workers: Mapping[int, int]) -> int:
    """Stops a worker while it has the lease and changes nothing of it; its number among ``workers``, which are numbers
    of members by process."""
    for _ in range(1000):
        for pid, number in workers.items():
            os.kill(pid, signal.SIGSTOP)
            while not _is_stopped(pid):
                await anyio.sleep(0.001)
            # what it does not do any more, it does not do: nothing of this changes before it goes on
            if peek(fd)[number].holds and GUARD not in locks_of(pid):
                return number
            os.kill(pid, signal.SIGCONT)
            await anyio.sleep(0.001)
    raise AssertionError("no worker was ever stopped with the lease")


def _is_stopped(pid: int) -> bool:
    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    return set(states) == {"T"}


@pytest.mark.proof  # its parts: engine/worker/test_device_lease.py
async def test_models_on_one_device_go_on_side_by_side_and_one_that_hangs_with_it_is_replaced_alone(
    tmp_path: Path,
) -> None:
    describe(tmp_path)
    others, before = {*below(os.getpid(), "worker")}, leases()
    async with two_models(tmp_path) as engines:
        (lease,) = leases() - before
        workers = {pid: number_of(pid) for pid in below(os.getpid(), "worker") if pid not in others}
        assert sorted(workers.values()) == [0, 1]
        expected = await generate(engines, "chat", [])
        assert len(expected) == _LONG.max_tokens
        outs: dict[ModelRole, list[int]] = {"chat": [], "transcription": []}
        async with anyio.create_task_group() as tasks:
            for kind, out in outs.items():
                tasks.start_soon(generate, engines, kind, out)
            while not all(len(out) > 10 for out in outs.values()):
                await anyio.sleep(0.01)
            stopped = await stop_a_holder(lease, workers)
            assert all(len(out) < len(expected) for out in outs.values()), "there was no more to do"
        assert outs == {"chat": expected, "transcription": expected}
        kills = [client.stats.watchdog_kills for _, client in engines]
        assert kills == [int(stopped == 0), int(stopped == 1)], "the one that waited was not taken to hang"
