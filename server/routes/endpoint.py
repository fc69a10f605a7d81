"""What every endpoint does first: read the body within its bound, count the request as live."""

from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.protocols.openai.errors import BadRequest
from stentor.protocols.openai.limits import MAX_BODY_BYTES

from ..state import ServerState

BODY_SECONDS: Final = 60.0
"""Between two pieces of a body."""

Handler = Callable[[ServerState, Request], Awaitable[ASGIApp]]

_encode: Final = msgspec.json.Encoder().encode


class GenerationEndpoint:
    """An ASGI app around a handler; the request is live until the last byte of its response."""

    def __init__(self, state: ServerState, handler: Handler) -> None:
        self._state = state
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._state.live():
            response = await self._handler(self._state, Request(scope, receive, send))
            await response(scope, receive, send)


async def read_body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The whole body.

    Raises BadRequest for one that is encoded (415), as soon as it is known to be longer than
    ``limit`` (413), and when no more of it comes for a while (408).
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise BadRequest(
            "The body must be sent as it is, without `Content-Encoding`.",
            code="unsupported_encoding",
            status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    chunks = []
    size = 0
    stream = aiter(request.stream())
    while (chunk := await _next_chunk(stream)) is not None:
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


async def _next_chunk(stream: AsyncIterator[bytes]) -> bytes | None:
    try:
        with anyio.fail_after(BODY_SECONDS):
            return await anext(stream, None)
    except TimeoutError:
        raise BadRequest(
            f"No more of the body came for {BODY_SECONDS:g} seconds.",
            code="request_timeout",
            status=HTTPStatus.REQUEST_TIMEOUT,
        ) from None


def json_response(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(_encode(value), status, media_type="application/json")


def _too_large(limit: int) -> BadRequest:
    return BadRequest(
        f"The body is larger than the {limit} bytes that this server reads.",
        code="request_too_large",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    )
