"""The HTTP/1.1 client of the load: one time stamp a read, nothing parsed that is not needed, connections kept alive.

httptools (llhttp) takes the framing apart in C. Bodies are collected by ``list.append`` and handed on once a read, so
that a chunk of a stream costs no Python call of its own here.
"""

import asyncio
import os
import ssl
from collections.abc import Mapping
from time import perf_counter
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from stentor import __version__

from ..tool import UsageError
from .api import one_line

_PORTS: Final = {"http": 80, "https": 443}
AFTER_DONE_SECONDS: Final = 1.0
"""How long the end of a message may lag behind the end of its stream."""
STALE_SECONDS: Final = 1.0
"""A kept connection lost so soon after a request went out had been closed before; later, the request was lost too."""


class Address(msgspec.Struct, frozen=True):
    """Where requests go: the base of a server, without ``/v1``."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """``http://host:port/prefix``, a trailing ``/v1`` dropped. Raises :class:`..tool.UsageError`."""
    try:
        split = urlsplit(url if "://" in url else f"http://{url}")
        port = split.port or _PORTS[split.scheme]
        if not split.hostname:
            raise ValueError
    except (ValueError, KeyError):  # of the port or the host, of the scheme
        raise UsageError(f"{url} is no address of a server: expected http://HOST:PORT or https://HOST") from None
    prefix = split.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Address(split.scheme, split.hostname, port, prefix)


class Response:
    """Where an answer goes: its body is kept. Exactly one of ``end`` and ``fail`` ends it, unless it ends by itself."""

    def __init__(self) -> None:
        self.over = False
        """Nothing more is wanted."""
        self.error: str | None = None
        self.ended = 0.0
        """When it was over, by ``time.perf_counter()``."""
        self.status = 0
        self.server = ""
        """Its ``Server`` header."""
        self.request_id = ""
        """Its ``X-Request-Id`` header, by which the server's log names it."""
        self.body = bytearray()

    def head(self, status: int, content_type: str, server: str, request_id: str) -> None:
        self.status, self.server, self.request_id = status, server, request_id

    def feed(self, data: bytes, now: float) -> None:
        self.body += data

    def end(self, now: float) -> None:
        if not self.status:
            self.fail("connection", "closed before an answer came")
        elif not self.over:
            self.over, self.ended = True, now

    def fail(self, kind: str, detail: str) -> None:
        if not self.over:
            self.error = one_line(f"{kind}: {detail}")
            self.over, self.ended = True, perf_counter()


class Connection(asyncio.Protocol):
    """One socket; carries one request at a time. asyncio and httptools call the public methods but ``run`` and
    ``close``."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.alive = False
        self._ended = False
        """The last answer has ended as HTTP wants it."""
        self.reusable = False
        """And the connection may carry another."""
        self._requests = 0
        self._sink: Response | None = None
        self._over: asyncio.Future[None] | None = None
        self._received = False
        self._touched = 0.0
        self._timer: asyncio.TimerHandle
        self._headers: dict[bytes, bytes] = {}
        self._bodies: list[bytes] = []
        self.on_body = self._bodies.append
        self._parser = httptools.HttpResponseParser(self)

    async def run(self, request: bytes, sink: Response, timeout: float) -> bool:
        """Sends and waits for the end; False where a kept connection proved dead before anything came."""
        loop = asyncio.get_running_loop()
        self._requests += 1
        self._sink, self._over = sink, loop.create_future()
        self._ended = self.reusable = self._received = False
        self._touched = perf_counter()
        self._timer = loop.call_later(timeout, self._check, timeout)
        self.transport.write(request)
        try:
            await self._over
        finally:
            self._timer.cancel()
            self._sink = self._over = None
            if not self.reusable:
                self.close()
        return self._received or sink.over

    def close(self) -> None:
        self.alive = False
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.alive = True

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        sink = self._sink
        if sink is None:  # nobody asked
            self.close()
            return
        self._touched = now
        self._received = True
        broken = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            broken = error
        bodies = self._bodies
        if bodies:
            sink.feed(bodies[0] if len(bodies) == 1 else b"".join(bodies), now)
            bodies.clear()
        if broken is not None:
            sink.fail("malformed", f"no HTTP answer: {broken}")
        elif self._ended:
            sink.end(now)
        if sink.over:
            if self._ended or sink.error is not None:
                self._finish()
            else:
                self._timer.cancel()
                self._timer = asyncio.get_running_loop().call_later(AFTER_DONE_SECONDS, self._finish)

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = self.reusable = False
        sink = self._sink
        if sink is None:
            return
        stale = self._requests > 1 and not self._received and perf_counter() - self._touched < STALE_SECONDS
        if not stale:  # otherwise an idle connection that the server had closed: again
            if error is not None:
                sink.fail("connection", f"lost: {error}")
            sink.end(perf_counter())
        self._finish()

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._sink is not None:
            named = (b"content-type", b"server", b"x-request-id")
            self._sink.head(status, *(self._headers.get(name, b"").decode("latin-1") for name in named))

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._ended = True
            self.reusable = bool(self._parser.should_keep_alive())

    def _check(self, timeout: float) -> None:
        """The stall watch: one timer a request, set again by how long the stream has been silent."""
        silent = perf_counter() - self._touched
        if self._sink is None:
            return
        if silent >= timeout:
            self._sink.fail("timeout", f"silent for {timeout:g} s")
            self._finish()
        else:
            self._timer = asyncio.get_running_loop().call_later(timeout - silent, self._check, timeout)

    def _finish(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


class HttpClient:
    """Requests to one address. ``timeout`` is how many seconds a server may be silent."""

    def __init__(self, address: Address, headers: Mapping[str, str], timeout: float, tls: ssl.SSLContext | None = None):
        self._address = address
        self._timeout = timeout
        self._tls = (tls or ssl.create_default_context()) if address.scheme == "https" else None
        fields = {"Host": address.authority, "User-Agent": f"stentor-bench/{__version__}", **headers}
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()

    async def post(self, path: str, body: bytes, sink: Response) -> None:
        """Sends JSON; whatever goes wrong ends in ``sink.fail``, never in an exception."""
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        await self._exchange(f"POST {self._address.prefix}{path}", head, body, sink)

    async def get(self, path: str) -> Response:
        """``error`` says where no answer came; any status is one."""
        response = Response()
        await self._exchange(f"GET {self._address.prefix}{path}", "", b"", response)
        return response

    def close(self) -> None:
        """Closes every connection, also those in use: uvloop does not end while one is open."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()

    async def _exchange(self, line: str, head: str, body: bytes, sink: Response) -> None:
        request = f"{line} HTTP/1.1\r\n{self._fields}{head}\r\n".encode() + body
        answered = False
        while not answered:
            connection = self._take() or await self._connect(sink)
            if connection is None:
                return
            try:
                answered = await connection.run(request, sink, self._timeout)
            finally:
                if connection.reusable and connection.alive:
                    self._idle.append(connection)
                else:
                    self._open.discard(connection)

    def _take(self) -> Connection | None:
        """The connection that was used last, of those that are idle and alive."""
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
            self._open.discard(connection)
        return None

    async def _connect(self, sink: Response) -> Connection | None:
        where = self._address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                _, connection = await loop.create_connection(Connection, where.host, where.port, ssl=self._tls)
        except TimeoutError:
            sink.fail("timeout", f"no connection within {self._timeout:g} s")
        except OSError as error:  # ssl.SSLError is one
            sink.fail("connection", _reason(error))
        else:
            self._open.add(connection)
            return connection
        return None


def _reason(error: OSError) -> str:
    """Why there is no connection; asyncio puts the address where others have the reason."""
    if error.errno and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
