"""An engine that is launched before anything else of its owner is there."""

import time

import anyio
import pytest

from stentor.engine.client.client import EngineClient
from stentor.engine.client.request import EngineRequest
from stentor.engine.processes.launch import launch_engine
from stentor.loadtest.processes import alive, named, tree
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.e2e.processes import eventually
from stentor.tests.engine.engines import odd_config, read_all
from stentor.tests.support.descriptors import open_descriptors

SOON = 60.0


def test_an_engine_starts_its_worker_though_nobody_listens_to_it_yet() -> None:
    process = launch_engine(odd_config("ready"))
    try:
        eventually(lambda: bool(named(process.child.pid, "odd-worker")), SOON, "the engine starts its worker")
        below = tree(process.child.pid)
        assert len(below) == 3, "engine, fork server and worker"
        assert process.began <= time.monotonic()
    finally:
        process.close()
        process.close()
    eventually(lambda: not any(map(alive, below)), SOON, "all end")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})])
async def test_a_client_serves_an_engine_that_was_launched_before(anyio_backend: object) -> None:
    config = odd_config("ready")
    process = launch_engine(config)
    client = EngineClient(config, process=process)
    assert client.pid == process.child.pid
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.run)
        await client.wait_started()
        tokens, _ = await read_all(client.submit(EngineRequest([1, 2], SamplingParams(max_tokens=3), [1])))
        assert tokens == {0: [2, 3, 4]}
        tasks.cancel_scope.cancel()
    assert not alive(process.child.pid)


def test_an_engine_that_cannot_be_started_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    before = open_descriptors()
    with pytest.raises(FileNotFoundError, match="/no/such/python"):
        launch_engine(odd_config("ready"))
    assert not open_descriptors() - before
