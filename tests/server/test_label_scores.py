"""Scores by the probabilities of next tokens, for vLLM's and SGLang's clients, over a fake engine."""

import math
from typing import Any

import pytest

from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory

pytestmark = pytest.mark.anyio

VLLM, SGLANG = "/generative_scoring", "/v1/score"
YES, NO, DRAWN = 10, 12, 111


async def post(engine: FakeEngine, path: str, status: int = 200, **body: Any) -> Any:
    wanted = {"query": "Is it so?", "items": ["one", "two"], "label_token_ids": [YES, NO], **body}
    async with in_memory(fake_state(engine)) as client:
        response = await client.post(path, json=wanted)
    assert response.status_code == status, response.text
    return response.json()


def answering() -> FakeEngine:
    """The log-probability of a token that is not drawn is half of its id below 0."""
    return FakeEngine(answer=says("ok"))


def prompts_of(engine: FakeEngine) -> list[bytes]:
    return [bytes(stream.prompt) for stream in engine.streams]


AMONG = 1 / (1 + math.exp(-1))


@pytest.mark.parametrize(("softmax", "score"), [({}, AMONG), ({"apply_softmax": False}, math.exp(-YES / 2))])
async def test_items_are_scored_by_the_first_label_behind_them(softmax: dict[str, Any], score: float) -> None:
    engine = answering()
    answer = await post(engine, VLLM, **softmax)
    assert prompts_of(engine) == [b"Is it so?one", b"Is it so?two"]
    assert [stream.params.max_tokens for stream in engine.streams] == [1, 1]
    assert answer["object"] == "list"
    assert answer["data"] == [{"index": at, "object": "score", "score": pytest.approx(score)} for at in range(2)]
    assert answer["usage"] == {"prompt_tokens": 24, "completion_tokens": 2, "total_tokens": 26}


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_sglang_s_clients_are_told_the_probabilities_of_all_labels(path: str) -> None:
    answer = await post(answering(), path)
    assert answer["scores"] == [pytest.approx([math.exp(-YES / 2), math.exp(-NO / 2)])] * 2
    assert answer["object"] == "scoring"
    assert answer["usage"] == {"prompt_tokens": 24, "completion_tokens": 0, "total_tokens": 24}
    among = await post(answering(), path, apply_softmax=True, items="one")
    assert among["scores"] == [pytest.approx([AMONG, 1 - AMONG])]


async def test_a_request_may_bring_the_name_of_its_answer() -> None:
    answer = await post(answering(), VLLM, request_id="mine")
    assert answer["id"] == "generative-scoring-mine"


async def test_queries_and_items_may_be_tokens_and_the_item_may_come_first() -> None:
    engine = answering()
    await post(engine, SGLANG, query=[97, 98], items=[[99], "d"], item_first=True)
    assert prompts_of(engine) == [b"cab", b"dab"]


async def test_a_label_may_be_the_token_that_was_drawn_or_come_twice() -> None:
    answer = await post(answering(), SGLANG, items="one", label_token_ids=[DRAWN, YES, DRAWN])
    assert answer["scores"] == [pytest.approx([math.exp(-0.25), math.exp(-YES / 2), math.exp(-0.25)])]


@pytest.mark.parametrize("path", [VLLM, SGLANG])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": []}, "items"),
        ({"items": ["a", {}]}, "items[1]"),
        ({"items": ["a"] * 9999}, "items"),
        ({"items": ["a", "b" * 600]}, "items"),
        ({"query": "", "items": ["a", ""]}, "items"),
        ({"query": None}, "query"),
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": ["yes"]}, "label_token_ids[0]"),
        ({"label_token_ids": [999_999]}, "label_token_ids"),
        ({"label_token_ids": [*range(200)]}, "label_token_ids"),
        ({"model": "other"}, "model"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_computed(path: str, body: dict[str, Any], param: str) -> None:
    engine = answering()
    status = 404 if "model" in body else 400
    error = (await post(engine, path, status, **body))["error"]
    assert error["param"] == param
    assert not engine.streams
