"""Requests for vectors over connections that are kept, as few bytes of work for the client as there can be."""

import base64
import http.client
import itertools
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import msgspec

_TIMEOUT: Final = 600.0
PATH: Final = "/v1/embeddings"


class _Vector(msgspec.Struct):
    embedding: str


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Answer(msgspec.Struct):
    data: list[_Vector]
    usage: _Usage


_decode = msgspec.json.Decoder(_Answer).decode


class Answered(msgspec.Struct, frozen=True):
    """Vectors as bytes of float32, in order."""

    vectors: list[bytes]
    tokens: int


class Connection:
    """Context manager: one connection to a server on this machine. Not for several threads, but for :meth:`drop`."""

    def __init__(self, port: int, model: str) -> None:
        self._model = model
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)

    def __enter__(self) -> Self:
        self._connection.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def ask(self, texts: Sequence[str]) -> Answered:
        """One request. Raises ``RuntimeError`` for any status but 200, OSError and ``HTTPException``."""
        body = msgspec.json.encode({"model": self._model, "input": texts, "encoding_format": "base64"})
        self._connection.request("POST", PATH, body, {"content-type": "application/json"})
        got = self._connection.getresponse()
        content = got.read()
        if got.status != 200:
            raise RuntimeError(f"the server answered {got.status}: {content[:300]!r}")
        answer = _decode(content)
        return Answered([base64.b64decode(each.embedding) for each in answer.data], answer.usage.prompt_tokens)

    def drop(self) -> None:
        """Ends a request that another thread waits for: it gets an error."""
        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class Bulk:
    """Context manager: lists of texts on their way to a server, each over a connection and a thread of its own.

    ``endless`` sends each again and again until the block ends. What runs then is dropped. Leaving raises what a
    request that had not been dropped ended with.
    """

    def __init__(self, port: int, model: str, jobs: Sequence[Sequence[str]], *, endless: bool = False) -> None:
        self._jobs = jobs
        self._endless = endless
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._connections = [Connection(port, model) for _ in jobs]
        self._threads = [
            threading.Thread(target=self._send, args=(*each,)) for each in zip(self._connections, jobs, strict=True)
        ]
        self.texts = 0
        """That are done."""

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        for connection in self._connections:
            connection.drop()
        for thread in self._threads:
            thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _send(self, connection: Connection, texts: Sequence[str]) -> None:
        try:
            with connection:
                for _ in itertools.count() if self._endless else range(1):
                    if self._ending.is_set():
                        return
                    made = len(connection.ask(texts).vectors)
                    with self._lock:
                        self.texts += made
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            if not self._ending.is_set():
                self._error = error
