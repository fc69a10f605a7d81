"""The HTTP client of the load: connections kept alive and taken up again, last in first out."""

import asyncio
import os
import ssl
from collections.abc import Mapping
from typing import Final

import msgspec

from stentor import __version__

from .address import Address
from .api import error_text
from .connection import Connection, Sink

MAX_GET_BYTES: Final = 1 << 24


class HttpError(Exception):
    """A plain request failed; the message is one line."""


class Answer(msgspec.Struct, frozen=True):
    """What a plain request brought."""

    status: int
    body: bytes
    server: str = ""
    """Its ``Server`` header."""


class _Whole:
    """A sink that keeps the body."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.status = 0
        self.server = ""
        self.body = bytearray()
        self.over = False

    def head(self, status: int, content_type: str, server: str, request_id: str) -> None:
        self.status, self.server = status, server

    def feed(self, data: bytes, now: float) -> None:
        self.body += data
        if len(self.body) > MAX_GET_BYTES:
            self.fail("malformed", f"an answer of more than {MAX_GET_BYTES >> 20} MiB")

    def end(self, now: float) -> None:
        if not self.status:
            self.fail("connection", "closed before an answer came")
        self.over = True

    def fail(self, kind: str, detail: str) -> None:
        if not self.over:
            self.error, self.over = f"{kind}: {detail}", True


class HttpClient:
    """Requests to one address. ``timeout`` is how many seconds a server may be silent."""

    def __init__(
        self, address: Address, headers: Mapping[str, str], timeout: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._address = address
        self._timeout = timeout
        self._tls = (tls or ssl.create_default_context()) if address.scheme == "https" else None
        fields = {"Host": address.authority, "User-Agent": f"stentor-bench/{__version__}", **headers}
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()

    async def post(self, path: str, body: bytes, sink: Sink) -> None:
        """Sends JSON; whatever goes wrong ends in ``sink.fail``, never in an exception."""
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        await self._exchange(
            f"POST {self._address.prefix}{path} HTTP/1.1\r\n{self._fields}{head}\r\n".encode() + body, sink
        )

    async def get(self, path: str) -> Answer:
        """Raises :class:`HttpError` where no answer comes; any status is one."""
        sink = _Whole()
        await self._exchange(f"GET {self._address.prefix}{path} HTTP/1.1\r\n{self._fields}\r\n".encode(), sink)
        if sink.error is not None:
            raise HttpError(f"{self._address.url}{path}: {sink.error.partition(': ')[2]}")
        return Answer(sink.status, bytes(sink.body), sink.server)

    def close(self) -> None:
        """Every connection, also those that are in use: uvloop does not end with one that nobody closes."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()

    async def _exchange(self, request: bytes, sink: Sink) -> None:
        while True:
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
            if answered:
                return

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
            self._open.discard(connection)
        return None

    async def _connect(self, sink: Sink) -> Connection | None:
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


def describe_status(answer: Answer) -> str:
    """A refusal in one line."""
    return f"status {answer.status}: {error_text(answer.body)}"
