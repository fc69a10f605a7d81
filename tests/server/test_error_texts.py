"""What goes wrong inside is told to the log, not to the client."""

import asyncio
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.processes.logs import set_up_logging
from stentor.server.app.application import create_app
from stentor.server.http.error_responses import INTERNAL
from stentor.server.middleware.access_control import AccessControl
from stentor.server.middleware.origins import Origins
from stentor.server.observability.request import current_request_id
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory
from stentor.tests.server.middleware.keyrings import keyring

pytestmark = pytest.mark.anyio

SECRET = "/srv/secret/weights.bin at 0xdeadbeef of 10.1.2.3:8000"
TELLTALE = re.compile(r"/srv|/home|/usr|/root|/tmp|0x[0-9a-f]{4,}|\d+\.\d+\.\d+\.\d+|Traceback|File \"|\.py\b|line \d+")
ID = "the-request-s-id"
PAGE = "https://app.example"

ERRORS: list[Callable[[], Exception]] = [
    lambda: RuntimeError(SECRET),
    lambda: KeyError(SECRET),
    lambda: FileNotFoundError(2, "No such file or directory", "/srv/secret"),
    lambda: ConnectionRefusedError(111, "10.1.2.3:8000"),
    lambda: AssertionError(SECRET),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, SECRET),
    lambda: ExceptionGroup(SECRET, [ValueError(SECRET)]),
    lambda: asyncio.QueueFull(SECRET),
    lambda: EngineUnavailable(SECRET),
]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """What the server writes, as operators see it."""
    root, ours = logging.getLogger(), logging.getLogger("stentor")
    before = (list(root.handlers), root.level, ours.level)
    written = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", written)
        set_up_logging("info", "text", "server", current_request_id)
    yield written.getvalue
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def talk_to(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


def innocent(text: str) -> bool:
    return not TELLTALE.search(text) and SECRET not in text


@pytest.mark.parametrize("make", ERRORS, ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize(
    "access",
    [AccessControl(origins=Origins([PAGE])), AccessControl(keyring("key"), Origins(["*"]), "/llm")],
    ids=["open", "closed"],
)
async def test_a_route_that_raises_tells_the_client_nothing_and_the_log_all(
    make: Callable[[], Exception], access: AccessControl, log: Callable[[], str]
) -> None:
    async def broken(_request: Request) -> Response:
        raise make()

    app = create_app(fake_state(access=access))
    app.router.routes.append(Route("/broken", broken))
    headers = {"authorization": "Bearer key", "x-request-id": ID, "origin": PAGE}
    async with talk_to(app) as client:
        response = await client.get("/broken", headers=headers)
    assert response.status_code in (500, 503)
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert innocent(response.text), response.text
    assert response.headers["x-request-id"] == ID
    assert ID in log()
    if response.status_code == 500:
        assert response.json()["error"]["message"] == INTERNAL
        assert "test_error_texts.py" in log(), "the log has the traceback"
        assert type(make()).__name__ in log()


async def test_a_response_that_breaks_off_is_logged(log: Callable[[], str]) -> None:
    async def broken(_request: Request) -> Response:
        async def body() -> Any:
            yield b"begun"
            raise RuntimeError(SECRET)

        return StreamingResponse(body())

    app = create_app(fake_state())
    app.router.routes.append(Route("/broken", broken))
    async with talk_to(app) as client:
        with pytest.raises(RuntimeError):
            await client.get("/broken", headers={"x-request-id": ID})
    assert ID in log()
    assert "test_error_texts.py" in log()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_engine_that_fails_is_not_quoted(path: str, stream: bool) -> None:
    engine = FakeEngine()
    engine.burst = 2
    engine.gate.clear()
    asked = {"messages": HELLO} if path == CHAT else {"prompt": "a"}
    async with in_memory(fake_state(engine)) as client:
        asking = asyncio.create_task(client.post(path, json={**asked, "stream": stream, "max_tokens": 9}))
        while not engine.live:
            await asyncio.sleep(0.005)
        engine.failure = SECRET
        engine.gate.set()
        answer = await asking
        after = await client.post(path, json=asked)
        health = await client.get("/health")
    assert "error" in answer.text
    for response in (answer, after, health):
        assert innocent(response.text), response.text


async def test_what_clients_get_wrong_is_told_without_our_insides() -> None:
    bodies: list[Any] = [b"", b"{", b"\xff", b"[]", b'{"messages": 5}', b'{"messages": [{}]}', b'"a"', b"NaN"]
    async with in_memory(fake_state()) as client:
        for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
            for body in bodies:
                response = await client.post(path, content=body)
                assert 400 <= response.status_code < 500
                assert innocent(response.text), response.text
                assert os.sep.join(["", "server", ""]) not in response.text
