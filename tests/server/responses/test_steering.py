"""Input for a response that runs: it ends where nothing is lost, and a successor goes on from it."""

import json
from typing import Any

import httpx
import pytest

from stentor.server.api.responses.steering import MAX_STEERS
from stentor.server.config.limits import ConnectionLimits
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import until
from stentor.tests.server.responses.sockets import ask, opened, serving, until_the_end, until_told
from stentor.tests.server.responses.steered import LONG, Held, begun, calling, steer
from stentor.tests.server.tools.scripted import call

pytestmark = pytest.mark.anyio

FIND: Any = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}


async def conversation_at(address: str) -> str:
    async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
        return str((await client.post("/v1/conversations", json={})).json()["id"])


@pytest.mark.parametrize("body", [{}, {"store": False}, {"stream_id": "a"}])
async def test_a_steered_response_ends_in_its_text_and_a_successor_goes_on_with_its_settings(
    body: dict[str, Any],
) -> None:
    engine = Held()
    state = fake_state(engine)
    async with serving(state) as address, opened(address) as socket:
        first = await begun(socket, engine, instructions="Be brief.", **body)
        await steer(socket, first, "Stop that.")
        told = (await until_told(socket, "response.steer.accepted"))[-1]
        assert told["steer"]["previous_response_id"] == first
        engine.gate.set()
        ended = (await until_the_end(socket))[-1]
        assert ended["type"] == "response.incomplete"
        assert ended["response"]["incomplete_details"] == {"reason": "steered"}
        (message,) = ended["response"]["output"]
        said = message["content"][0]["text"]
        assert message["status"] == "incomplete"
        assert LONG.startswith(said)
        assert 0 < len(said) < 10
        events = await until_the_end(socket)
        assert events[0]["type"] == "response.created"
        assert events[0]["response"]["previous_response_id"] == first
        assert events[-1]["response"]["instructions"] == "Be brief."
        assert all(event.get("stream_id") == body.get("stream_id") for event in (told, ended, *events))
        assert engine.prompts[1] == f"<system>Be brief.\n<user>Write.\n<assistant>{said}\n<user>Stop that.\n<assistant>"
        assert engine.streams[0].aborted
    await until(lambda: state.admission.memory.bytes == 0)


async def test_steers_are_taken_in_their_order_and_before_what_waits_in_the_lane() -> None:
    engine = Held()
    async with serving(fake_state(engine)) as address, opened(address) as socket:
        first = await begun(socket, engine)
        await ask(socket, input="Later.")
        parts = [{"type": "input_text", "text": "Two."}]
        for given in ("One.", [{"role": "user", "content": parts}, {"role": "user", "content": "Three."}]):
            await steer(socket, first, given)
            await until_told(socket, "response.steer.accepted")
        engine.gate.set()
        for _ in range(3):
            await until_the_end(socket)
        assert "<user>One.\n<user>Two.\n<user>Three.\n<assistant>" in engine.prompts[1]
        assert engine.prompts[2] == "<user>Later.\n<assistant>"


async def test_a_successor_can_be_steered_too() -> None:
    engine = Held()
    async with serving(fake_state(engine)) as address, opened(address) as socket:
        response = await begun(socket, engine)
        for number in range(2):
            await steer(socket, response, f"Number {number}.")
            await until_told(socket, "response.steer.accepted")
            engine._left, engine._texts = 4, iter([LONG, "Yes."])
            engine.gate.set()
            await until_the_end(socket)
            response = (await until_told(socket, "response.created"))[-1]["response"]["id"]
            await until(lambda: not engine.gate.is_set())
        engine.gate.set()
        assert (await until_the_end(socket))[-1]["response"]["status"] == "completed"
        assert "Number 1." in engine.prompts[2]


CALLS = "Let me see. " + call("find", what="a stone")
IN_CALL = CALLS.index("stone")


async def test_input_for_a_response_that_calls_a_tool_of_the_client_waits_for_the_result() -> None:
    engine = Held(text=CALLS, steps=IN_CALL)
    async with serving(calling(engine)) as address, opened(address) as socket:
        first = await begun(socket, engine, tools=[FIND])
        await steer(socket, first, "The red one.")
        await until_told(socket, "response.steer.accepted")
        engine.gate.set()
        *events, pending = await until_told(socket, "response.steer.pending")
        ended = next(event for event in events if event["type"] == "response.completed")
        (called,) = [item for item in ended["response"]["output"] if item["type"] == "function_call"]
        assert json.loads(called["arguments"]) == {"what": "a stone"}
        stub = {"type": "function_call_output", "call_id": called["call_id"], "name": "find"}
        assert pending["required_input"] == [stub]
        assert pending["reason"] == "waiting_for_required_input"
        for previous, lane in ((first, {"stream_id": "another"}), ("resp_other", {})):
            await ask(socket, input="?", previous_response_id=previous, **lane)
            await until_the_end(socket)
        assert not any("red" in prompt for prompt in engine.prompts)
        result = {**stub, "output": "Two stones."}
        await ask(socket, input=[result, {"role": "user", "content": "Which?"}], previous_response_id=first)
        assert (await until_the_end(socket))[-1]["response"]["status"] == "completed"
        assert engine.prompts[-1].endswith("<tool>Two stones.\n<user>The red one.\n<user>Which?\n<assistant>")
        await ask(socket, input=[result], previous_response_id=first)
        await until_the_end(socket)
        assert "red" not in engine.prompts[-1]


async def test_a_request_that_is_refused_leaves_the_input_where_it_waits() -> None:
    engine = Held(text=CALLS, steps=IN_CALL)
    state = calling(engine)
    async with serving(state) as address:
        async with opened(address) as socket:
            first = await begun(socket, engine, tools=[FIND])
            await steer(socket, first, "The red one.")
            await until_told(socket, "response.steer.accepted")
            engine.gate.set()
            (stub,) = (await until_told(socket, "response.steer.pending"))[-1]["required_input"]
            result = {**stub, "output": "Two stones."}
            await ask(socket, input=[result], previous_response_id=first, temperature=9)
            assert (await until_the_end(socket))[-1]["type"] == "error"
            await ask(socket, input=[result], previous_response_id=first)
            await until_the_end(socket)
            assert engine.prompts[-1].endswith("<user>The red one.\n<assistant>")
        await until(lambda: state.admission.memory.bytes == 0)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (None, "input"),
        ("", "input"),
        ([], "input"),
        (["text"], "input"),
        ([{"role": "system", "content": "x"}], "input[0]"),
        ([{"role": "user", "content": "x"}, {"type": "item_reference", "id": "msg_1"}], "input[1]"),
        ([{"type": "function_call_output", "call_id": "a", "output": "x"}], "input[0]"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
    ],
)
async def test_what_is_no_message_of_a_user_is_refused_and_given_back(given: Any, what: str) -> None:
    engine = Held()
    state = fake_state(engine)
    async with serving(state) as address, opened(address) as socket:
        await steer(socket, await begun(socket, engine), given)
        failed: dict[str, Any] = {}
        while failed.get("type") != "response.steer.failed":  # which holds what no event may
            failed = json.loads(await socket.recv())
        assert failed["error"]["code"] == "invalid_input"
        assert f"`{what}`" in failed["error"]["message"]
        assert failed["steer"]["input"] == given
        assert "id" not in failed["steer"]
        engine.gate.set()
        assert (await until_the_end(socket))[-1]["response"]["status"] == "completed"


async def test_only_what_runs_on_the_connection_and_belongs_to_no_conversation_can_be_steered() -> None:
    engine = Held()
    state = fake_state(engine)
    async with serving(state) as address, opened(address) as socket, opened(address) as other:
        codes: list[str] = []
        first = await begun(socket, engine, conversation=await conversation_at(address))
        for where in (other, socket):
            await steer(where, first, "Stop.")
            codes.append((await until_told(where, "response.steer.failed"))[-1]["error"]["code"])
        engine.gate.set()
        await until_the_end(socket)
        await until(lambda: not state.admission.live_requests)
        await steer(socket, first, "Stop.")
        codes.append((await until_told(socket, "response.steer.failed"))[-1]["error"]["code"])
        assert codes == ["response_not_found", "steering_not_supported", "response_already_completed"]


async def test_no_more_steers_of_a_response_wait_than_may_and_none_outlives_its_connection() -> None:
    engine = Held()
    state = fake_state(engine, connection=ConnectionLimits(max_messages_per_second=0))
    async with serving(state) as address:
        async with opened(address) as socket:
            first = await begun(socket, engine)
            for _ in range(MAX_STEERS + 1):
                await steer(socket, first, "x" * 40_000)
            failed = (await until_told(socket, "response.steer.failed"))[-1]
            assert failed["error"]["code"] == "too_many_pending_steers"
            assert state.admission.memory.bytes > MAX_STEERS * 40_000
        await until(lambda: state.admission.memory.bytes == 0)


async def test_input_that_no_successor_can_take_is_given_back() -> None:
    engine = Held()
    state = fake_state(engine)
    async with serving(state) as address, opened(address) as socket:
        first = await begun(socket, engine)
        await steer(socket, first, "Stop.")
        accepted = (await until_told(socket, "response.steer.accepted"))[-1]
        state.admission.draining = True
        engine.gate.set()
        await until_the_end(socket)
        failed = (await until_told(socket, "response.steer.failed"))[-1]
        assert failed["error"]["code"] == "successor_creation_failed"
        assert failed["steer"] == {**accepted["steer"], "input": "Stop."}
        assert failed["sequence_number"] == 1
        assert state.admission.memory.bytes == 0
