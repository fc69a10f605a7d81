"""Tasks that a Live session delegates to the server's own Responses API, by the openai SDK."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from openai.types.responses.responses_server_event import ResponsesServerEvent

from stentor.protocols.common.limits import Limits
from stentor.tests.fakes import EOS, FakeEngine
from stentor.tests.server.realtime.live_client import LiveClient, connected, live_server
from stentor.tests.server.realtime.test_text_sessions import prompt_of
from stentor.tests.server.responses.sockets import EXTENDED
from stentor.tests.wire.validate import check_event

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning"),
]
DELEGATES = 'One moment. <tool_call>\n{"name": "delegate", "arguments": {}}\n</tool_call>'
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
BACKEND = {"model": "fake", "instructions": "You are the backend.", "tools": [LOOK]}


def engine_that(*answers: str) -> FakeEngine:
    """The session's model delegates, and then tells; ``answers`` are those of the backend, in turn."""
    left = list(answers)

    def answer(prompt: list[int], _index: int) -> Sequence[int]:
        text = bytes(token for token in prompt if token < 256).decode()
        if "You are the backend." in text:
            said = left.pop(0)
        else:
            said = "It is so." if "Tell the user now" in text else DELEGATES
        return [*said.encode(), EOS]

    return FakeEngine(answer=answer, max_model_len=8192)


async def delegated(client: LiveClient, **backend: Any) -> dict[str, Any]:
    """The delegation that the model makes once it is spoken to."""
    session = await client.start(delegation={"type": "responses", "responses": {**BACKEND, **backend}})
    assert session["delegation"]["responses"]["instructions"] == "You are the backend."
    await client.speak()
    event: dict[str, Any] = (await client.until("session.delegation.created"))["delegation"]
    assert event["target"] == "responses"
    return event


async def nested(client: LiveClient, kind: str) -> dict[str, Any]:
    """The next event of the backend of that type."""
    while True:
        event = await client.until("response.event")
        check_event(ResponsesServerEvent, event["event"], EXTENDED)
        if event["event"]["type"] == kind:
            return event


async def test_the_backend_answers_and_the_model_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that("Sun, 20 degrees.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        delegation = await delegated(client)
        done = await nested(client, "response.completed")
        assert done["delegation_id"] == delegation["id"]
        assert done["event"]["response"]["id"] == delegation["response_id"]
        assert (done["event"]["response"]["output"], done["event"]["response"]["tools"]) == ([], [])
        while client.transcript("output") != "One moment. It is so.":
            await client.until("session.output_transcript.delta")
    backend = prompt_of(engine, 1)
    assert backend.startswith("<system>You are the backend.")
    assert "<user>w1 w2" in backend
    assert "From the backend: Tell the user now, in your own words: Sun, 20 degrees." in prompt_of(engine)


async def test_the_client_s_functions_are_called_and_the_response_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that(CALL, "It is blue.", "Nothing more.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        await delegated(client)
        call = (await nested(client, "response.output_item.done"))["event"]["item"]
        assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"at": "it"})
        await nested(client, "response.completed")
        unknown = {"type": "function_call_output", "call_id": "nobody", "output": "x"}
        error = await client.refused(type="response.item.create", item=unknown, event_id="u")
        assert (error["param"], error["client_event_id"]) == ("item.call_id", "u")
        assert (await client.refused(type="response.item.create", item={"type": "nothing"}))["param"] == "item.type"
        output: Any = {"type": "function_call_output", "call_id": call["call_id"], "output": "blue"}
        await client.connection.response.item.create(item=output)
        await client.connection.response.create()
        await nested(client, "response.completed")
        while "It is so." not in client.transcript("output"):
            await client.until("session.output_transcript.delta")
        assert "blue" in prompt_of(engine, 2)
        await client.connection.response.create()
        await nested(client, "response.completed")


async def test_a_task_is_delegated_while_the_client_works_on_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that(CALL, "It is late.", "It is blue.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        await delegated(client)
        call = (await nested(client, "response.output_item.done"))["event"]["item"]
        await nested(client, "response.completed")
        await client.connection.response.create()
        await nested(client, "response.completed")
        assert "look" not in prompt_of(engine, 2).split("<user>")[1]
        while "It is so." not in client.transcript("output"):
            await client.until("session.output_transcript.delta")
        output: Any = {"type": "function_call_output", "call_id": call["call_id"], "output": "blue"}
        await client.connection.response.item.create(item=output)
        await client.connection.response.create()
        await nested(client, "response.completed")
    backend = [prompt for place in range(len(engine.streams)) if "You are" in (prompt := prompt_of(engine, place))]
    assert "blue" in backend[-1]
    assert backend[-1].count("look") > backend[-2].count("look"), "the call and its output come together"


async def test_input_of_the_backend_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(max_prompt_chars=1000)
    async with live_server(monkeypatch, engine_that(), limits=limits) as (_, address), connected(address) as client:
        await client.start(delegation={"type": "responses", "responses": BACKEND})
        item: Any = {"type": "message", "role": "user", "content": "x" * 600}
        await client.connection.response.item.create(item=item)
        error = await client.refused(type="response.item.create", item=item)
        assert (error["param"], error["code"]) == ("item", "string_above_max_length")


async def test_a_backend_that_fails_is_told_to_the_client_and_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that()
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        await client.start(delegation={"type": "responses", "responses": BACKEND})
        too_much: Any = {"type": "message", "role": "user", "content": "x" * 30_000}
        await client.connection.response.item.create(item=too_much)
        await client.connection.response.create()
        error = (await client.until("error"))["error"]
        assert error["code"] == "context_length_exceeded"
        await client.until("session.output_transcript.delta")
    assert "The task could not be done" in prompt_of(engine)


async def test_the_backend_changes_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that("It is so.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        session = await client.start(delegation={"type": "responses", "responses": {"model": "gpt-5"}})
        assert session["delegation"]["responses"] == {"model": "fake/model"}, "as other names of models"
        for update, param in (
            ({"type": "client"}, "type"),
            ({"type": "responses", "responses": {"tools": [{"type": "nothing"}]}}, "responses.tools[0].type"),
            ({"type": "responses", "responses": {"max_output_tokens": 0}}, "responses.max_output_tokens"),
            ({"type": "responses", "responses": {"input": []}}, "responses.input"),
        ):
            error = await client.refused(type="session.update", session={"delegation": update})
            assert error["param"] == f"session.delegation.{param}", error
        more: Any = {"type": "responses", "responses": {"instructions": "You are the backend."}}
        await client.connection.session.update(session={"delegation": more})
        updated = (await client.until("session.updated"))["session"]["delegation"]["responses"]
        assert updated == {"model": "fake/model", "instructions": "You are the backend."}
        error = await client.refused(type="session.thinking.append", content="x", delegation_id="dlg_x")
        assert (error["param"], error["code"]) == ("delegation_id", "invalid_value")


async def test_a_session_without_a_backend_takes_nothing_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live_server(monkeypatch) as (_, address), connected(address) as client:
        await client.start()
        for event in ({"type": "response.create"}, {"type": "response.item.create", "item": {}}):
            error = await client.refused(**event, event_id="z")
            assert (error["param"], error["code"], error["client_event_id"]) == ("type", "invalid_event", "z")
