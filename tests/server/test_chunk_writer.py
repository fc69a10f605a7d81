"""The short way for the pieces of a body: what it writes is what ``send`` writes, and where it must not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from stentor.server.http.http_protocol import HttpProtocol, chunk_writer
from stentor.tests.server.harness import until

pytestmark = pytest.mark.anyio

HEAD = {"type": "http.response.start", "status": 200, "headers": []}
LAST = {"type": "http.response.body", "body": b"", "more_body": False}
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@asynccontextmanager
async def asking(app: App, requests: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """One connection to ``app`` under our protocol, on which ``requests`` have been sent."""
    config = uvicorn.Config(app, port=0, http=HttpProtocol, lifespan="off", log_level="error", access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    try:
        writer.write(requests)
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = server.force_exit = True
        await serving


def request(method: bytes = b"GET", path: bytes = b"/") -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\nhost: server\r\n\r\n"


async def test_pieces_arrive_as_those_of_send_do_and_in_order() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = chunk_writer(scope)
        assert not write(b"before the head")
        await send(HEAD)
        for number in range(300):
            piece = b"%d," % number * number
            if not piece or number % 3 == 0 or not write(piece):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send(LAST)
        assert not write(b"after the end")

    async with asking(app, request()) as (reader, _):
        await reader.readuntil(b"\r\n\r\n")
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += await reader.readexactly(size)
            assert await reader.readexactly(2) == b"\r\n"
    assert body == b"".join(b"%d," % number * number for number in range(300))


async def test_a_client_that_does_not_read_is_left_to_send_and_so_is_one_that_is_gone() -> None:
    written: list[int] = []
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = chunk_writer(scope)
        await send(HEAD)
        written.append(0)
        while write(bytes(1 << 16)):
            written[0] += 1
        while (await receive())["type"] != "http.disconnect":
            pass
        assert not write(b"to nobody")
        gone.set()

    async with asking(app, request()) as (_, writer):
        await until(lambda: written)
        assert written[0] < 1000, "a reader that is behind bounds what is written"
        writer.transport.abort()
        await asyncio.wait_for(gone.wait(), 60)


async def test_a_request_that_came_early_does_not_write_into_the_answer_before_it() -> None:
    paths: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])
        write = chunk_writer(scope)
        await send(HEAD)
        for _ in range(3):
            assert write(scope["path"].encode())
            await asyncio.sleep(0.01)
        await send(LAST)

    async with asking(app, request(path=b"/a") + request(path=b"/b")) as (reader, _):
        for path in (b"/a", b"/b"):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readuntil(b"0\r\n\r\n") == b"2\r\n%b\r\n" % path * 3 + b"0\r\n\r\n"
    assert paths == ["/a", "/b"]


@pytest.mark.parametrize(
    ("method", "headers"), [(b"HEAD", []), (b"GET", [(b"content-length", b"5")])], ids=["head", "known-length"]
)
async def test_a_body_that_is_not_in_chunks_is_left_to_send(method: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    refused: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**HEAD, "headers": headers})
        refused.append(not chunk_writer(scope)(b"a piece"))
        await send({**LAST, "body": b"whole"})

    async with asking(app, request(method)) as (reader, _):
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: refused)
    assert refused == [True]


def test_another_server_offers_no_short_way() -> None:
    assert not chunk_writer({})(b"a piece")
    assert not chunk_writer({"extensions": {"http.response.push": {}}})(b"a piece")
