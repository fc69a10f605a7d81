"""Error responses for bytes that are no valid request."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from stentor.protocols.common.errors import ErrorBody

from .error_shapes import shape_of

_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}) (\S+) HTTP/1\.[01]\r?\n")
_METHODS: Final = "GET, HEAD, POST, DELETE"
_KNOWN_METHODS: Final = {b"GET", b"HEAD", b"POST", b"DELETE"}


class Refused(Exception):
    """Raised through the parser once enough was read to refuse the request."""

    def __init__(self, status: HTTPStatus, message: str, code: str | None = None, target: bytes = b"") -> None:
        """``target`` is the request's, where the parser has not got so far."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.target = target


def unknown_method(data: bytes) -> Refused:
    line = _REQUEST_LINE.match(data)
    if line is not None and line[1] not in _KNOWN_METHODS:  # otherwise a later line is at fault
        return Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"The method is not known; use {_METHODS}.", target=line[2])
    return Refused(HTTPStatus.BAD_REQUEST, "The bytes received are no HTTP/1.1 request.")


def response_to(refusal: Refused, path: str = "", headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """``path`` and ``headers`` as far as they have come in."""
    status = refusal.status
    kind = "rate_limit_error" if status == HTTPStatus.TOO_MANY_REQUESTS else "invalid_request_error"
    body = shape_of(path, headers).body(status, ErrorBody(refusal.message, kind, None, refusal.code), "")
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        lines.append("retry-after: 1")
    if status == HTTPStatus.UPGRADE_REQUIRED:
        lines += ["upgrade: websocket", "sec-websocket-version: 13"]
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append(f"allow: {_METHODS}")
    return "\r\n".join([*lines, "", ""]).encode() + body
