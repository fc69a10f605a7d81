"""HTTP/1.1 below the application: uvicorn's protocol, with bounds and with errors in the shape of all others."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ..config.limits import ConnectionLimits
from ..observability.request import SCOPE_KEY
from ..overload.memory_budget import MemoryBudget
from ..overload.slow_readers import DEFAULT_LIMITS, ReaderLimits, ReaderWatch
from .connections import Connections, ConnectionSlot
from .error_responses import BREAK_OFF
from .http_refusals import Refused, response_to, unknown_method
from .request_heads import refusal_of
from .websocket_protocol import takes_over

LINGER_SECONDS: Final = 2.0
"""For a client to read why its request was refused while it is still sending it. A socket that is closed with bytes
unread is reset, and the answer with it."""

PROBES: Final = frozenset({"/health", "/ping", "/metrics"})
"""Paths that are answered while connections are full."""
PROBE_SECONDS: Final = 2.0
"""Time limit for a probe's head, and again for reading its answer."""

_PER_CONNECTION: Final = (b"upgrade", b"http2-settings")
_EXTENSION: Final = "stentor.write_chunk"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"


def chunk_writer(scope: Scope) -> Callable[[bytes], bool]:
    """A short way for the pieces of a long body, past all middleware, once ``send`` has sent the head.

    It writes one piece at once, or returns False where ``send`` is the way: before the head, to a client that
    is behind or gone, after the end, and under any server but ours.
    """
    writer: Callable[[bytes], bool] = scope.get("extensions", {}).get(_EXTENSION, lambda _piece: False)
    return writer


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


class _Unchunked:
    """Writes a response without chunks, which HTTP/1.0 does not know: it ends with its connection."""

    __slots__ = ("_chunked", "_write")

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._chunked: bool | None = None
        """Whether its body is given in chunks; None before its head."""

    def __call__(self, data: bytes) -> None:
        # what is given is the whole head, or whole chunks
        if self._chunked is None:
            head = data.replace(_CHUNKED, b"", 1)
            self._chunked = head != data
            self._write(head)
        elif self._chunked:
            at = 0
            while at < len(data):
                line = data.index(b"\r\n", at)
                begin = line + 2
                end = begin + int(data[at:line], 16)
                self._write(data[begin:end])
                at = end + 2
        else:
            self._write(data)


class _Transport:
    """A request's view of its connection."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None], *, chunks: bool = True) -> None:
        """``chunks``: whether the client knows them."""
        self.write: Callable[[bytes], None] = transport.write if chunks else _Unchunked(transport.write)
        self.is_closing = transport.is_closing
        self.close = close


class HttpProtocol(HttpToolsProtocol):
    """One HTTP/1.1 connection.

    The parser itself has no limits: without limits here, an endless head would fill the memory before any key is
    checked, and one that never comes would hold its connection for ever.

    Pipelined requests are answered in order. A refusal comes after the responses that are under way and is the
    connection's last.

    A request for another protocol (``Upgrade: h2c``, which Java's client sends with its first request) is ignored, as
    RFC 9110 (7.8) allows. The parser would take the body for bytes of that protocol, so it gets the request again
    without the header.
    """

    def __init__(
        self,
        *args: Any,
        readers: ReaderLimits = DEFAULT_LIMITS,
        connections: Connections | None = None,
        place: ConnectionSlot | None = None,
        root_path: str = "",
        memory: MemoryBudget | None = None,
        **kwargs: Any,
    ) -> None:
        """``place`` is the connection's slot in ``connections``, if it was taken at accept; None: it gets one here.

        ``root_path`` may precede every path. WebSocket messages are counted in ``memory``.
        """
        super().__init__(*args, **kwargs)
        self._connections = connections or Connections(ConnectionLimits())
        self._limits = self._connections.limits
        self.timeout_keep_alive = self._limits.keep_alive_timeout  # type: ignore[assignment]  # fractions will do
        self._place = place
        self._prefix = root_path
        self._memory = memory
        self.url = b""
        self._reader_limits = readers
        self._reader: ReaderWatch | None = None
        self._live: deque[RequestResponseCycle] = deque()
        """Requests without their whole response, in their order."""
        self._in_head = True
        self._head_bytes = 0
        """Bytes of this head's complete lines."""
        self._held_bytes = 0
        """Bytes received since the last head or piece of a body, which the parser may hold back."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._wishes_upgrade = False
        self._refusal: Refused | None = None
        self._deaf = False
        """Nothing that still comes is read."""
        self._last_words: bytes | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        """Ends a connection that may only probe."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._reader = ReaderWatch(self.loop, transport, self._reader_limits, self._request_id, self._to_come)
        if self._place is None:
            self._place = self._connections.enter(transport.get_extra_info("peername"))
        if self._place.without_a_word:
            self._connections.refused[HTTPStatus.TOO_MANY_REQUESTS] += 1
            transport.abort()
        elif self._place.refusal is not None and not self._place.only_probes:
            self._refuse(self._too_many_connections(self._place.refusal))
        else:
            if self._place.only_probes:
                self._probe_timer = self.loop.call_later(2 * PROBE_SECONDS, transport.abort)
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        for timer in (self._linger_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        if self._reader is not None:
            self._reader.stop()
        if self._place is not None:
            self._place.leave()
        for cycle in self._live:  # uvicorn notifies the last one only
            _disconnect(cycle)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader is not None:
            self._reader.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader is not None:
            self._reader.resume()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._in_head:  # unread bytes of a body may hold the connection no longer than silence
            self._unset_keepalive_if_required()
        self._held_bytes += len(data)
        try:
            self._feed(data)
            if self._held_bytes > self._limits.max_header_bytes:
                self._refuse(self._too_large_a_head())
        except httptools.HttpParserInvalidMethodError:
            self._refuse(unknown_method(data))
        except httptools.HttpParserError:
            self.send_400_response("The bytes received are no HTTP/1.1 request.")
        if self._in_head and not self._deaf:
            self._expect_head()

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as end:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    self._hand_over(data[end.args[0] :])
                elif self._wishes_upgrade:
                    self._wishes_upgrade = False
                    data = self._head_without_wish() + data[end.args[0] :]
                    self.parser = httptools.HttpRequestParser(self)
                    continue
            return

    def _should_upgrade(self) -> bool:
        # behind a request that is being answered, its turn would have to wait for that
        return not self._live and super()._should_upgrade()

    def _hand_over(self, frames: bytes) -> None:
        """Gives the WebSocket what the client sent with its handshake."""
        protocol = self.transport.get_protocol()
        if frames and protocol is not self:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(frames)

    def handle_websocket_upgrade(self) -> None:
        kind = self.ws_protocol_class
        if takes_over(kind):
            handed = partial(
                kind,
                place=self._place,
                reader=self._reader,
                memory=self._memory,
                path=self._path(self.url),
                accept_timeout=self._limits.header_timeout,
            )
            self.ws_protocol_class = handed  # type: ignore[assignment]  # whatever makes a protocol
            self._place = self._reader = None
        super().handle_websocket_upgrade()
        # the connection is another protocol's now
        self._deaf = True
        self._stop_head_timer()
        self._unset_keepalive_if_required()

    # ---- what the parser finds

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer; it is not used, and the headers have been checked already
        self._count_head(len(name) + len(value) + len(b": \r\n"))
        if len(self.headers) == self._limits.max_headers:
            raise self._refused(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"The request has more than the {self._limits.max_headers} headers that this server reads.",
                "too_many_headers",
            )
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self._live) > self._limits.max_pipelined:
            raise self._refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{self._limits.max_pipelined} requests wait on this connection, as many as may.",
                "too_many_requests",
            )
        method = self.parser.get_method()
        upgrades = self.parser.should_upgrade() and method != b"CONNECT"
        opens_websocket = upgrades and self._should_upgrade()
        version = self.parser.get_http_version()
        self._refusal = refusal_of(version, method, self.headers, opens_websocket=opens_websocket)
        if self._refusal is not None:
            raise self._refusal
        if (
            self._place is not None
            and self._place.only_probes
            and (opens_websocket or self._live or self._path(self.url) not in PROBES)
        ):
            self._refusal = self._too_many_connections(self._place.refusal or "")
            raise self._refusal
        self._in_head = False
        self._head_bytes = self._held_bytes = 0
        self._stop_head_timer()
        self._wishes_upgrade = upgrades and not opens_websocket
        if not self._wishes_upgrade:
            earlier = self.cycle
            super().on_headers_complete()
            if self.cycle is not earlier:
                self._begin(self.cycle)

    def _begin(self, cycle: RequestResponseCycle) -> None:
        self._live.append(cycle)
        newer = cycle.scope["http_version"] != "1.0"
        cycle.waiting_for_100_continue &= newer
        # as much as it needs
        cycle.transport = _Transport(self.transport, self._close, chunks=newer)  # type: ignore[assignment]
        if self._place is not None and self._place.only_probes:
            cycle.keep_alive = False
        if self.expect_100_continue:
            # Only the client knows whether it still sends the body after a refusal.
            cycle.keep_alive = False
        extensions: dict[str, Any] = cycle.scope.setdefault("extensions", {})
        extensions[_EXTENSION] = _ChunkWriter(cycle)
        extensions[BREAK_OFF] = partial(self._break_off, cycle)

    def _break_off(self, cycle: RequestResponseCycle) -> None:
        _disconnect(cycle)
        self.transport.close()

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._held_bytes = 0
        if not self._wishes_upgrade:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._live.popleft()
        super().on_response_complete()
        if self._in_head and not self._live and not self._held_bytes:
            # Idle from here on, which `keep_alive_timeout` bounds. The head's time began when the request had come, and
            # would be over at any moment, also just when the client sends the next.
            self._stop_head_timer()
        if self._last_words is not None and not self._live:
            self._end_with(self._last_words)

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

    def _request_id(self) -> str:
        """Id of the response under way; empty if the request has none."""
        scope: Scope = getattr(self.cycle, "scope", {})
        return str(scope.get(SCOPE_KEY, ""))

    def _to_come(self) -> int:
        """Bytes of the response under way that its length has announced, and that have not been written."""
        if getattr(self.cycle, "response_complete", True):  # there may have been none yet
            return 0
        return int(self.cycle.expected_content_length)

    def _path(self, target: bytes) -> str:
        """A target's path as in routes."""
        path = target.partition(b"?")[0].decode("ascii", "replace")
        return path.removeprefix(self._prefix) or path

    # ---- what is refused

    def send_400_response(self, msg: str) -> None:
        self._refuse(Refused(HTTPStatus.BAD_REQUEST, msg))

    def _count_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > self._limits.max_header_bytes:
            self._refusal = self._too_large_a_head()
            raise self._refusal

    def _too_large_a_head(self) -> Refused:
        return Refused(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"The request's headers are larger than the {self._limits.max_header_bytes} bytes that this server reads.",
            "headers_too_large",
        )

    def _too_many_connections(self, message: str) -> Refused:
        return Refused(HTTPStatus.TOO_MANY_REQUESTS, message, "too_many_connections")

    def _refused(self, status: HTTPStatus, message: str, code: str | None = None) -> Refused:
        """To be raised from one of the parser's calls, which hands on no more than that something was."""
        self._refusal = Refused(status, message, code)
        return self._refusal

    def _refuse(self, refusal: Refused) -> None:
        """Answers with an error after earlier responses, and reads no further."""
        refusal, self._refusal = self._refusal or refusal, None
        self._connections.refused[refusal.status] += 1
        self._deaf = True
        self._stop_head_timer()
        if not self._in_head and self._live and self._live[-1] is self.cycle:
            # it is this one's body that cannot be read
            self._live.pop()
            _disconnect(self.cycle)
            self.pipeline = deque(queued for queued in self.pipeline if queued[0] is not self.cycle)
            if self.cycle.response_started:
                self.transport.close()
                return
        words = response_to(refusal, self._path(refusal.target or self.url), self.headers or ())
        if self._live:
            self._last_words = words
        else:
            self._end_with(words)

    def _end_with(self, words: bytes) -> None:
        self.transport.write(words)
        self._linger()

    def _close(self) -> None:
        """A response is the connection's last."""
        if self._in_head:
            self.transport.close()
        else:
            self._linger()

    def _linger(self) -> None:
        """Sends no more, and discards what still arrives."""
        self._deaf = True
        self._unset_keepalive_if_required()
        if self._linger_timer is not None or self.transport.is_closing():
            return
        if not self.transport.can_write_eof():  # TLS
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self._linger_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    # ---- a head that is late

    def _expect_head(self) -> None:
        if self._head_timer is None:
            seconds = self._limits.header_timeout
            if self._place is not None and self._place.only_probes:
                seconds = min(seconds, PROBE_SECONDS)
            self._head_timer = self.loop.call_later(seconds, self._head_is_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._live:
            self._expect_head()  # it would not be read yet
        elif self._place is not None and self._place.refusal is not None:
            self._refuse(self._too_many_connections(self._place.refusal))
        elif self._held_bytes:
            message = f"The request's headers did not come in whole within {self._limits.header_timeout:g} seconds."
            self._refuse(Refused(HTTPStatus.REQUEST_TIMEOUT, message, "request_timeout"))
        else:
            self.transport.close()


def _disconnect(cycle: RequestResponseCycle) -> None:
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()
