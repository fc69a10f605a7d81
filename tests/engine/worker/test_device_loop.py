"""The engine loop over a worker on a fake device: requests that come, go and are aborted while steps run ahead."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from stentor.engine.channel import Endpoint
from stentor.engine.core.entry import WorkerKeeper
from stentor.engine.core.loop import EngineLoop
from stentor.engine.core.scheduler import Scheduler
from stentor.engine.core.worker_group import WorkerGroup
from stentor.engine.core.worker_life import WorkerLife
from stentor.engine.core.worker_source import WorkerSource
from stentor.engine.processes.process import Child
from stentor.engine.worker import service
from stentor.engine.worker.service import Worker
from stentor.engine.worker.setup.profile import _MEASURED_GRAPHS
from stentor.engine.worker.setup.setup import set_up_on
from stentor.kernels import force_variant
from stentor.protocols.ipc.actors import Abort, Finished, Progress, Shutdown, StartWorker, Stats, Submit, WorkerReady
from stentor.protocols.ipc.codec import decode_client, decode_engine_worker, encoder
from stentor.protocols.ipc.config import RecoveryConfig, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.channel.harness import both_ends
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.loop_stage import NO_OTHER
from stentor.tests.engine.schedulers import CONFIG, ready_of
from stentor.tests.engine.worker.fake_device import FakeDevice, FakeGraph
from stentor.tests.engine.worker.runners import prompt
from stentor.tests.engine.worker_stage import ignore, played
from stentor.tests.parity import hybrids, tiny

pytestmark = pytest.mark.anyio

RULES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.3},
    {"logprobs": 4},
    {"logprobs": 3, "processed_logprobs": True, "temperature": 0.9, "top_p": 0.9, "presence_penalty": 0.4},
    {"prompt_logprobs": 3, "temperature": 0.0},
    {"logprobs": 2, "prompt_logprobs": 1, "logits": True},
    {"allowed_token_ids": (3, 4, 5, 50, 300)},
]
PATIENT = RecoveryConfig(watchdog_seconds=600.0)
"""The machine may be busy with other things for minutes."""
REQUESTS = 14
ABORTED = 3


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module", params=["llama", "qwen3-next"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model whose layers attend, or keep recurrent states beside."""
    folder = tmp_path_factory.mktemp("tiny")
    if request.param == "llama":
        tiny.make("llama", folder, layers=2)
    else:
        tiny.make_of(hybrids.configs(tiny.SHAPE)[request.param](), request.param, folder)
    return folder


def _is_invariant(folder: Path) -> bool:
    """A device takes ``--batch-invariant`` only for models that attend in every layer."""
    return "llama" in (folder / "config.json").read_text()


def _submissions() -> list[Submit]:
    return [
        Submit(
            rid,
            prompt(5 + 7 * rid % 60, rid % 4),
            SamplingParams(max_tokens=3 + rid, **RULES[rid % len(RULES)]),
            [rid, rid + 100][: 1 + rid % 2],
            0,
            "",
            0.0,
        )
        for rid in range(REQUESTS)
    ]


def _set_up_on(monkeypatch: pytest.MonkeyPatch, devices: list[FakeDevice]) -> None:
    """Workers in threads of this process get these, each the next."""
    left = iter(devices)
    monkeypatch.setattr(service, "set_up", lambda config, progress, *_: set_up_on(config, progress, next(left)))


@contextmanager
def _in_thread(endpoint: Endpoint) -> Iterator[list[int]]:
    """A worker in a thread of this process; yields where its exit code goes."""
    codes: list[int] = []

    def serve() -> None:
        with force_variant("reference"):
            codes.append(Worker(endpoint).run())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield codes
    thread.join(60)
    assert not thread.is_alive()


async def _ready(worker: Endpoint, config: WorkerConfig) -> WorkerReady:
    await worker.send(encoder.encode(StartWorker(config)))
    while True:
        for frame in await worker.receive():
            if isinstance(message := decode_engine_worker.decode(frame), WorkerReady):
                return message
            assert isinstance(message, Progress), message


class Client:
    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.ends: dict[tuple[int, int], Finished] = {}

    async def tell(self, message: object) -> None:
        await self.endpoint.send(encoder.encode(message))

    async def read(self) -> None:
        for frame in await self.endpoint.receive():
            message = decode_client.decode(frame)
            if isinstance(message, Stats):
                continue
            for gained in getattr(message, "tokens", ()):
                self.tokens.setdefault((gained.rid, gained.index), []).extend(gained.tokens)
            for end in getattr(message, "finished", ()):
                assert (end.rid, end.index) not in self.ends
                self.ends[end.rid, end.index] = end


def _scheduler(ready: WorkerReady) -> Scheduler:
    return Scheduler(
        ready_of(
            num_blocks=ready.num_blocks,
            block_size=ready.limits.block_size,
            max_num_seqs=4,
            max_num_batched_tokens=24,
            max_model_len=ready.max_model_len,
            groups=ready.groups,
        ),
        CONFIG,
    )


def _assert_as_the_host(config: WorkerConfig, submissions: list[Submit], client: Client) -> None:
    """Of an aborted sequence as far as it went."""
    with force_variant("reference"):
        host = LocalEngine(config)
        for submission in submissions:
            host.submit(submission.prompt, submission.params, submission.seeds)
        host.run()
    for (rid, index), outcome in host.outcomes.items():
        found = client.tokens.get((rid, index), [])
        if client.ends[rid, index].reason == "abort":
            assert (rid, index) == (ABORTED, 0)
            assert found == outcome.tokens[: len(found)]
        else:
            assert found == outcome.tokens, (rid, index)
            assert outcome.finished is not None
            assert client.ends[rid, index].reason == outcome.finished.reason


async def test_a_mixed_workload_gets_what_the_host_alone_would_draw(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = model_config(
        folder,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        batch_invariant=_is_invariant(folder),
        kv_cache_memory=400 << 10,
        threads=1,
    )
    device = FakeDevice()
    with both_ends() as (server, engine), both_ends() as (to_worker, worker):
        child = Child(subprocess.Popen(["sleep", "600"]), "worker")
        try:
            _set_up_on(monkeypatch, [device])
            with _in_thread(worker) as codes:
                ready = await _ready(to_worker, config)
                scheduler = _scheduler(ready)
                client = Client(server)
                submissions = _submissions()
                sequences = sum(len(submission.seeds) for submission in submissions)
                async with anyio.create_task_group() as tasks:
                    life = WorkerLife(to_worker, child)
                    tasks.start_soon(EngineLoop(engine, WorkerGroup([life]), NO_OTHER, scheduler, PATIENT).run)
                    for submission in submissions[:6]:
                        await client.tell(submission)
                    while not client.tokens:
                        await client.read()
                    await client.tell(Abort(ABORTED, 0))
                    for submission in submissions[6:]:
                        await client.tell(submission)
                    with anyio.fail_after(240):
                        while len(client.ends) < sequences:
                            await client.read()
                    await client.tell(Shutdown())
                scheduler.check_integrity()
                await to_worker.send(encoder.encode(Shutdown()))
        finally:
            child.close()
    assert codes == [0]
    assert any(graph.replays for graph in device.graphs), "graphs were captured meanwhile"
    _assert_as_the_host(config, submissions, client)


class Failing(FakeDevice):
    """Captures so many graphs and no more: those that are measured, and a few."""

    limit = 2 * _MEASURED_GRAPHS + 6

    def capture(self, body: Callable[[], None]) -> FakeGraph:
        if len(self.graphs) == self.limit:
            raise RuntimeError("no further graph")
        return super().capture(body)


async def test_no_request_is_lost_with_a_worker_that_cannot_capture_a_graph(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails in mid-work; the next one runs without graphs, and every answer is what the host alone would draw."""
    config = model_config(
        folder,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        batch_invariant=_is_invariant(folder),
        kv_cache_memory=400 << 10,
        threads=1,
        cuda_graph_stall=1.0,
    )
    devices = [Failing(), FakeDevice()]
    _set_up_on(monkeypatch, [*devices])
    submissions = _submissions()[:6]
    sequences = sum(len(submission.seeds) for submission in submissions)
    async with AsyncExitStack() as stack:
        server, engine = stack.enter_context(both_ends())
        players = [await stack.enter_async_context(played()) for _ in devices]
        codes = [stack.enter_context(_in_thread(player.worker)) for player in players]
        left = iter(players)

        async def spawn(source: WorkerSource, rank: int, meeting_fd: int | None, patience: float) -> WorkerLife:
            return next(left).life

        monkeypatch.setattr(WorkerLife, "spawn", spawn)
        client = Client(server)
        for submission in submissions:  # before there is a worker, which captures while it has nothing else to do
            await client.tell(submission)
        keeper = WorkerKeeper(WorkerSource("m"), config)
        group, ready = await keeper.start(ignore)
        scheduler = _scheduler(ready)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(EngineLoop(engine, group, keeper, scheduler, PATIENT).run)
            with anyio.fail_after(240):
                while len(client.ends) < sequences:
                    await client.read()
            await client.tell(Shutdown())
        scheduler.check_integrity()
        await players[1].life.end(0.0)
    assert codes == [[1], [0]]
    assert len(devices[0].graphs) == Failing.limit
    assert not devices[1].graphs
    _assert_as_the_host(config, submissions, client)
