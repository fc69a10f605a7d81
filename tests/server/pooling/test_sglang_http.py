"""SGLang's ``/encode`` and ``/classify`` over a fake pooler."""

from typing import Any

import pytest

from stentor.tests.server.pooling.asking import post
from stentor.tests.server.pooling.pooler import FakePooler, config, scores

pytestmark = pytest.mark.anyio

ENCODED: dict[str, Any] = {"finish_reason": None, "cached_tokens": 0, "weight_version": "default"}


def sglang_s(answer: dict[str, Any]) -> tuple[list[float], dict[str, Any]]:
    meta = answer["meta_info"]
    assert meta.pop("e2e_latency") >= 0
    return answer["embedding"], {name: value for name, value in meta.items() if name not in ENCODED}


async def test_sglang_s_clients_get_a_vector_with_the_tokens_of_its_text() -> None:
    engine = FakePooler()
    plain = (await post(engine, "/v1/embeddings", {"input": ["a b", "c"]})).json()["data"]
    several = (await post(engine, "/encode", {"text": ["a b", "c"], "rid": "x"})).json()
    expected = [
        (one["embedding"], {"id": f"x_{at}", "prompt_tokens": len(stream.prompt)})
        for at, (one, stream) in enumerate(zip(plain, engine.streams[:2], strict=True))
    ]
    assert [sglang_s(one) for one in several] == expected
    ids = list(engine.streams[0].prompt)
    alone = (await post(engine, "/encode", {"input_ids": ids, "rid": "x"})).json()
    assert sglang_s(alone) == (plain[0]["embedding"], {"id": "x", "prompt_tokens": len(ids)})


async def test_sglang_s_classify_has_scores_as_the_head_makes_them_and_vllm_s_has_classes() -> None:
    engine, made = FakePooler(labels=3), config(score=scores("x", "y", "z"))
    plain = (await post(engine, "/classify", {"input": "a"}, made)).json()["data"][0]
    vector, _ = sglang_s((await post(engine, "/classify", {"text": "a"}, made)).json())
    assert len(vector) == plain["num_classes"] == 3
    assert [stream.pooling.activate for stream in engine.streams] == [True, False]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/encode", {}, "text"),
        ("/encode", {"text": "a", "input_ids": [1]}, "input_ids"),
        ("/encode", {"text": "a", "image_data": "x"}, "image_data"),
        ("/encode", {"input_ids": [[1], 2]}, "input_ids[1]"),
        ("/classify", {"text": "a"}, "model"),
    ],
)
async def test_what_sglang_s_clients_cannot_have_is_named(path: str, body: dict[str, Any], param: str) -> None:
    refused = await post(FakePooler(), path, body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
