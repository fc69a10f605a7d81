"""WebSockets that are never opened, and what one that breaks off leaves behind."""

import asyncio
import gc
import socket
import struct
import threading

import pytest
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.frames import Frame
from websockets.streams import StreamReader

from stentor.tests.server.attacks.hostile import PATIENCE, Connection, Target, head, upgrade

MIB = 1 << 20
CHUNKED = b"transfer-encoding: chunked"


@pytest.mark.parametrize(
    "lines", [(b"content-length: 5",), (CHUNKED,), (b"content-length: 05", b"expect: 100-continue")]
)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_websocket_that_is_opened_with_a_body_is_refused(
    lines: tuple[bytes, ...], method: bytes, target: Target
) -> None:
    connection = target.connect()
    connection.send(upgrade(*lines, method=method))
    answer = connection.answer()
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert "Content-Length" in answer.error["message"]
    assert connection.is_closed()
    connection.close()
    assert target.is_left()


@pytest.mark.parametrize(
    "handshake",
    [
        upgrade(b"a: " + b"b" * 9000),
        upgrade(path=b"/v1/responses?a=" + b"b" * 9000),
        upgrade(path=b"/v1/realtime?a=" + b"b" * 9000),
    ],
    ids=["a header", "a query", "a query of another path"],
)
def test_a_handshake_longer_than_the_library_reads_is_refused(handshake: bytes, target: Target) -> None:
    connection = target.connect()
    connection.send(handshake)
    answer = connection.answer()
    assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
    assert connection.is_closed()
    connection.close()
    assert target.is_left()


KEY = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
VERSION = b"sec-websocket-version: 13"


@pytest.mark.parametrize(
    ("lines", "status", "named"),
    [
        ((b"sec-websocket-version: 12", KEY), 426, "Sec-WebSocket-Version"),
        ((VERSION, VERSION, KEY), 426, "Sec-WebSocket-Version"),
        ((KEY,), 426, "Sec-WebSocket-Version"),
        ((VERSION,), 400, "Sec-WebSocket-Key"),
        ((VERSION, KEY, KEY), 400, "Sec-WebSocket-Key"),
        ((VERSION, b"sec-websocket-key: c2hvcnQ="), 400, "Sec-WebSocket-Key"),
        ((VERSION, b"sec-websocket-key: no base 64!"), 400, "Sec-WebSocket-Key"),
    ],
)
def test_a_handshake_without_what_it_needs_is_told_what_it_lacks(
    lines: tuple[bytes, ...], status: int, named: str, target: Target
) -> None:
    connection = target.connect()
    wish = (b"connection: upgrade", b"upgrade: websocket")
    connection.send(head(*wish, *lines, method=b"GET", path=b"/v1/responses"))
    answer = connection.answer()
    assert (answer.status, answer.error["type"]) == (status, "invalid_request_error")
    assert named in answer.error["message"]
    assert connection.is_closed()
    connection.close()
    assert target.is_left()


def test_a_websocket_is_opened_by_no_other_method_than_get(target: Target) -> None:
    connection = target.connect()
    connection.send(upgrade(method=b"POST"))
    answer = connection.answer()
    assert (answer.status, answer.error["message"]) == (400, "A WebSocket is opened with GET.")
    assert connection.is_closed()
    connection.close()
    assert target.is_left()


def test_a_websocket_that_the_application_does_not_open_is_given_up(hurries_headers: Target) -> None:
    ends = threading.Event()

    async def hangs(_socket: WebSocket) -> None:
        await asyncio.to_thread(ends.wait, PATIENCE)

    hurries_headers.app.router.routes.append(WebSocketRoute("/hangs", hangs))
    connection = hurries_headers.connect()
    try:
        connection.send(upgrade(path=b"/hangs"))
        answer = connection.answer()
        assert (answer.status, answer.error["code"]) == (503, "handshake_timeout")
        assert connection.is_closed()
        assert hurries_headers.is_left()
    finally:
        ends.set()
        connection.close()


def test_a_websocket_that_is_half_closed_is_closed(target: Target, connection: Connection) -> None:
    connection.send(upgrade())
    assert connection.line() == b"HTTP/1.1 101 Switching Protocols\r\n"
    connection.socket.shutdown(socket.SHUT_WR)
    while connection.line():
        pass
    assert target.is_left()


@pytest.mark.parametrize(
    "frames", [b"\x81\x82\0\0\0\0hi", b"\x89\x80\0\0\0\0\x81\x82\0\0\0\0hi"], ids=["a text", "a ping"]
)
def test_frames_that_come_with_the_handshake_are_answered_behind_it(frames: bytes, target: Target) -> None:
    connection = target.connect()
    connection.send(upgrade() + frames)
    assert connection.line() == b"HTTP/1.1 101 Switching Protocols\r\n"
    while connection.line() != b"\r\n":
        pass
    connection.send(b"\x88\x80\0\0\0\0")
    assert b"not valid JSON" in connection.read()
    connection.close()
    assert target.is_left()


@pytest.mark.parametrize("broken", [b"\x83\x80\0\0\0\0", b"\x89\x80\0\0\0\0" * 129], ids=["a reserved frame", "pings"])
def test_who_sends_on_a_websocket_that_was_given_up_is_told_that_the_client_is_gone(
    broken: bytes, target: Target
) -> None:
    """Before it is told so by what it receives: the connection is closed, and not yet lost."""
    ended, told = threading.Event(), list[BaseException]()

    async def answers(websocket: WebSocket) -> None:
        await websocket.accept()
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass
        try:
            await websocket.send_text("late")
        except Exception as error:
            told.append(error)
        ended.set()

    path = f"/answers-{len(broken)}"
    target.app.router.routes.append(WebSocketRoute(path, answers))
    connection = target.connect()
    connection.send(upgrade(path=path.encode()))
    assert connection.line() == b"HTTP/1.1 101 Switching Protocols\r\n"
    connection.send(broken)
    assert ended.wait(PATIENCE)
    assert [type(error) for error in told] == [WebSocketDisconnect]
    connection.close()
    assert target.is_left()


@pytest.mark.parametrize("resets", [False, True])
def test_messages_of_a_client_that_has_gone_are_not_read(resets: bool, target: Target) -> None:
    """All are there before the application reads the first."""
    came, gone, ended, taken = threading.Event(), threading.Event(), threading.Event(), [0]

    async def reads(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.receive_text()
        came.set()
        await asyncio.to_thread(gone.wait, PATIENCE)
        while (await websocket.receive())["type"] == "websocket.receive":
            taken[0] += 1
        ended.set()

    target.app.router.routes.append(WebSocketRoute(f"/reads-{resets}", reads))
    connection = target.connect()
    connection.send(upgrade(path=f"/reads-{resets}".encode()))
    assert connection.line() == b"HTTP/1.1 101 Switching Protocols\r\n"
    connection.send(b"\x81\x81\0\0\0\0x" * 1000)
    assert came.wait(PATIENCE)
    if resets:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    gone.set()
    assert ended.wait(PATIENCE)
    assert taken == [0]
    assert target.is_left()


def control(opcode: int, count: int) -> bytes:
    """Frames without a payload, as clients mask them."""
    return bytes([0x80 | opcode, 0x80, 0, 0, 0, 0]) * count


@pytest.mark.parametrize("opcode", [0x9, 0xA], ids=["pings", "pongs"])
def test_a_client_that_pings_without_end_is_told_and_closed(opcode: int, target: Target) -> None:
    """Whether it reads the answers or not."""
    connection = target.connect()
    connection.send(upgrade())
    while connection.line() != b"\r\n":
        pass
    connection.send(control(0x9, 100))
    assert connection.read(200) == b"\x8a\x00" * 100
    connection.send(control(opcode, 1000))
    said = connection.read()
    assert said.count(b"\x88") == 1
    assert b"\x03\xf0more than 128 pings and pongs in a second" in said, "1008"
    connection.close()
    assert target.is_left()


@pytest.mark.parametrize("path", [b"/v1/responses", b"/v1/realtime"])
def test_a_message_that_is_never_finished_is_gone_with_its_connection(path: bytes, target: Target) -> None:
    """At once: an idle server collects no cycles, and the library's parser is in one."""
    gc.collect()
    gc.disable()
    try:
        connection = target.connect()
        connection.send(upgrade(path=path))
        while connection.line() != b"\r\n":
            pass
        for opcode in (0x01, 0x00):  # a first part of a text, and the next, neither the last
            connection.send(bytes([opcode, 0xFF]) + MIB.to_bytes(8, "big") + bytes(4) + b"x" * MIB)
        connection.send(bytes([0x00, 0xFF]) + MIB.to_bytes(8, "big") + bytes(4) + b"x" * (MIB // 2))
        connection.close()
        assert target.is_left()
        assert _held_by_websockets() < MIB
    finally:
        gc.enable()


def _held_by_websockets() -> int:
    """Bytes that the library has read."""
    objects = gc.get_objects()
    frames = sum(len(each.data) for each in objects if isinstance(each, Frame))
    return frames + sum(len(each.buffer) for each in objects if isinstance(each, StreamReader))
