"""Every route there is, and every one to come, is closed unless it says otherwise."""

from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import Message

from stentor.server.app.application import create_app
from stentor.server.common.keys import Keyring
from stentor.server.http.error_shapes import shape_of
from stentor.server.middleware.access_control import AccessControl
from stentor.server.middleware.auth import PROBES, AdminRoute, is_open
from stentor.server.middleware.hosts import Hosts
from stentor.server.middleware.origins import Origins
from stentor.server.web import PATHS
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, HELLO, in_memory
from stentor.tests.server.middleware.keyrings import keyring

pytestmark = pytest.mark.anyio


async def control(_request: Request) -> Response:
    return PlainTextResponse("done")


def app_with_control(keys: Keyring) -> Starlette:
    app = create_app(fake_state(access=AccessControl(keys)))
    app.router.routes.append(AdminRoute("/control", control, keys, methods=["POST"]))
    return app


def talk_to(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


def walk(routes: Sequence[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str, BaseRoute]]:
    """Method and path of all, those of mounted applications too; parameters are filled in."""
    for route in routes:
        if isinstance(route, Mount):
            yield from walk(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            path = prefix + route.path_format.replace("{", "").replace("}", "")
            for method in sorted(route.methods or {"GET"}):
                yield method, path, route
        else:
            assert isinstance(route, WebSocketRoute), f"{route} is of a kind that this walk does not know"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_the_walk_finds_every_route_that_the_server_has() -> None:
    paths = {path for _, path, _ in walk(app_with_control(keyring()).routes)}
    assert {CHAT, "/v1/models", "/v1/models/model", "/metrics", "/version", "/health", "/control"} <= paths
    assert paths >= {*PROBES, *PATHS}


async def test_every_route_but_the_probes_and_the_page_wants_a_key() -> None:
    app = app_with_control(keyring("user", admin=("root",)))
    async with talk_to(app) as client:
        for method, path, _route in walk(app.routes):
            for headers in ({}, bearer("wrong"), {"x-api-key": "wrong"}, {"x-api-key": ""}):
                response = await client.request(method, path, headers=headers)
                if is_open(path, method):
                    assert response.status_code == 200, path
                    continue
                assert response.status_code == 401, path
                assert response.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":
                    msgspec.json.decode(response.content, type=shape_of(path, ()).struct)
                    assert "A valid API key is required" in response.text
            for good in (bearer("user"), {"x-api-key": "user"}, bearer("root")):
                assert (await client.request(method, path, headers=good)).status_code != 401, path


async def test_admin_routes_want_the_admin_key_and_only_they() -> None:
    app = app_with_control(keyring("user", admin=("root",)))
    async with talk_to(app) as client:
        for method, path, route in walk(app.routes):
            refused = await client.request(method, path, headers=bearer("user"))
            assert (refused.status_code == 403) == isinstance(route, AdminRoute), path
        refused = await client.post("/control", headers=bearer("user"))
        assert refused.json()["error"]["code"] == "admin_key_required"
        assert (await client.post("/control", headers=bearer("root"))).text == "done"
        assert (await client.post("/control", headers={"x-api-key": "root"})).text == "done"


@pytest.mark.parametrize("keys", [keyring(), keyring("user")])
async def test_without_an_admin_key_admin_routes_are_closed_and_say_how_to_open_them(keys: Keyring) -> None:
    async with talk_to(app_with_control(keys)) as client:
        for headers in (bearer("user"), bearer("wrong"), {}):
            refused = await client.post("/control", headers=headers)
            if keys.required and headers != bearer("user"):
                assert refused.status_code == 401
                continue
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_closed")
            assert "--admin-key" in refused.json()["error"]["message"]


async def test_an_admin_key_alone_leaves_the_rest_open() -> None:
    async with talk_to(app_with_control(keyring(admin=("root",)))) as client:
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.post("/control")).status_code == 401
        assert (await client.post("/control", headers=bearer("root"))).text == "done"


async def test_an_admin_route_that_stands_behind_no_guard_stays_closed() -> None:
    keys = keyring(admin=("root",))
    async with talk_to(Starlette(routes=[AdminRoute("/control", control, keys, methods=["POST"])])) as client:
        assert (await client.post("/control", headers=bearer("root"))).status_code == 401


# ---- WebSockets


async def handshake(
    keys: Keyring, origins: tuple[str, ...], *headers: tuple[bytes, bytes], host: bytes = b"Server:8000"
) -> list[Message]:
    """What a server with one WebSocket route says to a handshake."""
    app = create_app(fake_state(access=AccessControl(keys, Origins(origins))))

    async def accept(socket: Any) -> None:
        await socket.accept()

    app.router.routes.append(WebSocketRoute("/socket", accept))
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": "/socket",
        "headers": [(b"host", host), *headers],
        "query_string": b"",
        "subprotocols": [],
    }
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize(
    ("origins", "origin", "opened"),
    [
        ((), None, True),
        ((), b"http://server:8000", True),
        ((), b"https://server:8000", True),
        ((), b"http://server", False),
        ((), b"http://[server", False),
        ((), b"http://evil.example", False),
        ((), b"null", False),
        (("https://app.example",), b"https://app.example", True),
        (("https://app.example",), b"https://app.example.evil", False),
        (("https://app.example",), b"http://app.example", False),
        (("*",), b"http://evil.example", True),
    ],
)
async def test_a_websocket_is_opened_for_pages_that_may(
    origins: tuple[str, ...], origin: bytes | None, opened: bool
) -> None:
    headers = [] if origin is None else [(b"origin", origin)]
    (answer,) = await handshake(keyring(), origins, *headers)
    assert (answer["type"] == "websocket.accept") == opened
    assert opened or answer["code"] == 1008


async def test_a_websocket_wants_a_key_too() -> None:
    (refused,) = await handshake(keyring("key"), ())
    assert (refused["type"], refused["code"]) == ("websocket.close", 1008)
    (opened,) = await handshake(keyring("key"), (), (b"authorization", b"Bearer key"))
    assert opened["type"] == "websocket.accept"


# ---- pages without a key


@pytest.mark.parametrize(
    ("host", "origin", "admitted"),
    [
        ("127.0.0.1:8000", None, True),
        ("127.0.0.1:8000", "http://127.0.0.1:8000", True),
        ("[::1]:8000", "http://[::1]:8000", True),
        ("localhost:8000", "http://localhost:8000", True),
        ("chat.localhost", "http://chat.localhost", True),
        ("gpu-box:8000", "http://gpu-box:8000", True),
        ("127.0.0.1:8000", "http://localhost:3000", False),
        ("127.0.0.1:8000", "https://evil.example", False),
        ("evil.example:8000", "http://evil.example:8000", False),
        ("EVIL.example", "http://evil.example", False),
        ("localhost.evil.example", "http://localhost.evil.example", False),
        ("127.0.0.1.", "http://127.0.0.1.", False),
        ("127.0.0.1", "null", False),
        ("127.0.0.1", "file://", False),
        ("127.0.0.1", "", False),
        ("app.example", "https://app.example", False),
        ("llm.example:8000", "http://llm.example:8000", True),
        ("evil.example:8000", None, False),
        ("127.0.0.1.", None, False),
        ("", None, False),
        ("127.0.0.1", "https://app.example", True),
    ],
)
async def test_without_keys_a_page_of_another_s_name_can_do_nothing(
    host: str, origin: str | None, admitted: bool
) -> None:
    engine = FakeEngine()
    headers = {"host": host, "content-type": "text/plain"} | ({} if origin is None else {"origin": origin})
    body = b'{"prompt": "a", "max_tokens": 1}'
    access = AccessControl(origins=Origins(["https://app.example"]), hosts=Hosts(["llm.example"]))
    async with in_memory(fake_state(engine, access=access)) as client:
        answer = await client.post("/v1/completions", content=body, headers=headers)
        assert (await client.get("/health", headers=headers)).status_code == 200
    assert bool(engine.submitted) == admitted
    assert answer.status_code == (200 if admitted else 403)
    assert admitted or answer.json()["error"]["code"] in ("origin_not_allowed", "host_not_allowed")


EVIL = {"host": "evil.example:8000"}


async def test_without_keys_no_route_but_the_probes_answers_under_a_name_that_others_can_have() -> None:
    app = create_app(fake_state())
    async with talk_to(app) as client:
        for method, path, _route in walk(app.routes):
            answer = await client.request(method, path, headers=EVIL)
            assert (answer.status_code == 403) == (path not in PROBES), path
            if answer.status_code == 403 and method != "HEAD":
                assert "--allowed-host evil.example" in answer.text
                assert "--api-key-file" in answer.text


@pytest.mark.parametrize(
    ("keys", "allowed", "host", "key", "status"),
    [
        (keyring("key"), [], "evil.example", "key", 200),
        (keyring("key"), ["llm.example"], "evil.example", "key", 403),
        (keyring("key"), ["llm.example"], "LLM.example:443", "key", 200),
        (keyring("key"), ["llm.example"], "10.0.0.7:8000", "key", 200),
        (keyring("key"), ["llm.example"], "[2001:db8::7]:8000", "key", 200),
        (keyring("key"), ["llm.example"], "gpu-box:8000", "key", 200),
        (keyring("key"), ["llm.example"], "evil.example", "wrong", 401),
        (keyring(), ["llm.example"], "llm.example.", "", 403),
        (keyring(), ["llm.example"], "sub.llm.example", "", 403),
        (keyring(), [], "stentor.default.svc:8000", "", 403),
        (keyring(admin=("root",)), [], "llm.example", "root", 200),
        (keyring(admin=("root",)), [], "llm.example", "", 403),
    ],
)
async def test_a_key_lets_any_host_in_unless_hosts_are_given(
    keys: Keyring, allowed: list[str], host: str, key: str, status: int
) -> None:
    async with in_memory(fake_state(access=AccessControl(keys, hosts=Hosts(allowed)))) as client:
        assert (await client.get("/v1/models", headers={"host": host} | bearer(key))).status_code == status
        assert (await client.get("/health", headers={"host": host})).status_code == 200


async def test_a_host_that_is_refused_is_told_in_the_shape_of_its_path() -> None:
    async with in_memory(fake_state()) as client:
        error = (await client.post("/v1/messages", json={}, headers=EVIL)).json()
    assert (error["type"], error["error"]["type"]) == ("error", "permission_error")


@pytest.mark.parametrize(("host", "opened"), [(b"evil.example", False), (b"127.0.0.1:8000", True)])
async def test_a_websocket_is_opened_only_under_a_name_of_ours(host: bytes, opened: bool) -> None:
    (answer,) = await handshake(keyring(), (), host=host)
    assert (answer["type"] == "websocket.accept") == opened


async def test_with_keys_it_is_the_key_that_counts() -> None:
    async with in_memory(fake_state(access=AccessControl(keyring("key")))) as client:
        headers = {"host": "llm.example", "origin": "https://elsewhere.example"}
        assert (await client.get("/v1/models", headers=headers | bearer("key"))).status_code == 200
        assert (await client.get("/v1/models", headers=headers)).status_code == 401


# ---- whose cache it is


async def salts_of(keys: Keyring, *requests: tuple[dict[str, str], str | None]) -> list[str]:
    engine = FakeEngine()
    async with in_memory(fake_state(engine, access=AccessControl(keys))) as client:
        for headers, salt in requests:
            body = {"messages": HELLO, "max_tokens": 1} | ({} if salt is None else {"cache_salt": salt})
            assert (await client.post(CHAT, json=body, headers=headers)).status_code == 200
            text = {"prompt": ["a", "b"], "max_tokens": 1} | ({} if salt is None else {"cache_salt": salt})
            assert (await client.post("/v1/completions", json=text, headers=headers)).status_code == 200
    found = [salt for _, _, salt in engine.submitted]
    assert found[0::3] == found[1::3] == found[2::3], "chat and both prompts of a completion are alike"
    return found[0::3]


async def test_with_several_keys_each_has_a_prefix_cache_of_its_own() -> None:
    one, two = bearer("one"), {"x-api-key": "two"}
    salts = await salts_of(keyring("one", "two"), (one, None), (two, None), (one, None), (one, "mine"), (two, "mine"))
    assert salts[0] == salts[2]
    assert len(set(salts)) == 4
    assert salts[3] == salts[0] + "mine"
    assert not {"one", "two"} & set("".join(salts).split())


async def test_with_one_key_or_none_the_salt_is_the_request_s() -> None:
    assert await salts_of(keyring("one"), (bearer("one"), None), (bearer("one"), "mine")) == ["", "mine"]
    assert await salts_of(keyring(), (bearer("any"), None), ({}, "mine")) == ["", "mine"]
