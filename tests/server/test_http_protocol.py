"""What comes over the socket, before any route sees it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from stentor.protocols.common.limits import Limits
from stentor.server.config.limits import ConnectionLimits
from stentor.server.http import http_protocol
from stentor.server.http.connections import Connections
from stentor.server.http.http_protocol import HttpProtocol
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import CHAT, HELLO, on_loopback, until

pytestmark = pytest.mark.anyio

BODY = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
DEFAULTS = ConnectionLimits()
LIMITS = Limits()
CHUNKED = b"".join(b"%x\r\n%s\r\n" % (len(BODY[at : at + 9]), BODY[at : at + 9]) for at in range(0, len(BODY), 9))


class Connection:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocols: list[HttpProtocol]
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._protocols = protocols

    @property
    def protocol(self) -> HttpProtocol:
        """The server's side of it; it is there once there has been an answer."""
        (protocol,) = self._protocols
        return protocol

    def hurry(self, seconds: float) -> None:
        """Heads that begin from now on have so long, however late the first one was on a slow machine."""
        self.protocol._limits = replace(self.protocol._limits, header_timeout=seconds)

    async def answer(self) -> tuple[int, dict[str, Any]]:
        """Status and body of the next response, and nothing beyond it."""
        async with asyncio.timeout(60):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            return int(head.split()[1]), json.loads(await self.reader.readexactly(length))

    async def is_closed(self) -> bool:
        async with asyncio.timeout(60):
            return await self.reader.read() == b""


@asynccontextmanager
async def connected(connections: ConnectionLimits = DEFAULTS, limits: Limits = LIMITS) -> AsyncIterator[Connection]:
    protocols: list[HttpProtocol] = []

    def http(**arguments: Any) -> HttpProtocol:
        protocols.append(HttpProtocol(**arguments, connections=Connections(connections)))
        return protocols[-1]

    async with on_loopback(fake_state(limits=limits), http) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        try:
            yield Connection(reader, writer, protocols)
        finally:
            writer.close()


def head(*lines: bytes, method: bytes = b"POST", path: bytes = CHAT.encode()) -> bytes:
    return b"\r\n".join([method + b" " + path + b" HTTP/1.1", b"host: server", *lines, b"", b""])


PLAIN = head(b"content-length: %d" % len(BODY)) + BODY


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00nonsense", b"NOT HTTP\r\n\r\n", head(b"bad header: x")])
async def test_what_is_no_http_is_told_in_the_shape_of_all_errors(garbage: bytes) -> None:
    async with connected() as connection:
        connection.writer.write(garbage)
        status, body = await connection.answer()
        assert status == 400
        assert body["error"].keys() == {"message", "type", "param", "code"}
        assert await connection.is_closed()


@pytest.mark.parametrize("piece", [b"a" * 4096, b"a: b\r\n" * 700], ids=["one long header", "many headers"])
async def test_a_head_without_an_end_is_cut_off(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "LINGER_SECONDS", 0.1)
    async with connected() as connection:
        connection.writer.write(PLAIN)
        assert (await connection.answer())[0] == 200
        connection.writer.write(head()[:-2] + b"x: ")
        flood = asyncio.create_task(flooding(connection, piece))
        assert (await connection.answer())[0] == 431
        assert await connection.is_closed()
        with pytest.raises(ConnectionError):
            await flood


async def flooding(connection: Connection, piece: bytes) -> None:
    while True:
        connection.writer.write(piece)
        await connection.writer.drain()
        await asyncio.sleep(0)


async def test_a_head_that_is_too_large_is_named_as_the_reason() -> None:
    async with connected() as connection:
        connection.writer.write(head()[:-2])
        for _ in range(5):
            connection.writer.write(b"x: " + b"a" * (DEFAULTS.max_header_bytes // 4) + b"\r\n")
            await connection.writer.drain()
            await asyncio.sleep(0.01)
        status, body = await connection.answer()
        assert (status, "headers" in body["error"]["message"]) == (431, True)


@pytest.mark.parametrize("beginning", [b"", b"\r\n", PLAIN[:30]])
async def test_a_head_that_never_comes_frees_its_connection(beginning: bytes) -> None:
    async with connected(ConnectionLimits(header_timeout=0.3)) as connection:
        connection.writer.write(beginning)
        if beginning:
            status, body = await connection.answer()
            assert (status, body["error"]["code"]) == (408, "request_timeout")
        assert await connection.is_closed()


async def test_after_a_response_a_connection_is_not_kept_to_the_time_of_a_head() -> None:
    async with connected() as connection:
        for _ in range(2):
            connection.writer.write(PLAIN)
            assert (await connection.answer())[0] == 200
            await until(lambda: connection.protocol._head_timer is None)


async def test_after_a_response_a_connection_is_kept_for_its_own_time() -> None:
    async with connected(ConnectionLimits(keep_alive_timeout=0.1)) as connection:
        connection.writer.write(PLAIN)
        assert (await connection.answer())[0] == 200
        assert await connection.is_closed()


async def test_a_head_that_stops_after_a_response_is_late_all_the_same() -> None:
    async with connected() as connection:
        connection.writer.write(PLAIN)
        assert (await connection.answer())[0] == 200
        connection.hurry(0.05)
        connection.writer.write(PLAIN[:30])
        assert (await connection.answer())[0] == 408
        assert await connection.is_closed()


async def test_a_body_that_stalls_is_given_up() -> None:
    async with connected(limits=Limits(body_timeout=0.05)) as connection:
        connection.writer.write(PLAIN[:-5])
        status, body = await connection.answer()
        assert (status, body["error"]["code"]) == (408, "request_timeout")
        assert await connection.is_closed()


@pytest.mark.parametrize(
    ("length", "body"),
    [(b"content-length: %d" % len(BODY), BODY), (b"transfer-encoding: chunked", CHUNKED + b"0\r\n\r\n")],
    ids=["whole", "chunked"],
)
@pytest.mark.parametrize("cut", [0, 1, 20, None])
async def test_a_wish_for_another_protocol_is_ignored_and_the_request_served(
    length: bytes, body: bytes, cut: int | None
) -> None:
    wish = head(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEAAEAA", length)
    async with connected() as connection:
        for _ in range(2):
            connection.writer.write(wish + body if cut is None else wish + body[:cut])
            if cut is not None:
                await asyncio.sleep(0.01)
                connection.writer.write(body[cut:])
            status, answer = await connection.answer()
            assert status == 200, answer
        connection.writer.write(PLAIN)
        assert (await connection.answer())[0] == 200


async def test_a_wish_without_a_body_and_what_follows_it_are_served() -> None:
    wish = head(b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", method=b"GET", path=b"/ping")
    async with connected() as connection:
        connection.writer.write(wish + wish + PLAIN)
        assert [(await connection.answer())[0] for _ in range(3)] == [200, 200, 200]


async def test_a_tunnel_is_refused() -> None:
    async with connected() as connection:
        connection.writer.write(head(method=b"CONNECT", path=b"server:80"))
        assert (await connection.answer())[0] == 400


@pytest.mark.parametrize(
    ("version", "lines", "status"),
    [
        (b"1.1", (b"transfer-encoding: gzip, chunked",), 400),
        (b"1.1", (b"transfer-encoding: chunked",), 200),
        (b"1.0", (b"transfer-encoding: chunked",), 400),
        (b"2.0", (b"transfer-encoding: chunked",), 400),
    ],
)
async def test_a_body_whose_end_two_readers_might_see_in_two_places_is_refused(
    version: bytes, lines: tuple[bytes, ...], status: int
) -> None:
    async with connected() as connection:
        request = head(*lines).replace(b"HTTP/1.1", b"HTTP/" + version) + CHUNKED + b"0\r\n\r\n"
        connection.writer.write(request)
        assert (await connection.answer())[0] == status
        assert status == 200 or await connection.is_closed()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_does_not_know_chunks_gets_none(streamed: bool) -> None:
    body = json.dumps({"messages": HELLO, "max_tokens": 3, "stream": streamed}).encode()
    async with connected() as connection, asyncio.timeout(60):
        request = head(b"content-length: %d" % len(body), b"expect: 100-continue") + body
        connection.writer.write(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
        said, _, answer = (await connection.reader.read()).partition(b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 200 ")
        assert b"transfer-encoding" not in said
        if streamed:
            assert answer.startswith(b"data: {")
            assert answer.endswith(b"\n\ndata: [DONE]\n\n")
            assert b"\r\n" not in answer
        else:
            assert json.loads(answer)["usage"]["completion_tokens"] == 3
