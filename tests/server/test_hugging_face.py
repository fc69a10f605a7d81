"""The endpoints of Hugging Face's servers and SageMaker's, asked by Hugging Face's client where it knows them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import HfHubHTTPError
from msgspec.structs import replace

from stentor.server.app.state import ServerState
from stentor.tests.fakes import EOS, FakeEngine, fake_state, says
from stentor.tests.server.harness import HELLO, events_of, in_memory, on_loopback
from stentor.tests.server.pooling.asking import SPARSE
from stentor.tests.server.pooling.pooler import A, FakePooler, config, model_of, scores, state_of

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def asking(state: ServerState, path: str) -> AsyncIterator[AsyncInferenceClient]:
    async with on_loopback(state) as url, AsyncInferenceClient(f"{url}{path}") as client:
        yield client


async def post(state: ServerState, path: str, status: int = 200, **body: Any) -> Any:
    async with in_memory(state) as client:
        response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    return response


def vectors() -> ServerState:
    return state_of(model_of(FakePooler(), config(matryoshka=True)))


# ---- Text Generation Inference


async def test_hugging_face_s_client_completes_a_prompt_whole_and_in_a_stream() -> None:
    engine = FakeEngine(answer=says("Héllo 😀"))
    async with asking(fake_state(engine), "/generate") as client:
        assert await client.text_generation("hi") == "Héllo 😀"
        whole = await client.text_generation("hi", details=True, stop=["😀"], return_full_text=True)
        assert (whole.generated_text, whole.details and whole.details.finish_reason) == ("hiHéllo ", "stop_sequence")
        pieces = [piece async for piece in await client.text_generation("hi", stream=True)]
        told = [event async for event in await client.text_generation("hi", stream=True, details=True)]
    assert "".join(pieces) == "Héllo 😀"
    assert told[-1].generated_text == "Héllo 😀"
    assert told[-1].details is not None
    assert (told[-1].details.finish_reason, told[-1].details.generated_tokens) == ("eos_token", 12)
    assert all(event.generated_text is None for event in told[:-1])
    assert told[0].token.logprob == -0.25


async def test_parameters_reach_the_engine_and_details_tell_every_token() -> None:
    engine = FakeEngine(answer=says("ok"))
    parameters = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 4, "max_new_tokens": 9, "truncate": 2}
    parameters |= {"repetition_penalty": 1.1, "details": True}
    answer = (await post(fake_state(engine), "/generate", inputs="hello", parameters=parameters)).json()
    params = engine.streams[0].params
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.5, 3, 0.9, 9)
    assert (params.repetition_penalty, engine.submitted[0][0]) == (1.1, [4])
    assert bytes(engine.streams[0].prompt) == b"lo"
    tokens = answer["details"]["tokens"]
    assert [(token["id"], token["text"], token["special"]) for token in tokens] == [
        (ord("o"), "o", False),
        (ord("k"), "k", False),
        (EOS, "</s>", True),
    ]
    assert (answer["details"]["seed"], answer["details"]["generated_tokens"]) == (4, 3)
    await post(fake_state(engine), "/generate", inputs="hello", parameters={"do_sample": False})
    assert engine.streams[1].params.temperature == 0


@pytest.mark.parametrize("burst", [1, 2, 9])
async def test_each_token_has_an_event_of_its_own(burst: int) -> None:
    engine = FakeEngine(answer=says("é ok"))
    engine.burst = burst
    events = events_of((await post(fake_state(engine), "/generate_stream", inputs="hi")).text)
    tokens = [json.loads(event)["token"] for event in events]
    assert [token["id"] for token in tokens] == [*"é ok".encode(), EOS]
    assert "".join(token["text"] for token in tokens if not token["special"]) == "é ok"
    assert [json.loads(event)["index"] for event in events] == [1, 2, 3, 4, 5, 6]


async def test_a_grammar_is_held() -> None:
    engine = FakeEngine(answer=says("a"))
    state = fake_state(engine)
    for grammar in ({"type": "json", "value": {"type": "object"}}, {"type": "regex", "value": "a|b"}):
        await post(state, "/generate", inputs="hello", parameters={"grammar": grammar})
    assert len(engine.grammars) == 2
    assert all(engine.grammars)


async def test_schemas_of_hugging_face_s_chat_client_hold_though_it_sends_them_as_json_objects() -> None:
    engine = FakeEngine(answer=says('{"n": 1}'))
    schema = {"type": "object", "properties": {"only_here": {"type": "integer"}}, "required": ["only_here"]}
    described: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    async with asking(fake_state(engine), "") as client:
        await client.chat_completion(HELLO, model="fake", response_format=described)
        with pytest.raises(HfHubHTTPError, match="`dummy` does not exist"):
            await client.chat_completion(HELLO)
    assert ["only_here" in grammar for grammar in engine.grammars] == [True]


async def test_the_bare_address_answers_with_a_list_or_in_events() -> None:
    state = fake_state(FakeEngine(answer=says("ok")))
    assert (await post(state, "/", inputs="hi")).json()[0]["generated_text"] == "ok"
    events = events_of((await post(state, "/", inputs="hi", stream=True)).text)
    assert json.loads(events[-1])["generated_text"] == "ok"
    refused = (await post(state, "/", 400, inputs="hi", parameters={"temperature": -1})).json()
    assert refused["error_type"] == "validation"


async def test_a_stream_has_its_own_path_too_and_ends_with_an_error_where_it_fails() -> None:
    events = events_of((await post(fake_state(FakeEngine(answer=says("ok"))), "/generate_stream", inputs="hi")).text)
    assert json.loads(events[-1])["generated_text"] == "ok"
    broken = FakeEngine()

    async def fail() -> None:
        broken.failure = "0xdeadbeef" if broken.streams and broken.streams[0]._prompt_done else None

    broken.pace = fail  # type: ignore[method-assign]
    events = events_of((await post(fake_state(broken), "/generate_stream", inputs="hi")).text)
    assert json.loads(events[-1])["error_type"] == "generation"


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"temperature": -1}, "parameters.temperature"),
        ({"best_of": 2}, "parameters.best_of"),
        ({"watermark": True}, "parameters.watermark"),
        ({"typical_p": 0.5}, "parameters.typical_p"),
        ({"grammar": {"type": "json", "value": {"type": "x"}}}, "parameters.grammar"),
        ({"max_new_tokens": 9999}, "parameters.max_new_tokens"),
    ],
)
async def test_what_is_refused_is_named_in_their_words_and_shape(parameters: Any, field: str) -> None:
    refused = (await post(fake_state(), "/generate", 400, inputs="hello", parameters=parameters)).json()
    assert refused.keys() == {"error", "error_type"}
    assert refused["error_type"] == "validation"
    assert f"`{field}" in refused["error"]


# ---- Text Embeddings Inference


async def test_hugging_face_s_client_embeds_texts_in_vectors_of_length_1() -> None:
    pooler = FakePooler()
    async with asking(state_of(model_of(pooler, config())), "/embed") as client:
        assert (await client.feature_extraction("a b")).shape == (1, 8)
    assert pooler.streams[0].pooling.normalize


async def test_texts_are_cut_where_that_is_asked_and_refused_where_not() -> None:
    state = vectors()
    assert len((await post(state, "/embed", inputs=["a", [3, 4]][:1], dimensions=4)).json()[0]) == 4
    assert len((await post(state, "/embed", inputs=[[3, 4], [5]], truncate=True)).json()) == 2
    refused = (await post(state, "/embed", 400, inputs="a " * 50)).json()
    assert refused["error_type"] == "Validation"
    assert "`inputs" in refused["error"]
    assert "set `truncate` to have" in refused["error"]
    assert len((await post(state, "/embed", inputs="a " * 50, truncate=True, normalize=False)).json()) == 1


async def test_hugging_face_s_client_compares_sentences_by_their_vectors() -> None:
    async with asking(vectors(), "/similarity") as client:
        found = await client.sentence_similarity("a b", other_sentences=["a b", "c d", "e"])
    assert found[0] == pytest.approx(1)
    assert len(set(found)) == 3
    long = {"source_sentence": "a", "sentences": ["b", "c " * 50]}
    refused = (await post(vectors(), "/similarity", 400, inputs=long)).json()
    assert refused["error_type"] == "Validation"
    assert refused["error"].startswith("`inputs.sentences[1]` has 52 tokens")
    assert "set `parameters.truncate` to have" in refused["error"]
    refused = (
        await post(vectors(), "/similarity", 400, inputs={"source_sentence": "c " * 50, "sentences": ["a"]})
    ).json()
    assert refused["error"].startswith("`inputs.source_sentence` has")
    cut = await post(vectors(), "/similarity", inputs=long, parameters={"truncate": True})
    assert len(cut.json()) == 2


async def test_texts_and_pairs_are_classified_and_the_most_likely_class_is_first() -> None:
    labels = ("bad", "good", "fair")
    state = state_of(model_of(FakePooler(labels=3), config(score=scores(*labels))))
    one = (await post(state, "/predict", inputs="c")).json()
    assert {each["label"] for each in one} == set(labels)
    assert [each["score"] for each in one] == sorted((each["score"] for each in one), reverse=True)
    several = (await post(state, "/predict", inputs=[["c"], ["d e"]], raw_scores=True)).json()
    pairs = (await post(state, "/predict", inputs=[["c", "d"], ["e", "f"]])).json()
    pair = (await post(state, "/predict", inputs=["c", "d"])).json()
    assert [len(each) for each in (several, pairs, pair)] == [2, 2, 3]
    assert pairs[0] == pair
    assert several[0] != pair


@pytest.mark.parametrize(
    ("inputs", "field"),
    [
        (["a", "b", "c"], "inputs"),
        ([["a"], []], "inputs[1]"),
        ([["a"], ["b", "c"]], "inputs[1]"),
        ([["a"], "b"], "inputs[1]"),
        (["a", ["b"]], "inputs"),
    ],
)
async def test_what_is_neither_a_text_nor_a_pair_is_refused(inputs: Any, field: str) -> None:
    state = state_of(model_of(FakePooler(), config(score=scores("fits"))))
    assert f"`{field}`" in (await post(state, "/predict", 400, inputs=inputs)).json()["error"]
    assert "does not classify" in (await post(vectors(), "/predict", 400, inputs="a")).json()["error"]


async def test_tokens_are_embedded_and_weighed_by_models_that_do() -> None:
    (rows,) = (await post(vectors(), "/embed_all", inputs="a b")).json()
    assert (len(rows), len(rows[0])) == (4, 8)
    dense = (await post(vectors(), "/embed_sparse", 400, inputs="a b")).json()["error"]
    assert "`sparse`" in dense
    weighing = state_of(model_of(FakePooler(), config(sparse=SPARSE)))
    weighed = (await post(weighing, "/embed_sparse", inputs=["a b", "c"])).json()
    assert weighed[1] == [{"index": token, "value": token / 2} for token in (1, 2, A + 2)]


async def test_texts_are_ranked_in_their_shape_and_documents_in_the_others() -> None:
    state = state_of(model_of(FakePooler(), config(score=scores("fits"))))
    ranked = (await post(state, "/rerank", query="a", texts=["b", "c d"], return_text=True)).json()
    documents = (await post(state, "/rerank", query="a", documents=["b", "c d"])).json()["results"]
    assert [(each["index"], each["score"]) for each in ranked] == [
        (each["index"], each["relevance_score"]) for each in documents
    ]
    assert {each["index"]: each["text"] for each in ranked} == {0: "b", 1: "c d"}
    raw = (await post(state, "/rerank", query="a", texts=["b"], raw_scores=True, truncate=True)).json()
    assert raw[0].keys() == {"index", "score"}
    both = (await post(state, "/rerank", 400, query="a", texts=["b"], documents=["b"])).json()["error"]
    assert both["param"] == "texts"


async def test_the_server_says_what_it_serves() -> None:
    async with in_memory(fake_state()) as client:
        info = (await client.get("/info")).json()
    assert (info["model_id"], info["max_total_tokens"], info["router"]) == ("fake/model", 512, "stentor")


# ---- SageMaker


async def test_an_invocation_is_answered_as_the_endpoint_that_its_fields_show() -> None:
    state = vectors()
    body = {"max_tokens": 2}
    chat = (await post(state, "/invocations", messages=HELLO, **body)).json()
    assert chat["object"] == "chat.completion"
    assert (await post(state, "/invocations", prompt="hi", **body)).json()["object"] == "text_completion"
    assert len((await post(state, "/invocations", input="a b")).json()["data"]) == 1
    assert "generated_text" in (await post(state, "/invocations", inputs="hi", parameters={"max_new_tokens": 2})).json()
    streamed = await post(state, "/invocations", messages=HELLO, stream=True, **body)
    assert streamed.text.endswith("data: [DONE]\n\n")
    refused = (await post(state, "/invocations", 400, text="x")).json()["error"]
    assert (refused["param"], refused["code"]) == ("messages", "missing_required_parameter")
    async with in_memory(state) as client:
        assert (await client.get("/ping")).status_code == 200


async def test_an_invocation_of_a_classifier_of_tokens_is_answered_as_pooling() -> None:
    tokens = config(score=replace(scores("x", "y"), pooling=None))
    state = state_of(model_of(FakePooler(labels=2), tokens))
    invoked, pooled = [(await post(state, path, input="a b")).json()["data"] for path in ("/invocations", "/pooling")]
    assert invoked == pooled
    assert "data" in invoked[0]
