"""What cannot be served is a 400 that names the field in this API's own words, and never reaches the engine."""

from typing import Any

import pytest

from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory
from stentor.tests.server.responses.shapes import RESPONSES

pytestmark = pytest.mark.anyio

USER: Any = {"role": "user", "content": "hello"}
TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


def part(**fields: Any) -> dict[str, Any]:
    return {"input": [USER, {"role": "user", "content": [{"type": "input_text", "text": "a"}, fields]}]}


def output(**fields: Any) -> dict[str, Any]:
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
    return {"input": [call, {"type": "function_call_output", "call_id": "c", "output": [fields]}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [USER, {"role": "user"}]}, "input[1].content"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [USER, {"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[1].call_id"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
        (
            {"input": [{"type": "additional_tools", "role": "developer", "tools": [{"type": "function"}]}]},
            "input[0].tools[0].name",
        ),
        (
            {"input": [{"type": "additional_tools", "role": "developer", "tools": [{"type": "local_shell"}]}]},
            "input[0].tools[0].type",
        ),
        ({"input": [{"type": "configuration_update"}]}, "input[0].reasoning"),
        ({"input": [{"type": "configuration_update", "reasoning": {"effort": "much"}}]}, "input[0].reasoning.effort"),
        ({"input": [{"type": "configuration_update", "text": {}}]}, "input[0].text.format"),
        (
            {"input": [{"type": "configuration_update", "text": {"format": {"type": "json_schema", "name": "n"}}}]},
            "input[0].text.format.schema",
        ),
        (part(type="input_image", image_url="http://x/y.png"), "input[1].content[1]"),
        (part(type="input_file", file_id="f"), "input[1].content[1]"),
        (part(type="input_image"), "input[1].content[1].image_url"),
        (part(type="input_image", image_url="x", detail="all"), "input[1].content[1].detail"),
        (part(type="input_file"), "input[1].content[1].file_data"),
        (part(type="input_audio", input_audio={"data": "AA", "format": "x"}), "input[1].content[1].input_audio.format"),
        (part(type="input_audio", input_audio={"data": "AA", "format": "wav"}), "input[1].content[1]"),
        (output(type="input_image", image_url="http://x/y.png"), "input[1].output[0]"),
        (part(type="input_text"), "input[1].content[1].text"),
        ({"input": "x", "conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "include": ["everything"]}, "include[0]"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "x", "include_reasoning": False}, "include_reasoning"),
        ({"input": "x", "previous_input_messages": [{"role": "user"}]}, "previous_input_messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"input": "x", "max_tokens": 5}, "max_tokens"),
        ({"input": "x", "max_completion_tokens": 5}, "max_completion_tokens"),
        ({"input": "x", "response_format": {"type": "json_object"}}, "response_format"),
        ({"input": "x", "reasoning_effort": "low"}, "reasoning_effort"),
        ({"input": "x", "tools": [{"type": "computer"}]}, "tools[0].type"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": 10_000}, "max_output_tokens"),
        ({"input": "x" * 600}, "input"),
        ({"input": "x", "min_tokens": 9, "max_output_tokens": 3}, "min_tokens"),
        ({"input": "x", "metadata": {"k": "v" * 513}}, "metadata"),
        ({"input": "x", "metadata": {"k": 1}}, "metadata[...]"),
        ({"input": "x", "temperature": 3}, "temperature"),
        ({"input": "x", "top_logprobs": 21}, "top_logprobs"),
        ({"input": "x", "structured_outputs": {"choice": 5}}, "structured_outputs.choice"),
        ({"input": "x", "logit_bias": {"999999": 1}}, "logit_bias"),
        ({"input": [{"type": "compaction", "encrypted_content": "s1.AAAA"}]}, "input"),
    ],
)
async def test_a_mistake_is_named(body: dict[str, Any], param: str) -> None:
    engine = FakeEngine()
    async with in_memory(fake_state(engine)) as client:
        for stream in (False, True):
            refused = await client.post(RESPONSES, json={**body, "stream": stream})
            assert refused.status_code == 400, refused.text
            error = refused.json()["error"]
            assert (error["param"] or "").startswith(param.removesuffix("[...]")), error
            assert error["type"] == "invalid_request_error"
    assert engine.streams == []


async def test_a_mistake_in_a_background_request_is_told_at_once() -> None:
    async with in_memory(fake_state()) as client:
        refused = await client.post(RESPONSES, json={"input": "x" * 600, "background": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


async def test_a_model_that_is_not_served_is_not_found() -> None:
    async with in_memory(fake_state()) as client:
        refused = await client.post(RESPONSES, json={"input": "x", "model": "other"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


async def test_truncation_drops_the_oldest_items_until_the_rest_fits() -> None:
    engine = FakeEngine(answer=says("Yes."))
    items = [{"role": "user", "content": f"number {number} " + "x" * 80} for number in range(10)]
    async with in_memory(fake_state(engine)) as client:
        refused = await client.post(RESPONSES, json={"input": items, "max_output_tokens": 20})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        body = {"input": items, "max_output_tokens": 20, "truncation": "auto", "instructions": "Be brief."}
        answer = await client.post(RESPONSES, json=body)
        assert answer.status_code == 200, answer.text
        listed = (await client.get(f"{RESPONSES}/{answer.json()['id']}/input_items")).json()
    prompt = bytes(engine.streams[0].prompt).decode()
    assert prompt.startswith("<system>Be brief.\n<user>number ")
    kept = [number for number in range(10) if f"number {number} " in prompt]
    assert kept == list(range(kept[0], 10))
    assert len(prompt) + 20 <= 512 < len(prompt) + 20 + 96, "no more was dropped than had to be"
    assert len(listed["data"]) == 10, "what was asked is kept whole"


async def test_calls_and_their_outputs_reach_the_template_in_its_own_shape() -> None:
    engine = FakeEngine(answer=says("Yes."))
    template_sees: list[Any] = [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
    ]
    async with in_memory(fake_state(engine)) as client:
        answer = await client.post(RESPONSES, json={"input": [USER, *template_sees]})
        assert answer.status_code == 200, answer.text
    prompt = bytes(engine.streams[0].prompt).decode()
    assert prompt.count("<tool_call>") == 2
    assert prompt.index("<tool_response>\none") < prompt.index("<tool_response>\ntwo")
