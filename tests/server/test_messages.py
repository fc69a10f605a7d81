"""Anthropic's messages over a fake engine: shapes against the SDK's own types, stream against whole."""

import asyncio
import json
from typing import Any

import anthropic.types
import pytest
from anthropic.types import Message, MessageTokensCount, ModelInfo
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent

from stentor.server.http import sse
from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import HELLO, in_memory
from stentor.tests.wire.messages import check_stream
from stentor.tests.wire.validate import assert_same_answer, check_event, check_object, frames_of

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
IGNORED = ("id", "signature")


async def post(engine: FakeEngine | None = None, path: str = MESSAGES, status: int = 200, **body: Any) -> Any:
    wanted: dict[str, Any] = {"model": "fake", "messages": HELLO}
    if path == MESSAGES:
        wanted["max_tokens"] = 12
    async with in_memory(fake_state(engine or FakeEngine())) as client:
        response = await client.post(path, json=wanted | body)
    assert response.status_code == status, response.text
    return response


def prompt_of(engine: FakeEngine) -> str:
    return bytes(engine.streams[-1].prompt).decode()


async def test_a_whole_message_is_valid_to_the_sdk_strictly_and_says_what_was_used() -> None:
    engine = FakeEngine(answer=says("Yes."))
    engine.cached_tokens = 5
    response = await post(engine)
    message = check_object(Message, response.content)
    assert [block.model_dump(exclude_none=True) for block in message.content] == [{"type": "text", "text": "Yes."}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.id.startswith("msg_")
    assert message.usage.cache_read_input_tokens == 5
    assert message.usage.input_tokens == len(engine.streams[0].prompt) - 5, "what was read from the cache is apart"
    assert message.usage.output_tokens == 5, "the EOS was delivered too"
    assert response.headers["request-id"] == response.headers["x-request-id"]


@pytest.mark.parametrize("burst", [1, 3, 7])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"max_tokens": 40, "stop_sequences": ["says", "wörld,"]},
        {"max_tokens": 600},
        {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "metadata": {"user_id": "somebody"}},
    ],
)
async def test_a_stream_is_valid_in_order_and_says_what_the_whole_message_says(body: Any, burst: int) -> None:
    engine = FakeEngine()
    engine.burst = burst
    engine.cached_tokens = 3
    whole = (await post(engine, **body)).json()
    response = await post(engine, **body, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert_same_answer(whole, check_stream(response.content), IGNORED)


async def test_every_frame_has_an_event_line_and_the_first_knows_the_input() -> None:
    engine = FakeEngine()
    engine.cached_tokens = 3
    frames = frames_of((await post(engine, stream=True)).content)
    assert [frame.event for frame in frames[:3]] == ["message_start", "ping", "content_block_start"]
    assert [frame.event for frame in frames[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    usage = json.loads(frames[0].data)["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (len(engine.streams[0].prompt) - 3, 3)


async def test_a_stop_sequence_ends_the_text_before_it_and_is_named() -> None:
    engine = FakeEngine()
    message = (await post(engine, max_tokens=60, stop_sequences=["never", " wör"])).json()
    assert message["content"] == [{"type": "text", "text": "Héllo"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", " wör")
    assert engine.live == 0


async def test_where_the_context_ends_before_the_tokens_that_were_asked_for_it_is_said() -> None:
    engine = FakeEngine(max_model_len=64)
    message = (await post(engine, max_tokens=32000)).json()
    assert message["stop_reason"] == "model_context_window_exceeded"
    assert message["usage"]["input_tokens"] + message["usage"]["output_tokens"] == 64
    assert (await post(engine, max_tokens=4)).json()["stop_reason"] == "max_tokens"


async def test_no_tokens_at_all_are_a_prompt_for_the_cache() -> None:
    message = (await post(max_tokens=0)).json()
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], "max_tokens", 0)


async def test_an_empty_answer_has_no_content() -> None:
    engine = FakeEngine(answer=says(""))
    assert (await post(engine)).json()["content"] == []
    assert check_stream((await post(engine, stream=True)).content)["content"] == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"system": "Be brief.", "messages": [*HELLO, {"role": "assistant", "content": "The best answer is ("}]},
        {"system": [{"type": "text", "text": "a" * 1000, "cache_control": {"type": "ephemeral"}}]},
    ],
)
async def test_tokens_are_counted_as_they_are_used(body: dict[str, Any]) -> None:
    engine = FakeEngine(max_model_len=4096, answer=says("ok"))
    counted = check_object(MessageTokensCount, (await post(engine, COUNT, **body)).content).input_tokens
    assert not engine.streams
    assert counted == (await post(engine, **body)).json()["usage"]["input_tokens"] == len(engine.streams[0].prompt)


async def test_a_conversation_reaches_the_model_as_its_template_has_it() -> None:
    engine = FakeEngine(answer=says("ok"))
    await post(
        engine,
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "one"}]},
            {"role": "user", "content": "two"},
            {"role": "system", "content": "A reminder."},
            {"role": "assistant", "content": "The best answer is ("},
        ],
    )
    assert prompt_of(engine) == (
        "<system>Be brief.\nBe kind.\n<user>one\ntwo\n"
        "<system-reminder>\nA reminder.\n</system-reminder>\n<assistant>The best answer is ("
    )


async def test_a_failure_in_a_stream_is_an_error_event_and_the_last() -> None:
    broken = FakeEngine()

    async def fail() -> None:
        broken.failure = "0xdeadbeef"

    broken.pace = fail  # type: ignore[method-assign]
    async with in_memory(fake_state(broken)) as client:
        body = {"model": "fake", "messages": HELLO, "max_tokens": 9, "stream": True}
        response = await client.post(MESSAGES, json=body)
    frame = frames_of(response.content)[-1]
    assert frame.event == "error"
    error = check_object(anthropic.types.ErrorResponse, frame.data)
    assert error.error.type == "api_error"
    assert error.request_id == response.headers["request-id"]
    assert "0xdeadbeef" not in frame.data


QWEN = OutputFormat(REASONING_FORMATS["qwen3"], TOOL_FORMATS["hermes"])
SAID = (
    "<think>\nHm, héllo.\n</think>\n\nI look. "
    '<tool_call>\n{"name": "look", "arguments": {"at": "the 😀 sky"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
)
LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}


async def answer(stream: bool, **body: Any) -> dict[str, Any]:
    engine = FakeEngine(max_model_len=2048, answer=says(SAID))
    wanted = {"model": "fake", "messages": HELLO, "max_tokens": 900, "tools": [LOOK], "stream": stream, **body}
    async with in_memory(fake_state(engine, output=QWEN)) as client:
        response = await client.post(MESSAGES, json=wanted)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = check_stream(response.content) if stream else response.json()
    check_object(Message, found)
    return found


async def test_what_a_model_thinks_says_and_calls_are_blocks() -> None:
    message = await answer(False)
    assert_same_answer(message, await answer(True), IGNORED)
    thinking, said, first, second = message["content"]
    assert (thinking["type"], thinking["thinking"].strip()) == ("thinking", "Hm, héllo.")
    assert said["text"].strip() == "I look."
    assert (first["input"], second["input"]) == ({"at": "the 😀 sky"}, {})
    assert message["stop_reason"] == "tool_use"
    assert 0 < message["usage"]["output_tokens_details"]["thinking_tokens"] < message["usage"]["output_tokens"]


async def test_both_are_valid_to_the_types_of_the_sdk_s_betas_too() -> None:
    check_object(BetaMessage, await answer(False))
    engine = FakeEngine(max_model_len=2048, answer=says(SAID))
    async with in_memory(fake_state(engine, output=QWEN)) as client:
        body = {"model": "fake", "messages": HELLO, "max_tokens": 900, "tools": [LOOK], "stream": True}
        response = await client.post(MESSAGES + "?beta=true", json=body)
    for frame in frames_of(response.content):
        if frame.event != "ping":
            check_event(BetaRawMessageStreamEvent, frame.data)


async def test_thinking_is_left_out_and_one_call_made_where_that_is_asked() -> None:
    message = await answer(
        True,
        thinking={"type": "adaptive", "display": "omitted"},
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["content"][0]["thinking"] == ""
    assert message["content"][0]["signature"]


async def test_without_tools_what_looks_like_a_call_is_text() -> None:
    message = await answer(False, tools=[])
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["stop_reason"] == "end_turn"


async def test_a_long_silence_is_broken_by_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(answer=says("ok"))
    engine.gate.clear()

    async def open_gate() -> None:
        await asyncio.sleep(0.15)
        engine.gate.set()

    body = {"model": "fake", "messages": HELLO, "max_tokens": 9, "stream": True}
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.02)
    async with in_memory(fake_state(engine)) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(open_gate())
        response = await client.post(MESSAGES, json=body)
    frames = frames_of(response.content)
    assert [frame.event for frame in frames[:3]] == ["ping"] * 3


async def test_a_prompt_that_is_too_long_is_told_in_the_words_that_clients_look_for() -> None:
    refused = await post(FakeEngine(max_model_len=64), status=400, system="x" * 200)
    assert refused.json()["error"]["message"].startswith("prompt is too long: ")


async def test_that_no_conversation_is_held_is_told_by_the_code_that_the_sdk_acts_on() -> None:
    refused = await post(status=400, thread={"type": "create"})
    assert refused.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}
    assert "details" not in (await post(status=400, container="c")).json()["error"]


async def test_a_block_that_is_always_refused_is_not_among_those_that_an_error_offers() -> None:
    for kind, offered in (("poem", True), ("server_tool_use", False)):
        said = (await post(status=400, messages=[{"role": "user", "content": [{"type": kind}]}])).json()
        message = said["error"]["message"]
        assert ("tool_result" in message) == offered
        assert ("server_tool_use" in message) != offered


async def test_models_are_listed_in_the_shape_of_the_client_s_protocol() -> None:
    headers = {"anthropic-version": "2023-06-01"}
    async with in_memory(fake_state()) as client:
        page = (await client.get("/v1/models", headers=headers)).json()
        infos = [check_object(ModelInfo, info) for info in page["data"]]
        assert [info.id for info in infos] == ["fake/model", "fake"]
        assert page["has_more"] is False
        assert (page["first_id"], page["last_id"]) == ("fake/model", "fake")
        one = await client.get("/v1/models/fake/model", headers=headers)
        assert check_object(ModelInfo, one.content).max_input_tokens == 512
        missing = await client.get("/v1/models/none", headers=headers)
        assert missing.json()["error"]["type"] == "not_found_error"
        ours = (await client.get("/v1/models")).json()
        assert ours["object"] == "list"
        assert "code" in (await client.get("/v1/models/none")).json()["error"]
