"""Random requests, made from the served document and beside it: no failure of the server, every error in its shape."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from anthropic.types.beta import BetaRawMessageStreamEvent
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from stentor.server.config.model_registry import ModelRegistry, ModelRole, ServedModel
from stentor.server.http.error_shapes import COHERE, LLAMA_CPP, OPENAI, TEXT_GENERATION, shape_of
from stentor.server.state.live_responses import LiveResponses
from stentor.tests.examples import examples
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import HELLO, in_memory
from stentor.tests.server.pooling.pooler import FakePooler, config, model_of, scores
from stentor.tests.server.schemas import JSON_VALUES, REFERENCE, TEXTS, values, why_not
from stentor.tests.wire import messages, responses

CONTEXT = 48
GOOD: dict[str, dict[str, Any]] = {
    "ChatRequest": {"messages": HELLO},
    "ChatBatchRequest": {"messages": [HELLO, HELLO]},
    "ChatUpdate": {"metadata": {"a": "b"}},
    "CompletionRequest": {"prompt": "hi"},
    "MessagesRequest": {"model": "fake", "messages": HELLO, "max_tokens": 9},
    "MessageBatchCreate": {
        "requests": [{"custom_id": "a", "params": {"model": "fake", "max_tokens": 9, "messages": HELLO}}]
    },
    "CountTokensRequest": {"model": "fake", "messages": HELLO},
    "TokenizeRequest": {"prompt": "hi"},
    "DetokenizeRequest": {"tokens": [1, 2, 3]},
    "ResponseRequest": {"input": "hi"},
    "BatchCreate": {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    "UploadCreate": {"filename": "a", "purpose": "batch", "bytes": 3, "mime_type": "text/plain"},
    "UploadComplete": {"part_ids": ["part_1"]},
    "ContextFields": {"input": "hi"},
    "CompactRequest": {"input": "hi"},
    "ConversationCreate": {},
    "ConversationUpdate": {"metadata": {}},
    "ItemsCreate": {"items": [{"role": "user", "content": "hi"}]},
    "EmbeddingRequest": {"input": ["a b", "c"]},
    "EmbedRequest": {"texts": ["a b"]},
    "PoolingRequest": {"input": "a"},
    "ModerationRequest": {"input": "a"},
    "ClassifyRequest": {"input": "a"},
    "GenerativeScoringRequest": {"query": "a", "items": ["b", [3]], "label_token_ids": [3, 4]},
    "DecisionRequest": {"input": "hi", "questions": [{"type": "predicate", "instructions": "a"}]},
    "SystemOneRequest": {"state": "a", "questions": {"q": {"type": "noul"}}},
    "ScoreRequest": {"queries": "a", "documents": ["b", "c"]},
    "RerankRequest": {"query": "a", "documents": ["b", "c"]},
    "SpeechRequest": {"input": "hi", "voice": "alloy"},
    "ClientSecretRequest": {},
    "TranslationSecretRequest": {"session": {"model": "fake"}},
    "LiveCreateRequest": {"session": {"model": "fake"}, "transport": {"type": "webrtc", "sdp": "v=0"}},
    "BetaSessionRequest": {},
    "AbortRequest": {"request_ids": ["abc"]},
    "UpdateWeightsRequest": {"update_info": {"weights_path": "a"}},
    "UpdateVersionRequest": {"new_version": "1"},
    "UpdateFromDiskRequest": {"model_path": "a"},
    "PauseGenerationRequest": {"mode": "abort"},
    "AbortGenerationRequest": {"rid": "abc"},
    "MemoryRequest": {"tags": ["weights"]},
    "LoadAdapterRequest": {"lora_name": "a", "lora_path": "b"},
    "UnloadAdapterRequest": {"lora_name": "a"},
    "GenerateRequest": {"inputs": "hi"},
    "SglangRequest": {"text": "hi"},
    "SglangEncodeRequest": {"text": "a b"},
    "TokensRequest": {"token_ids": [1, 2], "sampling_params": {}},
    "EmbedInputsRequest": {"inputs": ["a b"]},
    "TokenEmbedRequest": {"inputs": ["a b"]},
    "PredictRequest": {"inputs": [["a b"]]},
    "SimilarityRequest": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "InvocationRequest": {"prompt": "hi"},
    "LlamaCompletionRequest": {"prompt": "hi"},
    "LlamaInfillRequest": {"input_prefix": "hi", "input_suffix": "ho"},
    "LlamaEmbeddingRequest": {"content": "hi"},
    "CohereChatRequest": {"model": "fake", "messages": HELLO, "max_tokens": 4},
    "OllamaChatRequest": {"model": "fake", "messages": HELLO},
    "OllamaGenerateRequest": {"model": "fake", "prompt": "hi"},
    "OllamaEmbedRequest": {"model": "vectors", "input": ["a b", "c"]},
    "OllamaEmbeddingsRequest": {"model": "vectors", "prompt": "a b"},
    "OllamaModelRequest": {"model": "fake"},
}
"""Bodies that are served: from most that a schema allows, rules beyond it would keep a request."""
HEADERS = {
    "content-type": ["application/json", "text/plain", "multipart/form-data", ""],
    "content-encoding": ["identity", "gzip", "br"],
    "content-length": ["0", "1", "99999999999999999999", "²"],
    "authorization": ["Bearer x", "Basic", ""],
    "x-api-key": ["x", ""],
    "x-request-id": ["abc", "a b", "x" * 300],
    "x-request-timeout": ["5", "0", "-1", "nan", "inf", "1e999", "soon", ""],
    "x-request-priority": ["1", "high"],
    "accept": ["text/event-stream", "nothing/at-all"],
    "origin": ["null", "https://example.com"],
    "traceparent": ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-zz", ""],
}


@dataclass
class Target:
    """The app on a loop of its own, and what it says of itself."""

    runner: asyncio.Runner
    client: httpx.AsyncClient
    engine: FakeEngine
    pooler: FakePooler
    background: LiveResponses

    def send(self, method: str, url: str, **arguments: Any) -> httpx.Response:
        return self.runner.run(self.client.request(method, url, **arguments))

    def wait_for_the_background(self) -> None:
        for response in self.background:
            self.runner.run(asyncio.wait_for(response.ended(), 60))


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document that the server serves."""

    async def fetch() -> dict[str, Any]:
        async with in_memory(fake_state()) as client:
            found: dict[str, Any] = (await client.get("/openapi.json")).json()
            return found

    return asyncio.run(fetch())


def schemas() -> dict[str, Any]:
    found: dict[str, Any] = document()["components"]["schemas"]
    return found


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    engine = FakeEngine(max_model_len=CONTEXT)
    engine.burst = CONTEXT
    pooler = FakePooler()
    vectors = model_of(pooler, config(score=scores("fits"), matryoshka=True), template="{{ messages[0].content }}")
    registry = ModelRegistry(
        [ServedModel("chat", ("fake/model", "fake")), ServedModel("embedding", vectors.served_names)]
    )
    runners: dict[ModelRole, Any] = {"embedding": pooler}
    state = fake_state(engine, registry=registry, runners=runners, embedding=vectors)
    client = in_memory(state)
    with asyncio.Runner() as runner:
        yield Target(runner, client, engine, pooler, state.responses)
        runner.run(client.aclose())


def test_every_body_is_among_those_that_random_requests_begin_with() -> None:
    accepted = [
        operation.get("requestBody", {}).get("content", {}).get("application/json")
        for operations in document()["paths"].values()
        for operation in operations.values()
    ]
    named = {
        each["$ref"].removeprefix(REFERENCE)
        for content in accepted
        if content is not None
        for each in content["schema"].get("anyOf", [content["schema"]])
    }
    assert named <= {*GOOD}


@st.composite
def bodies(draw: st.DrawFn, schema: dict[str, Any]) -> bytes:
    """From one that is served to bytes that are no JSON."""
    schema = draw(st.sampled_from(schema.get("anyOf", [schema])))
    good = GOOD[schema["$ref"].removeprefix(REFERENCE)]
    body: Any = draw(values(schema, schemas()))
    kind = draw(st.sampled_from(["good", "good", "schema", "mutated", "mutated", "json", "cut", "deep", "bytes"]))
    if kind in ("good", "mutated", "cut"):
        body = {**body, **good}
    if kind == "mutated":
        for name in draw(st.lists(st.sampled_from(sorted(body) or ["x"]) | TEXTS, min_size=1, max_size=3)):
            body[name] = draw(JSON_VALUES)
    elif kind == "json":
        body = draw(JSON_VALUES)
    elif kind == "deep":
        levels = draw(st.sampled_from([60, 70, 500, 5000]))
        return b'{"x":' + b"[" * levels + b"]" * levels + b"," + json.dumps(good).encode()[1:]
    elif kind == "bytes":
        return draw(st.binary(max_size=40))
    data = json.dumps(body, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    return data[: draw(st.integers(0, len(data)))] if kind == "cut" else data


@dataclass
class Request:
    path: str
    """The path in the OpenAPI document, with its parameters."""
    url: str
    method: str
    headers: dict[str, bytes]
    body: bytes

    @property
    def operation(self) -> dict[str, Any]:
        found: dict[str, Any] = document()["paths"][self.path][self.method]
        return found


@st.composite
def requests(draw: st.DrawFn) -> Request:
    paths = document()["paths"]
    listed = [(path, method) for path in sorted(paths) for method in sorted(paths[path])]
    taking = [(path, method) for path, method in listed if "requestBody" in paths[path][method]]
    path, method = draw(st.sampled_from(taking) | st.sampled_from(taking) | st.sampled_from(listed))
    request = Request(path, path.replace("{model}", quote(draw(TEXTS), safe="")), method, {}, b"")
    accepted = request.operation.get("requestBody", {}).get("content", {})
    if "application/json" in accepted:
        request.body = draw(bodies(accepted["application/json"]["schema"]))
    for name in draw(st.lists(st.sampled_from(sorted(HEADERS)), unique=True, max_size=2)):
        request.headers[name] = draw(st.sampled_from(HEADERS[name])).encode()
    return request


@settings(max_examples=examples(60, 1000), deadline=None, suppress_health_check=list(HealthCheck))
@given(made=requests())
def test_no_request_makes_the_server_fail_or_answer_in_another_shape(target: Target, made: Request) -> None:
    response = target.send(made.method, made.url, content=made.body, headers=made.headers)
    event(f"{response.status_code}")
    assert response.status_code < 500, response.text
    assert str(response.status_code) in made.operation["responses"] or made.url != made.path, response.text
    target.wait_for_the_background()
    assert target.engine.live == target.pooler.live == 0, "nothing is left running"
    check_shape(made.operation, response)


def check_shape(operation: dict[str, Any], response: httpx.Response) -> None:
    kind = response.headers["content-type"].partition(";")[0]
    assert response.headers["x-request-id"]
    if response.status_code != 200:
        check_error(response)
        return
    if kind == "application/octet-stream":  # numbers
        assert len(response.content) % 2 == 0
        return
    content = operation["responses"]["200"]["content"][kind]
    if kind == "application/json" and shape_of(response.url.path, ()) is LLAMA_CPP and "stop" not in response.json():
        return  # the fields of `response_fields` alone
    if kind == "application/json":
        assert why_not(response.json(), content["schema"], schemas()) is None
    elif kind == "application/x-ndjson":
        chunks = [json.loads(line) for line in response.text.splitlines()]
        assert [chunk["done"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    elif kind == "text/event-stream":
        if response.url.path == "/v1/messages":
            messages.check_stream(response.content, event=BetaRawMessageStreamEvent)
            return
        if response.url.path == "/v1/responses":
            responses.check_stream(response.content)
            return
        events = [line for line in response.text.split("\n\n") if line]
        assert all(line.startswith("data: ") for line in events)
        if response.url.path == "/generate" and '"meta_info"' in events[0]:
            assert events[-1] == "data: [DONE]"
            return
        if shape_of(response.url.path, ()) in (LLAMA_CPP, TEXT_GENERATION):
            assert "[DONE]" not in response.text
            return
        assert events[-1] == "data: [DONE]"
        if shape_of(response.url.path, ()) is COHERE:
            kinds = [json.loads(line.removeprefix("data: "))["type"] for line in events[:-1]]
            assert (kinds[0], kinds[-1]) == ("message-start", "message-end")
            return
        assert all(json.loads(line.removeprefix("data: "))["choices"] is not None for line in events[:-1])


def check_error(response: httpx.Response) -> None:
    assert response.headers["content-type"] == "application/json"
    shapes = [shape_of(response.url.path, ()), *([OPENAI] if response.url.path == "/generate" else [])]
    found = [why_not(response.json(), schemas()[shape.struct.__name__], schemas()) for shape in shapes]
    assert None in found, found
    told = response.json()
    error = told.get("error", told)
    message = error if isinstance(error, str) else error["message"]
    assert message
    assert "Traceback" not in message
    assert "site-packages" not in message


PATHS = st.lists(
    st.sampled_from(["v1", "models", "chat", "completions", "messages", "..", ".", "", "%2e%2e", "%00", "{model}"])
    | TEXTS
)


@settings(max_examples=examples(30, 300), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    parts=PATHS,
    query=TEXTS,
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"]),
    body=st.binary(max_size=20),
)
def test_no_path_and_no_method_does_either(
    target: Target, parts: list[str], query: str, method: str, body: bytes
) -> None:
    url = "/" + "/".join(quote(part, safe="%") for part in parts) + "?" + quote(query)
    response = target.send(method, f"http://server/{url.lstrip('/')}", content=body)
    assert response.status_code < 500
    if response.status_code >= 400 and method != "HEAD":
        check_error(response)
