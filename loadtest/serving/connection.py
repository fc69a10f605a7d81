"""One HTTP/1.1 connection of the load: one time stamp a read, nothing parsed that is not needed.

httptools (llhttp) takes the framing apart in C. Bodies are collected by ``list.append`` and handed on once a read, so
that a chunk of a stream costs no Python call of its own here.
"""

import asyncio
from time import perf_counter
from typing import Final, Protocol, cast

import httptools

AFTER_DONE_SECONDS: Final = 1.0
"""How long the end of a message may lag behind the end of its stream."""


STALE_SECONDS: Final = 1.0
"""A kept connection lost so soon after a request went out had been closed before; later, the request was lost too."""


class Sink(Protocol):
    """Who an answer goes to. Exactly one of ``end`` and ``fail`` ends it, unless it ends by itself."""

    error: str | None

    @property
    def over(self) -> bool:
        """Nothing more is wanted."""

    def head(self, status: int, content_type: str, server: str, request_id: str) -> None: ...

    def feed(self, data: bytes, now: float) -> None: ...

    def end(self, now: float) -> None: ...

    def fail(self, kind: str, detail: str) -> None: ...


class Connection(asyncio.Protocol):
    """One socket; carries one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.alive = False
        self._ended = False
        """The last answer has ended as HTTP wants it."""
        self.reusable = False
        """And the connection may carry another."""
        self._requests = 0
        self._sink: Sink | None = None
        self._over: asyncio.Future[None] | None = None
        self._heard = False
        self._touched = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._lag: asyncio.TimerHandle | None = None
        self._headers: dict[bytes, bytes] = {}
        self._bodies: list[bytes] = []
        self.on_body = self._bodies.append
        self._parser = httptools.HttpResponseParser(self)

    async def run(self, request: bytes, sink: Sink, timeout: float) -> bool:
        """Sends and waits for the end; False where a kept connection proved dead before anything came."""
        loop = asyncio.get_running_loop()
        self._requests += 1
        self._sink, self._over = sink, loop.create_future()
        self._ended = self.reusable = self._heard = False
        self._touched = perf_counter()
        self._timer = loop.call_later(timeout, self._check, timeout)
        self.transport.write(request)
        try:
            await self._over
        finally:
            for handle in (self._timer, self._lag):
                if handle is not None:
                    handle.cancel()
            self._sink = self._over = self._timer = self._lag = None
            if not self.reusable:
                self.close()
        return self._heard or sink.over

    def close(self) -> None:
        self.alive = False
        self.transport.abort()

    # ---- what asyncio calls

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
        self._heard = True
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
            elif self._lag is None:
                self._lag = asyncio.get_running_loop().call_later(AFTER_DONE_SECONDS, self._finish)

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = self.reusable = False
        sink = self._sink
        if sink is None:
            return
        stale = self._requests > 1 and not self._heard and perf_counter() - self._touched < STALE_SECONDS
        if not stale:  # otherwise an idle connection that the server had closed: again
            if error is not None:
                sink.fail("connection", f"lost: {error}")
            sink.end(perf_counter())
        self._finish()

    # ---- what httptools calls

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

    # ----

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
