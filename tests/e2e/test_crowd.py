"""More streams than the KV pool can hold at once, on two layers of the demo model's shape through the real server."""

import asyncio
import random
from pathlib import Path

import httpx
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.made_up import EXACT, describe_talker
from stentor.tests.support.metrics import metric_in

pytestmark = pytest.mark.proof

STREAMS = 64
KINDS = 8
BLOCK = 16
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
POOL_BYTES = 26 * BLOCK * 2 * 2 * 3 * 64 * 4
"""26 blocks of that in float32."""


def _bodies() -> list[dict[str, object]]:
    rng = random.Random(3)
    return [
        {
            "model": "demo",
            "prompt": [rng.randrange(100, 40_000) for _ in range(rng.randrange(2, 60))],
            "max_tokens": rng.randrange(18, 34),
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        for _ in range(KINDS)
    ]


async def _tokens(client: httpx.AsyncClient, body: dict[str, object]) -> list[int]:
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens


async def _check_that_the_first_comes_back(
    client: httpx.AsyncClient, body: dict[str, object], tokens: list[int]
) -> None:
    """The other seven have driven it out of the pool, to host memory."""
    answer = (await client.post("/v1/completions", json=body)).json()
    assert answer["choices"][0]["token_ids"] == tokens
    usage = answer["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    figures = (await client.get("/v1/stats")).json()["models"][0]
    assert figures["prefix_hits"] + figures["host_hits"] == usage["prompt_tokens"] - 1
    assert figures["host_hits"] > 0
    page = (await client.get("/metrics")).text
    assert metric_in(page, "external_prefix_cache_hits_total") == figures["host_hits"]
    assert metric_in(page, "kv_offload_load_bytes_total") > 0


async def _run(port: int) -> None:
    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=240, limits=limits) as client:
        bodies = _bodies()
        alone = [await _tokens(client, body) for body in bodies]
        assert [len(tokens) for tokens in alone] == [body["max_tokens"] for body in bodies]
        await _check_that_the_first_comes_back(client, bodies[0], alone[0])
        crowd = await asyncio.gather(*(_tokens(client, bodies[number % KINDS]) for number in range(STREAMS)))
        assert crowd == [alone[number % KINDS] for number in range(STREAMS)]
        page = (await client.get("/metrics")).text
        assert metric_in(page, "num_preemptions_total") > 0, "the pool was not too small"
        assert metric_in(page, "kv_cache_usage_perc") == 0


def test_sixty_four_streams_over_too_small_a_pool_each_give_the_tokens_they_give_alone(
    demo_model: object, tmp_path: Path
) -> None:
    arguments = [
        *(*describe_talker(tmp_path, **SHAPE), *EXACT, "--served-model-name", "demo", "--max-model-len", "256"),
        *("--kv-cache-memory", str(POOL_BYTES), "--block-size", str(BLOCK), "--kv-offloading-size", "16MiB"),
    ]
    with ServerProcess(arguments) as server:
        asyncio.run(_run(server.port))
