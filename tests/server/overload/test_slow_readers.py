"""Clients that stop reading, on real sockets: how much is kept for them, for how long, and what is freed after."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from stentor.server.http.http_protocol import HttpProtocol, chunk_writer
from stentor.server.http.whole_answer import WholeAnswer
from stentor.server.overload.slow_readers import ReaderLimits
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import on_loopback, until

pytestmark = [pytest.mark.alone, pytest.mark.anyio]

HEAD = {"type": "http.response.start", "status": 200, "headers": []}
PIECE = bytes(4096)
BUFFER = 32 << 10
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


class Dropped:
    count = 0

    def __call__(self) -> None:
        self.count += 1


class Flood:
    """An app that writes for ever, by both ways."""

    def __init__(self) -> None:
        self.sent = 0
        self.gone = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = chunk_writer(scope)
        await receive()
        await send(HEAD)
        watching = asyncio.create_task(self._watch(receive))
        while not self.gone.is_set():
            if not write(PIECE):
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            self.sent += len(PIECE)
            await asyncio.sleep(0)
        await watching

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone.set()


@asynccontextmanager
async def connected(
    app: App, limits: ReaderLimits, request: bytes = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
) -> AsyncIterator[socket.socket]:
    """A client of ``app`` that has sent its request and reads nothing by itself."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    http: Any = partial(HttpProtocol, readers=limits)
    config = uvicorn.Config(app, http=http, lifespan="off", log_level="error", access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    await until(lambda: server.started)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, listener.getsockname())
        await loop.sock_sendall(client, request)
        try:
            yield client
        finally:
            server.should_exit = server.force_exit = True
            await serving
            listener.close()


async def test_a_client_that_reads_nothing_is_paused_at_the_bound_and_then_dropped() -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(BUFFER, 0.6, dropped)):
        await asyncio.sleep(0.3)
        paused_at = app.sent
        assert 0 < paused_at < 1 << 20, "the kernel and the transport together hold some buffers, not megabytes"
        began = time.monotonic()
        await asyncio.wait_for(app.gone.wait(), 5)
        assert app.sent <= paused_at + len(PIECE)
        assert time.monotonic() - began < 1.0
    assert dropped.count == 1


async def test_a_client_that_reads_slowly_is_kept() -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(BUFFER, 0.3, dropped)) as client:
        loop = asyncio.get_running_loop()
        received = 0
        for _ in range(30):
            received += len(await loop.sock_recv(client, 4096))
            await asyncio.sleep(0.05)
        assert not app.gone.is_set()
        assert received > 0
    assert dropped.count == 0


async def test_a_client_that_takes_a_few_bytes_now_and_then_is_dropped() -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(8 * BUFFER, 0.4, dropped)) as client:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(5):
            while not app.gone.is_set():
                with suppress(ConnectionError):
                    await loop.sock_recv(client, 300)
                await asyncio.sleep(0.02)
    assert dropped.count == 1


async def test_a_client_that_reads_again_in_time_gets_what_waited() -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(BUFFER, 2.0, dropped)) as client:
        await asyncio.sleep(0.5)
        before = app.sent
        loop = asyncio.get_running_loop()
        received = 0
        while received < 3 * before:
            received += len(await loop.sock_recv(client, 1 << 16))
        assert app.sent > before
    assert dropped.count == 0


async def test_with_no_limit_a_client_may_wait() -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(BUFFER, 0.0, dropped)):
        await asyncio.sleep(0.5)
        assert not app.gone.is_set()
    assert dropped.count == 0


async def test_an_answer_that_is_done_and_not_read_does_not_hold_its_connection() -> None:
    dropped = Dropped()
    body = bytes(1 << 20)

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({**HEAD, "headers": [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})

    async with connected(whole, ReaderLimits(BUFFER, 0.4, dropped)):
        await until(lambda: dropped.count == 1)


async def test_a_client_that_takes_too_small_a_part_of_a_large_answer_is_dropped() -> None:
    dropped = Dropped()
    body = bytes(16 << 20)

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({**HEAD, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    # much more than the eighth of the buffer that keeps a stream, and at that pace 20 s for all of it
    async with connected(whole, ReaderLimits(BUFFER, 0.5, dropped)) as client:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(5):
            while dropped.count == 0:
                with suppress(ConnectionError):
                    await loop.sock_recv(client, BUFFER // 2)
                await asyncio.sleep(0.02)


async def test_a_rest_that_is_smaller_than_the_buffer_does_not_hold_its_connection_either() -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(BUFFER, 0.0)):
        await asyncio.sleep(0.2)
    body = bytes(app.sent - 3 * BUFFER // 4)

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({**HEAD, "headers": [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})

    async with connected(whole, ReaderLimits(BUFFER, 0.4, dropped)):
        await until(lambda: dropped.count == 1)


async def test_a_client_that_closes_its_half_and_reads_nothing_is_dropped_too() -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(BUFFER, 0.4, dropped)) as client:
        await asyncio.sleep(0.1)
        client.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(app.gone.wait(), 5)


async def test_the_request_of_a_client_that_is_dropped_is_aborted_in_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, dropped = FakeEngine(max_model_len=100_000), Dropped()
    engine.answer = lambda _prompt, _index: [97] * 90_000
    engine.burst = 50
    state = fake_state(engine)
    limits = ReaderLimits(BUFFER, 0.4, dropped)
    async with on_loopback(state, partial(HttpProtocol, readers=limits)) as url:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", int(url.rpartition(":")[2])))
            body = b'{"prompt": "a", "max_tokens": 90000, "stream": true, "logprobs": 5, "ignore_eos": true}'
            await loop.sock_sendall(
                client,
                b"POST /v1/completions HTTP/1.1\r\nhost: here\r\nx-request-id: slow\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body),
            )
            await until(lambda: engine.live == 1)
            await until(lambda: dropped.count == 1)
            await until(lambda: engine.live == 0 and state.admission.live_requests == 0)
    (line,) = [record for record in caplog.records if "did not read" in record.getMessage()]
    assert getattr(line, "request_id", "") == "slow"


async def test_an_answer_that_is_sent_in_pieces_is_judged_by_all_that_is_left_of_it() -> None:
    dropped = Dropped()
    answer = WholeAnswer([bytes(16 << 20)])

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await answer(scope, receive, send)

    # as much as keeps a stream for ever, and at that pace 20 s for all of it
    async with connected(whole, ReaderLimits(BUFFER, 0.5, dropped)) as client:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(5):
            while dropped.count == 0:
                with suppress(ConnectionError):
                    await loop.sock_recv(client, BUFFER // 2)
                await asyncio.sleep(0.02)
