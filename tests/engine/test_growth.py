"""An engine process that has served thousands of requests is no larger than before them."""

from pathlib import Path
from typing import Final

import anyio
import pytest

from stentor.engine.client.client import EngineClient
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.engines import read_all, running

pytestmark = pytest.mark.anyio

STREAMS: Final = 32
REQUESTS: Final = 8000
WARMUP: Final = 4000
MOST_BYTES: Final = 50
"""That a request may leave behind: less than any object that names it."""


@pytest.mark.proof
async def test_a_request_leaves_nothing_behind_in_the_engine() -> None:
    with anyio.fail_after(60):
        async with running("ready") as client:
            while client.ready is None:
                await anyio.sleep(0.01)
            await _serve(client, 0, WARMUP)
            before = _private_bytes(client)
            await _serve(client, WARMUP, REQUESTS)
            assert _private_bytes(client) - before < REQUESTS * MOST_BYTES


async def _serve(client: EngineClient, first: int, count: int) -> None:
    numbers = iter(range(first, first + count))

    async def user() -> None:
        for number in numbers:
            prompt = [number, *range(20)]
            stream = client.submit(
                EngineRequest(prompt, SamplingParams(max_tokens=4), [number], name=f"cmpl-{number:032}")
            )
            tokens, _ = await read_all(stream)
            assert len(tokens[0]) == 4

    async with anyio.create_task_group() as tasks:
        for _ in range(STREAMS):
            tasks.start_soon(user)


def _private_bytes(client: EngineClient) -> int:
    """Resident, without the rings of shared memory, which are touched page by page until they have been passed once."""
    lines = Path(f"/proc/{client.pid}/status").read_text().splitlines()
    (size,) = [int(line.split()[1]) for line in lines if line.startswith("RssAnon:")]
    return size << 10
