"""``/``: the playground (:mod:`.page`)."""

import hashlib
import html
from functools import cache, partial
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...http.error_shapes import shape_of
from ...web import INDEX, PATHS, TEXT_TYPES
from ..common.described import Operation, Operations

OPERATIONS: Final[Operations] = {
    path: Operation(
        "The playground: chat and voice in a browser" if name == INDEX else f"File of the playground: {name}",
        str,
        media_type=TEXT_TYPES[name.rpartition(".")[2]].partition(";")[0],
        errors=shape_of(path, ()),
    )
    for path, name in PATHS.items()
}

_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' blob:",
        "media-src 'self' blob:",
        "base-uri 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "cache-control": "no-cache",
}
_BASE: Final = b'<base href="/">'
"""Base of all addresses of the page."""


_WEBRTC: Final = b'<meta name="webrtc" content="no">'
"""Whether this server answers calls."""


def routes(root_path: str, *, webrtc: bool) -> list[Route]:
    return [Route(path, partial(page, root_path, webrtc, name), methods=["GET"]) for path, name in PATHS.items()]


async def page(root_path: str, webrtc: bool, name: str, request: Request) -> Response:
    body, tag = _file(root_path, webrtc, name)
    headers = {**_HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers={**headers, "content-type": TEXT_TYPES[name.rpartition(".")[2]]})


@cache
def _file(root_path: str, webrtc: bool, name: str) -> tuple[bytes, str]:
    """Content of the file, and a tag that identifies it."""
    body = files("stentor.server.web").joinpath(name).read_bytes()
    if name == INDEX:
        body = body.replace(_BASE, f'<base href="{html.escape(root_path)}/">'.encode())
        if webrtc:
            body = body.replace(_WEBRTC, _WEBRTC.replace(b"no", b"yes"))
    return body, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
