"""Priorities on the real server under load: they decide who waits, and nobody waits for ever."""

import asyncio
import time
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


async def _ask(client: httpx.AsyncClient, name: str, order: list[str], priority: int = 0, tokens: int = 3) -> None:
    body = {"prompt": [5], "max_tokens": tokens, "ignore_eos": True, "priority": priority}
    answer = await client.post("/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    order.append(name)


async def _until(client: httpx.AsyncClient, gauge: str, count: int) -> None:
    """Waits for so many requests that are in that state."""
    async with asyncio.timeout(30):
        while True:
            if metric_in((await client.get("/metrics")).text, gauge) == count:
                return
            await asyncio.sleep(0.01)


async def test_who_waits_is_served_in_order_of_priority(url: str) -> None:
    order: list[str] = []
    async with httpx.AsyncClient(base_url=url) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(_ask(client, "running", order, tokens=200))
        await _until(client, "num_requests_running", 1)
        for name, priority in (("later", 100), ("first", -100), ("middle", 0)):
            tasks.create_task(_ask(client, name, order, priority))
        await _until(client, "num_requests_waiting", 3)
        assert not order, "the first one ended too early to keep anybody waiting"
    assert order == ["running", "first", "middle", "later"]


@pytest.mark.proof
async def test_a_stream_of_more_important_requests_starves_nobody(url: str) -> None:
    order: list[str] = []
    served: list[float] = []

    async def important(client: httpx.AsyncClient) -> None:
        while not served:  # without end, where nobody who waits is ever served
            await _ask(client, "important", order, priority=0, tokens=10)

    async def patient(client: httpx.AsyncClient) -> None:
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await _ask(client, "patient", order, priority=4)
        served.append(time.monotonic() - began)

    async with httpx.AsyncClient(base_url=url, timeout=60) as client, asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(important(client))
        tasks.create_task(patient(client))
    assert order.index("patient") > 0, "it had to wait at all"
    assert served[0] > 3 * AGING_SECONDS, "four levels are worth their waiting time"
