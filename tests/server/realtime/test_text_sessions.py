"""Sessions in text: what is told in which order, what the model is asked, and what is refused."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stentor.protocols.common.limits import Limits
from stentor.server.api.realtime.answering.response_manager import MAX_ASIDE
from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat
from stentor.tests.fakes import Answer, FakeEngine, says
from stentor.tests.server.realtime.session_fakes import Running, voice_state
from stentor.tests.server.realtime.wire import Ledger, part_of

pytestmark = pytest.mark.anyio

LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'


@asynccontextmanager
async def session(
    answer: str | Answer = "Yes.", *, engine: FakeEngine | None = None, model_len: int = 512, **state: Any
) -> AsyncIterator[Running]:
    """Every event of it is held against the protocol when it ends."""
    answers = says(answer) if isinstance(answer, str) else answer
    engine = engine or FakeEngine(answer=answers, max_model_len=model_len)
    state.setdefault("output", OutputFormat(tools=TOOL_FORMATS["hermes"]))
    running = Running(voice_state(engine, speaks=False, **state))
    running.start()
    await running.until("session.created")
    yield running
    await running.end()
    ledger = Ledger()
    for event in running.sent:
        ledger.take(event)
    assert not ledger.open
    assert ledger.order == [entry.item.id for entry in running.connection.conversation]


def user(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}


async def ask(running: Running, text: str, **response: Any) -> dict[str, Any]:
    """The response, once it is done."""
    running.say(type="conversation.item.create", item=user(text))
    running.say(type="response.create", response=response)
    done: dict[str, Any] = (await running.until("response.done"))["response"]
    return done


def prompt_of(engine: FakeEngine, place: int = -1) -> str:
    return bytes(token for token in engine.streams[place].prompt if token < 256).decode()


def engine_of(running: Running) -> FakeEngine:
    client = running.state.chat.client
    assert isinstance(client, FakeEngine)
    return client


async def test_a_text_response_is_told_in_the_order_of_the_protocol() -> None:
    async with session("Yes.") as running:
        response = await ask(running, "Is it?")
    assert part_of(running.sent, response["id"]) == [
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert response["status"] == "completed"
    assert response["output"][0]["content"] == [{"type": "output_text", "text": "Yes."}]
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert (usage["output_tokens"], usage["output_token_details"]["text_tokens"]) == (5, 5)


async def test_the_next_turn_begins_with_what_the_one_before_was_asked_and_said() -> None:
    async with session("Yes.") as running:
        running.say(type="session.update", session={"type": "realtime", "instructions": "Be brief."})
        await ask(running, "Is it?")
        await ask(running, "Sure?")
        engine = engine_of(running)
        assert prompt_of(engine) == prompt_of(engine, 0) + "Yes.\n<user>Sure?\n<assistant>"
        assert prompt_of(engine, 0) == "<system>Be brief.\n<user>Is it?\n<assistant>"


async def test_a_call_is_told_without_a_part_and_its_output_is_answered() -> None:
    turns = iter([f"One moment. {CALL}", "It is blue."])

    def answer(prompt: list[int], index: int) -> Sequence[int]:
        return says(next(turns))(prompt, index)

    async with session(answer, model_len=4096) as running:
        running.say(type="session.update", session={"type": "realtime", "tools": [LOOK]})
        response = await ask(running, "What colour?")
        message, call = response["output"]
        assert (message["type"], call["type"], call["name"]) == ("message", "function_call", "look")
        assert call["arguments"] == '{"at": "it"}'
        about_call = [event["type"] for event in running.sent if event.get("item_id") == call["id"]]
        assert about_call[-1] == "response.function_call_arguments.done"
        assert set(about_call[:-1]) == {"response.function_call_arguments.delta"}
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": '{"colour": "blue"}'}
        running.say(type="conversation.item.create", item=output)
        running.say(type="response.create")
        done = (await running.until("response.done"))["response"]
        assert done["output"][0]["content"][0]["text"] == "It is blue."
        assert '{"colour": "blue"}' in prompt_of(engine_of(running))


async def test_an_output_without_its_call_is_refused() -> None:
    async with session() as running:
        item = {"type": "function_call_output", "call_id": "call_9", "output": ""}
        running.say(type="conversation.item.create", item=item, event_id="mine")
        error = (await running.until("error"))["error"]
        assert (error["code"], error["param"], error["event_id"]) == (
            "invalid_tool_call_id",
            "item.call_id",
            "mine",
        )


async def test_there_is_one_response_at_a_time_and_another_beside_the_conversation() -> None:
    engine = FakeEngine(answer=says("Yes."))
    engine.gate.clear()
    async with session(engine=engine) as running:
        running.say(type="response.create")
        running.say(type="response.create", event_id="second")
        error = (await running.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "second")
        aside = {"conversation": "none", "input": [user("Which topic?")], "metadata": {"topic": "1"}}
        running.say(type="response.create", response=aside)
        await running.settle()
        engine.gate.set()
        done = [(await running.until("response.done"))["response"] for _ in range(2)]
        (beside,) = [response for response in done if response["conversation_id"] is None]
        assert beside["metadata"] == {"topic": "1"}
        assert beside["output"][0]["id"] not in [entry.item.id for entry in running.connection.conversation]
        assert any(prompt_of(engine, place) == "<user>Which topic?\n<assistant>" for place in range(2))
        assert len(running.connection.conversation) == 1


async def test_only_so_many_responses_are_beside_the_conversation() -> None:
    engine = FakeEngine(answer=says("Yes."))
    engine.gate.clear()
    async with session(engine=engine) as running:
        for _ in range(MAX_ASIDE + 1):
            running.say(type="response.create", response={"conversation": "none"})
        assert (await running.until("error"))["error"]["code"] == "too_many_responses"
        engine.gate.set()
        for _ in range(MAX_ASIDE):
            await running.until("response.done")


async def test_a_response_that_is_cancelled_ends_at_once_and_is_aborted_in_the_engine() -> None:
    engine = FakeEngine(answer=says("word ", repeat=True), delay=0.001)
    async with session(engine=engine, model_len=4096) as running:
        running.say(type="response.create")
        await running.until("response.output_text.delta")
        running.say(type="response.cancel")
        running.say(type="response.create")  # there is none any more
        done = (await running.until("response.done"))["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
        assert done["output"][0]["status"] == "incomplete"
        assert done["usage"]["output_tokens"] > 0
        await running.until("response.created")
        running.say(type="response.cancel")
        await running.until("response.done")
        await running.settle()
        assert engine.live == 0
        assert "error" not in [event["type"] for event in running.sent]


async def test_cancelling_names_the_response_that_is_meant() -> None:
    engine = FakeEngine(answer=says("Yes."))
    engine.gate.clear()
    async with session(engine=engine) as running:
        running.say(type="response.cancel", event_id="early")
        assert (await running.until("error"))["error"]["code"] == "response_cancel_not_active"
        running.say(type="response.create", response={"conversation": "none"})
        aside = (await running.until("response.created"))["response"]["id"]
        running.say(type="response.create")
        running.say(type="response.cancel", response_id="resp_other")
        assert (await running.until("error"))["error"]["param"] == "response_id"
        running.say(type="response.cancel", response_id=aside)
        assert (await running.until("response.done"))["response"]["id"] == aside
        engine.gate.set()
        assert (await running.until("response.done"))["response"]["status"] == "completed"


async def test_what_is_cut_off_by_its_length_is_incomplete() -> None:
    async with session("A long story.") as running:
        response = await ask(running, "Tell", max_output_tokens=3)
        assert response["status"] == "incomplete"
        assert response["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert response["output"][0]["status"] == "incomplete"
        assert response["max_output_tokens"] == 3


async def test_overrides_hold_for_one_response() -> None:
    async with session() as running:
        await ask(running, "So?", instructions="Whisper.")
        await ask(running, "And?")
        assert prompt_of(engine_of(running), 0).startswith("<system>Whisper.")
        assert not prompt_of(engine_of(running), 1).startswith("<system>")


async def test_items_are_put_where_the_client_wants_them_and_taken_out() -> None:
    async with session() as running:
        for id, before in (("b", None), ("a", "root"), ("d", None), ("c", "b")):
            running.say(type="conversation.item.create", item=user(id, id=id), previous_item_id=before)
        running.say(type="conversation.item.delete", item_id="d")
        running.say(type="conversation.item.retrieve", item_id="c")
        item = (await running.until("conversation.item.retrieved"))["item"]
        assert item["content"] == [{"type": "input_text", "text": "c"}]
        assert [entry.item.id for entry in running.connection.conversation] == ["a", "b", "c"]
        added = [event for event in running.sent if event["type"] == "conversation.item.added"]
        assert [event["previous_item_id"] for event in added] == [None, None, "b", "b"]
        running.say(type="response.create")
        await running.until("response.done")
        assert prompt_of(engine_of(running)) == "<user>a\n<user>b\n<user>c\n<assistant>"


PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ({"type": "conversation.item.create", "item": user("x"), "previous_item_id": "gone"}, "previous_item_id"),
        ({"type": "conversation.item.create", "item": user("x", id="known")}, "item.id"),
        ({"type": "conversation.item.create", "item": {"type": "message", "role": "user"}}, "item.content"),
        (
            {"type": "conversation.item.create", "item": user("x") | {"content": [{"type": "output_text"}]}},
            "item.content[0].type",
        ),
        (
            {"type": "conversation.item.create", "item": user("x") | {"content": [{"type": "input_image"}]}},
            "item.content[0].image_url",
        ),
        ({"type": "conversation.item.create", "item": user("x") | {"content": [PICTURE]}}, "item.content[0]"),
        (
            {"type": "response.create", "response": {"input": [user("x") | {"content": [PICTURE]}]}},
            "response.input[0].content[0]",
        ),
        ({"type": "conversation.item.create", "item": {"type": "mcp_call"}}, "item.type"),
        ({"type": "conversation.item.delete", "item_id": "gone"}, "item_id"),
        ({"type": "conversation.item.retrieve", "item_id": "gone"}, "item_id"),
        (
            {"type": "conversation.item.truncate", "item_id": "known", "content_index": 0, "audio_end_ms": 0},
            "item_id",
        ),
        ({"type": "response.create", "response": {"output_modalities": ["audio"]}}, "response.output_modalities"),
        ({"type": "response.create", "response": {"tools": [{"type": "mcp"}]}}, "response.tools[0].type"),
        ({"type": "response.create", "response": {"tools": [LOOK, LOOK]}}, "response.tools[1].name"),
        ({"type": "response.create", "response": {"max_output_tokens": 5000}}, "response.max_output_tokens"),
        ({"type": "response.create", "response": {"audio": {"output": {"speed": 1}}}}, "response.audio.output.speed"),
        (
            {"type": "response.create", "response": {"input": [{"type": "item_reference", "id": "gone"}]}},
            "response.input[0].id",
        ),
        ({"type": "input_audio_buffer.append", "audio": "no base64!"}, "audio"),
        ({"type": "conversation.item.retrieve"}, "item_id"),
    ],
)
async def test_a_mistake_is_told_with_its_field_and_the_session_goes_on(event: dict[str, Any], param: str) -> None:
    async with session() as running:
        running.say(type="conversation.item.create", item=user("x", id="known"))
        running.say(**event, event_id="mine")
        error = (await running.until("error"))["error"]
        assert (error["type"], error["param"], error["event_id"]) == ("invalid_request_error", param, "mine")
        running.say(type="response.create")
        assert (await running.until("response.done"))["response"]["status"] == "completed"


@pytest.mark.parametrize("kind", ['"conversation.item.create"', "{}"], ids=["item", "type"])
async def test_what_is_nested_too_deep_is_told_as_an_error_of_the_client(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    deep = "[" * 50_000 + "]" * 50_000
    async with session() as running:
        running.inbox.put_nowait(f'{{"type": {kind.format(deep)}, "item": {deep}}}'.encode())
        running.inbox.put_nowait(f'{{"type": {deep}}}'.encode())
        for _ in range(2):
            assert (await running.until("error"))["error"]["type"] == "invalid_request_error"
        running.say(type="response.create")
        assert (await running.until("response.done"))["response"]["status"] == "completed"
    assert not caplog.records


async def test_a_conversation_that_is_too_long_loses_its_beginning() -> None:
    async with session("Yes.", model_len=400) as running:
        for number in range(12):
            running.say(type="conversation.item.create", item=user(f"{number:02} " + "x" * 40))
        response = await ask(running, "Last?")
        assert response["status"] == "completed"
        prompt = prompt_of(engine_of(running))
        assert "<user>00 " not in prompt
        assert "<user>11 " in prompt
        assert "Last?" in prompt
        assert len(prompt) <= 0.8 * 300
        assert len(running.connection.conversation) == 14
        await ask(running, "And?")
        assert prompt_of(engine_of(running)).startswith(prompt)  # what was left out stays left out


async def test_where_nothing_may_be_left_out_the_response_fails() -> None:
    async with session("Yes.", model_len=200) as running:
        running.say(type="session.update", session={"type": "realtime", "truncation": "disabled"})
        response = await ask(running, "x" * 300)
        assert response["status"] == "failed"
        assert response["status_details"]["error"]["code"] == "context_length_exceeded"


async def test_a_share_may_be_named_of_what_is_kept() -> None:
    ratio = {"type": "retention_ratio", "retention_ratio": 0.5, "token_limits": {"post_instructions": 150}}
    async with session("Yes.", model_len=4096) as running:
        running.say(type="session.update", session={"type": "realtime", "truncation": ratio, "instructions": "Go."})
        for number in range(6):
            running.say(type="conversation.item.create", item=user(f"{number:02} " + "x" * 40))
        await ask(running, "Last?")
        assert len(prompt_of(engine_of(running))) <= 0.5 * (150 + 30)


async def test_an_engine_that_fails_fails_the_response_alone() -> None:
    engine = FakeEngine(answer=says("Yes."))
    async with session(engine=engine) as running:
        engine.failure = "it is gone"
        response = await ask(running, "So?")
        assert response["status"] == "failed"
        assert "secret" not in str(response)
        engine.failure = None
        assert (await ask(running, "And?"))["status"] == "completed"


async def test_a_conversation_holds_no_more_than_it_may() -> None:
    async with session(limits=Limits(max_messages=3)) as running:
        for number in range(4):
            running.say(type="conversation.item.create", item=user(str(number)))
        assert (await running.until("error"))["error"]["code"] == "array_above_max_length"
        running.say(type="response.create")
        assert (await running.until("error"))["error"]["code"] == "array_above_max_length"


async def test_a_client_that_does_not_read_holds_up_its_own_response() -> None:
    engine = FakeEngine(answer=says("word ", repeat=True), max_model_len=4096)
    running = Running(voice_state(engine, speaks=False))
    reading = asyncio.Event()

    async def send(_message: bytes) -> None:
        await reading.wait()

    running.send = send  # type: ignore[method-assign, assignment]
    running.start()
    running.say(type="response.create")
    for _ in range(2000):
        await asyncio.sleep(0)
    held = len(running.sent)
    for _ in range(2000):
        await asyncio.sleep(0)
    assert len(running.sent) == held < 600
    reading.set()
    await running.until("response.done")
    await running.end()
