"""Clients that stop reading, on real sockets: how much is kept for them, for how long, and what is freed after.

The time that they have passes when a test says so.
"""

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.server.http import http_protocol
from stentor.server.http.http_protocol import HttpProtocol, chunk_writer
from stentor.server.http.whole_answer import WholeAnswer
from stentor.server.overload.slow_readers import ReaderLimits, ReaderWatch
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import on_loopback, until

pytestmark = pytest.mark.anyio

HEAD = {"type": "http.response.start", "status": 200, "headers": []}
PIECE = bytes(4096)
BUFFER = 32 << 10
SECONDS = 30.0
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@dataclass
class Timer:
    due: float
    callback: Callable[[], None]

    def cancel(self) -> None:
        self.due = math.inf


class Clock:
    """The loop as a watch sees it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.now + seconds, callback)
        self._timers.append(timer)
        return timer

    async def move(self, seconds: float) -> None:
        end = self.now + seconds
        while (timer := min(self._timers, key=lambda timer: timer.due, default=None)) and timer.due <= end:
            self.now = timer.due
            self._timers.remove(timer)
            timer.callback()
        self.now = end
        await asyncio.sleep(0.001)  # for what follows from it

    async def move_until(self, condition: Callable[[], bool], most: float = 3 * SECONDS) -> None:
        """Fails where it does not come to hold within ``most`` seconds of this clock."""
        end = self.now + most
        while not condition():
            assert self.now < end
            await self.move(1.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock: Any = Clock()
    monkeypatch.setattr(http_protocol, "ReaderWatch", lambda loop, *rest: ReaderWatch(clock, *rest))
    made: Clock = clock
    return made


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


async def paused(app: Flood) -> int:
    """How much it has sent when it cannot send any more."""
    same, before = 0, 0
    while same < 10 or not before:
        await asyncio.sleep(0.003)
        same = same + 1 if app.sent == before else 0
        before = app.sent
    return before


async def test_a_client_that_reads_nothing_is_paused_at_the_bound_and_then_dropped(clock: Clock) -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(BUFFER, SECONDS, dropped)):
        paused_at = await paused(app)
        assert 0 < paused_at < 1 << 20, "the kernel and the transport together hold some buffers, not megabytes"
        await clock.move(SECONDS)
        assert dropped.count == 0
        await clock.move(SECONDS / 2)  # it is looked at four times in its time
        await asyncio.wait_for(app.gone.wait(), 60)
        assert app.sent <= paused_at + len(PIECE)
    assert dropped.count == 1


async def test_a_client_that_reads_slowly_is_kept(clock: Clock) -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(BUFFER, SECONDS, dropped)) as client:
        loop = asyncio.get_running_loop()
        received = 0
        for _ in range(30):
            received += len(await loop.sock_recv(client, 4096))
            await clock.move(SECONDS / 6)
        assert not app.gone.is_set()
        assert received > 0
    assert dropped.count == 0


async def test_a_client_that_takes_a_few_bytes_now_and_then_is_dropped(clock: Clock) -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(8 * BUFFER, SECONDS, dropped)) as client:
        await paused(app)
        loop = asyncio.get_running_loop()
        while not app.gone.is_set():
            assert clock.now < 3 * SECONDS
            with suppress(ConnectionError):
                await loop.sock_recv(client, 300)
            await clock.move(SECONDS / 20)
    assert dropped.count == 1


async def test_a_client_that_reads_again_in_time_gets_what_waited(clock: Clock) -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(BUFFER, SECONDS, dropped)) as client:
        before = await paused(app)
        await clock.move(SECONDS)
        loop = asyncio.get_running_loop()
        received = 0
        while received < 3 * before:
            piece = await loop.sock_recv(client, 1 << 16)
            assert piece, "it was dropped"
            received += len(piece)
        await clock.move(SECONDS / 2)
        assert app.sent > before
    assert dropped.count == 0


async def test_with_no_limit_a_client_may_wait(clock: Clock) -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(BUFFER, 0.0, dropped)):
        await paused(app)
        await clock.move(100 * SECONDS)
        assert not app.gone.is_set()
    assert dropped.count == 0


def whole(body: bytes, sent: asyncio.Event | None = None) -> ASGIApp:
    """Sends ``body`` in one message. With ``sent``, which is set then, the connection is closed behind it."""
    closing = [] if sent is None else [(b"connection", b"close")]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({**HEAD, "headers": [(b"content-length", b"%d" % len(body)), *closing]})
        await send({"type": "http.response.body", "body": body})
        if sent is not None:
            sent.set()

    return answer


async def test_an_answer_that_is_done_and_not_read_does_not_hold_its_connection(clock: Clock) -> None:
    dropped, sent = Dropped(), asyncio.Event()
    async with connected(whole(bytes(1 << 20), sent), ReaderLimits(BUFFER, SECONDS, dropped)):
        await sent.wait()
        await clock.move_until(lambda: dropped.count == 1)


async def test_a_client_that_takes_too_small_a_part_of_a_large_answer_is_dropped(clock: Clock) -> None:
    dropped = Dropped()
    # much more than the eighth of the buffer that keeps a stream, and at that pace 40 times as long for all of it
    async with connected(whole(bytes(16 << 20)), ReaderLimits(BUFFER, SECONDS, dropped)) as client:
        await _takes_little(client, clock, dropped)


async def _takes_little(client: socket.socket, clock: Clock, dropped: Dropped) -> None:
    """Until it is dropped."""
    loop = asyncio.get_running_loop()
    while dropped.count == 0:
        assert clock.now < 3 * SECONDS
        with suppress(ConnectionError):
            await loop.sock_recv(client, BUFFER // 2)
        await clock.move(SECONDS / 25)


async def test_a_rest_that_is_smaller_than_the_buffer_does_not_hold_its_connection_either(clock: Clock) -> None:
    app, dropped, sent = Flood(), Dropped(), asyncio.Event()
    async with connected(app, ReaderLimits(BUFFER, 0.0)):
        body = bytes(await paused(app) - 3 * BUFFER // 4)
    async with connected(whole(body, sent), ReaderLimits(BUFFER, SECONDS, dropped)):
        await sent.wait()
        await clock.move_until(lambda: dropped.count == 1)


async def test_a_client_that_closes_its_half_and_reads_nothing_is_dropped_too(clock: Clock) -> None:
    app, dropped = Flood(), Dropped()
    async with connected(app, ReaderLimits(BUFFER, SECONDS, dropped)) as client:
        await paused(app)
        client.shutdown(socket.SHUT_WR)
        await clock.move_until(app.gone.is_set)


async def test_the_request_of_a_client_that_is_dropped_is_aborted_in_the_engine(
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, dropped = FakeEngine(max_model_len=100_000), Dropped()
    engine.answer = lambda _prompt, _index: [97] * 90_000
    engine.burst = 50
    state = fake_state(engine)
    limits = ReaderLimits(BUFFER, SECONDS, dropped)
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
            async with asyncio.timeout(60):
                while dropped.count == 0:  # its answer is still written meanwhile
                    await clock.move(1.0)
            await until(lambda: engine.live == 0 and state.admission.live_requests == 0)
    (line,) = [record for record in caplog.records if "did not read" in record.getMessage()]
    assert getattr(line, "request_id", "") == "slow"


async def test_an_answer_that_is_sent_in_pieces_is_judged_by_all_that_is_left_of_it(clock: Clock) -> None:
    dropped = Dropped()
    answer = WholeAnswer([bytes(16 << 20)])

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await answer(scope, receive, send)

    # as much as keeps a stream for ever, and at that pace 40 times as long for all of it
    async with connected(whole, ReaderLimits(BUFFER, SECONDS, dropped)) as client:
        await _takes_little(client, clock, dropped)
