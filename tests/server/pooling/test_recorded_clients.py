"""What Cohere's SDK (7.3) and LangChain's OpenAIEmbeddings (1.7) send, as it came over the wire, and what they read of
the answers."""

import base64
import struct
from typing import Any, Final

import httpx
import pytest

from stentor.protocols.ipc.pooling import Pooling
from stentor.server.pooling.model import EmbeddingModel
from stentor.tests.server.harness import in_memory
from stentor.tests.server.pooling.pooler import (
    DIMENSIONS,
    NAME,
    FakePooler,
    config,
    model_of,
    scores,
    state_of,
    vector_of,
)

pytestmark = pytest.mark.anyio

COHERE: Final = {
    "Accept": "*/*",
    "Accept-Encoding": "gzip, deflate, zstd",
    "Connection": "keep-alive",
    "User-Agent": "cohere/7.3.1",
    "X-Fern-Language": "Python",
    "X-Fern-Runtime": "python/3.11.7",
    "X-Fern-Platform": "linux/6.18.44",
    "X-Fern-SDK-Name": "cohere",
    "X-Fern-SDK-Version": "7.3.1",
    "Authorization": "Bearer key",
    "content-type": "application/json",
}
LANGCHAIN: Final = {
    "Accept-Encoding": "gzip, deflate",
    "Connection": "keep-alive",
    "authorization": "Bearer key",
    "accept": "application/json",
    "content-type": "application/json",
    "user-agent": "OpenAI/Python 3.54.0",
    "x-stainless-lang": "python",
    "x-stainless-package-version": "3.54.0",
    "x-stainless-os": "Linux",
    "x-stainless-arch": "x64",
    "x-stainless-runtime": "CPython",
    "x-stainless-runtime-version": "3.11.7",
    "x-stainless-async": "false",
    "x-stainless-retry-count": "0",
}
ANY: Final = object()


async def sent(model: EmbeddingModel, path: str, headers: dict[str, str], body: str) -> httpx.Response:
    """``body`` is in the bytes that the client wrote, but for the model's name, which it was told."""
    async with in_memory(state_of(model)) as client:
        return await client.post(path, headers=headers, content=body.replace('"m"', f'"{NAME}"').encode())


def embedder(engine: FakePooler) -> EmbeddingModel:
    return model_of(engine, config(matryoshka=(4,)))


def reranker(engine: FakePooler) -> EmbeddingModel:
    return model_of(engine, config(score=scores("fits")))


def alike(found: Any, expected: Any) -> bool:
    """Whether ``found`` has all of ``expected``, in which :data:`ANY` is anything that is not None."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(alike(found.get(key), value) for key, value in expected.items())
    return found is not None if expected is ANY else bool(found == expected)


# ---- Cohere


async def test_the_embed_request_of_coheres_client_gets_vectors() -> None:
    engine = FakePooler()
    body = '{"texts":["a","b"],"model":"m","input_type":"search_document","embedding_types":["float"]}'
    answer = await sent(embedder(engine), "/v2/embed", COHERE, body)
    assert answer.status_code == 200
    vectors = [[pytest.approx(value) for value in vector_of(ids, Pooling("embed"))] for ids in engine.prompts]
    assert alike(
        answer.json(),
        {
            "response_type": "embeddings_by_type",
            "id": ANY,
            "embeddings": {"float": vectors},
            "texts": ["a", "b"],
            "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 6}},
        },
    )
    assert len(vectors) == 2


async def test_coheres_embed_with_inputs() -> None:
    body = (
        '{"model":"m","input_type":"search_query","inputs":[{"content":[{"type":"text","text":"a"}]}],'
        '"output_dimension":4,"embedding_types":["float","int8"],"truncate":"NONE"}'
    )
    answer = await sent(embedder(FakePooler()), "/v2/embed", COHERE, body)
    assert answer.status_code == 200
    found = answer.json()["embeddings"]
    assert found.keys() == {"float", "int8"}, "the SDK has a place for each type, and for nothing else"
    assert [len(found[kind][0]) for kind in ("float", "int8")] == [4, 4]
    assert all(isinstance(value, int) and -128 <= value < 128 for value in found["int8"][0])


@pytest.mark.parametrize(
    ("path", "body", "documents"),
    [
        ("/v2/rerank", '{"model":"m","query":"q","documents":["a","b"],"top_n":1}', 1),
        ("/v2/rerank", '{"model":"m","query":"q","documents":["a","b"],"max_tokens_per_doc":100}', 2),
        ("/v1/rerank", '{"model":"m","query":"q","documents":["a",{"text":"b"}],"return_documents":true}', 2),
        (
            "/v2/rerank",
            '{"model":"m","query":"q","documents":["a","b"],"relevant_spans":{"mode":"disabled"},"priority":0}',
            2,
        ),
    ],
)
async def test_the_rerank_request_of_coheres_client_gets_ranked_documents(path: str, body: str, documents: int) -> None:
    answer = await sent(reranker(FakePooler()), path, COHERE, body)
    assert answer.status_code == 200
    found = answer.json()
    assert alike(found, {"id": ANY})
    assert len(found["results"]) == documents
    for each in found["results"]:
        assert alike(each, {"index": ANY, "relevance_score": ANY, "document": {"text": "ab"[each["index"]]}})


async def test_what_cohere_may_be_asked_for_and_is_not_there_is_refused() -> None:
    body = '{"model":"m","query":"q","documents":["a"],"relevant_spans":{"mode":"enabled","max_spans":2}}'
    refused = await sent(reranker(FakePooler()), "/v2/rerank", COHERE, body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "relevant_spans")
    body = '{"images":["data:image/png;base64,aaaa"],"model":"m","input_type":"image","embedding_types":["float"]}'
    refused = await sent(embedder(FakePooler()), "/v2/embed", COHERE, body)
    assert (refused.status_code, "`images[0]`" in refused.json()["message"]) == (400, True)


# ---- LangChain


@pytest.mark.parametrize(
    ("body", "texts", "size"),
    [
        ('{"model":"m","input":["a","b"],"encoding_format":"base64"}', 2, DIMENSIONS),
        ('{"model":"m","input":["a"],"encoding_format":"base64"}', 1, DIMENSIONS),
        ('{"model":"m","input":["a"],"dimensions":4,"encoding_format":"base64"}', 1, 4),
    ],
)
async def test_the_embeddings_request_of_langchains_client_gets_vectors(body: str, texts: int, size: int) -> None:
    engine = FakePooler()
    answer = await sent(embedder(engine), "/v1/embeddings", LANGCHAIN, body)
    assert answer.status_code == 200
    found = answer.json()
    assert alike(found, {"object": "list", "model": NAME, "usage": {"prompt_tokens": 3 * texts}})
    assert [each["index"] for each in found["data"]] == [*range(texts)]
    for each, ids in zip(found["data"], engine.prompts, strict=True):
        values = struct.unpack(f"<{size}f", base64.b64decode(each["embedding"]))
        assert values == pytest.approx(vector_of(ids, Pooling("embed", dimensions=size)))


async def test_langchains_own_token_ids_are_told_by_the_setting_that_sends_them() -> None:
    body = '{"input":[[15339,1917]],"model":"m","encoding_format":"base64"}'
    refused = await sent(embedder(FakePooler()), "/v1/embeddings", LANGCHAIN, body)
    assert refused.status_code == 400
    assert "check_embedding_ctx_length=False" in refused.json()["error"]["message"]
