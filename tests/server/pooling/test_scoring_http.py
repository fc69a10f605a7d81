"""The routes that score and rank, as clients meet them; the numbers are made up."""

from typing import Any, Final

import numpy as np
import pytest

from stentor.engine.model_config.encoders.sentence import SentenceModules
from stentor.protocols.ipc.pooling import Pooling
from stentor.server.pooling import scoring
from stentor.server.pooling.model import LateInteraction
from stentor.tests.server.pooling.asking import COLBERT, SPARSE, post
from stentor.tests.server.pooling.pooler import (
    CLS,
    LENGTH,
    NAME,
    SEP,
    WORDS,
    A,
    Adapted,
    FakePooler,
    config,
    scores,
    vector_of,
)

pytestmark = pytest.mark.anyio

EMBEDDINGS: Final = "/v1/embeddings"


def wanted(ids: list[int], pooling: Pooling) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(vector_of(ids, pooling), np.float32)


# ---- /score and /rerank

RERANKER: Final = config(score=scores("fits"))


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "names", [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")]
)
async def test_one_text_is_scored_against_many_and_many_against_as_many(path: str, names: tuple[str, str]) -> None:
    for first, second, pairs in (
        ("a", "b", [(A, A + 1)]),
        ("a", ["b", "c"], [(A, A + 1), (A, A + 2)]),
        (["a", "b"], ["c", "d"], [(A, A + 2), (A + 1, A + 3)]),
    ):
        engine = FakePooler()
        answer = (await post(engine, path, dict(zip(names, (first, second), strict=True)), RERANKER)).json()
        assert engine.prompts == [[CLS, one, SEP, other, SEP] for one, other in pairs]
        assert [stream.pooling.second for stream in engine.streams] == [3] * len(pairs)
        assert [each["score"] for each in answer["data"]] == [pytest.approx(sum(ids) % 7 / 7) for ids in engine.prompts]
        assert answer["data"][0]["object"] == "score"
        assert answer["usage"]["prompt_tokens"] == 5 * len(pairs)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "queries"),
        ({"queries": "a"}, "documents"),
        ({"queries": ["a", "b"], "documents": ["a"]}, "queries"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"queries": "a", "data_1": "a", "documents": "b"}, "data_1"),
        ({"queries": [], "documents": "b"}, "queries"),
        ({"queries": "a", "documents": [{"image": "x"}]}, "documents[0].image"),
        ({"queries": "a", "documents": ["b", "b " * 30]}, "documents[1]"),
        ({"queries": "a", "documents": "b", "instruction": "c"}, "instruction"),
        ({"queries": "a", "documents": "b", "chat_template_kwargs": {"instruction": 7}}, "chat_template_kwargs"),
        ({"queries": "a", "documents": "b", "chat_template_kwargs": {"tone": "b"}}, "chat_template_kwargs"),
    ],
)
async def test_a_mistake_in_what_is_to_be_scored_names_the_field(body: dict[str, Any], param: str) -> None:
    engine = FakePooler()
    refused = await post(engine, "/score", body, RERANKER)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert not engine.streams


async def test_arguments_of_a_template_that_writes_pairs_reach_it() -> None:
    template = "{{ tone }} {{ instruction }}{% for m in messages %} {{ m.content }}{% endfor %}{# query document #}"
    made = config(score=scores("fits"))
    body = {"query": "a", "documents": ["b"], "instruction": "c", "chat_template_kwargs": {"tone": "d"}}
    engine = FakePooler()
    await post(engine, "/rerank", body, made, pair_form="template", template=template)
    assert engine.prompts == [[A + 3, A + 2, A, A + 1]]
    for name in ("messages", "_environment"):
        body["chat_template_kwargs"] = {name: "d"}
        refused = await post(engine, "/rerank", body, made, pair_form="template", template=template)
        error = refused.json()["error"]
        assert (error["param"], error["message"]) == (
            "chat_template_kwargs",
            f"`chat_template_kwargs` must not set `{name}`.",
        )


@pytest.mark.parametrize("fields", [{"instruction": "c"}, {"chat_template_kwargs": {"instruction": "c"}}])
@pytest.mark.parametrize("made", [config(), config(vectors=COLBERT), config(sparse=SPARSE)])
async def test_an_instruction_that_an_embedder_would_not_read_is_refused(made: Any, fields: dict[str, Any]) -> None:
    refused = await post(FakePooler(), "/score", {"queries": "a", "documents": "b", **fields}, made)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "instruction")


async def test_an_embedder_scores_by_the_cosine_of_vectors_with_its_prompts() -> None:
    made = config(modules=SentenceModules(("mean",), prompts={"query": "query ", "document": "title "}))
    engine = FakePooler()
    answer = (await post(engine, "/score", {"queries": "a", "documents": ["b", "c"]}, made)).json()
    query, *documents = [wanted(ids, Pooling("embed")) for ids in engine.prompts]
    assert engine.prompts[0] == [CLS, WORDS.index("query"), A, SEP]
    assert engine.prompts[1] == [CLS, WORDS.index("title"), A + 1, SEP]
    for each, document in zip(answer["data"], documents, strict=True):
        cosine = query @ document / np.linalg.norm(query) / np.linalg.norm(document)
        assert each["score"] == pytest.approx(float(cosine), abs=1e-6)


async def test_queries_and_documents_are_read_by_the_adapters_that_the_model_has_for_them() -> None:
    made = config()
    adapted = Adapted(made.backbone, made.modules, made.dimensions)
    engine = FakePooler()
    assert (await post(engine, "/score", {"queries": "a", "documents": ["b", "c"]}, adapted)).status_code == 200
    assert [stream.pooling.adapter for stream in engine.streams] == ["retrieval.query", "", ""]
    await post(engine, EMBEDDINGS, {"input": "a", "task": "code"}, adapted)
    await post(engine, "/v2/embed", {"texts": ["a"], "input_type": "search_query"}, adapted)
    await post(engine, "/pooling", {"input": "a", "prompt_name": "query"}, adapted)
    assert [stream.pooling.adapter for stream in engine.streams[3:]] == ["code", "retrieval.query", "retrieval.query"]


async def test_late_interaction_sums_the_best_match_of_each_token_of_the_query() -> None:
    markers = LateInteraction(query=30, document=32, query_length=8, fill=4, skipped=frozenset({WORDS.index(".")}))
    engine = FakePooler()
    body = {"queries": "a b", "documents": ["c . d"]}
    answer = (await post(engine, "/score", body, config(vectors=COLBERT), markers=markers)).json()
    query, document = engine.prompts
    assert query == [CLS, 30, A, A + 1, SEP, 4, 4, 4]
    assert document == [CLS, 32, A + 2, WORDS.index("."), A + 3, SEP]
    left = np.array([vector_of([id], Pooling("token_embed")) for id in query])
    kept = [id for id in document if WORDS[id] != "."]
    right = np.array([vector_of([id], Pooling("token_embed")) for id in kept])
    assert answer["data"][0]["score"] == pytest.approx(float((left @ right.T).max(axis=1).sum()), rel=1e-5)


async def test_many_documents_of_late_interaction_are_scored_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join("abcdefgh"[place:]) for place in range(8)]
    for body in ({"queries": "a b", "documents": texts}, {"queries": texts, "documents": texts}):
        whole = (await post(FakePooler(), "/score", body, config(vectors=COLBERT))).json()
        monkeypatch.setattr(scoring, "_DOCUMENTS", 3)
        parts = (await post(FakePooler(), "/score", body, config(vectors=COLBERT))).json()
        monkeypatch.undo()
        assert parts["data"] == whole["data"]
        assert len({each["score"] for each in whole["data"]}) > 4


async def test_weights_over_the_vocabulary_are_multiplied_and_summed() -> None:
    """The score is the dot product, as in sentence-transformers' SparseEncoder."""

    def product(one: list[int], other: list[int]) -> float:
        return sum(id / 2 * id / 2 for id in {*one} & {*other})

    for first, second in (("a b b", ["b c", "d", "a b"]), (["a", "b c", "d"], ["a b", "c", "a"])):
        engine = FakePooler()
        body = {"queries": first, "documents": second}
        answer = (await post(engine, "/score", body, config(sparse=SPARSE))).json()
        asked = len(engine.prompts) - len(second)
        queries, documents = engine.prompts[:asked] * (len(second) // asked), engine.prompts[asked:]
        expected = [product(one, other) for one, other in zip(queries, documents, strict=True)]
        assert [each["score"] for each in answer["data"]] == pytest.approx(expected)
        assert len({*expected}) == 3
    ranked = (
        await post(FakePooler(), "/rerank", {"query": "c", "documents": ["a", "c"]}, config(sparse=SPARSE))
    ).json()
    assert [each["index"] for each in ranked["results"]] == [1, 0]


async def test_weights_are_made_of_texts_with_their_prompts() -> None:
    made = config(sparse=SPARSE, modules=SentenceModules(("mean",), prompts={"query": "query ", "document": "title "}))
    engine = FakePooler()
    assert (await post(engine, "/score", {"queries": "a", "documents": "b"}, made)).status_code == 200
    assert [WORDS[ids[1]] for ids in engine.prompts] == ["query", "title"]
    assert {stream.pooling.task for stream in engine.streams} == {"sparse"}


async def test_what_neither_embeds_nor_ranks_does_not_score() -> None:
    made = config(score=scores("x", "y"))
    refused = await post(FakePooler(), "/score", {"queries": "a", "documents": "b"}, made)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_not_supported")


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_come_back_by_how_well_they_fit(path: str) -> None:
    documents = ["b", "c", {"text": "d"}, "e"]
    body: dict[str, Any] = {"model": NAME, "query": "a", "documents": documents}
    answer = (await post(FakePooler(), path, body, RERANKER)).json()
    ranked = answer["results"]
    assert sorted(each["index"] for each in ranked) == [0, 1, 2, 3]
    found = [each["relevance_score"] for each in ranked]
    assert found == sorted(found, reverse=True)
    assert {each["index"]: each["document"]["text"] for each in ranked} == dict(enumerate("bcde"))
    assert (answer["model"], answer["usage"]["total_tokens"]) == (NAME, 20)
    fewer = (await post(FakePooler(), path, {**body, "top_n": 2, "return_documents": False}, RERANKER)).json()
    assert [each["index"] for each in fewer["results"]] == [each["index"] for each in ranked[:2]]
    assert all("document" not in each for each in fewer["results"])
    everything = (await post(FakePooler(), path, {**body, "top_n": 0}, RERANKER)).json()
    assert everything["results"] == ranked


async def test_long_documents_and_queries_are_cut_where_that_is_asked_for() -> None:
    body: dict[str, Any] = {"query": "a " * 9, "documents": ["b " * 9]}
    engine = FakePooler()
    refused = await post(engine, "/rerank", body, RERANKER)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents")
    for fields, ids in (
        ({"max_tokens_per_doc": 4}, [CLS, *[A] * 9, SEP, *[A + 1] * 4, SEP][:LENGTH]),
        ({"max_tokens_per_doc": 2, "max_tokens_per_query": 3}, [CLS, *[A] * 3, SEP, *[A + 1] * 2, SEP]),
        ({"truncate_prompt_tokens": -1}, [CLS, *[A] * 6, SEP, *[A + 1] * 7, SEP]),
    ):
        answer = await post(engine, "/rerank", {**body, **fields}, RERANKER)
        assert answer.status_code == 200
        assert engine.prompts[-1] == ids


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ({"query": "a", "documents": [7]}, "documents[0]"),
        ({"query": "a", "documents": ["b"], "max_tokens_per_doc": -1}, "max_tokens_per_doc"),
    ],
)
async def test_a_mistake_in_what_is_to_be_ranked_names_the_field(body: dict[str, Any], param: str) -> None:
    refused = await post(FakePooler(), "/rerank", body, RERANKER)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
