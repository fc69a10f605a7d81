"""Responses over a fake engine, held against the SDK's own types; stream against non-stream."""

from typing import Any

import pytest
from openai.types.responses import Response

from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory
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
