"""The real listener over a fake engine, in a thread of its own, and raw sockets to be rude with."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from typing import Any

import uvloop
from starlette.applications import Starlette

from stentor.protocols.common.limits import Limits
from stentor.server.app.lifecycle import Listener, make_listener
from stentor.server.app.state import ServerState
from stentor.server.config.limits import DEFAULT_SECONDS, ConnectionLimits
from stentor.server.http.listening import bind
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import CHAT, HELLO
from stentor.tests.server.text.patience import patient_pool

LIMITS = Limits()
CONNECTIONS = ConnectionLimits()
PACE = 0.02
"""Seconds between two tokens of every stream."""
PULSE = 0.002
"""Seconds between two looks at the server's thread."""
PATIENCE = 60.0
"""Seconds for anything that a test waits for."""
_BUSY = 429
TIMES = 20
"""That a request is sent whose costs are in doubt."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """What a refusal says of itself, in the shape of all errors."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        lengths = {"n_prompt_tokens", "n_ctx"} & error.keys()
        assert error.keys() - lengths == {"message", "type", "param", "code"}
        assert not lengths or error["code"] == "context_length_exceeded"
        return error


class Connection:
    """One socket; everything on it takes :data:`PATIENCE` seconds at most."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        """Also what the other end does not want any more."""
        with suppress(ConnectionError, TimeoutError):
            self.socket.sendall(data)

    def answer(self, *, without_body: bool = False) -> Answer:
        """The next final response."""
        answer = self.answer_if_any(without_body=without_body)
        assert answer is not None, "closed without an answer"
        return answer

    def answer_if_any(self, *, without_body: bool = False) -> Answer | None:
        """None where the connection is closed without one."""
        while True:
            line = self._file.readline()
            if not line:
                return None
            headers = dict(self._headers())
            status = int(line.split()[1])
            if status >= 200:
                break
        length = 0 if without_body else int(headers.get("content-length", 0))
        return Answer(status, headers, self._file.read(length))

    def line(self) -> bytes:
        return self._file.readline()

    def read(self, count: int = -1) -> bytes:
        """So many bytes, or all until it is closed."""
        return self._file.read(count)

    def is_closed(self) -> bool:
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def _headers(self) -> Iterator[tuple[str, str]]:
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            yield name.lower(), value.strip()


@dataclass
class Witness:
    """A well-behaved stream that goes on beside whatever else happens."""

    tokens: int = 0
    ended: bool = False

    def watch(self, connection: Connection) -> None:
        try:
            while line := connection.line():
                if line.startswith(b"data: {"):
                    self.tokens += 1
        except (OSError, ValueError):
            pass  # the test is over
        self.ended = True

    def goes_on(self) -> bool:
        """Whether another token comes."""
        seen = self.tokens
        deadline = time.monotonic() + PATIENCE
        while self.tokens == seen and not self.ended and time.monotonic() < deadline:
            time.sleep(PACE / 4)
        return self.tokens > seen


@dataclass(frozen=True)
class Cost:
    """Of one request to the server, while it was answered."""

    busy: float
    """CPU seconds that the server's thread did one thing, at most."""
    waited: float
    """Seconds for which it did not come to run, at most."""
    seconds: float
    """Until the answer."""

    def __lt__(self, most: "Cost") -> bool:
        return self.busy < most.busy and self.waited < most.waited and self.seconds < most.seconds

    def least(self, other: "Cost") -> "Cost":
        """The smaller of each."""
        return Cost(*map(min, astuple(self), astuple(other)))


@dataclass
class Target:
    port: int
    engine: FakeEngine
    state: ServerState
    app: Starlette
    holds: list[tuple[float, float]]
    """CPU seconds of the server's thread, and seconds, from each :data:`PULSE` to the next. A call that keeps all
    others waiting is in one of them whole; of CPU seconds nothing is in them that another process does."""

    def connect(self) -> Connection:
        return Connection(self.port)

    def ask(self, data: bytes, *, without_body: bool = False) -> Answer:
        """The answer to the bytes of one request, sent at once over a connection of their own."""
        connection = self.connect()
        sender = threading.Thread(target=connection.send, args=(data,))
        sender.start()
        try:
            return connection.answer(without_body=without_body)
        finally:
            connection.socket.shutdown(socket.SHUT_RDWR) if sender.is_alive() else None
            sender.join()
            connection.close()

    def ask_often(self, data: bytes, most: Cost) -> tuple[Answer, Cost]:
        """The answer to a request, and the least that it has cost in a few times: until that is less than ``most``, and
        the machine was not too busy to answer (429).

        What a request costs, it costs each time; what else the machine does would have to disturb all of them.
        """
        answer, least = self._ask_once(data)
        for _ in range(TIMES - 1):
            if least < most and answer.status != _BUSY:
                break
            answer, cost = self._ask_once(data)
            least = least.least(cost)
        return answer, least

    def _ask_once(self, data: bytes) -> tuple[Answer, Cost]:
        seen, began = len(self.holds), time.monotonic()
        answer = self.ask(data)
        seconds = time.monotonic() - began
        busy, waited = map(max, zip((0.0, 0.0), *self.holds[seen:], strict=True))
        return answer, Cost(busy, waited, seconds)

    def is_left(self) -> bool:
        """Whether every connection's place has been given back, soon."""
        held = self.state.metrics.server.connections
        assert held is not None
        deadline = time.monotonic() + PATIENCE
        while held.open and time.monotonic() < deadline:
            time.sleep(0.005)
        return not held.open

    @contextmanager
    def witness(self) -> Iterator[Witness]:
        connection = self.connect()
        witness = Witness()
        body = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 4000}).encode()
        connection.send(request(body))
        watching = threading.Thread(target=witness.watch, args=(connection,))
        watching.start()
        try:
            assert witness.goes_on()
            yield witness
            assert not witness.ended, "the stream beside it has ended"
            assert witness.goes_on()
        finally:
            connection.socket.shutdown(socket.SHUT_RDWR)
            watching.join()
            connection.close()


async def _feel(holds: list[tuple[float, float]]) -> None:
    while True:
        busy, began = time.thread_time(), time.monotonic()
        await asyncio.sleep(PULSE)
        holds.append((time.thread_time() - busy, time.monotonic() - began))


@contextmanager
def served(
    limits: Limits = LIMITS, connections: ConnectionLimits = CONNECTIONS, render_seconds: float = DEFAULT_SECONDS
) -> Iterator[Target]:
    """A target that ends with the block."""
    started = threading.Event()
    targets: list[Target] = []
    listeners: list[Listener] = []

    async def main() -> None:
        with bind("127.0.0.1", 0) as sock:
            engine = FakeEngine(max_model_len=8192, delay=PACE, answer=says("one byte, one token. ", repeat=True))
            pool = patient_pool(render_seconds)
            state = fake_state(engine, limits=limits, pool=pool)
            listener = make_listener(state, connections)
            serving = asyncio.create_task(listener.run_until_closed(sock))
            holds: list[tuple[float, float]] = []
            pulse = asyncio.create_task(_feel(holds))
            while not listener.started:
                await asyncio.sleep(0.005)
            app: Any = listener.config.app
            targets.append(Target(sock.getsockname()[1], engine, state, app, holds))
            listeners.append(listener)
            started.set()
            await serving
            pulse.cancel()
            pool.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(PATIENCE)
    try:
        yield targets[0]
    finally:
        listeners[0].should_exit = listeners[0].force_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


def head(*lines: bytes, method: bytes = b"POST", path: bytes = CHAT.encode(), version: bytes = b"1.1") -> bytes:
    return b"\r\n".join([method + b" " + path + b" HTTP/" + version, b"host: here", *lines, b"", b""])


def request(body: bytes, *lines: bytes, path: str = CHAT) -> bytes:
    return head(*lines, b"content-length: %d" % len(body), path=path.encode()) + body


def chunked(pieces: Sequence[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def upgrade(*lines: bytes, path: bytes = b"/v1/responses", method: bytes = b"GET") -> bytes:
    """Asks for a WebSocket."""
    key = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    wish = (b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-version: 13", key)
    return head(*wish, *lines, method=method, path=path)
