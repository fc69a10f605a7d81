"""The document of the API is well-formed, complete, and true."""

import re
import sys
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import Route, WebSocketRoute

from stentor.server.api.common.described import Operation
from stentor.server.app import openapi
from stentor.server.app.application import create_app
from stentor.server.app.state import ServerState
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.http.error_shapes import shape_of
from stentor.server.main.request_fields import REQUESTS
from stentor.server.middleware.access_control import AccessControl
from stentor.server.middleware.auth import AdminRoute
from stentor.tests.examples import examples
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import HELLO, in_memory
from stentor.tests.server.pooling.pooler import FakePooler, config, model_of, scores, state_of
from stentor.tests.server.schemas import check_keywords, values, why_not

pytestmark = pytest.mark.anyio

METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


def _decoder_of(kind: type[msgspec.Struct]) -> Any:
    """The decoder of a request, which stands beside its type."""
    beside = vars(sys.modules[kind.__module__]).values()
    return next(each for each in beside if isinstance(each, msgspec.json.Decoder) and each.type is kind)


DECODERS: dict[str, Any] = {each.type.__name__: _decoder_of(each.type) for each in REQUESTS if not each.file_field}
KEYED = AccessControl(keys=Keyring([KeyDigest(b"secret")]))


async def served(**fields: Any) -> dict[str, Any]:
    async with in_memory(fake_state(**fields)) as client:
        response = await client.get("/openapi.json", headers={"authorization": "Bearer secret"})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    document: dict[str, Any] = response.json()
    return document


def resolved(document: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """What a reference leads to, or the thing itself."""
    while "$ref" in item:
        at: Any = document
        for step in item["$ref"].removeprefix("#/").split("/"):
            at = at[step]
        item = at
    return item


@pytest.mark.parametrize(
    "access", [AccessControl(), KEYED, AccessControl(root_path="/api")], ids=["open", "keyed", "prefixed"]
)
async def test_it_is_well_formed(access: AccessControl) -> None:
    document = await served(access=access)
    assert re.fullmatch(r"3\.1\.\d+", document["openapi"])
    assert document.keys() <= {"openapi", "info", "paths", "components", "servers"}
    assert {name: type(value) for name, value in document["info"].items()} == {"title": str, "version": str}
    assert document["components"].keys() <= {"schemas", "responses", "securitySchemes"}
    for name, schema in document["components"]["schemas"].items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        check_keywords(schema)
    identities = []
    for path, item in document["paths"].items():
        assert path.startswith("/")
        for method, operation in item.items():
            assert method in METHODS
            assert operation.keys() <= {
                *("operationId", "summary", "parameters", "requestBody", "responses", "security"),
            }
            identities.append(operation["operationId"])
            declared = [(one["name"], one["in"]) for one in operation.get("parameters", ())]
            assert {(name, "path") for name in re.findall(r"\{(.*?)\}", path)} <= set(declared)
            assert len(declared) == len(set(declared))
            for one in operation.get("parameters", ()):
                check_keywords(one["schema"])
            bodies = [operation["requestBody"]] if "requestBody" in operation else []
            assert not bodies or method == "post"
            for status, response in operation["responses"].items():
                assert re.fullmatch(r"[1-5]\d\d", status)
                response = resolved(document, response)
                assert response["description"]
                bodies.append(response)
            for content in (media for body in bodies for media in body["content"].values()):
                check_keywords(content["schema"])
                resolved(document, content["schema"])
            for need in operation.get("security", ()):
                assert need.keys() <= document["components"]["securitySchemes"].keys()
    assert len(identities) == len(set(identities))


async def test_every_reference_leads_somewhere() -> None:
    document = await served()
    names = re.findall(r'"#/([^"]+)"', msgspec.json.encode(document).decode())
    assert names
    for name in set(names):
        resolved(document, {"$ref": f"#/{name}"})
    used = {name.rpartition("/")[2] for name in names if name.startswith("components/schemas/")}
    assert used == document["components"]["schemas"].keys(), "and there is none that nothing leads to"


async def test_it_lists_every_route_and_nothing_else() -> None:
    state = fake_state()
    found = set()
    for route in create_app(state).routes:
        if isinstance(route, WebSocketRoute):
            continue  # OpenAPI has no word for them
        assert isinstance(route, Route)
        path = re.sub(r":\w+\}", "}", route.path)
        found |= {(path, method.lower()) for method in route.methods or () if method != "HEAD"}
    listed = {(path, method) for path, item in (await served())["paths"].items() for method in item}
    assert listed == found
    assert ("/v1/chat/completions", "post") in listed


async def test_every_operation_that_is_described_is_that_of_a_route() -> None:
    state = fake_state()
    routes = [route for route in create_app(state).routes if isinstance(route, Route)]
    served = {name for route in routes for name in (route.path, *(f"{m} {route.path}" for m in route.methods or ()))}
    assert set(_operations(state)) <= served


def test_errors_are_described_in_the_shape_that_their_path_has() -> None:
    for name, operation in _operations(fake_state()).items():
        path = name.partition(" ")[2] or name
        assert operation.errors is shape_of(path, ()), name


async def test_each_method_of_a_path_has_the_answer_that_it_gives(document: dict[str, Any]) -> None:
    """One path's methods answer with several types: a deletion, a page, the thing itself."""
    file = {"file": ("a.jsonl", b"{}\n")}
    async with in_memory(fake_state()) as client:
        conversation = (await client.post("/v1/conversations", json={"items": HELLO})).json()["id"]
        response = (await client.post("/v1/responses", json={"input": "x", "max_output_tokens": 1})).json()["id"]
        uploaded = (await client.post("/v1/files", files=file, data={"purpose": "user_data"})).json()["id"]
        items = f"/v1/conversations/{conversation}/items"
        item = (await client.get(items)).json()["data"][0]["id"]
        asked = [
            ("get", "/v1/conversations/{conversation_id}", f"/v1/conversations/{conversation}"),
            ("delete", "/v1/conversations/{conversation_id}/items/{item_id}", f"{items}/{item}"),
            ("delete", "/v1/conversations/{conversation_id}", f"/v1/conversations/{conversation}"),
            ("get", "/v1/responses/{response_id}", f"/v1/responses/{response}"),
            ("delete", "/v1/responses/{response_id}", f"/v1/responses/{response}"),
            ("get", "/v1/files", "/v1/files"),
            ("get", "/v1/files/{id}", f"/v1/files/{uploaded}"),
            ("delete", "/v1/files/{id}", f"/v1/files/{uploaded}"),
            ("get", "/v1/batches", "/v1/batches"),
        ]
        for method, path, url in asked:
            answer = await client.request(method, url)
            assert answer.status_code == 200, answer.text
            schema = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
            assert why_not(answer.json(), schema, document["components"]["schemas"]) is None, (method, path)


async def test_what_it_says_of_keys_holds() -> None:
    without, document = await served(), await served(access=KEYED)
    guarded = {path for path, item in without["paths"].items() for each in item.values() if "security" in each}
    assert guarded == {each.path for each in create_app(fake_state()).routes if isinstance(each, AdminRoute)}
    async with in_memory(fake_state(access=KEYED)) as client:
        for path, item in document["paths"].items():
            for method, operation in item.items():
                wanted = "security" in operation
                response = await client.request(method, path.replace("{model}", "fake"))
                assert (response.status_code == 401) == wanted == ("401" in operation["responses"]), path
                headers = {"x-api-key": "secret"}
                assert (await client.request(method, path, headers=headers)).status_code != 401
    assert without["paths"]["/v1/models"]["get"].get("security") is None


async def test_an_admin_route_is_shown_to_want_an_admin_key() -> None:
    route = AdminRoute("/control/{name}", lambda request: None, Keyring(), methods=["POST"])  # type: ignore[arg-type, return-value]
    document = openapi.describe([route], {"/control/{name}": Operation("Control", dict[str, str])})
    operation = document["paths"]["/control/{name}"]["post"]
    assert {"401", "403"} <= operation["responses"].keys()
    assert operation["security"] == [{"bearer": []}, {"header": []}]
    assert [one["name"] for one in operation["parameters"]] == ["name"]


def test_a_route_that_nobody_has_described_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        openapi.describe([Route("/x", lambda request: None)], {})


async def test_it_is_behind_a_key_is_made_once_and_again_when_keys_come(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    describe = openapi.describe

    def counted(*args: Any) -> dict[str, Any]:
        made.append(args[2:])
        return describe(*args)

    monkeypatch.setattr(openapi, "describe", counted)
    keys = Keyring()
    async with in_memory(fake_state(access=AccessControl(keys=keys))) as client:
        assert not made, "nobody has asked yet"
        first = await client.get("/openapi.json")
        assert (await client.get("/openapi.json")).content == first.content
        keys._callers = Keyring([KeyDigest(b"secret")])._callers
        assert (await client.get("/openapi.json")).status_code == 401
        second = await client.get("/openapi.json", headers={"x-api-key": "secret"})
    assert made == [(False, ""), (True, "")]
    assert "security" in second.json()["paths"]["/openapi.json"]["get"]


async def test_a_prefix_is_told_as_the_server_s_address() -> None:
    assert (await served(access=AccessControl(root_path="/api")))["servers"] == [{"url": "/api"}]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    state = fake_state()
    return openapi.describe(create_app(state).routes, _operations(state))


def _operations(state: Any) -> Any:
    (route,) = [route for route in create_app(state).routes if getattr(route, "path", "") == "/openapi.json"]
    assert isinstance(route, Route)
    assert isinstance(route.endpoint, partial)
    return route.endpoint.args[1]._operations


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=examples(10, 500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_body_made_from_a_schema_is_one_that_the_decoder_takes(
    name: str, document: dict[str, Any], data: st.DataObject
) -> None:
    schemas = document["components"]["schemas"]
    body = data.draw(values(schemas[name], schemas))
    decoded = DECODERS[name].decode(msgspec.json.encode(body))
    assert why_not(body, schemas[name], schemas) is None
    assert type(decoded).__name__ == name


def test_every_request_type_is_tried(document: dict[str, Any]) -> None:
    taken = [
        operation["requestBody"]["content"]["application/json"]["schema"]
        for item in document["paths"].values()
        for operation in item.values()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]
    bodies = {one["$ref"].rpartition("/")[2] for schema in taken for one in schema.get("anyOf", [schema])}
    assert bodies == DECODERS.keys()


async def test_answers_conform_to_their_schemas(document: dict[str, Any]) -> None:
    requests: list[tuple[str, str, dict[str, Any] | None]] = [
        ("post", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}),
        (
            "post",
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "x"}],
                "max_tokens": 3,
                "n": 2,
                "logprobs": True,
                "top_logprobs": 2,
                "prompt_logprobs": 1,
                "return_token_ids": True,
            },
        ),
        ("post", "/v1/chat/completions/batch", {"messages": [HELLO, HELLO], "max_tokens": 3, "logprobs": True}),
        ("post", "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "logprobs": 2, "echo": True}),
        ("post", "/v1/chat/completions/render", {"messages": HELLO, "n": 2, "return_prompt_text": True}),
        (
            "post",
            "/inference/v1/generate",
            {"token_ids": [1], "sampling_params": {"logprobs": 1, "prompt_logprobs": 1}},
        ),
        ("post", "/v1/completions", {"prompt": "a", "prompt_logprobs": 2, "return_token_ids": True}),
        ("post", "/v1/messages", {"model": "fake", "messages": HELLO, "max_tokens": 3}),
        ("post", "/v1/chat/completions/render", {"messages": HELLO, "return_token_offsets": True}),
        ("post", "/v1/responses/render", {"input": "hi", "max_output_tokens": 3}),
        ("post", "/v1/messages/render", {"model": "fake", "messages": HELLO, "max_tokens": 3}),
        ("post", "/v1/messages/count_tokens", {"model": "fake", "messages": HELLO}),
        ("post", "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 3, "details": True}}),
        ("post", "/generate", {"text": "x", "sampling_params": {"max_new_tokens": 3}, "return_logprob": True}),
        ("post", "/generate", {"text": "x", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}),
        ("get", "/info", None),
        ("post", "/completion", {"prompt": "x", "n_predict": 3, "n_probs": 2}),
        ("post", "/apply-template", {"messages": HELLO}),
        ("post", "/v1/chat/completions/input_tokens", {"messages": HELLO}),
        *[("get", path, None) for path in ("/props", "/slots", "/lora-adapters")],
        ("post", "/v2/chat", {"model": "fake", "messages": HELLO, "max_tokens": 3, "logprobs": True}),
        ("post", "/api/chat", {"model": "fake", "messages": HELLO, "stream": False, "logprobs": True}),
        ("post", "/api/generate", {"model": "fake", "prompt": "x", "stream": False}),
        ("post", "/api/show", {"model": "fake"}),
        *[("get", path, None) for path in ("/api/tags", "/api/ps", "/api/version")],
        ("post", "/tokenize", {"prompt": "x", "return_token_strs": True}),
        ("post", "/detokenize", {"tokens": [1, 2]}),
        *[("post", path, None) for path in ("/pause", "/reset_prefix_cache", "/resume")],
        *[("post", path, None) for path in ("/sleep", "/wake_up")],
        ("get", "/is_sleeping", None),
        *[("get", "/is_paused", None), ("post", "/abort_requests", {})],
        *[("get", path, None) for path in ("/v1/models", "/v1/models/fake", "/health", "/ping", "/load", "/version")],
    ]
    await _assert_conform(document, fake_state(access=AccessControl(Keyring((), [KeyDigest(b"root")]))), requests)


async def test_vectors_and_scores_conform_to_their_schemas(document: dict[str, Any]) -> None:
    labelled = model_of(FakePooler(), config(score=scores("fits")))
    requests: list[tuple[str, str, dict[str, Any] | None]] = [
        ("post", "/v1/embeddings", {"input": ["a", "b"]}),
        ("post", "/v1/embeddings", {"input": ["a", "b"], "late_chunking": True}),
        ("post", "/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
        ("post", "/v2/embed", {"texts": ["a"], "embedding_types": ["float", "int8", "base64"]}),
        ("post", "/api/embed", {"model": "vectors", "input": ["a"]}),
        ("post", "/api/embeddings", {"model": "vectors", "prompt": "a"}),
        ("post", "/embedding", {"content": ["a", "b"]}),
        ("post", "/pooling", {"input": "a"}),
        ("post", "/pooling", {"input": "a", "task": "token_embed"}),
        ("post", "/classify", {"input": "a"}),
        ("post", "/score", {"queries": "a", "documents": ["b"]}),
        ("post", "/v2/rerank", {"query": "a", "documents": ["b", "c"], "return_documents": False}),
    ]
    await _assert_conform(document, state_of(labelled), requests)


async def _assert_conform(
    document: dict[str, Any], state: ServerState, requests: list[tuple[str, str, dict[str, Any] | None]]
) -> None:
    schemas = document["components"]["schemas"]
    async with in_memory(state) as client:
        for method, path, body in requests:
            response: httpx.Response = await client.request(method, path, json=body, headers={"x-api-key": "root"})
            assert response.status_code == 200, response.text
            described = document["paths"][re.sub("/fake$", "/{model}", path)][method]["responses"]["200"]
            schema = described["content"]["application/json"]["schema"]
            answer = response.json()
            assert why_not(answer, schema, schemas) is None, path
            more = [*answer, "more"] if isinstance(answer, list) else {**answer, "more": 1}
            assert why_not(more, schema, schemas), "a schema that takes all would show nothing"
