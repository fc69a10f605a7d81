"""Cohere's chat over a fake engine."""

import json
from typing import Any

import pytest

from stentor.protocols.ipc.actors import Thinking
from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat, settle_output
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.server.text.pool import TokenizerPool
from stentor.tests.fakes import FakeEngine, byte_tokenizer, fake_state, says
from stentor.tests.server.harness import HELLO, chunks_of, events_of, in_memory

pytestmark = pytest.mark.anyio

QWEN = OutputFormat(REASONING_FORMATS["qwen3"], TOOL_FORMATS["hermes"])
SAID = (
    "<think>\nHm, héllo.\n</think>\n\nI look. "
    '<tool_call>\n{"name": "look", "arguments": {"at": "the 😀 sky"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
)
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TEMPLATE = (
    "{% for d in documents or [] %}[{{ d.id }}:{{ d.text }}]{% endfor %}{{ safety_mode }}"
    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}|{{ m.content }}\n{% endfor %}"
    "{% if enable_thinking is defined %}{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{% endif %}"
)


async def post(engine: FakeEngine, path: str = "/v2/chat", status: int = 200, template: str = "", **body: Any) -> Any:
    pool = TokenizerPool(byte_tokenizer(template)) if template else None
    output = settle_output("auto", "auto", template, "") if template else QWEN
    async with in_memory(fake_state(engine, pool=pool, output=output)) as client:
        response = await client.post(path, json={"model": "fake", "messages": HELLO, **body})
    assert response.status_code == status, response.text
    return response


async def test_a_chat_is_answered_with_what_it_took() -> None:
    engine = FakeEngine(answer=says("Yes."))
    engine.cached_tokens = 2
    for path in ("/v2/chat", "/cohere/v2/chat"):
        answer = (await post(engine, path)).json()
        tokens = {"input_tokens": len(engine.streams[0].prompt), "output_tokens": 5}
        assert answer.pop("id")
        assert answer == {
            "finish_reason": "COMPLETE",
            "message": {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
            "usage": {"billed_units": tokens, "tokens": tokens, "cached_tokens": 2},
        }


@pytest.mark.parametrize("burst", [1, 7, 99])
async def test_a_stream_says_what_the_whole_answer_says(burst: int) -> None:
    body: dict[str, Any] = {"tools": [LOOK], "logprobs": True}
    whole = (await post(FakeEngine(answer=says(SAID), max_model_len=4096), **body)).json()
    assert whole["finish_reason"] == "TOOL_CALL"
    assert whole["message"]["content"] == [
        {"type": "thinking", "thinking": "Hm, héllo."},
        {"type": "text", "text": "I look."},
    ]
    functions = [call["function"] for call in whole["message"]["tool_calls"]]
    assert [json.loads(function["arguments"]) for function in functions] == [{"at": "the 😀 sky"}, {}]
    engine = FakeEngine(answer=says(SAID), max_model_len=4096)
    engine.burst = burst
    stream = (await post(engine, **body, stream=True)).text
    assert stream.endswith("data: [DONE]\n\n")
    events = chunks_of(stream)
    assert [events[0]["type"], events[-1]["type"]] == ["message-start", "message-end"]
    assert events[0]["id"] == events[-1]["id"]
    assert events[-1]["delta"]["finish_reason"] == "TOOL_CALL"
    assert events[-1]["delta"]["usage"] == whole["usage"]
    contents: list[Any] = []
    calls: list[Any] = []
    ends: list[Any] = []
    for event in events[1:-1]:
        told = event.get("delta", {}).get("message", {})
        match event["type"]:
            case "content-start":
                assert event["index"] == len(contents)
                contents.append(told["content"])
            case "content-delta":
                assert event["logprobs"]["token_ids"]
                for name, text in told["content"].items():
                    contents[event["index"]][name] += text
            case "tool-call-start":
                assert event["index"] == len(calls)
                calls.append(told["tool_calls"])
            case "tool-call-delta":
                calls[event["index"]]["function"]["arguments"] += told["tool_calls"]["function"]["arguments"]
            case kind:
                ends.append((kind, event["index"]))
    assert contents == whole["message"]["content"]
    assert [call["function"] for call in calls] == functions
    assert ends == [("content-end", 0), ("content-end", 1), ("tool-call-end", 0), ("tool-call-end", 1)]


async def test_fields_reach_the_engine_and_the_template() -> None:
    engine = FakeEngine(answer=says("one STOP two"))
    sampling: dict[str, Any] = {
        "k": 3,
        "p": 0.9,
        "temperature": 0.5,
        "seed": 4,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
    }
    answer = await post(
        engine,
        template=TEMPLATE,
        **sampling,
        max_tokens=20,
        stop_sequences=["STOP"],
        documents=["first", {"id": "d2", "data": {"text": "second"}}],
        safety_mode="STRICT",
        thinking={"type": "enabled", "token_budget": 7},
    )
    assert answer.json()["finish_reason"] == "STOP_SEQUENCE"
    (stream,) = engine.streams
    params = stream.params
    assert (params.top_k, params.top_p, params.temperature, params.max_tokens) == (3, 0.9, 0.5, 20)
    assert (params.frequency_penalty, params.presence_penalty) == (0.5, 0.25)
    assert engine.submitted[0][0] == [4]
    assert engine.thinking == [Thinking(7, list(b"<think>"), list(b"</think>"), True)]
    prompt = bytes(stream.prompt).decode()
    assert prompt.startswith("[:first][d2:second]STRICT<")
    assert prompt.endswith("<think>\n")


async def test_plans_thoughts_and_results_of_tools_are_those_of_chat() -> None:
    engine = FakeEngine(answer=says("ok"))
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    document = {"type": "document", "document": {"id": "a", "data": {"x": "1"}}}
    thought = [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "said"}]
    await post(
        engine,
        template=TEMPLATE,
        messages=[
            *HELLO,
            {"role": "assistant", "tool_plan": "I look", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": [document]},
            {"role": "assistant", "content": thought, "citations": []},
            *HELLO,
        ],
        thinking={"type": "disabled"},
    )
    prompt = bytes(engine.streams[0].prompt).decode()
    assert '<assistant>I look|<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>\n' in prompt
    assert '{"id":"a","data":{"x":"1"}}\n</tool_response>\n<assistant>Hm|said\n' in prompt
    assert prompt.endswith("</think>\n\n")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "chatbot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"model": "other"}, "model"),
        ({"p": 2}, "p"),
        ({"max_tokens": 99999}, "max_tokens"),
        ({"tool_choice": "ANY"}, "tool_choice"),
        ({"tool_choice": "REQUIRED"}, "tool_choice"),
        ({"citation_options": {"mode": "ACCURATE"}}, "citation_options.mode"),
        ({"response_format": {"type": "json_object", "json_schema": {"type": 5}}}, "response_format.json_schema"),
        ({"stop_sequences": ["a"] * 999}, "stop_sequences"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
    ],
)
async def test_what_is_refused_is_named_in_cohere_s_shape(body: dict[str, Any], field: str) -> None:
    status = 404 if "model" in body else 400
    error = (await post(FakeEngine(), status=status, **body)).json()
    assert error.keys() == {"message", "id"}
    assert f"`{field}" in error["message"]


async def test_a_stream_that_fails_ends_with_an_error() -> None:
    engine = FakeEngine()

    async def fail() -> None:
        engine.failure = "0xdeadbeef" if engine.streams and engine.streams[0].steps else None

    engine.pace = fail  # type: ignore[method-assign]
    last = json.loads(events_of((await post(engine, stream=True)).text)[-1])
    assert last["type"] == "message-end"
    assert last["delta"]["finish_reason"] == "ERROR"
    assert "0xdeadbeef" not in last["delta"]["error"]
