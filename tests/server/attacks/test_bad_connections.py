"""What comes over a socket and is no request, or never becomes one."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from stentor.server.config.limits import ConnectionLimits
from stentor.server.http import http_protocol
from stentor.server.http.connections import MAX_PROBES_PER_CLIENT
from stentor.tests.e2e.processes import eventually
from stentor.tests.server.attacks.conftest import SHORT
from stentor.tests.server.attacks.hostile import PATIENCE, Connection, Target, chunked, head, request, served, upgrade
from stentor.tests.server.harness import CHAT, COMPLETIONS

MiB = 1 << 20
BODY = b'{"messages":[{"role":"user","content":"hello"}],"max_tokens":1}'
LENGTH = b"content-length: %d" % len(BODY)
CHUNKED = b"transfer-encoding: chunked"
GOOD = request(BODY)
PING = head(method=b"GET", path=b"/ping")
STREAM = request(BODY.replace(b'"max_tokens":1', b'"max_tokens":4000,"stream":true'))

REFUSED: dict[str, tuple[bytes, int]] = {
    # one request read as two
    "a length and chunks": (head(LENGTH, CHUNKED) + chunked([BODY]), 400),
    "chunks and a length": (head(CHUNKED, LENGTH) + chunked([BODY]), 400),
    "two lengths": (head(LENGTH, b"content-length: 5") + BODY, 400),
    "the same length twice": (head(LENGTH, LENGTH) + BODY, 400),
    "a list of lengths": (head(b"content-length: 5, 5") + BODY, 400),
    "a negative length": (head(b"content-length: -1") + BODY, 400),
    "a length with a sign": (head(b"content-length: +5") + BODY, 400),
    "a length in hexadecimal": (head(b"content-length: 0x5") + BODY, 400),
    "a length without digits": (head(b"content-length:") + BODY, 400),
    "a length of 30 digits": (head(b"content-length: " + b"9" * 30) + BODY, 400),
    "an encoding after chunks": (head(b"transfer-encoding: chunked, gzip") + chunked([BODY]), 400),
    "an unknown transfer encoding": (head(b"transfer-encoding: xchunked") + chunked([BODY]), 400),
    "a name and a space": (head(b"transfer-encoding : chunked") + chunked([BODY]), 400),
    "a folded header": (head(b"a: b", b" content-length: 5") + BODY, 400),
    "a header without a name": (head(b": chunked") + BODY, 400),
    "a header without a colon": (head(b"nonsense") + BODY, 400),
    "a NUL in a header": (head(b"a: b\0c") + BODY, 400),
    "a line feed in the path": (head(path=b"/ping\nx", method=b"GET"), 400),
    "no host": (b"GET /ping HTTP/1.1\r\n\r\n", 400),
    "two hosts": (head(b"host: there", method=b"GET", path=b"/ping"), 400),
    # chunks
    "a chunk of no size": (head(CHUNKED) + b"\r\n" + BODY, 400),
    "a chunk of a bad size": (head(CHUNKED) + b"xyz\r\n" + BODY, 400),
    "a chunk of a negative size": (head(CHUNKED) + b"-1\r\n" + BODY, 400),
    "a chunk larger than numbers": (head(CHUNKED) + b"f" * 17 + b"\r\n" + BODY, 400),
    "a chunk longer than it says": (head(CHUNKED) + b"5\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    "a bad chunk after a good one": (head(CHUNKED) + b"5\r\nhello\r\n" + b"nonsense\r\n", 400),
    # heads
    "a header of 1 MB": (head(b"a: " + b"b" * MiB, LENGTH) + BODY, 431),
    "a name of 1 MB": (head(b"a" * MiB + b": b", LENGTH) + BODY, 431),
    "a path of 1 MB": (head(path=b"/" + b"a" * MiB, method=b"GET"), 431),
    "10^5 headers": (head(*[b"a: b"] * 10**5, LENGTH) + BODY, 431),
    "a header too many": (head(*[b"a: b"] * 99, LENGTH) + BODY, 431),
    "a trailer of 1 MB": (head(CHUNKED) + chunked([b"{"])[:-2] + b"a: " + b"b" * MiB, 431),
    # other protocols and versions
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /ping\r\n\r\n", 400),
    "HTTP/9.9": (head(version=b"9.9", method=b"GET", path=b"/ping"), 400),
    "a tunnel": (head(method=b"CONNECT", path=b"server:80"), 400),
    "HTTP/1.0 without a host": (b"POST " + CHAT.encode() + b" HTTP/1.0\r\n" + LENGTH + b"\r\n\r\n" + BODY, 403),
    "HTTP/1.0 with two hosts": (head(b"host: there", version=b"1.0", method=b"GET", path=b"/v1/models"), 403),
    # methods and paths
    "a method nobody knows": (head(method=b"BREW"), 405),
    "a method in small letters": (head(method=b"post", path=CHAT.encode()), 405),
    "a method of WebDAV": (head(method=b"PROPFIND"), 405),
    "the wrong method": (head(method=b"GET", path=COMPLETIONS.encode()), 405),
    "DELETE": (head(method=b"DELETE"), 405),
    "OPTIONS for all": (head(method=b"OPTIONS", path=b"*"), 404),
    "TRACE": (head(method=b"TRACE"), 405),
    "a path of nothing but a host": (head(method=b"GET", path=b"http://here"), 400),
    "a path that is not ASCII": (head(method=b"GET", path="/v1/mödels".encode()), 400),
    "an escaped path that is not UTF-8": (head(method=b"GET", path=b"/v1/%ff%fe"), 404),
    "a path with an escaped NUL": (head(method=b"GET", path=b"/ping%00"), 404),
    "a path upwards": (head(method=b"GET", path=b"/../../etc/passwd"), 404),
    "a path that only looks open": (head(method=b"GET", path=b"//health"), 404),
    "a path with a slash at its end": (head(LENGTH, path=b"/v1/chat/completions/") + BODY, 404),
    # bodies
    "a body that is announced as too long": (head(b"content-length: %d" % (200 * MiB)), 413),
    "an announced body that waits for leave": (head(b"content-length: %d" % (200 * MiB), b"expect: 100-continue"), 413),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_malformed_request_is_refused_before_it_reaches_the_engine(name: str, target: Target) -> None:
    data, status = REFUSED[name]
    with target.witness():
        before = len(target.engine.streams)
        answer = target.ask(data)
        assert len(target.engine.streams) == before, "it reached the engine"
    assert answer.status == status, answer.body
    assert answer.error["type"] == "invalid_request_error"
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize("name", [name for name, (_, status) in REFUSED.items() if status in (400, 431)])
def test_what_follows_what_cannot_be_read_is_not_served(name: str, connection: Connection) -> None:
    connection.send(REFUSED[name][0] + PING + PING)
    assert 400 <= connection.answer().status < 500
    assert connection.is_closed()


# ---- odd, but right


@pytest.mark.parametrize(
    ("data", "keeps"),
    [
        (GOOD, True),
        (head(CHUNKED) + chunked([BODY[:9], BODY[9:]]), True),
        (head(CHUNKED) + b"%x;a=b\r\n%b\r\n0\r\na: trailer\r\n\r\n" % (len(BODY), BODY), True),
        (head(LENGTH, b"connection: close") + BODY, False),
        (head(LENGTH, version=b"1.0") + BODY, False),
        (b"GET /ping HTTP/1.0\r\n\r\n", False),
        (head(LENGTH, path=b"http://elsewhere" + CHAT.encode()) + BODY, True),
        (head(LENGTH, path=CHAT.encode() + b"?a=%ff#b") + BODY, True),
        (head(LENGTH, path=b"/v1/chat%2Fcompletions") + BODY, True),
        (b"\r\n" + GOOD, True),
    ],
    ids=[
        *("plain", "chunks", "chunk extensions and trailers", "close", "HTTP/1.0", "a probe without a host"),
        *("absolute form", "a query", "an escaped slash", "an empty line before"),
    ],
)
def test_an_unusual_but_valid_request_is_served(data: bytes, keeps: bool, connection: Connection) -> None:
    connection.send(data)
    assert connection.answer().status == 200
    if keeps:
        connection.send(PING)
        assert connection.answer().status == 200
    else:
        assert connection.is_closed()


def test_head_is_answered_without_a_body(connection: Connection) -> None:
    for path, status in (
        (b"/ping", 200),
        (b"/health", 200),
        (b"/v1/models", 200),
        (COMPLETIONS.encode(), 405),
        (b"/no", 404),
    ):
        connection.send(head(method=b"HEAD", path=path))
        answer = connection.answer(without_body=True)
        assert (answer.status, int(answer.headers["content-length"]) > 0) == (status, True), path


def test_a_body_is_asked_for_where_it_is_wanted(connection: Connection) -> None:
    connection.send(head(LENGTH, b"expect: 100-continue"))
    assert connection.line() == b"HTTP/1.1 100 Continue\r\n"
    assert connection.line() == b"\r\n"
    connection.send(BODY)
    assert connection.answer().status == 200


def test_trailers_are_not_taken_for_headers(target: Target) -> None:
    body = b"%x\r\n%b\r\n0\r\nx-request-id: smuggled\r\n\r\n" % (len(BODY), BODY)
    answer = target.ask(head(CHUNKED) + body)
    assert answer.status == 200
    assert answer.headers["x-request-id"] != "smuggled"


def test_a_body_that_was_not_asked_for_is_not_taken_for_a_request(connection: Connection) -> None:
    connection.send(head(b"content-length: %d" % len(PING), b"expect: 100-continue", path=b"/v1/nothing"))
    assert connection.answer().status == 404
    connection.send(PING)
    assert connection.is_closed()


# ---- large


def test_a_refusal_can_be_read_by_a_client_that_is_still_sending(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "LINGER_SECONDS", PATIENCE)
    connection.send(head(b"content-length: %d" % (200 * MiB)))
    assert connection.answer().status == 413
    for _ in range(4):
        connection.socket.sendall(bytes(MiB))  # raises where the server has closed its end
        time.sleep(0.05)


def test_a_head_that_comes_in_one_piece_is_measured_too() -> None:
    with served(connections=ConnectionLimits(max_header_bytes=1000)) as target:
        assert target.ask(head(b"a: " + b"b" * 1000, method=b"GET", path=b"/ping")).status == 431
        assert target.ask(head(method=b"GET", path=b"/" + b"a" * 1000)).status == 431
        assert target.ask(head(b"a: " + b"b" * 500, method=b"GET", path=b"/ping")).status == 200


@pytest.mark.parametrize("form", ["of a length", "in chunks", "in chunks without a model's route"])
def test_200_megabytes_are_not_read(form: str, target: Target) -> None:
    piece = b" " * MiB
    if form == "of a length":
        parts = [head(b"content-length: %d" % (200 * MiB)), *[piece] * 200]
    else:
        path = b"/v1/nothing" if "route" in form else CHAT.encode()
        parts = [head(CHUNKED, path=path), *[b"%x\r\n%b\r\n" % (MiB, piece)] * 200, b"0\r\n\r\n"]
    with target.witness():
        connection = target.connect()
        sender = threading.Thread(target=_send_all, args=(connection, parts))
        sender.start()
        answer = connection.answer()
        assert answer.status == (404 if "route" in form else 413)
        sender.join()
        connection.close()


def _send_all(connection: Connection, parts: list[bytes]) -> None:
    try:
        for part in parts:
            connection.socket.sendall(part)
    except OSError:
        pass  # the server has had enough


# ---- slow


@contextmanager
def dripping(connection: Connection, data: bytes) -> Iterator[threading.Thread]:
    """Within the block another thread sends the bytes, one at a time."""
    over = threading.Event()

    def drip() -> None:
        for byte in data:
            connection.send(bytes([byte]))
            if over.wait(0.02):
                return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("beginning", "rest"),
    [
        (b"\r\n", b"POST /v1/responses HTTP/1.1\r\nhost: here\r\n"),
        (b"P", b"OST /v1/responses HTTP/1.1\r\nhost: here\r\n"),
        (b"POST /v1/responses HTTP/1.1\r\nhost: here\r\n", b""),
        (GOOD[:60], b"th: 5\r\n"),
    ],
)
def test_slow_headers_are_given_up_however_steady(beginning: bytes, rest: bytes, hurries_headers: Target) -> None:
    for _ in range(20):  # one that has sent nothing in time is closed without a word, and this thread may be late
        with closing(hurries_headers.connect()) as connection:
            connection.send(beginning)
            with dripping(connection, rest + b"a: b\r\n" * 110):
                if (answer := connection.answer_if_any()) is not None:
                    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
                    assert connection.is_closed()
                    return
    pytest.fail("it is closed without a word")


@pytest.mark.parametrize("length", [b"content-length: 600", CHUNKED])
def test_a_slow_body_is_given_up_however_steady(length: bytes, hurries_bodies: Target) -> None:
    before = len(hurries_bodies.engine.streams)
    connection = hurries_bodies.connect()
    connection.send(head(length))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY.ljust(100))
    with dripping(connection, chunks if length == CHUNKED else BODY.ljust(600)):
        answer = connection.answer()
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
    assert "body" in answer.error["message"]
    assert len(hurries_bodies.engine.streams) == before
    connection.close()


def test_a_body_that_nobody_reads_holds_its_connection_no_longer_than_silence(hurries_the_idle: Target) -> None:
    connection = hurries_the_idle.connect()
    connection.send(head(b"content-length: 1000", path=b"/v1/nothing"))
    assert connection.answer().status == 404
    with dripping(connection, bytes(1000)) as dripper:
        assert connection.is_closed()
        assert dripper.is_alive(), "it was not silence that ended it"
    connection.close()


def test_an_idle_connection_is_closed(hurries_the_idle: Target) -> None:
    connection = hurries_the_idle.connect()
    connection.send(PING)
    assert connection.answer().status == 200
    assert connection.is_closed()
    connection.close()


def test_a_stream_outlives_the_time_for_headers_and_half_a_request_behind_it(hurries_headers: Target) -> None:
    for _ in range(20):  # this thread may be late with its own headers
        with closing(hurries_headers.connect()) as connection:
            connection.send(STREAM + b"GET ")
            if connection.line() != b"HTTP/1.1 200 OK\r\n":
                continue
            until = time.monotonic() + 2 * SHORT
            while time.monotonic() < until:
                line = connection.line()
                assert line
                assert not line.startswith(b"HTTP/1.1 408")
            return
    pytest.fail("it is not served")


# ---- full


def test_a_server_that_is_full_still_answers_probes_and_nothing_else() -> None:
    with served(connections=ConnectionLimits(max_connections=1)) as target:
        holder = target.connect()
        holder.send(PING)
        assert holder.answer().status == 200
        for path in (b"/health", b"/ping", b"/metrics", b"/ping?from=kubelet"):
            connection = target.connect()
            connection.send(head(method=b"GET", path=path) + PING)
            answer = connection.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close"), path
            assert connection.is_closed(), "one probe, and no more"
            connection.close()
        for other in (GOOD, head(method=b"GET", path=b"/v1/models"), upgrade(), upgrade(path=b"/health")):
            answer = target.ask(other)
            assert (answer.status, answer.error["code"]) == (429, "too_many_connections")
        holder.close()
        assert target.is_left()
        assert target.ask(head(method=b"GET", path=b"/v1/models")).status == 200


def test_a_place_for_probes_is_held_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(connections=ConnectionLimits(max_connections=1)) as target:
        holder = target.connect()
        holder.send(PING)
        assert holder.answer().status == 200
        for seconds in (PATIENCE, 0.1):
            monkeypatch.setattr(http_protocol, "PROBE_SECONDS", seconds)
            silent = [target.connect() for _ in range(MAX_PROBES_PER_CLIENT)]
            silent[0].send(b"GET /health HTTP/1.1\r\n")
            if seconds == PATIENCE:
                assert target.ask(PING).status == 429, "this client has as many as one may"
            else:
                for one in silent:
                    assert one.answer().status == 429
            for one in silent:
                one.close()
            monkeypatch.setattr(http_protocol, "PROBE_SECONDS", PATIENCE)
            eventually(lambda: target.ask(PING).status == 200, PATIENCE, "places are given back")
        holder.close()


# ---- many


def test_1000_idle_connections_hold_nobody_up() -> None:
    with served() as target, target.witness():
        idle = [socket.create_connection(("127.0.0.1", target.port)) for _ in range(1000)]
        try:
            assert target.ask(GOOD).status == 200
        finally:
            for one in idle:
                one.close()


def test_one_client_gets_so_many_connections_and_no_more(strict: Target) -> None:
    connections = [strict.connect() for _ in range(40)]
    answers = []
    for one in connections:
        one.send(PING)
    for one in connections:
        answers.append(one.answer())
    refused = [answer for answer in answers if answer.status == 429]
    assert len(refused) == 40 - 24
    assert all(answer.error["code"] == "too_many_connections" and answer.headers["retry-after"] for answer in refused)
    for one in connections:
        one.close()
    eventually(lambda: strict.ask(PING).status == 200, PATIENCE, "places are given back")


def test_pipelined_requests_are_answered_in_their_order(connection: Connection) -> None:
    connection.send(GOOD + PING + head(method=b"GET", path=b"/no") + GOOD)
    assert [connection.answer().status for _ in range(4)] == [200, 200, 404, 200]


def test_too_many_pipelined_requests_end_the_connection_behind_those_that_wait(strict: Target) -> None:
    connection = strict.connect()
    connection.send(GOOD * 200)
    answers = [connection.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].error["code"] == "too_many_requests"
    assert connection.is_closed()
    connection.close()


def test_nonsense_behind_a_stream_waits_for_its_end(connection: Connection) -> None:
    connection.send(STREAM.replace(b"4000", b"  20") + b"nonsense\r\n\r\n")
    lines = []
    while (line := connection.line()) != b"0\r\n":
        assert line
        lines.append(line)
    assert lines[0] == b"HTTP/1.1 200 OK\r\n"
    assert b"data: [DONE]\n" in lines
    assert connection.line() == b"\r\n"
    assert connection.answer().status == 400


# ---- gone


def _check_freed(target: Target) -> None:
    eventually(lambda: not target.engine.live, PATIENCE, "the request is given up")


@pytest.mark.parametrize("sent", [b"", b"PO", GOOD[:40], GOOD[:-5]], ids=["nothing", "a word", "headers", "a body"])
def test_a_socket_that_is_half_closed_before_its_request_is_whole_is_closed(
    sent: bytes, connection: Connection
) -> None:
    connection.send(sent)
    connection.socket.shutdown(socket.SHUT_WR)
    assert connection.is_closed()


def test_a_client_that_half_closes_has_gone(target: Target, connection: Connection) -> None:
    connection.send(STREAM)
    assert connection.line()
    connection.socket.shutdown(socket.SHUT_WR)
    _check_freed(target)


def test_the_first_of_several_requests_is_freed_too(target: Target) -> None:
    silent = request(BODY.replace(b'"max_tokens":1', b'"max_tokens":4000'))
    connection = target.connect()
    connection.send(silent + silent)
    eventually(lambda: bool(target.engine.live), PATIENCE, "the first runs")
    connection.close()
    _check_freed(target)
