"""Priorities on the real server under load: they decide which request waits, and none waits for ever."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.made_up import ECHO, describe
from stentor.tests.support.metrics import metric_in

pytestmark = pytest.mark.anyio

AGING_SECONDS = 0.5


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One row at a time: whoever comes second waits."""
    folder: Path = tmp_path_factory.mktemp("model")
    arguments = [*describe(folder), "--max-num-seqs", "1", "--priority-aging-seconds", str(AGING_SECONDS)]
    with ServerProcess(arguments, ECHO) as server:
        yield f"http://127.0.0.1:{server.port}"


async def _ask(client: httpx.AsyncClient, priority: int) -> None:
    body = {"prompt": [5], "max_tokens": 10, "ignore_eos": True, "priority": priority}
    answer = await client.post("/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text


async def _until(client: httpx.AsyncClient, gauge: str, count: int) -> None:
    """Waits for so many requests that are in that state."""
    async with asyncio.timeout(60):
        while metric_in((await client.get("/metrics")).text, gauge) != count:
            await asyncio.sleep(0.01)


async def test_who_waits_is_served_in_order_of_priority(url: str) -> None:
    """Each keeps the only row until the test ends it, so that only the next can begin."""
    begun: asyncio.Queue[str] = asyncio.Queue()
    leave = {name: asyncio.Event() for name in ("running", "first", "middle", "later")}

    async def stay(name: str, priority: int) -> None:
        body = {"prompt": [5], "max_tokens": 8000, "ignore_eos": True, "priority": priority, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()  # the stream is closed with it
            await anext(lines)
            begun.put_nowait(name)
            await leave[name].wait()

    async with httpx.AsyncClient(base_url=url, timeout=60) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(stay("running", 0))
        assert await begun.get() == "running"
        for name, priority in (("later", 100), ("first", -100), ("middle", 0)):
            tasks.create_task(stay(name, priority))
        await _until(client, "num_requests_waiting", 3)
        for gone, following in itertools.pairwise(leave):
            leave[gone].set()
            assert await begun.get() == following
        leave["later"].set()


@pytest.mark.proof
async def test_a_stream_of_more_important_requests_starves_nobody(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client, asyncio.TaskGroup() as tasks:
        served = asyncio.Event()

        async def important() -> None:
            while not served.is_set():  # without end, where nobody who waits is ever served
                await _ask(client, priority=0)

        for _ in range(4):
            tasks.create_task(important())
        await _until(client, "num_requests_waiting", 3)
        await _ask(client, priority=4)
        served.set()
