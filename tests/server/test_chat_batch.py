"""Several conversations in one request for chat, over a fake engine."""

from typing import Any

import pytest

from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import CHAT, HELLO, in_memory

pytestmark = pytest.mark.anyio

BATCH = f"{CHAT}/batch"
OTHER = [{"role": "user", "content": "a longer question"}]


async def post(body: Any, engine: FakeEngine | None = None, status: int = 200, path: str = BATCH) -> Any:
    async with in_memory(fake_state(engine or FakeEngine(answer=says("ok")))) as client:
        response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


async def test_each_conversation_gets_a_choice_in_order_and_usage_is_that_of_all() -> None:
    engine = FakeEngine(answer=says("ok"))
    answer = await post({"messages": [HELLO, OTHER], "seed": 1}, engine)
    assert answer["object"] == "chat.completion"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["ok", "ok"]
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}
    alone = [await post({"messages": messages}, path=CHAT) for messages in (HELLO, OTHER)]
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][field] == sum(one["usage"][field] for one in alone)
    assert len(engine.streams) == 2


async def test_log_probabilities_and_token_ids_are_of_each_choice() -> None:
    body = {"messages": [HELLO, OTHER], "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    answer = await post(body)
    for choice in answer["choices"]:
        assert "".join(token["token"] for token in choice["logprobs"]["content"]).startswith("ok")
        assert choice["token_ids"]
    assert "prompt_token_ids" not in answer


async def test_an_answer_may_begin_with_the_last_message_of_its_conversation() -> None:
    begun = [*HELLO, {"role": "assistant", "content": "Well, "}]
    fields = {"echo": True, "add_generation_prompt": False, "continue_final_message": True}
    answer = await post({"messages": [begun, begun], **fields})
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Well, ok", "Well, ok"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": HELLO}, "messages[0]"),
        ({"messages": [HELLO, []]}, "messages[1]"),
        ({"messages": [HELLO, [{"role": "user"}]]}, "messages[1][0].content"),
        ({"messages": [HELLO] * 1025}, "messages"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"store": True}, "store"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"return_prompt_text": True}, "return_prompt_text"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_several_conversations_cannot_have_is_refused_by_name(body: dict[str, Any], field: str) -> None:
    engine = FakeEngine(answer=says("ok"))
    answer = await post({"messages": [HELLO, HELLO], **body}, engine, status=400)
    assert answer["error"]["param"] == field
    assert not engine.streams
