"""API keys. Everything is guarded but the two probes, so that a new route is guarded without being named."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.protocols.openai.errors import ErrorBody

from .errors import respond

OPEN_PATHS: Final = frozenset({"/health", "/ping"})


class RequireKey:
    """Lets a request pass whose ``Authorization: Bearer`` is one of ``keys``.

    Keys are kept and compared as digests, all of them every time: the time taken tells nothing.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._admits(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "a valid API key is required"})
        else:
            body = ErrorBody(
                "A valid API key is required: send `Authorization: Bearer <key>`.",
                "invalid_request_error",
                None,
                "invalid_api_key",
            )
            await respond(401, body, {"www-authenticate": "Bearer"})(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        digest = _digest(token.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
