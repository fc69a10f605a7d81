"""What a response loads of the store: its size is looked at first, and each item is loaded once."""

import sqlite3
from typing import Any

import pytest

from stentor.protocols.common.limits import Limits
from stentor.server.config.limits import OverloadConfig
from stentor.server.storage import conversations, responses
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory
from stentor.tests.server.responses.shapes import RESPONSES

pytestmark = pytest.mark.anyio

ITEM_CHARS = 30_000
TIGHT = Limits(max_body_bytes=100_000)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is loaded, one by one or with a conversation."""
    names: list[str] = []
    find_item, chain, items = responses.find_item, responses.chain, conversations.items

    def finding(db: sqlite3.Connection, owner: str, item: str) -> Any:
        names.append(item)
        return find_item(db, owner, item)

    def chaining(db: sqlite3.Connection, owner: str, response: str, most: int) -> Any:
        names.append(response)
        return chain(db, owner, response, most)

    def listing(db: sqlite3.Connection, conversation: str) -> Any:
        names.append(conversation)
        return items(db, conversation)

    monkeypatch.setattr(responses, "find_item", finding)
    monkeypatch.setattr(responses, "chain", chaining)
    monkeypatch.setattr(conversations, "items", listing)
    return names


def engine() -> FakeEngine:
    return FakeEngine(max_model_len=1 << 18, answer=says("Yes."))


async def test_references_to_one_item_load_it_once_and_too_many_load_nothing(loaded: list[str]) -> None:
    state = fake_state(engine(), limits=TIGHT)
    async with in_memory(state) as client:
        first = (await client.post(RESPONSES, json={"input": "x" * ITEM_CHARS})).json()
        given = (await client.get(f"{RESPONSES}/{first['id']}/input_items")).json()["data"]
        reference = {"type": "item_reference", "id": given[0]["id"]}
        assert (await client.post(RESPONSES, json={"input": [reference] * 3})).status_code == 200
        assert loaded == [reference["id"]]
        refused = await client.post(RESPONSES, json={"input": [reference] * 1000})
        assert (refused.status_code, refused.json()["error"]["param"]) == (413, "input")
        assert loaded == [reference["id"]]
    assert state.admission.memory.bytes == 0


async def test_a_chain_of_responses_that_has_become_too_large_is_not_loaded(loaded: list[str]) -> None:
    async with in_memory(fake_state(engine(), limits=TIGHT)) as client:
        before: dict[str, Any] = {}
        for _ in range(4):
            answer = await client.post(RESPONSES, json={"input": "x" * ITEM_CHARS, **before})
            assert answer.status_code == 200
            before = {"previous_response_id": answer.json()["id"]}
        loaded.clear()
        refused = await client.post(RESPONSES, json={"input": "and?", **before})
        assert (refused.status_code, refused.json()["error"]["param"]) == (413, "previous_response_id")
    assert loaded == []


async def test_a_conversation_takes_no_more_bytes_than_a_body(loaded: list[str]) -> None:
    async with in_memory(fake_state(engine(), limits=TIGHT)) as client:
        conversation = (await client.post("/v1/conversations", json={})).json()["id"]
        items = {"items": [{"role": "user", "content": "x" * ITEM_CHARS}]}
        url = f"/v1/conversations/{conversation}/items"
        answers = [await client.post(url, json=items) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 413, 413]
        error = answers[-1].json()["error"]
        assert (error["param"], error["code"]) == ("items", "conversation_too_large")
        # a response adds what it was asked and what it said all the same; the next one is refused
        body = {"input": "x" * ITEM_CHARS, "conversation": conversation}
        assert (await client.post(RESPONSES, json=body)).status_code == 200
        refused = await client.post(RESPONSES, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (413, "conversation")
    assert loaded == [conversation]


async def test_what_is_loaded_counts_before_it_is_there(loaded: list[str]) -> None:
    state = fake_state(engine(), overload=OverloadConfig(max_inflight_bytes=16 << 20))
    async with in_memory(state) as client:
        first = (await client.post(RESPONSES, json={"input": "x" * ITEM_CHARS})).json()
        with state.admission.memory.share() as others:
            others.add(7 << 20)
            refused = await client.post(RESPONSES, json={"input": "y", "previous_response_id": first["id"]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "memory_full")
        assert loaded == []
        again = await client.post(RESPONSES, json={"input": "y", "previous_response_id": first["id"]})
        assert again.status_code == 200
    assert state.admission.memory.bytes == 0
