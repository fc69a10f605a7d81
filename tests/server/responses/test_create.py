"""Responses over a fake engine, held against the SDK's own types; stream against non-stream."""

import asyncio
from typing import Any

import pytest
from openai.types.responses import Response
from openai.types.responses.response_item_list import ResponseItemList

from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory, until
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.wire.responses import check_stream
from stentor.tests.wire.validate import assert_same_answer, check_object

pytestmark = pytest.mark.anyio


async def post(engine: FakeEngine, **body: Any) -> Any:
    async with in_memory(fake_state(engine)) as client:
        response = await client.post(RESPONSES, json={"input": "hello", **body})
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize(
    "body",
    [
        {"max_output_tokens": 12},
        {"max_output_tokens": 12, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"max_output_tokens": 9, "store": False, "instructions": "Be brief.", "metadata": {"a": "b"}},
    ],
)
async def test_every_response_and_event_is_valid_to_the_sdk_and_both_say_the_same(body: dict[str, Any]) -> None:
    whole = await post(FakeEngine(), **body)
    check_object(Response, whole.content, EXTENSIONS)
    streamed = await post(FakeEngine(), **body, stream=True)
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    answer = check_stream(streamed.text, EXTENSIONS)
    assert_same_answer(whole.json(), answer, ("id", "created_at"))
    assert answer["status"] == "incomplete"


async def test_an_answer_that_ends_by_itself_is_completed() -> None:
    body = (await post(FakeEngine(answer=says("Yes.")))).json()
    assert body["status"] == "completed"
    assert body["output"][0]["content"][0]["text"] == "Yes."
    assert body["usage"]["output_tokens"] == 5


async def test_a_response_whose_time_is_up_fails_and_says_so() -> None:
    engine = FakeEngine(delay=0.02)
    async with in_memory(fake_state(engine)) as client:
        headers = {"x-request-timeout": "0.15"}
        whole = await client.post(RESPONSES, json={"input": "hello"}, headers=headers)
        assert (whole.status_code, whole.json()["error"]["code"]) == (504, "deadline_exceeded")
        streamed = await client.post(RESPONSES, json={"input": "hello", "stream": True}, headers=headers)
        answer = check_stream(streamed.text, EXTENSIONS)
        stored = (await client.get(f"{RESPONSES}/{answer['id']}")).json()
    assert answer == stored
    assert answer["status"] == "failed"
    assert "0.15 seconds" in answer["error"]["message"]
    assert answer["output"][0]["status"] == "incomplete"
    assert engine.live == 0


async def test_an_engine_that_fails_fails_the_response() -> None:
    engine = FakeEngine(answer=says("Yes, ", repeat=True))
    engine.delay = 0.01
    state = fake_state(engine)
    async with in_memory(state) as client:
        reading = asyncio.create_task(client.post(RESPONSES, json={"input": "hello", "stream": True}))
        await until(lambda: any(live.log and live.log.end > 6 for live in state.responses))
        engine.failure = "lost"
        answer = check_stream((await reading).text, EXTENSIONS)
        assert (answer["status"], answer["error"]["code"]) == ("failed", "server_error")
        for stream in (False, True):  # and now none is begun
            refused = await client.post(RESPONSES, json={"input": "hello", "stream": stream})
            assert refused.status_code == 503
        queued = await client.post(RESPONSES, json={"input": "hello", "background": True})
        assert queued.status_code == 503


async def test_settings_that_an_item_changes_are_in_force_until_the_next_one() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    items: list[Any] = [
        {"role": "user", "content": "hello"},
        {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": form}},
    ]
    engine = FakeEngine(answer=says("{}"))
    async with in_memory(fake_state(engine)) as client:
        first = (await client.post(RESPONSES, json={"input": items, "reasoning": {"effort": "high"}})).json()
        check_object(Response, first, EXTENSIONS)
        again = [{"type": "configuration_update", "text": {"format": {"type": "text"}}}]
        body = {"input": again, "previous_response_id": first["id"], "text": {"verbosity": "low"}}
        second = (await client.post(RESPONSES, json=body)).json()
        listed = await client.get(f"{RESPONSES}/{second['id']}/input_items")
    assert first["reasoning"]["effort"] == second["reasoning"]["effort"] == "low"
    assert first["text"]["format"]["name"] == "n"
    assert second["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert [bool(grammar) for grammar in engine.grammars] == [True, False]
    check_object(ResponseItemList, listed.content, EXTENSIONS)
