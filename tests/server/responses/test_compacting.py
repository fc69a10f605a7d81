"""A conversation in few tokens: what the user said stays, all else is a summary, which is sealed for its caller."""

from typing import Any

import pytest

from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory
from stentor.tests.server.responses.shapes import RESPONSES

pytestmark = pytest.mark.anyio


async def test_a_compacted_conversation_goes_on_from_its_summary_and_nobody_can_change_it() -> None:
    engine = FakeEngine(answer=says("Greeted Ada."), max_model_len=2048)
    async with in_memory(fake_state(engine)) as client:
        first = (await client.post(RESPONSES, json={"input": "My name is Ada. Say hello."})).json()
        compacted = await client.post(f"{RESPONSES}/compact", json={"previous_response_id": first["id"]})
        assert compacted.status_code == 200, compacted.text
        (item,) = compacted.json()["output"]
        assert item["type"] == "compaction"
        assert "Ada" not in item["encrypted_content"]
        asked = bytes(engine.streams[1].prompt).decode()
        assert asked.startswith("<user>My name is Ada. Say hello.")
        assert "Summarize the conversation so far" in asked

        async def go_on(compaction: dict[str, Any]) -> Any:
            question = {"role": "user", "content": "What is my name?"}
            return await client.post(RESPONSES, json={"input": [compaction, question]})

        assert (await go_on(item)).status_code == 200
        prompt = bytes(engine.streams[-1].prompt).decode()
        assert "My name is Ada. Say hello." in prompt
        assert "Greeted Ada." in prompt
        assert prompt.index("Greeted Ada.") < prompt.index("What is my name?")
        refused = await go_on({**item, "encrypted_content": item["encrypted_content"][:-4] + "AAAA"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_encrypted_content")


async def test_tools_and_settings_of_items_outlive_two_compactions() -> None:
    engine = FakeEngine(answer=says("Greeted Ada."), max_model_len=4096)
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("add", "multiply")]
    form = {"type": "json_schema", "name": "n", "schema": {"type": "integer"}, "strict": True}
    brought = [
        {"type": "additional_tools", "role": "developer", "tools": tools[:1]},
        {"role": "user", "content": "My name is Ada."},
        {"type": "tool_search_call", "call_id": "c", "arguments": {}},
        {"type": "tool_search_output", "call_id": "c", "tools": tools[1:]},
        {"type": "configuration_update", "text": {"format": {"type": "text"}}},
        {"type": "configuration_update", "text": {"format": form}, "reasoning": {"effort": "low"}},
    ]
    question = {"role": "user", "content": "And now?"}
    async with in_memory(fake_state(engine)) as client:
        (once,) = (await client.post(f"{RESPONSES}/compact", json={"input": brought})).json()["output"]
        (twice,) = (await client.post(f"{RESPONSES}/compact", json={"input": [once, question]})).json()["output"]
        engine.answer = says("7")
        for item in (once, twice):
            made = await client.post(RESPONSES, json={"input": [item, question]})
            assert made.status_code == 200, made.text
            told, prompt = made.json(), bytes(engine.streams[-1].prompt).decode()
            assert told["text"]["format"]["type"] == "json_schema"
            assert told["reasoning"]["effort"] == "low"
            assert all(tool["name"] in prompt for tool in tools)
        counted = (await client.post(f"{RESPONSES}/input_tokens", json={"input": [twice, question]})).json()
        assert counted["input_tokens"] == len(engine.streams[-1].prompt)
        listed = (await client.get(f"{RESPONSES}/{told['id']}/input_items", params={"order": "asc"})).json()["data"]
    assert [item["type"] for item in listed] == ["compaction", "message"], "the client's own items are listed"
