"""``--enable-force-include-usage``: every stream counts its tokens."""

from typing import Any

import pytest

from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, chunks_of, in_memory

pytestmark = pytest.mark.anyio

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 3},
    COMPLETIONS: {"prompt": "a", "max_tokens": 3},
    "/inference/v1/generate": {"token_ids": [97], "sampling_params": {"max_tokens": 3}},
}
OPTIONS: list[dict[str, Any] | None] = [None, {"include_usage": False}, {"include_usage": True}]


async def _chunks(path: str, options: dict[str, Any] | None, *, forced: bool) -> list[dict[str, Any]]:
    async with in_memory(fake_state(FakeEngine(), force_include_usage=forced)) as client:
        response = await client.post(path, json={**BODIES[path], "stream": True, "stream_options": options})
    assert response.status_code == 200, response.text
    return list(chunks_of(response.text))


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("options", OPTIONS)
async def test_every_stream_ends_with_usage_if_the_operator_says_so(path: str, options: dict[str, Any] | None) -> None:
    last = (await _chunks(path, options, forced=True))[-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("path", BODIES)
async def test_streams_have_no_usage_unless_client_or_operator_ask_for_it(path: str) -> None:
    chunks = await _chunks(path, None, forced=False)
    assert not any(chunk.get("usage") for chunk in chunks)


async def test_a_client_may_still_ask_for_usage_in_every_chunk() -> None:
    chunks = await _chunks(CHAT, {"continuous_usage_stats": True}, forced=True)
    assert all(chunk["usage"] for chunk in chunks)
