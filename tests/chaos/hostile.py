"""Requests made from the served document, and clients that leave them whenever and however they like."""

import asyncio
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httptools
import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from stentor.tests.chaos.bodies import make_bodies
from stentor.tests.server.test_fuzz import Request, check_error, check_shape, document, requests

CLIENTS: Final = 32
"""At once."""
ANSWER_SECONDS: Final = 120.0
WAYS: Final = ("reads", "reads", "fin", "rst", "half", "stands still")
SERVE: Final = (
    *("--max-model-len", "384", "--max-choices", "8", "--max-sequences", "16", "--kv-cache-memory", "96M"),
    *("--trust-request-chat-template", "--body-timeout", "3", "--header-timeout", "3", "--stream-buffer", "8192"),
)
"""So that no request takes long, and the KV cache is soon touched as a whole."""
OVERLOAD: Final = {429: None, 504: "x-request-timeout"}
"""Statuses that the documents name for a server that does what it was told, and the header that must have asked."""
_CHUNK: Final = 200
"""Requests that are drawn at a time."""


@dataclass(frozen=True)
class Case:
    data: bytes
    """The bytes of the whole HTTP request."""
    made: Request | None
    """None for one that is served."""
    way: str
    """How its client ends it; see :data:`WAYS`."""
    sent: float
    """Share of the bytes that are sent before it leaves; 1 where it leaves later."""
    waits: float
    """Seconds between the last byte that it sends or wants and its leaving."""
    reads: int
    """Bytes that it wants before it leaves."""


@dataclass
class Tally:
    """What became of them."""

    statuses: Counter[int] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    """By way: clients that did not wait for the whole answer."""
    failures: list[str] = field(default_factory=list)


def make_cases(seed: int, count: int) -> list[Case]:
    """A third of them are served requests, the others anything. The same seed makes the same."""
    draw = random.Random(seed)
    served = count // 3
    made: list[Request] = []
    while len(made) < count - served:
        made += _drawn(draw.getrandbits(32), min(_CHUNK, count - served - len(made)))
    cases = [_case(draw, _head(each) + each.body, each) for each in made]
    cases += [_case(draw, _post(body), None) for body in make_bodies(draw.getrandbits(32), served, 1, 40)]
    draw.shuffle(cases)
    return cases


async def send_all(port: int, cases: Sequence[Case], progress: Callable[[int], None] | None = None) -> Tally:
    """Sends all cases, as many at a time as there are clients."""
    tally = Tally()
    waiting = iter(enumerate(cases))

    async def client() -> None:
        for number, case in waiting:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await _send(port, case, tally)
            except TimeoutError:
                tally.failures.append(f"no answer within {ANSWER_SECONDS:g} s: {_shown(case)}")
            except Exception as error:
                tally.failures.append(f"{type(error).__name__}: {error}: {_shown(case)}")
            if progress is not None and number % 100 == 99:
                progress(number + 1)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(client())
    return tally


def check_document(port: int) -> None:
    """What requests are drawn from is what this server serves."""
    served = httpx.get(f"http://127.0.0.1:{port}/openapi.json", timeout=30).json()
    assert served == document(), "the served document is another than the one that requests are drawn from"


# ---- what is sent


def _drawn(seed: int, count: int) -> list[Request]:
    found: list[Request] = []

    @seeded(seed)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests())
    def keep(made: Request) -> None:
        found.append(made)

    keep()
    return found


def _case(draw: random.Random, data: bytes, made: Request | None) -> Case:
    way = draw.choice(WAYS)
    early = way in ("fin", "rst") and draw.random() < 0.4
    return Case(
        data,
        made,
        way,
        sent=draw.random() if early else 1.0,
        waits=draw.choice((0.0, draw.uniform(0.0, 0.02), draw.uniform(0.0, 0.5))),
        reads=draw.choice((0, 0, 1, draw.randrange(4000))),
    )


def _head(made: Request) -> bytes:
    headers = {"host": b"here", "content-type": b"application/json", "content-length": b"%d" % len(made.body)}
    lines = [name.encode() + b": " + value for name, value in (headers | made.headers).items()]
    return b"\r\n".join([f"{made.method.upper()} {made.url} HTTP/1.1".encode(), *lines, b"connection: close", b"", b""])


def _post(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    path = b"/v1/chat/completions" if "messages" in body else b"/v1/completions"
    lines = b"host: here\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (path, lines, len(data), data)


def _shown(case: Case) -> str:
    return f"{case.way}, sent {case.sent:.2f}, waits {case.waits:.3f}, reads {case.reads}: {case.data[:600]!r}"


# ---- what comes back


class _Answer:
    """The first final answer on a connection."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.complete = False
        self.received = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if not self.complete:  # what follows a complete answer is none of ours
                raise

    def on_message_begin(self) -> None:
        if not self.complete:
            self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if not self.complete:
            self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.body += body

    def on_message_complete(self) -> None:
        self.complete = self.complete or self.status >= 200


async def _send(port: int, case: Case, tally: Tally) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        answer = _Answer()
        writer.write(case.data[: int(case.sent * len(case.data))] if case.sent < 1 else case.data)
        if case.way == "half" and case.data and writer.can_write_eof():
            writer.write_eof()
        if case.way != "reads":
            await _leave(case, reader, writer, answer)
            tally.left[case.way] += 1
            if answer.complete:
                _judge(case, answer, tally)
            return
        while not answer.complete and (data := await reader.read(1 << 16)):
            answer.feed(data)
        if not answer.complete:
            tally.failures.append(f"closed after {answer.received} bytes of an answer: {_shown(case)}")
            return
        _judge(case, answer, tally)
    except ConnectionError as error:
        # a server that refuses a body may close while it is still being sent
        if case.way == "reads" and case.made is None:
            tally.failures.append(f"{type(error).__name__}: {_shown(case)}")
        else:
            tally.left["refused while sending"] += 1
    finally:
        writer.transport.abort()


async def _leave(case: Case, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: _Answer) -> None:
    try:
        async with asyncio.timeout(2.0):
            while answer.received < case.reads and not answer.complete and (data := await reader.read(256)):
                answer.feed(data)
    except TimeoutError:
        pass  # there is no more for the request as it was sent
    if case.way == "stands still":
        writer.transport.pause_reading() if not reader.at_eof() else None  # type: ignore[attr-defined]
    await asyncio.sleep(case.waits)
    sock: socket.socket | None = writer.get_extra_info("socket")
    if case.way in ("rst", "stands still") and sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


def _judge(case: Case, answer: _Answer, tally: Tally) -> None:
    tally.statuses[answer.status] += 1
    asked = {} if case.made is None else case.made.headers
    request = httpx.Request("POST", "http://here" + ("/v1/completions" if case.made is None else case.made.path))
    response = httpx.Response(answer.status, headers=answer.headers, content=answer.body, request=request)
    if answer.status >= 500 or answer.status == 429:
        wanted = OVERLOAD.get(answer.status, "")
        if wanted == "" or (wanted is not None and wanted not in asked):
            tally.failures.append(f"{answer.status} {answer.body[:300]!r}: {_shown(case)}")
        return
    if case.made is None:
        if answer.status != 200 or b"data: [DONE]" not in answer.body:
            tally.failures.append(f"a good request got {answer.status} {answer.body[:300]!r}: {_shown(case)}")
    elif answer.status != 200:
        check_error(response)
    elif "x-request-timeout" not in asked:
        check_shape(case.made.operation, response)
