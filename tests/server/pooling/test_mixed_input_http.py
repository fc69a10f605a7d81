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
