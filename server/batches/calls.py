"""Requests without a connection: those of a batch are made as its owner would make them."""

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from ..common.errors import ENGINE_LOST, PAUSED
from ..common.keys import Caller
from ..middleware.auth import act_for
from .lines import BatchRequest, InProcessResponse

if TYPE_CHECKING:
    import httpx

PRIORITY: Final = 100
"""Priority of requests without one: interactive requests go first, and batches age like all others."""
_PATIENCE: Final = 3600.0
"""Seconds for which a request is made again and again before the refusal is its answer."""
_FIRST_PAUSE: Final = 0.5
_LAST_PAUSE: Final = 30.0
_AGAIN: Final = (429, 503)


class _Said(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    """In OpenAI's shape and in Anthropic's, which has no code."""

    error: _Said


_refusals: Final = msgspec.json.Decoder(_Refusal)


class CallerApp:
    """The application, for one caller who is already authenticated."""

    def __init__(self, app: ASGIApp, caller: Caller) -> None:
        self._app = app
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        act_for(scope, self._caller)
        await self._app(scope, receive, send)


class EngineGivenUp(Exception):
    """The engine was given up while it ran the request, perhaps because of it."""


@contextlib.asynccontextmanager
async def client_for(app: ASGIApp, caller: Caller) -> "AsyncIterator[httpx.AsyncClient]":
    import httpx  # late: a server without batches does not need it

    transport = httpx.ASGITransport(CallerApp(app, caller))
    async with httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None) as client:
        yield client


async def answer(client: "httpx.AsyncClient", request: BatchRequest) -> InProcessResponse:
    """The response, as :func:`post`, with lower priority than interactive requests. Raises EngineGivenUp."""
    body = msgspec.json.encode({"priority": PRIORITY, **request.body})
    return await post(client, request.url, body, give_up_with_engine=True)


async def post(
    client: "httpx.AsyncClient", path: str, body: bytes, *, give_up_with_engine: bool = False
) -> InProcessResponse:
    """Made again, after longer and longer, while the server is too busy for it or recovers, and for as long as it is
    paused. Raises EngineGivenUp with ``give_up_with_engine``."""
    pause = _FIRST_PAUSE
    until = anyio.current_time() + _PATIENCE
    headers = {"content-type": "application/json"}
    response = await client.post(path, content=body, headers=headers)
    while response.status_code in _AGAIN:
        why = _message(response.content)
        if give_up_with_engine and why == ENGINE_LOST:
            raise EngineGivenUp
        if anyio.current_time() >= until and why != PAUSED:
            break
        await anyio.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)
        response = await client.post(path, content=body, headers=headers)
    return InProcessResponse(response.status_code, response.content, response.headers.get("x-request-id", ""))


def _message(refusal: bytes) -> str:
    try:
        return _refusals.decode(refusal).error.message
    except msgspec.DecodeError:
        return ""
