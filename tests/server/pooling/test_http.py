"""The routes for vectors and scores, as clients meet them; the numbers are made up."""

import base64
import json
from typing import Any, Final

import numpy as np
import openai
import pytest
from openai.types import CreateEmbeddingResponse

from stentor.engine.model_config.encoders.sentence import SentenceModules
from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.pooling import Pooling
from stentor.server.common import loop_turns
from stentor.server.common.loop_turns import LoopTurns
from stentor.server.pooling import encoding
from stentor.tests.server.harness import HELLO, in_memory
from stentor.tests.server.pooling.asking import COLBERT, SPARSE, post
from stentor.tests.server.pooling.pooler import (
    CLS,
    DIMENSIONS,
    LENGTH,
    NAME,
    SEP,
    WORDS,
    A,
    FakePooler,
    config,
    model_of,
    scores,
    state_of,
    vector_of,
)
from stentor.tests.wire.validate import EMBEDDING_EXTENSIONS, check_object

pytestmark = pytest.mark.anyio

EMBEDDINGS: Final = "/v1/embeddings"


def wanted(ids: list[int], pooling: Pooling) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(vector_of(ids, pooling), np.float32)


# ---- /v1/embeddings


@pytest.mark.parametrize(
    "given", ["a b", ["a b", "c"], [CLS, A, SEP], [[CLS, A, SEP], [CLS, SEP]], [{"prompt_string": "a"}]]
)
async def test_every_form_of_input_gets_a_vector_each(given: Any) -> None:
    engine = FakePooler()
    answer = await post(engine, EMBEDDINGS, {"model": NAME, "input": given})
    assert answer.status_code == 200
    found = check_object(CreateEmbeddingResponse, answer.text, EMBEDDING_EXTENSIONS)
    assert found.model == NAME
    assert [each.index for each in found.data] == [*range(len(engine.streams))]
    for each, ids in zip(found.data, engine.prompts, strict=True):
        assert np.array_equal(np.array(each.embedding, np.float32), wanted(ids, Pooling("embed")))
    tokens = sum(map(len, engine.prompts))
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (tokens, tokens)


@pytest.mark.parametrize(
    ("path", "body", "prefix"),
    [
        (EMBEDDINGS, {"input": "a"}, "embd"),
        ("/v2/embed", {"texts": ["a"]}, "embd"),
        ("/pooling", {"input": "a"}, "pooling"),
        ("/score", {"queries": "a", "documents": ["b"]}, "score"),
        ("/rerank", {"query": "a", "documents": ["b"]}, "rerank"),
    ],
)
async def test_an_answer_has_the_id_of_its_request(path: str, body: dict[str, Any], prefix: str) -> None:
    async with in_memory(state_of(model_of(FakePooler(), config()))) as client:
        sent = await client.post(path, json=body, headers={"x-request-id": "ours"})
        assert (sent.json()["id"], sent.headers["x-request-id"]) == (f"{prefix}-ours", "ours")
        if path == "/v2/embed":  # Cohere's, whose requests have no such field
            return
        named = await client.post(path, json={**body, "request_id": "mine"}, headers={"x-request-id": "ours"})
    assert (named.json()["id"], named.headers["x-request-id"]) == (f"{prefix}-mine", "mine")


async def test_base64_is_the_float32_that_the_sdk_decodes_by_itself() -> None:
    engine = FakePooler()
    async with in_memory(state_of(model_of(engine, config()))) as transport:
        sdk = openai.AsyncOpenAI(base_url="http://server/v1", api_key="x", http_client=transport, max_retries=0)  # type: ignore[arg-type]
        default = await sdk.embeddings.create(model=NAME, input=["a", "b c"])
        floats = await sdk.embeddings.create(model=NAME, input=["a", "b c"], encoding_format="float")
        raw = (await transport.post(EMBEDDINGS, json={"input": "a", "encoding_format": "base64"})).json()
    assert [each.embedding for each in default.data] == [each.embedding for each in floats.data]
    data = base64.b64decode(raw["data"][0]["embedding"])
    assert np.array_equal(np.frombuffer(data, "<f4"), wanted([CLS, A, SEP], Pooling("embed")))


@pytest.mark.parametrize("format", ["float", "base64"])
@pytest.mark.parametrize("task", ["embed", "token_embed"])
async def test_what_is_large_is_written_in_slices_and_reads_the_same(
    monkeypatch: pytest.MonkeyPatch, task: str, format: str
) -> None:
    taken = 0

    async def take(_turns: LoopTurns) -> None:
        nonlocal taken
        taken += 1

    monkeypatch.setattr(LoopTurns, "take", take)
    fields = {"input": ["a", "b c a b c"], "task": task, "encoding_format": format}
    bodies = [(await post(FakePooler(), "/pooling", fields)).json()["data"]]
    assert not taken
    monkeypatch.setattr(encoding, "SLICE_NUMBERS", 3)
    monkeypatch.setattr(loop_turns, "SLICE_BYTES", 1)
    bodies.append((await post(FakePooler(), "/pooling", fields)).json()["data"])
    assert bodies[0] == bodies[1]
    assert taken >= (8 if task == "token_embed" else 2)


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [({}, "<f4"), ({"endianness": "big"}, ">f4"), ({"embed_dtype": "float16"}, "<f2")],
)
async def test_bytes_are_the_numbers_themselves(fields: dict[str, str], dtype: str) -> None:
    answer = await post(
        FakePooler(), EMBEDDINGS, {"model": NAME, "input": ["a", "b"], "encoding_format": "bytes", **fields}
    )
    assert answer.headers["content-type"] == "application/octet-stream"
    reported = json.loads(answer.headers["metadata"])
    assert (reported["model"], reported["usage"]["prompt_tokens"]) == (NAME, 6)
    for item, letter in zip(reported["data"], (A, A + 1), strict=True):
        found = np.frombuffer(answer.content[item["start"] : item["end"]], dtype).reshape(item["shape"])
        assert np.allclose(found, wanted([CLS, letter, SEP], Pooling("embed")), atol=1e-3)
    bare = await post(FakePooler(), EMBEDDINGS, {"input": ["a", "b"], "encoding_format": "bytes_only", **fields})
    assert bare.content == answer.content
    assert "metadata" not in bare.headers


async def test_dimensions_are_the_model_s_own_or_those_that_it_was_trained_to_be_cut_to() -> None:
    for matryoshka, asked, passed in (
        (False, DIMENSIONS, 0),
        (True, 4, 4),
        (True, DIMENSIONS, 0),
        ((2, 4), 2, 2),
    ):
        engine = FakePooler()
        answer = await post(engine, EMBEDDINGS, {"input": "a", "dimensions": asked}, config(matryoshka=matryoshka))
        assert len(answer.json()["data"][0]["embedding"]) == asked
        assert engine.streams[0].pooling.dimensions == passed
    for matryoshka, asked in ((False, 4), (True, 9), ((2, 4), 3)):
        engine = FakePooler()
        refused = await post(engine, EMBEDDINGS, {"input": "a", "dimensions": asked}, config(matryoshka=matryoshka))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")
        assert not engine.streams


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, None), ({"normalize": False}, False), ({"use_activation": True}, True), ({"normalized": False}, False)],
)
async def test_normalising_goes_by_all_its_names(fields: dict[str, bool], expected: bool | None) -> None:
    engine = FakePooler()
    await post(engine, EMBEDDINGS, {"input": "a", **fields})
    assert engine.streams[0].pooling.normalize is expected


@pytest.mark.parametrize("field", ["task", "input_type", "prompt_name"])
async def test_what_vectors_are_for_chooses_the_model_s_prompt(field: str) -> None:
    made = config(modules=SentenceModules(("mean",), prompts={"query": "query "}))
    engine = FakePooler()
    answer = await post(engine, EMBEDDINGS, {"input": ["a"], field: "query"}, made)
    assert answer.status_code == 200
    assert engine.prompts == [[CLS, WORDS.index("query"), A, SEP]]
    refused = await post(engine, EMBEDDINGS, {"input": ["a"], field: "poetry"}, made)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


async def test_fields_of_jinas_api_are_taken() -> None:
    engine = FakePooler()
    body: dict[str, Any] = {
        "input": [{"text": "a"}],
        "task": "retrieval.query",
        "truncate": True,
        "embedding_type": "base64",
    }
    answer = await post(engine, EMBEDDINGS, body)
    assert isinstance(answer.json()["data"][0]["embedding"], str)
    for fields, param in (
        ({"late_chunking": True}, "truncate"),
        ({"late_chunking_params": {"chunk_size": 5}}, "late_chunking_params"),
        ({"embedding_type": ["float", "binary"]}, "embedding_type"),
        ({"input": [{"image": "https://example.com/a.png"}]}, "input[0].image"),
        ({"input": [{}]}, "input[0].text"),
    ):
        refused = await post(engine, EMBEDDINGS, {**body, **fields})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_texts_that_are_parts_of_one_are_read_together_and_have_a_vector_each() -> None:
    engine = FakePooler()
    body: dict[str, Any] = {"input": ["a b", "c", "a b c"], "late_chunking": True, "encoding_format": "float"}
    answer = (await post(engine, EMBEDDINGS, body)).json()
    assert engine.prompts == [[CLS, A, A + 1, A + 2, A, A + 1, A + 2, SEP]]
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == 8
    first, second, third = (each["embedding"] for each in answer["data"])
    assert len(first) == len(second) == len(third) == DIMENSIONS
    made = vector_of([A, A + 1], Pooling("embed", skip=1))
    np.testing.assert_allclose(first, made, atol=1e-6)
    objects = {**body, "input": [{"text": text} for text in body["input"]]}
    assert (await post(engine, EMBEDDINGS, objects)).json()["data"] == answer["data"]
    bare = (await post(engine, EMBEDDINGS, {**body, "add_special_tokens": False})).json()
    assert bare["usage"]["prompt_tokens"] == 6


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [[A, A]]}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a b c d e f g"] * 3}, "input"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": None, "messages": HELLO}, "late_chunking"),
    ],
)
async def test_what_cannot_be_parts_of_one_text_is_refused(fields: dict[str, Any], param: str) -> None:
    engine = FakePooler()
    refused = await post(engine, EMBEDDINGS, {"input": ["a", "b"], "late_chunking": True, **fields})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert "set `truncate" not in error["message"], "nothing is cut"
    assert not engine.prompts


async def test_a_model_that_does_not_average_tokens_makes_no_vectors_of_parts() -> None:
    made = config(modules=SentenceModules(("cls",)))
    refused = await post(FakePooler(), EMBEDDINGS, {"input": ["a", "b"], "late_chunking": True}, made)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "late_chunking")


CHAT: Final = "{% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}title{% endif %}"


async def test_a_conversation_is_one_text_as_the_template_writes_it() -> None:
    engine = FakePooler()
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    for fields, ids in (
        ({}, [A, A + 1]),
        ({"add_generation_prompt": True}, [A, A + 1, WORDS.index("title")]),
        ({"add_special_tokens": True}, [CLS, A, A + 1, SEP]),
        ({"continue_final_message": True}, [A, A + 1]),
    ):
        answer = await post(engine, EMBEDDINGS, {**body, **fields}, template=CHAT)
        assert answer.status_code == 200
        assert engine.prompts[-1] == ids
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"input": "a"}, "input"),
        ({"task": "query"}, "task"),
    ]
    for fields, param in mistakes:
        refused = await post(engine, EMBEDDINGS, {**body, **fields}, template=CHAT)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    refused = await post(engine, EMBEDDINGS, body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")


SAID: Final = [{"role": "user", "content": "a"}]
ANSWERED: Final = [*SAID, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]


@pytest.mark.parametrize("path", [EMBEDDINGS, "/pooling"])
@pytest.mark.parametrize("field", ["messages", "input"])
async def test_several_conversations_come_as_a_list_of_them_in_either_field(path: str, field: str) -> None:
    for given, prompts in (
        (ANSWERED, [[A, A + 1]]),
        ([ANSWERED], [[A, A + 1]]),
        ([SAID, ANSWERED, SAID], [[A], [A, A + 1], [A]]),
    ):
        engine = FakePooler()
        answer = (await post(engine, path, {field: given}, template=CHAT)).json()
        assert engine.prompts == prompts
        assert [each["index"] for each in answer["data"]] == [*range(len(prompts))]
        assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [SAID, []]}, "messages[1]"),
        ({"messages": []}, "messages"),
        ({"messages": [SAID, SAID[0]]}, "messages[1]"),
        ({"messages": [SAID[0], SAID]}, "messages[1]"),
        ({"messages": [SAID, [{"role": "", "content": "a"}]]}, "messages[1][0].role"),
        ({"messages": [SAID, [{"role": "user", "content": "a " * 30}]]}, "messages[1]"),
        ({"messages": [SAID, [{"role": "user", "content": ""}]]}, "messages[1]"),
        ({"messages": [ANSWERED, SAID], "continue_final_message": True}, "continue_final_message"),
        ({"messages": [SAID] * 2049}, "messages"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"input": [SAID, "a"]}, "input[1]"),
        ({"input": ["a", SAID]}, "input[1]"),
        ({"input": [SAID, [5]]}, "input[1]"),
        ({"input": [[5], SAID]}, "input[1]"),
        ({"input": [[5, {"role": "user"}]]}, "input[0]"),
        ({"input": [[{"role": "user", "content": "a"}, 5]]}, "input[0]"),
        ({"input": [SAID[0], {"text": "a"}]}, "input[1].role"),
        ({"input": [{"text": "a"}, SAID[0]]}, "input[1].role"),
        ({"input": [{"text": 7}]}, "input[0].text"),
        ({"input": SAID, "messages": SAID}, "input"),
        ({"input": SAID, "task": "query"}, "task"),
    ],
)
async def test_a_mistake_in_conversations_names_the_field(fields: dict[str, Any], param: str) -> None:
    engine = FakePooler()
    refused = await post(engine, EMBEDDINGS, fields, template=CHAT)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert not engine.streams


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["a", 5]}, "input[1]"),
        ({"input": ["a", [-1]]}, "input[1][0]"),
        ({"input": ["a", [1 << 20]]}, "input[1]"),
        ({"input": [{"prompt_string": "a", "multimodal_data": ["b"]}]}, "input[0].multimodal_data"),
        ({"input": [5, "a"]}, "input[1]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": [[]]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 99}, "truncate_prompt_tokens"),
        ({"input": "a", "truncation_side": "middle"}, "truncation_side"),
        ({"input": "a", "padding": "max_length"}, "padding"),
        ({"input": " ".join("a" * 30)}, "input"),
        ({"input": [5, 6, len(WORDS)]}, "input"),
        ({"input": "a", "images": ["a"]}, "images"),
        ({"input": "a", "cache_salt": ""}, "cache_salt"),
    ],
)
async def test_every_mistake_is_a_400_that_names_the_field(body: dict[str, Any], param: str) -> None:
    engine = FakePooler()
    refused = await post(engine, EMBEDDINGS, body)
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert refused.json()["error"]["param"] == param
    assert not engine.streams


async def test_texts_are_bounded_together() -> None:
    model = model_of(FakePooler(), config())
    async with in_memory(state_of(model, limits=Limits(max_prompt_chars=10))) as client:
        refused = await client.post(EMBEDDINGS, json={"input": ["a" * 6, "a" * 6]})
    assert refused.json()["error"]["code"] == "string_above_max_length"


async def test_a_model_of_another_kind_is_told_by_name() -> None:
    refused = await post(FakePooler(), EMBEDDINGS, {"model": "fake/model", "input": "a"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "`fake/model` is a chat model; this needs an embedding model: use `vectors`."
    )
    missing = await post(FakePooler(), EMBEDDINGS, {"model": "nobody", "input": "a"})
    assert missing.status_code == 404


async def test_what_the_engine_cannot_finish_is_a_500_that_tells_nothing_of_it() -> None:
    engine = FakePooler()
    engine.failing = 0
    failed = await post(engine, EMBEDDINGS, {"input": "a"})
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "generation_failed")
    assert "secret" not in failed.text
    engine.ready = None
    assert (await post(engine, EMBEDDINGS, {"input": "a"})).status_code == 503


async def test_a_salt_keeps_what_is_shared_apart() -> None:
    engine = FakePooler()
    await post(engine, EMBEDDINGS, {"input": "a", "cache_salt": "mine"})
    await post(engine, EMBEDDINGS, {"input": "a"})
    assert engine.salts[0].endswith("mine")
    assert not engine.salts[1].endswith("mine")


# ---- /pooling and /classify


async def test_pooling_does_by_default_what_the_model_was_made_for() -> None:
    for made, task, shape in (
        (config(), "embed", (DIMENSIONS,)),
        (config(score=scores("x", "y", "z")), "classify", (3,)),
        (config(vectors=COLBERT), "token_embed", (3, DIMENSIONS)),
    ):
        engine = FakePooler(labels=3)
        answer = (await post(engine, "/pooling", {"model": NAME, "input": "a"}, made)).json()
        assert engine.streams[0].pooling.task == task
        assert np.array(answer["data"][0]["data"]).shape == shape
        assert (answer["object"], answer["data"][0]["object"], answer["usage"]["total_tokens"]) == (
            "list",
            "pooling",
            3,
        )


async def test_weights_of_tokens_are_a_map_by_their_ids() -> None:
    engine = FakePooler()
    answer = await post(engine, "/pooling", {"input": "a a"}, config(sparse=SPARSE))
    assert answer.json()["data"][0]["data"] == {str(CLS): CLS / 2, str(SEP): SEP / 2, str(A): A / 2}
    refused = await post(engine, "/pooling", {"input": "a", "encoding_format": "base64"}, config(sparse=SPARSE))
    assert refused.json()["error"]["param"] == "encoding_format"


async def test_vectors_of_tokens_come_in_every_format() -> None:
    body = {"input": "a b", "task": "token_embed"}
    rows = np.array((await post(FakePooler(), "/pooling", body)).json()["data"][0]["data"], np.float32)
    text = (await post(FakePooler(), "/pooling", {**body, "encoding_format": "base64"})).json()["data"][0]["data"]
    assert base64.b64decode(text) == rows.tobytes()
    binary = await post(FakePooler(), "/pooling", {**body, "encoding_format": "bytes"})
    assert binary.content == rows.tobytes()
    assert json.loads(binary.headers["metadata"])["data"][0]["shape"] == [4, DIMENSIONS]


async def test_embeddings_of_a_late_interaction_model_have_a_row_for_each_token_as_in_vllm() -> None:
    engine, made = FakePooler(), config(vectors=COLBERT)
    answer = (await post(engine, EMBEDDINGS, {"input": ["a b", "c"], "encoding_format": "float"}, made)).json()
    rows = [np.array(each["embedding"], np.float32) for each in answer["data"]]
    assert [each.shape for each in rows] == [(4, DIMENSIONS), (3, DIMENSIONS)]
    expected = (await post(FakePooler(), "/pooling", {"input": "a b"}, made)).json()["data"][0]["data"]
    assert (rows[0] == np.array(expected, np.float32)).all()
    assert {stream.pooling.task for stream in engine.streams} == {"token_embed"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (EMBEDDINGS, {"input": "a", "encoding_format": "base64"}, "encoding_format"),
        (EMBEDDINGS, {"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        (EMBEDDINGS, {"input": "a", "embedding_type": "base64"}, "embedding_type"),
        (EMBEDDINGS, {"input": ["a"], "late_chunking": True}, "late_chunking"),
        ("/v2/embed", {"texts": ["a"]}, "model"),
    ],
)
async def test_forms_without_room_for_vectors_of_tokens_are_refused(
    path: str, body: dict[str, Any], param: str
) -> None:
    refused = await post(FakePooler(), path, body, config(vectors=COLBERT))
    assert refused.status_code == 400
    assert param in str(refused.json())


async def test_a_task_that_the_model_does_not_serve_is_refused() -> None:
    for task, said in (("classify", "it serves embed, token_embed"), ("sparse", "it serves")):
        refused = await post(FakePooler(), "/pooling", {"input": "a", "task": task})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "task")
        assert said in refused.json()["error"]["message"]


async def test_classes_come_with_the_label_of_the_likeliest() -> None:
    engine = FakePooler(labels=3)
    answer = (await post(engine, "/classify", {"input": ["a", "b"]}, config(score=scores("x", "y", "z")))).json()
    assert [each["index"] for each in answer["data"]] == [0, 1]
    for each in answer["data"]:
        assert each["num_classes"] == len(each["probs"]) == 3
        assert each["label"] == ("x", "y", "z")[int(np.argmax(each["probs"]))]
    assert engine.streams[0].pooling.activate
    await post(engine, "/classify", {"input": "a", "use_activation": False}, config(score=scores("x", "y", "z")))
    assert not engine.streams[-1].pooling.activate
    same = (await post(engine, "/invocations", {"input": ["a", "b"]}, config(score=scores("x", "y", "z")))).json()
    assert same["data"] == answer["data"]
    vectors = (await post(engine, "/invocations", {"input": ["a", "b"]})).json()
    assert "embedding" in vectors["data"][0]
    refused = await post(engine, "/classify", {"input": "a"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")


# ---- /tokenize


async def test_the_tokens_of_an_embedding_model_are_those_that_it_pools() -> None:
    engine = FakePooler()
    async with in_memory(state_of(model_of(engine, config()))) as client:
        made = (await client.post("/tokenize", json={"model": NAME, "prompt": "a b"})).json()
        await client.post(EMBEDDINGS, json={"model": NAME, "input": "a b"})
        bare = (await client.post("/tokenize", json={"model": NAME, "content": "a b"})).json()["tokens"]
        text = (await client.post("/detokenize", json={"model": NAME, "tokens": bare})).json()["prompt"]
        beyond = await client.post("/detokenize", json={"model": NAME, "tokens": [999_999]})
        talk = await client.post("/tokenize", json={"model": NAME, "messages": [{"role": "user", "content": "a"}]})
    assert (made["tokens"], made["max_model_len"]) == (engine.prompts[0], LENGTH)
    assert (bare, text) == (made["tokens"][1:-1], "a b")
    assert [answer.json()["error"]["param"] for answer in (beyond, talk)] == ["tokens", "model"]
