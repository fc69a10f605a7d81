"""A child process that tries what clients bring, and the socket to it: messages of msgspec's, with deadlines."""

import socket
import struct
import time
from typing import Final, TypeVar

import msgspec

from stentor.engine.processes.process import spawn

_SEND_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 5.0
"""For a child that was killed to be dead; another may take its place then, whatever became of it."""
_MAX_BYTES: Final = 256 << 20
_LENGTH: Final = struct.Struct("!Q")

Message = TypeVar("Message")


class ChildChannel:
    """The owner's end. It must be closed, which kills the child."""

    def __init__(self, module: str, name: str) -> None:
        """Starts ``module``, which ``name`` says in words. Raises ``OSError``."""
        ours, theirs = socket.socketpair()
        self.socket: Final = ours
        try:
            with theirs:
                self.child: Final = spawn(module, (theirs.fileno(),), name=name)
        except BaseException:
            ours.close()
            raise

    def close(self) -> None:
        self.socket.close()
        self.child.close(_CLOSE_SECONDS)


def send(connection: socket.socket, message: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(message)
    connection.settimeout(_SEND_SECONDS)
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


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
