"""Checks of a request's head that the parser does not make."""

import base64
import binascii
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from .http_refusals import Refused

_KEY_BYTES: Final = 16
"""Length of a WebSocket's nonce (RFC 6455, 4.1)."""

Headers = Sequence[tuple[bytes, bytes]]


def refusal_of(version: str, method: bytes, headers: Headers, *, opens_websocket: bool) -> Refused | None:
    """Why a request cannot be served, or None. Names in ``headers`` are in lower case."""
    if version not in ("1.0", "1.1"):
        message = f"This server speaks HTTP/1.1, not HTTP/{version}."
        return Refused(HTTPStatus.BAD_REQUEST, message, "unsupported_version")
    if version == "1.1" and len(_values(headers, b"host")) != 1:
        return Refused(HTTPStatus.BAD_REQUEST, "A request must have one `Host` header.")  # RFC 9112, 3.2
    codings = _values(headers, b"transfer-encoding")
    if codings and version == "1.0":
        # a proxy of that version would take the chunks for something else (RFC 9112, 6.1)
        return Refused(HTTPStatus.BAD_REQUEST, "A request of HTTP/1.0 must not have `Transfer-Encoding`.")
    if codings and [coding.lower() for coding in codings] != [b"chunked"]:
        message = "The body must be sent as it is: `Transfer-Encoding` may only be `chunked`."
        return Refused(HTTPStatus.BAD_REQUEST, message, "unsupported_transfer_encoding")
    return _refusal_of_handshake(method, headers) if opens_websocket else None


def _refusal_of_handshake(method: bytes, headers: Headers) -> Refused | None:
    # some devices send a length of 0
    if _values(headers, b"transfer-encoding") or any(each != b"0" for each in _values(headers, b"content-length")):
        message = "leave out `Content-Length` and `Transfer-Encoding`."
        return Refused(HTTPStatus.BAD_REQUEST, f"A request that opens a WebSocket has no body: {message}")
    if method != b"GET":
        return Refused(HTTPStatus.BAD_REQUEST, "A WebSocket is opened with GET.")
    if _values(headers, b"sec-websocket-version") != [b"13"]:
        message = "A WebSocket must have one `Sec-WebSocket-Version`, which is 13."
        return Refused(HTTPStatus.UPGRADE_REQUIRED, message)
    if not _is_key(_values(headers, b"sec-websocket-key")):
        message = f"A WebSocket must have one `Sec-WebSocket-Key`: {_KEY_BYTES} bytes in Base64."
        return Refused(HTTPStatus.BAD_REQUEST, message)
    return None


def _is_key(keys: list[bytes]) -> bool:
    try:
        return len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value.strip() for each, value in headers if each == name]
