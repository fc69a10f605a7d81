"""``/tokenize`` of what is long: in pieces, and not at all where there is no memory for it."""

import httpx
import pytest

from stentor.server.api.ops import tokens as route
from stentor.server.config.limits import OverloadConfig
from stentor.server.text.pool import ENCODING_BYTES, TokenizationBudget, TokenizerPool
from stentor.tests.fakes import EOS, byte_tokenizer, fake_state
from stentor.tests.server.harness import HELLO, in_memory

pytestmark = pytest.mark.anyio


async def test_a_long_answer_comes_in_pieces_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    state = fake_state()
    bodies = [{"prompt": "wörld " * 99}, {"prompt": "wörld " * 99, "return_token_strs": True}, {"messages": HELLO}]
    bodies.append({"content": "wörld " * 9, "with_pieces": True})

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
    long = {"role": "user", "content": "x" * 1001}
    async with in_memory(state) as client:
        assert (await client.post("/tokenize", json={"prompt": "x" * 1000})).status_code == 200
        for field, value in (("prompt", "x" * 1001), ("content", "x" * 1001), ("messages", [long])):
            refused = await client.post("/tokenize", json={field: value})
            assert (refused.status_code, refused.json()["error"]["param"]) == (413, field)
            assert refused.json()["error"]["code"] == "request_too_large"
    pool.close()


async def test_clients_of_llama_cpp_tokenize_a_content_and_get_their_text_back() -> None:
    async with in_memory(fake_state()) as client:
        plain = (await client.post("/tokenize", json={"content": "wör"})).json()["tokens"]
        pieces = (await client.post("/tokenize", json={"content": "wör", "with_pieces": True})).json()["tokens"]
        text = (await client.post("/detokenize", json={"tokens": plain})).json()["content"]
    assert text == "wör"
    assert [piece["id"] for piece in pieces] == plain
    async with in_memory(fake_state()) as client:
        body = {"content": "wör", "parse_special": False}
        assert (await client.post("/tokenize", json=body)).json()["tokens"] == plain
        refused = await client.post("/tokenize", json={**body, "content": "a<s>"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "parse_special")
    # a token of half a character comes as its bytes
    assert [piece["piece"] for piece in pieces] == ["w", [0xC3], [0xB6], "r"]


async def test_a_content_may_be_texts_and_tokens_in_turn_which_are_checked() -> None:
    async with in_memory(fake_state()) as client:
        answer = (await client.post("/tokenize", json={"content": ["ab", 100, "c", 101]})).json()
        empty = (await client.post("/tokenize", json={"content": []})).json()
        refused = await client.post("/tokenize", json={"content": ["ab", 99999]})
    assert (answer["tokens"], answer["count"]) == ([*b"ab", 100, *b"c", 101], 5)
    assert empty["tokens"] == []
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "content")


async def test_clients_of_sglang_tokenize_and_write_several_texts_at_once() -> None:
    async with in_memory(fake_state()) as client:
        made = (await client.post("/v1/tokenize", json={"prompt": ["hé", "x"]})).json()
        alone = (await client.post("/tokenize", json={"prompt": "hé"})).json()
        texts = (await client.post("/v1/detokenize", json={"tokens": made["tokens"]})).json()
        one = (await client.post("/detokenize", json={"tokens": [*b"hi", EOS], "skip_special_tokens": True})).json()
        none = (await client.post("/detokenize", json={"tokens": []})).json()
        for path, body, param in (
            ("/tokenize", {"prompt": []}, "prompt"),
            ("/tokenize", {"prompt": ["a"], "return_token_strs": True}, "return_token_strs"),
            ("/detokenize", {"tokens": [[1], 2]}, "tokens[1]"),
            ("/detokenize", {"tokens": [[1], [999]]}, "tokens[1]"),
        ):
            refused = await client.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert made["tokens"] == [alone["tokens"], [*b"x"]]
    assert (made["count"], made["token_strs"]) == ([3, 1], None)
    assert texts["text"] == texts["prompt"] == ["hé", "x"]
    assert (one["text"], none["text"]) == ("hi", "")


async def test_pieces_come_with_a_content_only_and_one_text_is_tokenized_at_a_time() -> None:
    async with in_memory(fake_state()) as client:
        for body, param in (
            ({"prompt": "a", "with_pieces": True}, "with_pieces"),
            ({"prompt": "a", "content": "a"}, "prompt"),
            ({}, "prompt"),
        ):
            refused = await client.post("/tokenize", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
