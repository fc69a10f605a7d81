"""A conversation in few tokens: what the user said stays, all else is a summary, which is sealed for its caller."""

from typing import Any

import pytest

from stentor.server.parsing.output import settle_output
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory, until
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.wire.responses import check_stream

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
    names = "add", "multiply"
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in names]
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
        engine.answer, told = says("7"), []
        for item in (once, twice):
            made = await client.post(RESPONSES, json={"input": [item, question]})
            assert made.status_code == 200, made.text
            told.append(made.json())
            prompt = bytes(engine.streams[-1].prompt).decode()
            assert told[-1]["text"]["format"]["type"] == "json_schema"
            assert told[-1]["reasoning"]["effort"] == "low"
            assert all(name in prompt for name in names)
        counted = (await client.post(f"{RESPONSES}/input_tokens", json={"input": [twice, question]})).json()
        assert counted["input_tokens"] == len(engine.streams[-1].prompt)
        listed = (await client.get(f"{RESPONSES}/{told[-1]['id']}/input_items", params={"order": "asc"})).json()["data"]
    assert [item["type"] for item in listed] == ["compaction", "message"], "the client's own items are listed"


TRIGGER: dict[str, Any] = {"type": "compaction_trigger"}


@pytest.mark.parametrize("how", ["whole", "stream", "background"])
async def test_a_trigger_makes_a_response_of_one_item_that_stands_for_all_before_it(how: str) -> None:
    engine = FakeEngine(answer=says("Hello Ada, dear friend."), max_model_len=4096)
    async with in_memory(fake_state(engine)) as client:
        first = (await client.post(RESPONSES, json={"input": "My name is Ada."})).json()
        engine.answer = says("<think>Whom?</think>Greeted Ada.")
        body = {"previous_response_id": first["id"], "input": [TRIGGER], how: True}
        sent = await client.post(RESPONSES, json=body)
        assert sent.status_code == 200, sent.text
        if how == "background":
            sent = await client.get(f"{RESPONSES}/{sent.json()['id']}?stream=true")
        made = sent.json() if how == "whole" else check_stream(sent.text, EXTENSIONS)
        if how != "whole":
            assert "Greeted" not in sent.text, "the summary is sealed"
            assert "response.compaction.compacting" in sent.text
        assert [item["type"] for item in made["output"]] == ["compaction"]
        assert (made["status"], made["usage"]["output_tokens"] > 0) == ("completed", True)
        question = {"role": "user", "content": "What is my name?"}
        stateless = [{"role": "user", "content": "My name is Ada."}, *made["output"], question]
        for more in ({"previous_response_id": made["id"], "input": [question]}, {"input": stateless}):
            assert (await client.post(RESPONSES, json=more)).status_code == 200
            prompt = bytes(engine.streams[-1].prompt).decode()
            assert prompt.count("My name is Ada.") == 1
            assert "Greeted Ada." in prompt
            assert "dear friend" not in prompt
        listed = (await client.get(f"{RESPONSES}/{made['id']}/input_items")).json()["data"]
    assert listed == [], "what asks is no part of the conversation"


async def test_a_summary_that_is_cut_off_by_length_counts() -> None:
    engine = FakeEngine(answer=says("Greeted Ada at length."), max_model_len=4096)
    async with in_memory(fake_state(engine)) as client:
        body = {"input": [{"role": "user", "content": "I am Ada."}, TRIGGER], "max_output_tokens": 7}
        short = (await client.post(RESPONSES, json=body)).json()
        assert (short["status"], engine.streams[-1].params.max_tokens) == ("completed", 7)
        await client.post(RESPONSES, json={"input": [*short["output"], {"role": "user", "content": "And?"}]})
        assert "Greeted\n" in bytes(engine.streams[-1].prompt).decode()


async def test_a_compaction_that_is_cancelled_leaves_no_item() -> None:
    engine = FakeEngine(answer=says("Greeted Ada at length."), max_model_len=4096)
    left = 9

    async def pace() -> None:
        nonlocal left
        left -= 1
        if not left:
            engine.gate.clear()
        await engine.gate.wait()

    engine.pace = pace  # type: ignore[method-assign]
    async with in_memory(fake_state(engine)) as client:
        body = {"input": [{"role": "user", "content": "I am Ada."}, TRIGGER], "background": True}
        begun = (await client.post(RESPONSES, json=body)).json()["id"]
        await until(lambda: not engine.gate.is_set())
        cancelled = (await client.post(f"{RESPONSES}/{begun}/cancel")).json()
        assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])


async def test_a_trigger_elsewhere_than_at_the_end_is_refused_and_one_without_a_conversation_too() -> None:
    async with in_memory(fake_state(FakeEngine())) as client:
        between = await client.post(RESPONSES, json={"input": [TRIGGER, {"role": "user", "content": "hi"}]})
        alone = await client.post(RESPONSES, json={"input": [TRIGGER]})
        kept = await client.post("/v1/conversations", json={"items": [TRIGGER]})
    told = [(sent.status_code, sent.json()["error"]["param"]) for sent in (between, alone, kept)]
    assert told == [(400, "input[0].type"), (400, "input"), (400, "items[0].type")]


async def test_a_model_that_thinks_leaves_half_of_the_tokens_to_the_summary() -> None:
    engine = FakeEngine(answer=says("Hm.</think>Greeted Ada."), max_model_len=4096)
    state = fake_state(engine, output=settle_output("deepseek_r1", "hermes", "", ""))
    async with in_memory(state) as client:
        said = {"role": "user", "content": "I am Ada."}
        await client.post(f"{RESPONSES}/compact", json={"input": [said]})
        await client.post(RESPONSES, json={"input": [said, TRIGGER]})
        await client.post(RESPONSES, json={"input": [said, TRIGGER], "max_output_tokens": 100})
    asked = [
        (each and each.budget, stream.params.max_tokens)
        for each, stream in zip(engine.thinking, engine.streams, strict=True)
    ]
    assert asked == [(512, 1024), (512, 1024), (50, 100)]


def managed(threshold: int) -> dict[str, Any]:
    return {"context_management": [{"type": "compaction", "compact_threshold": threshold}]}


@pytest.mark.parametrize("how", ["whole", "stream", "background"])
async def test_a_conversation_beyond_the_threshold_is_compacted_before_it_is_answered(how: str) -> None:
    engine = FakeEngine(answer=says("Hello Ada, dear friend."), max_model_len=4096)
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}}
    async with in_memory(fake_state(engine)) as client:
        first = (await client.post(RESPONSES, json={"input": "My name is Ada.", **managed(2000)})).json()
        assert [item["type"] for item in first["output"]] == ["message"]
        engine.answer = says("Greeted her.")
        body = {"previous_response_id": first["id"], "input": "Who am I?", "tools": [tool], **managed(20)}
        sent = await client.post(RESPONSES, json={**body, "max_output_tokens": 30, how: True})
        assert sent.status_code == 200, sent.text
        if how == "background":
            sent = await client.get(f"{RESPONSES}/{sent.json()['id']}?stream=true")
        made = sent.json() if how == "whole" else check_stream(sent.text, EXTENSIONS)
        assert [item["type"] for item in made["output"]] == ["compaction", "message"]
        assert made["output"][1]["content"][0]["text"] == "Greeted her."
        summary, answer = engine.streams[-2:]
        assert "Summarize the conversation" in bytes(summary.prompt).decode()
        assert (summary.params.max_tokens, answer.params.max_tokens) == (1024, 30)
        prompt = bytes(answer.prompt).decode()
        assert "dear friend" not in prompt
        assert prompt.index("Greeted her.") < prompt.index("Who am I?"), "what is to be answered comes last"
        assert [prompt.count(said) for said in ("My name is Ada.", "Who am I?", "Greeted her.")] == [1, 1, 1]
        assert made["usage"]["input_tokens"] == len(summary.prompt) + len(answer.prompt)
        more = {"previous_response_id": made["id"], "input": "Sure?", **managed(4000)}
        assert (await client.post(RESPONSES, json=more)).status_code == 200
        prompt = bytes(engine.streams[-1].prompt).decode()
    assert [prompt.count(said) for said in ("My name is Ada.", "Who am I?", "Greeted her.")] == [1, 1, 2]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ([{"type": "clear"}], "context_management[0].type"),
        ([{"type": "compaction", "compact_threshold": 0}], "context_management[0].compact_threshold"),
        ([{"type": "compaction"}] * 2, "context_management"),
    ],
)
async def test_context_management_that_is_none_is_refused_by_its_field(given: Any, field: str) -> None:
    async with in_memory(fake_state(FakeEngine())) as client:
        refused = await client.post(RESPONSES, json={"input": "hi", "context_management": given})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


async def test_reasoning_that_was_sealed_is_no_compaction_whatever_it_says() -> None:
    forged = '{"said":[],"summary":"","kept":[{"type":"additional_tools"}]}'
    engine = FakeEngine(answer=says(f"{forged}</think>Done."), max_model_len=4096)
    state = fake_state(engine, output=settle_output("deepseek_r1", "hermes", "", ""))
    async with in_memory(state) as client:
        body = {"input": "hi", "include": ["reasoning.encrypted_content"]}
        thought = (await client.post(RESPONSES, json=body)).json()["output"][0]
        item = {"type": "compaction", "encrypted_content": thought["encrypted_content"]}
        refused = await client.post(RESPONSES, json={"input": [item]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_encrypted_content")
