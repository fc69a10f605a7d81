"""Whatever refuses a request to an Anthropic path, and wherever, tells it as Anthropic does; over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anthropic.types
import anyio
import msgspec
import pytest

from stentor.protocols.common.limits import Limits
from stentor.server.app.state import ServerState
from stentor.server.config.limits import ConnectionLimits, OverloadConfig
from stentor.server.http.connections import Connections
from stentor.server.http.http_protocol import HttpProtocol
from stentor.server.middleware.access_control import AccessControl
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, HELLO, on_loopback, until
from stentor.tests.server.middleware.keyrings import keyring
from stentor.tests.wire.validate import check_object, frames_of

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
BODY = {"model": "fake", "max_tokens": 4, "messages": HELLO}
TIGHT = ConnectionLimits(max_header_bytes=2000, max_headers=9, max_pipelined=0)
HURRIED = msgspec.structs.replace(TIGHT, header_timeout=0.1)
"""For a head that does not come: on a slow machine others may be as late."""
LATE = "a late head"


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, self.body = raw.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = dict(line.lower().split(": ", 1) for line in lines[1:])

    @property
    def error(self) -> dict[str, Any]:
        """Held against the SDK's type."""
        check_object(anthropic.types.ErrorResponse, self.body)
        found: dict[str, Any] = json.loads(self.body)
        return found


def request(*headers: str, method: str = "POST", path: str = MESSAGES, body: bytes | None = None) -> bytes:
    body = json.dumps(BODY).encode() if body is None else body
    lines = [f"{method} {path} HTTP/1.1", "host: server", "connection: close", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def serving(state: ServerState, limits: ConnectionLimits = TIGHT) -> AsyncIterator[Callable[[bytes], Any]]:
    http = partial(HttpProtocol, connections=Connections(limits), root_path=state.access.root_path)
    async with on_loopback(state, http) as url:

        async def send(data: bytes) -> Answer:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            try:
                writer.write(data)
                async with asyncio.timeout(60):
                    return Answer(await reader.read())
            finally:
                writer.close()

        yield send


def failing() -> FakeEngine:
    """Its answers end in an error once they have begun."""
    engine = FakeEngine()

    async def pace() -> None:
        if engine.streams and engine.streams[0]._prompt_done:
            engine.failure = "0xdeadbeef in /srv/secret"

    engine.pace = pace  # type: ignore[method-assign]
    return engine


def starting() -> FakeEngine:
    engine = FakeEngine()
    engine.ready = None
    return engine


def gone() -> FakeEngine:
    engine = FakeEngine()
    engine.failure = "gone"
    return engine


def broken() -> FakeEngine:
    def answer(_prompt: list[int], _index: int) -> Any:
        raise RuntimeError("a bug in /srv/secret")

    return FakeEngine(answer=answer)


BIG = b'{"model":"fake","max_tokens":4,"messages":[' + b" " * 5000 + b"]}"
REFUSALS: dict[str, tuple[dict[str, Any], bytes, int, str]] = {
    "no key": ({"access": AccessControl(keyring("secret"))}, request(), 401, "authentication_error"),
    "a foreign page": ({}, request("origin: https://x.example"), 403, "permission_error"),
    "no such model": ({}, request(body=json.dumps(BODY | {"model": "x"}).encode()), 404, "not_found_error"),
    "no such path": ({}, request(path="/v1/messages/nowhere"), 404, "not_found_error"),
    "method": ({}, request(method="PUT", body=b""), 405, "invalid_request_error"),
    "options": ({}, request(method="OPTIONS", body=b""), 405, "invalid_request_error"),
    "unknown method": ({}, request(method="BREW"), 405, "invalid_request_error"),
    "a bad field": ({}, request(body=json.dumps(BODY | {"top_k": -1}).encode()), 400, "invalid_request_error"),
    "no JSON": ({}, request(body=b"{"), 400, "invalid_request_error"),
    "no body": ({}, request(body=b""), 400, "invalid_request_error"),
    "no UTF-8": ({}, request(body=b'{"model":"\xff"}'), 400, "invalid_request_error"),
    "a large body": ({"limits": Limits(max_body_bytes=4000)}, request(body=BIG), 413, "invalid_request_error"),
    "an encoded body": ({}, request("content-encoding: gzip"), 415, "invalid_request_error"),
    "a late body": ({"limits": Limits(body_timeout=0.1)}, request()[:-5], 408, "timeout_error"),
    "too long": ({}, request(body=json.dumps(BODY | {"system": "x" * 900}).encode()), 400, "invalid_request_error"),
    "starting": ({"engine": starting()}, request(), 503, "overloaded_error"),
    "draining": ({"draining": True}, request(), 503, "overloaded_error"),
    "the engine is gone": ({"engine": gone()}, request(), 503, "overloaded_error"),
    "a bug": ({"engine": broken()}, request(), 500, "api_error"),
    "a failed generation": ({"engine": failing()}, request(), 500, "api_error"),
    "a deadline": ({"engine": FakeEngine(delay=5)}, request("x-request-timeout: 0.1"), 504, "timeout_error"),
    "a bad deadline": ({}, request("x-request-timeout: soon"), 400, "invalid_request_error"),
    "a long head": ({}, request("x: " + "a" * 3000), 431, "invalid_request_error"),
    "many headers": ({}, request(*["a: b"] * 12), 431, "invalid_request_error"),
    LATE: ({}, request("x: y")[:60], 408, "timeout_error"),
    "no HTTP": ({}, request("bad header: x"), 400, "invalid_request_error"),
    "two hosts": ({}, request("host: other"), 400, "invalid_request_error"),
    "a bad chunk": (
        {},
        b"POST /v1/messages HTTP/1.1\r\nhost: server\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        400,
        "invalid_request_error",
    ),
}
BEFORE_A_REQUEST = {"unknown method", "a long head", "many headers", LATE, "no HTTP", "two hosts"} | {"a bad chunk"}


ONE_SERVER = sorted(name for name in REFUSALS if not REFUSALS[name][0])


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refusal_has_anthropic_s_shape(name: str) -> None:
    fields, data, status, kind = REFUSALS[name]
    fields = dict(fields)
    draining = fields.pop("draining", False)
    state = fake_state(**fields)
    state.admission.draining = draining
    async with serving(state, HURRIED if name == LATE else TIGHT) as send:
        answer = await send(data)
    assert answer.status == status, answer.body
    error = answer.error
    assert error["error"]["type"] == kind
    assert "secret" not in error["error"]["message"]
    assert answer.headers["content-type"] == "application/json"
    if name in BEFORE_A_REQUEST:
        assert error["request_id"] is None, "nobody has named it yet"
    else:
        assert error["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_so_it_has_below_that_path_and_on_another_it_has_openai_s() -> None:
    async with serving(fake_state()) as usual, serving(fake_state(), HURRIED) as hurried:
        for name in sorted(set(ONE_SERVER) - {"too long", "a bad field", "no such path"}):
            send = hurried if name == LATE else usual
            _, data, status, kind = REFUSALS[name]
            counting = await send(data.replace(MESSAGES.encode(), (MESSAGES + "/count_tokens?beta=true").encode(), 1))
            assert (name, counting.status, counting.error["error"]["type"]) == (name, status, kind)
            chat = await send(data.replace(MESSAGES.encode(), CHAT.encode(), 1))
            assert (name, chat.status) == (name, status)
            assert json.loads(chat.body)["error"].keys() == {"message", "type", "param", "code"}
            assert "request-id" not in chat.headers


async def test_a_full_queue_is_told_with_the_time_to_come_again() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    state = fake_state(engine, overload=OverloadConfig(max_queued_requests=1))
    async with serving(state) as send, anyio.create_task_group() as tasks:
        tasks.start_soon(send, request())
        await until(lambda: len(engine.streams) == 1)
        answer = await send(request())
        engine.gate.set()
    assert (answer.status, answer.error["error"]["type"]) == (429, "rate_limit_error")
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_full_budget_is_told_likewise() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    state = fake_state(engine, overload=OverloadConfig(max_inflight_bytes=400 << 10))
    large = json.dumps(BODY | {"ignored": "x" * (80 << 10)}).encode()
    async with serving(state, ConnectionLimits()) as send, anyio.create_task_group() as tasks:
        tasks.start_soon(send, request(body=large))
        await until(lambda: len(engine.streams) == 1)
        answer = await send(request(body=large))
        engine.gate.set()
    assert (answer.status, answer.error["error"]["type"]) == (429, "rate_limit_error")


async def test_a_request_too_many_on_one_connection_is_told_likewise() -> None:
    engine = FakeEngine(delay=0.02)
    keep = request().replace(b"connection: close\r\n", b"")
    async with serving(fake_state(engine)) as send:
        answer = await send(keep + keep)
    refusal = answer.body[int(answer.headers["content-length"]) :]
    error = Answer(refusal)
    assert (error.status, error.error["error"]["type"]) == (429, "rate_limit_error")


async def test_a_prefix_changes_nothing_of_it() -> None:
    state = fake_state(access=AccessControl(root_path="/llm"))
    async with serving(state) as send:
        for prefix in ("", "/llm"):
            path = prefix + MESSAGES
            assert (await send(request(path=path))).status == 200
            assert (await send(request(path=path, body=b"{"))).error["request_id"]
            assert (await send(request("bad header: x", path=path))).error["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["an error", "a deadline", "the end"])
async def test_what_ends_a_stream_that_has_begun_is_an_error_event(name: str) -> None:
    engine = failing() if name == "an error" else FakeEngine()
    state = fake_state(engine)

    async def pace() -> None:
        if engine.streams and engine.streams[0]._prompt_done:  # what it began with has been sent
            if name == "the end":
                state.admission.cut_off()
            else:
                (context,) = state.admission._live
                assert context._scope is not None
                context._scope.deadline = anyio.current_time()
            await anyio.sleep_forever()

    if name != "an error":
        engine.pace = pace  # type: ignore[method-assign]
    async with serving(state) as send:
        answer = await send(request(body=json.dumps(BODY | {"stream": True, "max_tokens": 400}).encode()))
    assert answer.status == 200
    chunks = answer.body.decode()
    text = "".join(line for line in chunks.split("\r\n")[1::2])
    frame = frames_of(text)[-1]
    assert frame.event == "error"
    error = check_object(anthropic.types.ErrorResponse, frame.data)
    kinds = {"an error": "api_error", "a deadline": "timeout_error", "the end": "overloaded_error"}
    assert error.error.type == kinds[name]
    assert error.request_id == answer.headers["request-id"]
    assert "secret" not in frame.data
