"""Probes, models, tokens, keys, request ids, draining."""

import asyncio
from typing import Any

import httpx
import pytest
from openai.types import Model

import stentor
from stentor.server.middleware.access_control import AccessControl
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory, on_loopback, until
from stentor.tests.server.middleware.keyrings import keyring

pytestmark = pytest.mark.anyio

ROUTES = [
    ("POST", CHAT),
    ("POST", COMPLETIONS),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/load"),
    ("GET", "/version"),
    ("GET", "/metrics"),
    ("GET", "/nowhere"),
    ("GET", "/health/"),
    ("GET", "/%68ealth/../metrics"),
    ("GET", "/v1//health"),
]


async def test_health_is_ready_only_while_the_engine_can_run() -> None:
    engine = FakeEngine()
    state = fake_state(engine)
    async with in_memory(state) as client:
        assert (await client.get("/health")).status_code == 200
        ready, engine.ready = engine.ready, None
        starting = await client.get("/health")
        assert (starting.status_code, starting.json()["error"]["code"]) == (503, "starting")
        assert (await client.post(CHAT, json={"messages": HELLO})).status_code == 503
        engine.ready, engine.failure = ready, "killed"
        assert (await client.get("/health")).json()["error"]["code"] == "failed"
        gone = await client.get("/ping")
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "failed")
        engine.failure, state.admission.draining = None, True
        draining = await client.get("/health")
        assert (draining.status_code, draining.json()["error"]["code"]) == (503, "draining")
        assert draining.headers["retry-after"]
        assert (await client.get("/ping")).status_code == 200


async def test_while_the_engine_recovers_health_fails_and_new_requests_wait() -> None:
    engine = FakeEngine()
    async with in_memory(fake_state(engine)) as client:
        engine.stalled = "the worker process (pid 4711) was lost: killed by SIGKILL"
        engine.gate.clear()
        health = await client.get("/health")
        assert (health.status_code, health.json()["error"]["code"]) == (503, "recovering")
        assert "pid" not in health.text
        assert health.headers["retry-after"]
        assert (await client.get("/ping")).status_code == 200
        waiting = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "max_tokens": 3}))
        await until(lambda: engine.live == 1)
        engine.stalled = None
        engine.gate.set()
        assert (await waiting).status_code == 200
        assert (await client.get("/health")).status_code == 200


async def test_model_cards_are_valid_to_the_sdk_and_ids_may_hold_slashes() -> None:
    async with in_memory(fake_state(root="pypi:fake")) as client:
        listed = (await client.get("/v1/models")).json()
        one = await client.get("/v1/models/fake/model")
        missing = await client.get("/v1/models/fake/other")
        assert (await client.get("/v1/models/")).json() == (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    for card in listed["data"]:
        Model.model_validate(card, strict=True)
        assert (card["max_model_len"], card["root"], card["parent"]) == (512, "pypi:fake", None)
        assert card["input_modalities"] == ["text"]
    assert one.json() == listed["data"][0]
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_tokenize_and_detokenize_are_each_others_inverse() -> None:
    async with in_memory(fake_state()) as client:
        body = (await client.post("/tokenize", json={"prompt": "hé", "return_token_strs": True})).json()
        assert body == {
            "count": 3,
            "max_model_len": 512,
            "tokens": [104, 195, 169],
            "token_strs": ["h", "\ufffd", "\ufffd"],
        }
        back = (await client.post("/detokenize", json={"tokens": body["tokens"]})).json()
        assert back == {"prompt": "hé", "content": "hé", "text": "hé"}


async def test_tokenize_renders_messages_as_chat_does() -> None:
    engine = FakeEngine()
    async with in_memory(fake_state(engine)) as client:
        body = (await client.post("/tokenize", json={"messages": HELLO})).json()
        await client.post(CHAT, json={"messages": HELLO, "max_tokens": 1})
    assert body["tokens"] == engine.streams[0].prompt
    assert body["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, 9999]}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ],
)
async def test_token_routes_name_what_is_wrong(path: str, body: dict[str, Any], param: str) -> None:
    async with in_memory(fake_state()) as client:
        response = await client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_the_load_is_how_many_requests_are_live() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with in_memory(fake_state(engine)) as client:
        assert (await client.get("/load")).json() == {"server_load": 0}
        asked = [asyncio.create_task(client.post(CHAT, json={"messages": HELLO})) for _ in range(2)]
        await until(lambda: len(engine.streams) == 2)
        assert (await client.get("/load")).json() == {"server_load": 2}
        engine.gate.set()
        await asyncio.gather(*asked)
        assert (await client.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_tells_balancers_the_load_in_the_form_that_they_want(stream: bool) -> None:
    async with in_memory(fake_state(FakeEngine())) as client:

        async def told(form: str) -> str | None:
            body = {"messages": HELLO, "max_tokens": 1, "stream": stream}
            response = await client.post(CHAT, json=body, headers={"endpoint-load-metrics-format": form})
            assert response.status_code == 200
            header: str | None = response.headers.get("endpoint-load-metrics")
            return header

        text = "TEXT named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=2.0"
        assert await told("text") == text
        assert await told("JSON") == 'JSON {"named_metrics":{"kv_cache_usage_perc":0.5,"num_requests_waiting":2.0}}'
        assert await told("xml") is None


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_gateway_s_header_gives_a_request_its_priority(path: str) -> None:
    engine = FakeEngine()
    async with in_memory(fake_state(engine)) as client:

        async def ask(**headers: str) -> httpx.Response:
            body = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
            return await client.post(path, json={**body, "max_tokens": 1, "priority": -(2**63)}, headers=headers)

        for headers in ({}, {"x-vllm-priority": "-7"}, {"x-vllm-priority": "9223372036854775807"}):
            assert (await ask(**headers)).status_code == 200
        for wrong in ("high", "1.5", "9223372036854775808", "--1"):
            refused = await ask(**{"x-vllm-priority": wrong})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-vllm-priority")
    assert [priority for _, priority, _ in engine.submitted] == [-(2**63), -7, 2**63 - 1]


async def test_version_is_the_packages() -> None:
    async with in_memory(fake_state()) as client:
        assert (await client.get("/version")).json() == {"version": stentor.__version__}


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_everything_but_the_probes_wants_a_key(method: str, path: str) -> None:
    async with in_memory(fake_state(access=AccessControl(keyring("first", "sécond")))) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic first"}, {"x-api-key": "x"}):
            response = await client.request(method, path, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["x-request-id"]
        for key in ("first", "sécond"):
            given = httpx.Headers([(b"authorization", b"Bearer " + key.encode())])
            assert (await client.request(method, path, headers=given)).status_code != 401


async def test_the_probes_need_no_key() -> None:
    async with in_memory(fake_state(access=AccessControl(keyring("key")))) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ping")).status_code == 200


async def test_two_authorization_headers_are_refused() -> None:
    async with in_memory(fake_state(access=AccessControl(keyring("key")))) as client:
        headers = [("authorization", "Bearer key"), ("authorization", "Bearer other")]
        assert (await client.get("/v1/models", headers=headers)).status_code == 401


async def test_a_sane_request_id_is_kept_and_another_is_replaced() -> None:
    async with in_memory(fake_state()) as client:
        kept = await client.get("/v1/models", headers={"x-request-id": "abc-123"})
        assert kept.headers["x-request-id"] == "abc-123"
        for bad in (b"x" * 129, b"with space", b"tab\there", "é".encode()):
            response = await client.get("/nowhere", headers={b"x-request-id": bad})
            assert response.status_code == 404
            drawn = response.headers["x-request-id"]
            assert len(drawn) == 32
        named = await client.post(CHAT, json={"messages": HELLO, "max_tokens": 1, "request_id": "mine"})
        assert (named.headers["x-request-id"], named.json()["id"]) == ("mine", "chatcmpl-mine")
        header = await client.post(
            COMPLETIONS, json={"prompt": "a", "max_tokens": 1}, headers={"x-request-id": "theirs"}
        )
        assert header.json()["id"] == "cmpl-theirs"


async def test_unknown_paths_and_methods_are_told_in_the_error_shape() -> None:
    async with in_memory(fake_state()) as client:
        missing = await client.get("/v1/none")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
        wrong = await client.get(COMPLETIONS)
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert wrong.json()["error"]["type"] == "invalid_request_error"


async def test_draining_refuses_the_new_and_waits_for_the_old() -> None:
    engine = FakeEngine(delay=0.01)
    state = fake_state(engine)
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        old = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "max_tokens": 30, "stream": True}))
        await until(lambda: engine.live)
        state.admission.draining = True
        new = await client.post(CHAT, json={"messages": HELLO})
        assert (new.status_code, new.json()["error"]["code"]) == (503, "draining")
        assert not await state.admission.drained(0.01), "one is still running"
        assert await state.admission.drained(5.0)
        assert (await old).text.endswith("data: [DONE]\n\n")
    assert state.admission.live_requests == 0
    assert await state.admission.drained(0.0)
