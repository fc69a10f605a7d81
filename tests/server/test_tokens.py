"""``/tokenize`` of what is long: in pieces, and not at all where there is no memory for it."""

import httpx
import pytest

from stentor.server.api.ops import tokens as route
from stentor.server.config.limits import OverloadConfig
from stentor.server.text.pool import ENCODING_BYTES, TokenizationBudget, TokenizerPool
from stentor.tests.fakes import byte_tokenizer, fake_state
from stentor.tests.server.harness import HELLO, in_memory

pytestmark = pytest.mark.anyio


async def test_a_long_answer_comes_in_pieces_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    state = fake_state()
    bodies = [{"prompt": "wörld " * 99}, {"prompt": "wörld " * 99, "return_token_strs": True}, {"messages": HELLO}]

    async def answers(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.post("/tokenize", json=body) for body in bodies]

    async with in_memory(state) as client:
        whole = await answers(client)
        monkeypatch.setattr(route, "_PIECE", 7)
        pieces = await answers(client)
    assert [answer.content for answer in pieces] == [answer.content for answer in whole]
    assert all("content-length" in answer.headers for answer in whole)
    assert not any("content-length" in answer.headers for answer in pieces)
    assert state.admission.memory.bytes == 0


async def test_a_text_that_there_is_no_memory_to_encode_is_refused_and_names_the_field() -> None:
    pool = TokenizerPool(byte_tokenizer(), room=TokenizationBudget(ENCODING_BYTES * 1000))
    state = fake_state(pool=pool, overload=OverloadConfig(max_inflight_bytes=1 << 30))
    async with in_memory(state) as client:
        assert (await client.post("/tokenize", json={"prompt": "x" * 1000})).status_code == 200
        for field, value in (("prompt", "x" * 1001), ("messages", [{"role": "user", "content": "x" * 1001}])):
            refused = await client.post("/tokenize", json={field: value})
            assert (refused.status_code, refused.json()["error"]["param"]) == (413, field)
            assert refused.json()["error"]["code"] == "request_too_large"
    pool.close()
