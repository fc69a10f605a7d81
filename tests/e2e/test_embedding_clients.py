"""Cohere's SDK and LangChain's OpenAIEmbeddings, where they are installed (the extra `clients`), against a server."""

import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Final

import httpx
import pytest

from stentor.engine.loading.download.hub import DEMO_EMBEDDING_MODEL
from stentor.loadtest.server_process import ServerProcess

NAME: Final = "text-embedding-3-small"
TEXTS: Final = ("The cat sits outside.", "Stocks fell sharply on Tuesday.")
DOCUMENTS: Final = ("Paris is the capital of France.", "Cats are small carnivorous animals.", "The sun is a star.")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    if not any(map(find_spec, ("cohere", "langchain_openai"))):
        pytest.skip("the extra `clients` is not installed")
    with ServerProcess([DEMO_EMBEDDING_MODEL, "--served-model-name", NAME, "--dtype", "float32"]) as running:
        yield running


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:  # of its own each of them leaves sockets open
        yield client


@pytest.fixture
def cohere(server: ServerProcess, http: httpx.Client) -> Any:
    module = pytest.importorskip("cohere", reason="the extra `clients` is not installed")
    return module.ClientV2("unused", base_url=f"http://127.0.0.1:{server.port}", httpx_client=http)


@pytest.fixture
def langchain(server: ServerProcess, http: httpx.Client) -> Any:
    module = pytest.importorskip("langchain_openai", reason="the extra `clients` is not installed")

    def made(**options: Any) -> Any:
        base = f"http://127.0.0.1:{server.port}/v1"
        return module.OpenAIEmbeddings(
            model=NAME, base_url=base, api_key="unused", max_retries=0, http_client=http, **options
        )

    return made


def test_coheres_client_embeds(cohere: Any) -> None:
    found = cohere.embed(
        model=NAME, texts=[*TEXTS], input_type="search_document", embedding_types=["float", "int8", "ubinary", "base64"]
    )
    assert [len(vector) for vector in found.embeddings.float_] == [384, 384]
    assert math.hypot(*found.embeddings.float_[0]) == pytest.approx(1, abs=1e-5)
    assert len(found.embeddings.ubinary[1]) == 48
    assert max(map(abs, found.embeddings.int8[0])) == 127
    assert found.meta.billed_units.input_tokens > 10
    many = cohere.embed(
        model=NAME, texts=[f"{number}" for number in range(200)], input_type="search_query", embedding_types=["float"]
    )
    assert len(many.embeddings.float_) == 200, "the client sends 96 at a time, several at once"


def test_coheres_client_ranks(cohere: Any) -> None:
    found = cohere.rerank(model=NAME, query="what is a cat?", documents=[*DOCUMENTS], top_n=2)
    assert len(found.results) == 2
    assert found.results[0].index == 1
    assert found.results[0].relevance_score > found.results[1].relevance_score


def test_coheres_client_raises_its_own_error(cohere: Any) -> None:
    import cohere as module  # type: ignore[import-not-found,unused-ignore]

    with pytest.raises(module.BadRequestError, match="input_type"):
        cohere.embed(model=NAME, texts=["a"], input_type="poetry", embedding_types=["float"])
    with pytest.raises(module.NotFoundError):
        cohere.embed(model="another", texts=["a"], input_type="search_query", embedding_types=["float"])


def test_langchains_client_embeds(langchain: Any) -> None:
    client = langchain(check_embedding_ctx_length=False)
    documents = client.embed_documents([*DOCUMENTS])
    query = client.embed_query("what is a cat?")
    alike = [sum(a * b for a, b in zip(query, each, strict=True)) for each in documents]
    assert alike.index(max(alike)) == 1


def test_langchains_client_is_told_of_its_setting(langchain: Any) -> None:
    import openai

    client = langchain(check_embedding_ctx_length=False).client
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        client.create(model=NAME, input=[[9906, 1917, 100257]])  # what it sends of its own accord without it
