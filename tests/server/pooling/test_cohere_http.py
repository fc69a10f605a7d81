"""``/v2/embed``, as Cohere's clients meet it; the numbers are made up."""

import base64
from typing import Any

import numpy as np
import pytest

from stentor.tests.server.pooling.asking import post
from stentor.tests.server.pooling.pooler import CLS, LENGTH, NAME, SEP, A, FakePooler

pytestmark = pytest.mark.anyio


async def test_cohere_s_embeddings_come_by_type() -> None:
    kinds = ["float", "base64", "int8", "uint8", "binary", "ubinary"]
    body = {"model": NAME, "texts": ["a", "b"], "input_type": "search_document", "embedding_types": kinds}
    engine = FakePooler()
    answer = (await post(engine, "/v2/embed", body)).json()
    assert (answer["response_type"], answer["texts"]) == ("embeddings_by_type", ["a", "b"])
    assert answer["meta"]["billed_units"]["input_tokens"] == 6
    found = answer["embeddings"]
    assert sorted(found) == sorted(kinds)
    floats = np.array(found["float"], np.float32)
    assert [base64.b64decode(each) for each in found["base64"]] == [row.tobytes() for row in floats]
    signs = np.packbits(floats >= 0, axis=1)
    assert np.array_equal(np.array(found["ubinary"]), signs)
    assert np.array_equal(np.array(found["binary"]), signs.astype(int) - 128)
    assert np.array_equal(np.array(found["uint8"]), np.array(found["int8"]) + 128)
    assert np.abs(np.array(found["int8"])).max() == 127
    scale = np.abs(floats).max(axis=1, keepdims=True) / 127
    assert np.abs(np.array(found["int8"]) * scale - floats).max() <= scale.max()


async def test_cohere_s_texts_are_cut_at_the_end_that_is_named() -> None:
    long = " ".join("abcdefghijklmnopqrst")
    for truncate, first in (("END", A), ("START", A + 6)):
        engine = FakePooler()
        answer = await post(engine, "/v2/embed", {"texts": [long], "truncate": truncate})
        assert answer.status_code == 200
        assert (len(engine.prompts[0]), engine.prompts[0][1]) == (LENGTH, first)
    refused = await post(FakePooler(), "/v2/embed", {"texts": ["a", long], "truncate": "NONE"})
    assert refused.status_code == 400
    assert refused.json()["message"].startswith("`texts[1]` has 22 tokens")
    assert "set `truncate` to `END`" in refused.json()["message"]
    engine = FakePooler()
    await post(engine, "/v2/embed", {"inputs": [{"content": [{"type": "text", "text": long}]}], "max_tokens": 5})
    assert engine.prompts == [[CLS, A, A + 1, A + 2, SEP]]
    refused = await post(FakePooler(), "/v2/embed", {"texts": ["a"], "max_tokens": 2})
    assert refused.status_code == 400
    assert refused.json()["message"].startswith("`max_tokens`"), "and no field of another's"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "texts"),
        ({"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "texts"),
        ({"images": ["data:,a"]}, "images[0]"),
        ({"inputs": [{"content": [{"type": "image_url"}]}]}, "inputs[0].content[0].image_url"),
        ({"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types[0]"),
        ({"texts": ["a"], "output_dimension": 4}, "output_dimension"),
        ({"texts": ["a"], "input_type": "poetry"}, "input_type"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
    ],
)
async def test_a_mistake_of_a_cohere_client_names_the_field(body: dict[str, Any], param: str) -> None:
    refused = await post(FakePooler(), "/v2/embed", body)
    assert refused.status_code == 400
    assert f"`{param}`" in refused.json()["message"], "in Cohere's shape, which has no field of its own for it"
