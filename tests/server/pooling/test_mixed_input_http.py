"""Inputs for vectors whose list holds texts, objects and token ids."""

import pytest

from stentor.tests.server.pooling.asking import post
from stentor.tests.server.pooling.pooler import CLS, SEP, A, FakePooler

pytestmark = pytest.mark.anyio

EMBEDDINGS = "/v1/embeddings"


async def test_texts_objects_and_token_ids_may_stand_in_one_list() -> None:
    engine, apart = FakePooler(), FakePooler()
    given = ["a b", [CLS, A, SEP], {"prompt_string": "c"}, {"text": "a"}]
    assert (await post(engine, EMBEDDINGS, {"input": given})).status_code == 200
    await post(apart, EMBEDDINGS, {"input": ["a b", "c", "a"]})
    first, *others = apart.prompts
    assert engine.prompts == [first, [CLS, A, SEP], *others]


@pytest.mark.parametrize(
    "alone", [{"prompt_string": "a b"}, {"text": "a b"}, {"content": [{"type": "text", "text": "a b"}]}]
)
async def test_an_object_alone_is_a_list_of_one(alone: dict[str, object]) -> None:
    engine, apart = FakePooler(), FakePooler()
    assert (await post(engine, EMBEDDINGS, {"input": alone})).status_code == 200
    await post(apart, EMBEDDINGS, {"input": [alone]})
    assert engine.prompts == apart.prompts
    assert len(engine.prompts) == 1
    refused = await post(engine, EMBEDDINGS, {"input": {}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0].text")
