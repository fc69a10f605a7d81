"""Communication of a child and its owner: msgspec messages over a socket, with deadlines; and the child's own
limits."""

import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from stentor.engine.processes.freed_memory import grown_since, resident_bytes
from stentor.engine.processes.process import become_child

GROWN: Final = 64 << 20
"""Bytes by which a job may leave a child larger: beyond it the child is replaced, so that no later job fails for it."""
_SEND_SECONDS: Final = 30.0
_MAX_BYTES: Final = 256 << 20
_LENGTH: Final = struct.Struct("!Q")

Message = TypeVar("Message")


@contextmanager
def bounded_child(name: str, max_memory: int = resource.RLIM_INFINITY) -> Iterator[socket.socket]:
    """The child's end of the socket, once the child has at most ``max_memory`` bytes of address space and leaves no
    core. Returns quietly where the owner is gone, or has no more use for the child."""
    inherited = become_child(name)
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=inherited.fds[0]) as connection, suppress(OSError):
        yield connection


def bound_growth(bytes: int) -> None:
    """Limits this process to ``bytes`` more of address space than it has. For a child whose code takes an amount
    that is unknown before it is loaded."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + bytes, mapped + bytes))


class Growth:
    """How much memory jobs have left behind since a child was ready."""

    def __init__(self, most: int = GROWN) -> None:
        self._born = resident_bytes()
        self._most = most

    @property
    def too_much(self) -> bool:
        return grown_since(self._born) > self._most


class Ready(msgspec.Struct, frozen=True, array_like=True):
    """The first message of a child without set-up data."""


def wait_until_ready(connection: socket.socket, deadline: float) -> None:
    """For :class:`Ready`; ``deadline`` as in :func:`receive`."""
    receive(connection, Ready, deadline)


def send(connection: socket.socket, message: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(message)
    connection.settimeout(_SEND_SECONDS)
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def send_bytes(connection: socket.socket, data: bytes) -> None:
    """Sends bytes behind a message with their number; neither side copies them."""
    connection.settimeout(_SEND_SECONDS)
    connection.sendall(data)


def receive_bytes(
    connection: socket.socket, length: int, deadline: float = float("inf"), *, most: int = _MAX_BYTES
) -> bytearray:
    """Receives the bytes of :func:`send_bytes`, at most ``most``. Raises as :func:`receive`."""
    if length > most:
        raise ConnectionAbortedError(f"the peer announces {length} bytes")
    return _read(connection, length, deadline)


def receive(connection: socket.socket, kind: type[Message], deadline: float = float("inf")) -> Message:
    """Raises ``TimeoutError`` at ``deadline`` (``time.monotonic()``), ``ConnectionError`` when the peer is gone."""
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size, deadline))
    if length > _MAX_BYTES:
        raise ConnectionAbortedError(f"the peer announces a message of {length} bytes")
    return msgspec.msgpack.decode(_read(connection, length, deadline), type=kind)


def _read(connection: socket.socket, count: int, deadline: float) -> bytearray:
    data = bytearray()
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(None if left == float("inf") else left)
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise ConnectionResetError("the peer has closed the connection")
        data += piece
    return data
