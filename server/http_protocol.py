"""HTTP/1.1 below the application: uvicorn's protocol, with bounds and with errors in the shape of all others."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import httptools
import msgspec
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from stentor.protocols.openai.errors import ErrorBody, ErrorResponse

MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a request line and its headers; as much again may have come in one piece with it."""
HEAD_SECONDS: Final = 60.0
"""For a head to come in whole, from the connection's beginning or the head's own."""

_PER_CONNECTION: Final = (b"upgrade", b"http2-settings")
_EXTENSION: Final = "stentor.write_chunk"


def chunk_writer(scope: Scope) -> Callable[[bytes], bool]:
    """A short way for the pieces of a long body, past all middleware, once ``send`` has sent the head.

    It writes one piece at once, or returns False where ``send`` is the way: before the head, to a client that
    is behind or gone, after the end, and under any server but ours.
    """
    writer: Callable[[bytes], bool] = scope.get("extensions", {}).get(_EXTENSION, _cannot_write)
    return writer


def _cannot_write(_piece: bytes) -> bool:
    return False


class _ChunkWriter:
    """Writes to one response; see :func:`chunk_writer`."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    def __call__(self, piece: bytes) -> bool:
        cycle = self._cycle
        if self._flow.write_paused or cycle.disconnected or not cycle.chunked_encoding or cycle.response_complete:
            return False
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    The parser itself bounds nothing: without a limit here, a head without an end would fill the
    memory before any key is checked, and one that never comes would hold its connection for ever.

    A wish for another protocol (``Upgrade: h2c``, which Java's client sends with its first request)
    is ignored, as RFC 9110 (7.8) lets a server do. The parser would take the body for bytes of that
    protocol, so it is given the request anew without the wish.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._wishes_upgrade = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        was_in_head = self._in_head
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("The bytes received are no HTTP/1.1 request.")
            return
        if not self._in_head:
            return
        self._expect_head()
        if was_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(
                    "431 Request Header Fields Too Large",
                    f"The request's headers are larger than the {MAX_HEAD_BYTES} bytes that this server reads.",
                )

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as end:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                elif self._wishes_upgrade:
                    self._wishes_upgrade = False
                    data = self._head_without_wish() + data[end.args[0] :]
                    self.parser = httptools.HttpRequestParser(self)
                    continue
            return

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._stop_timer()
        upgrades = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        self._wishes_upgrade = upgrades and not self._should_upgrade()
        if not self._wishes_upgrade:
            super().on_headers_complete()
            if self.cycle is not None:
                extensions: dict[str, Any] = self.cycle.scope.setdefault("extensions", {})
                extensions[_EXTENSION] = _ChunkWriter(self.cycle)

    def on_message_complete(self) -> None:
        self._in_head = True
        if not self._wishes_upgrade:
            super().on_message_complete()

    def _head_without_wish(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name in _PER_CONNECTION:
                continue
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(option for option in options if option.lower() not in _PER_CONNECTION)
            lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def send_400_response(self, msg: str) -> None:
        self._refuse("400 Bad Request", msg)

    def _refuse(self, status: str, message: str) -> None:
        body = msgspec.json.encode(ErrorResponse(ErrorBody(message, "invalid_request_error", None, None)))
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
