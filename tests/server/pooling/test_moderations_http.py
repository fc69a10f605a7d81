"""Moderations over a classification model: one result for each text, with the model's labels as categories."""

from typing import Any

import httpx
import openai
import pytest

from stentor.server.app.application import create_app
from stentor.server.app.state import ServerState
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import in_memory
from stentor.tests.server.pooling.pooler import NAME, FakePooler, config, model_of, scores, state_of

pytestmark = pytest.mark.anyio
MODERATIONS = "/v1/moderations"


def state(*labels: str) -> ServerState:
    return state_of(model_of(FakePooler(labels=len(labels)), config(score=scores(*labels))))


async def asked(*labels: str, status: int = 200, **body: Any) -> dict[str, Any]:
    async with in_memory(state(*labels)) as client:
        answer = await client.post(MODERATIONS, json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_every_text_has_a_result_with_the_labels_as_categories() -> None:
    answer = await asked("hate", "spam", input=["a", "b", "c d"])
    assert (answer["id"][:5], answer["model"], len(answer["results"])) == ("modr-", NAME, 3)
    async with in_memory(state("hate", "spam")) as client:
        classes = (await client.post("/classify", json={"input": ["a", "b", "c d"]})).json()["data"]
    for result, each in zip(answer["results"], classes, strict=True):
        assert list(result["category_scores"].values()) == each["probs"]
        assert list(result["category_scores"]) == ["hate", "spam"]
        assert result["categories"] == {name: score >= 0.5 for name, score in result["category_scores"].items()}
        assert result["flagged"] == any(result["categories"].values())
        assert result["category_applied_input_types"] == {"hate": ["text"], "spam": ["text"]}


@pytest.mark.parametrize("harmless", ["OK", "non-toxic", "Not_Hate", "NEUTRAL"])
async def test_a_label_for_what_is_harmless_is_no_category(harmless: str) -> None:
    result = (await asked(harmless, "toxic", input="a"))["results"][0]
    assert list(result["categories"]) == ["toxic"]
    assert result["flagged"] == (result["category_scores"]["toxic"] >= 0.5)
    assert list((await asked(harmless, input="a"))["results"][0]["categories"]) == [harmless]


async def test_parts_are_one_text_and_the_sdk_reads_the_answer() -> None:
    parts: Any = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    client: Any = httpx.AsyncClient(transport=httpx.ASGITransport(create_app(state("hate", "spam"))))
    async with openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=client) as sdk:
        found = await sdk.moderations.create(input=parts, model=NAME)
        same = await sdk.moderations.create(input="a\nb")
    assert len(found.results) == 1
    assert found.results[0].category_scores.hate == same.results[0].category_scores.hate


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "input"),
        ([], "input"),
        (7, "input"),
        (["a", {"type": "text", "text": "b"}], "input"),
        ([{"type": "image_url", "image_url": {"url": "data:,"}}], "input[0].type"),
        ([{"type": "text"}], "input[0].text"),
        ([{"type": "text", "text": 7}], "input[0].text"),
    ],
)
async def test_what_cannot_be_classified_is_refused(given: Any, param: str) -> None:
    assert (await asked("x", "y", status=400, input=given))["error"]["param"] == param


async def test_where_no_model_classifies_one_line_says_so() -> None:
    async with in_memory(state_of(model_of(FakePooler(), config()))) as client:
        refused = await client.post(MODERATIONS, json={"input": "a"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
        assert "does not classify texts" in refused.json()["error"]["message"]
    async with in_memory(fake_state()) as client:
        refused = await client.post(MODERATIONS, json={"input": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_not_supported")
    assert (await asked("x", "y", status=404, input="a", model="omni-moderation-latest"))["error"]["param"] == "model"
