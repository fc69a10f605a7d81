"""Several engines under one server: what befalls one does not touch the others."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from stentor.engine.client.client import EngineClient
from stentor.engine.client.replicas import EngineReplicas
from stentor.engine.client.request import EngineRequest
from stentor.engine.processes.supervisor import Supervisor
from stentor.loadtest.processes import alive, tree
from stentor.protocols.ipc.actors import Finished, SequenceTokens
from stentor.protocols.ipc.config import EngineConfig, RecoveryConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.server.app.engines import Engines
from stentor.server.app.first_engine import first_engines
from stentor.server.config.model_registry import ModelRole
from stentor.server.http.listening import StartError
from stentor.tests.e2e.processes import eventually
from stentor.tests.engine.mortal_worker import BLOCKS, latest, lives, mortal_config
from stentor.tests.server.harness import until

pytestmark = pytest.mark.anyio

PROMPT = [1, 2, 3, 4, 5]
LONG = SamplingParams(max_tokens=100)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


def two(folder: Path, recovery: RecoveryConfig | None = None, ears: str = "ready") -> dict[ModelRole, EngineConfig]:
    for name in ("chat", "ears"):
        (folder / name).mkdir()
    return {
        "chat": mortal_config(folder / "chat", recovery=recovery),
        "transcription": mortal_config(folder / "ears", ears, recovery=recovery),
    }


@asynccontextmanager
async def running(configs: dict[ModelRole, EngineConfig]) -> AsyncIterator[Engines]:
    """Until the end of the block; then no process is left."""
    with first_engines(configs) as processes:
        engines = Engines(configs, processes, lambda progress, model: None)
        async with Supervisor() as supervisor:
            engines.start(supervisor)
            yield engines
            below = [pid for each in processes.values() for process in each for pid in tree(process.child.pid)]
            supervisor.cancel()
    eventually(lambda: not any(map(alive, below)), 60, "all processes end")


async def read(engines: Engines, kind: ModelRole, began: anyio.Event | None = None) -> tuple[list[int], str]:
    """All tokens of one long request, and its end."""
    tokens: list[int] = []
    reason = ""
    async for events in engines.clients[kind].submit(EngineRequest(PROMPT, LONG, [7])):
        for event in events:
            if isinstance(event, SequenceTokens):
                tokens += event.tokens
            elif isinstance(event, Finished):
                reason = event.reason
        if len(tokens) > 5 and began is not None:
            began.set()
    return tokens, reason


@pytest.mark.parametrize("victim", ["worker", "engine"])
async def test_a_death_under_one_model_is_not_noticed_by_the_stream_of_another(tmp_path: Path, victim: str) -> None:
    recovered: list[tuple[str, str]] = []
    async with running(two(tmp_path)) as engines:
        await engines.wait_started()
        engines.watch_recoveries(lambda kind, process, seconds: recovered.append((kind, process)))
        expected = await read(engines, "chat")
        chat, ears = engines.clients["chat"], engines.clients["transcription"]
        assert isinstance(chat, EngineClient)
        assert isinstance(ears, EngineClient)
        results: dict[str, tuple[list[int], str]] = {}

        async def note(kind: ModelRole, began: anyio.Event) -> None:
            results[kind] = await read(engines, kind, began)

        both = {"chat": anyio.Event(), "transcription": anyio.Event()}
        async with anyio.create_task_group() as tasks:
            for kind in engines.clients:
                tasks.start_soon(note, kind, both[kind])
            for began in both.values():
                await began.wait()
            pid = chat.pid
            assert ears.pid is not None
            os.kill(ears.pid if victim == "engine" else latest(tmp_path / "ears"), signal.SIGKILL)
        assert results == {"chat": expected, "transcription": expected}, "both go on, and say what they would have"
        await until(lambda: recovered)
        assert (chat.stats.worker_restarts, chat.engine_restarts, chat.stalled) == (0, 0, None)
        assert recovered == [("transcription", victim)]
        assert chat.pid == pid
        assert lives(tmp_path / "chat") == 1, "its worker was never replaced"


async def test_all_workers_are_forked_from_one_fork_server(tmp_path: Path) -> None:
    async with running(two(tmp_path)) as engines:
        await engines.wait_started()
        parents = {_parent(latest(tmp_path / name)) for name in ("chat", "ears")}
        assert len(parents) == 1
        assert Path(f"/proc/{parents.pop()}/comm").read_text().strip() == "stentor-forksrv"


async def test_the_end_of_the_fork_server_costs_each_model_a_worker_and_no_stream(tmp_path: Path) -> None:
    async with running(two(tmp_path)) as engines:
        await engines.wait_started()
        expected = await read(engines, "chat")
        results: list[tuple[list[int], str]] = []
        began = {kind: anyio.Event() for kind in engines.clients}

        async def note(kind: ModelRole) -> None:
            results.append(await read(engines, kind, began[kind]))

        async with anyio.create_task_group() as tasks:
            for kind in engines.clients:
                tasks.start_soon(note, kind)
            for event in began.values():
                await event.wait()
            os.kill(_parent(latest(tmp_path / "chat")), signal.SIGKILL)
        assert results == [expected, expected]


async def test_an_engine_that_cannot_start_ends_the_wait_for_all_and_is_named(tmp_path: Path) -> None:
    configs = two(tmp_path, ears="refuses")
    (tmp_path / "chat" / "starts").write_text("silent")
    async with running(configs) as engines:
        with (
            pytest.raises(StartError, match=r"^the transcription model: there is no such model$"),
            anyio.fail_after(60),
        ):
            await engines.wait_started()


async def test_the_first_engine_that_is_given_up_ends_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(two(tmp_path, RecoveryConfig(max_worker_deaths=1))) as engines:
        await engines.wait_started()
        os.kill(latest(tmp_path / "ears"), signal.SIGKILL)
        with anyio.fail_after(60):
            await engines.wait_ended()
        assert engines.clients["chat"].failure is None
    (line,) = [record.getMessage() for record in caplog.records if record.name == "stentor.server.app.engines"]
    assert line.startswith("the engine of the transcription model ended: the worker process was lost")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("last", [False, True], ids=["comes back", "is given up"])
async def test_of_several_engines_of_one_model_one_dies_and_all_requests_go_on(tmp_path: Path, last: bool) -> None:
    one = mortal_config(tmp_path, recovery=RecoveryConfig(max_engine_deaths=0 if last else 5))
    config = msgspec.structs.replace(one, worker=msgspec.structs.replace(one.worker, data_parallel_size=2))
    async with running({"chat": config}) as engines:
        ready = (await engines.wait_started())["chat"]
        assert ready.num_blocks == 2 * BLOCKS
        replicas = engines.clients["chat"]
        assert isinstance(replicas, EngineReplicas)
        expected = await read(engines, "chat")
        results: list[tuple[list[int], str]] = []

        async def note() -> None:
            results.append(await read(engines, "chat"))

        await replicas.controls.pause()  # so that none ends before its engine dies
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(note)
            await until(lambda: [client.live_requests for client in replicas._clients] == [2, 2])
            victim = replicas._clients[1]
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            await until(lambda: victim.stalled is not None or victim.failure is not None)
            assert (replicas.stalled, replicas.failure) == (None, None), "the other one runs steps"
            await replicas.controls.resume()
        lost = [result for result in results if result != expected]
        assert len(lost) == (2 if last else 0)
        assert all(reason == "error" for _, reason in lost)
        assert await read(engines, "chat") == await read(engines, "chat") == expected
        assert replicas.engine_restarts == (0 if last else 1)
