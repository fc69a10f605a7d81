"""What lets pages of other origins use this server: CORS, closed unless opened."""

import re
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.protocols.common.errors import ErrorBody

from ..http.error_responses import respond
from .origins import Origins, header

METHODS: Final = b"GET, POST, DELETE"
HEADERS: Final = frozenset(
    {"accept", "authorization", "cache-control", "content-type", "idempotency-key", "last-event-id"}
    | {"traceparent", "tracestate"}
)
"""Besides those that begin with one of :data:`HEADER_PREFIXES`."""
HEADER_PREFIXES: Final = ("x-", "openai-", "anthropic-")
EXPOSED: Final = b"x-request-id, request-id, retry-after"
PREFLIGHT_SECONDS: Final = b"600"

_TOKEN: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")


class Cors:
    """Answers preflights, which come without a key, and tells browsers which answers a page may read.

    Credentials (cookies, client certificates) are for origins that are named: never for :data:`ANY`.
    It belongs outside everything that answers, so that a page can read errors too.
    """

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self.app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        origin = header(scope["headers"], b"origin")
        asks = scope["method"] == "OPTIONS" and header(scope["headers"], b"access-control-request-method")
        if origin is not None and asks:
            await self._preflight(scope, receive, send, origin)
            return
        headers = self._answer(origin)
        if origin is not None and self._origins.allow(origin):
            headers.append((b"access-control-expose-headers", EXPOSED))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self.app(scope, receive, send_with_headers)

    async def _preflight(self, scope: Scope, receive: Receive, send: Send, origin: str) -> None:
        if not self._origins.allow(origin):
            message = "Web pages of this origin may not use this server."
            body = ErrorBody(message, "invalid_request_error", None, "origin_not_allowed")
            await respond(scope, 403, body, {"vary": "Origin"})(scope, receive, send)
            return
        headers = [
            *self._answer(origin),
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", PREFLIGHT_SECONDS),
        ]
        if wished := _allowed_headers(header(scope["headers"], b"access-control-request-headers") or ""):
            headers.append((b"access-control-allow-headers", wished.encode()))
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _answer(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        if self._origins.any:
            return [(b"access-control-allow-origin", b"*")]
        headers = [(b"vary", b"Origin")]
        if origin is not None and self._origins.allow(origin):
            headers.append((b"access-control-allow-origin", origin.encode("latin-1")))
            headers.append((b"access-control-allow-credentials", b"true"))
        return headers


def _allowed_headers(wished: str) -> str:
    names = [name.strip().lower() for name in wished.split(",")]
    return ", ".join(
        name for name in names if _TOKEN.fullmatch(name) and (name in HEADERS or name.startswith(HEADER_PREFIXES))
    )
