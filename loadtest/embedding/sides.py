"""Whoever makes vectors of texts: our server over HTTP, or sentence-transformers in a process of its own."""

import http.client
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Lock
from typing import Final, Self

import msgspec

from ..peers.libraries import OURS, Done, Load, Side, ask_all, library_side, post
from ..server_process import ServerProcess

PEER: Final = "sentence-transformers"


class _Vector(msgspec.Struct):
    embedding: str


class _Answer(msgspec.Struct):
    data: list[_Vector]


_decode = msgspec.json.Decoder(_Answer).decode


def vectors_of(model: str, connection: http.client.HTTPConnection, texts: Sequence[str]) -> list[str]:
    """One request: base64 of float32, in order. Raises what :func:`.post` raises."""
    body = msgspec.json.encode({"model": model, "input": texts, "encoding_format": "base64"})
    return [each.embedding for each in _decode(post(connection, "/v1/embeddings", body)).data]


def ours(server: ServerProcess, model: str, connections: int) -> Side:
    """A server that is running, over ``connections`` at a time: vectors of texts, so many of them a request."""

    def run(load: Load, size: int) -> Done:
        parts = [load[start : start + size] for start in range(0, len(load), size)]
        return ask_all(server, parts, connections, partial(vectors_of, model))

    return Side(OURS, run)


def sentence_transformers(model: Path, dtype: str, threads: int) -> AbstractContextManager[Side]:
    return library_side(PEER, PEER, str(model), "--dtype", dtype, "--threads", str(threads))


class Company:
    """Context manager: work on threads of its own while something else is measured.

    ``endless`` repeats each piece of work until the block ends, which waits for what runs then. Leaving raises what a
    piece of work raised.
    """

    def __init__(self, works: Sequence[Callable[[], int]], *, endless: bool = False) -> None:
        """Each returns how many texts or files it has done."""
        self._works = works
        self._endless = endless
        self._ending = Event()
        self._lock = Lock()
        self.done = 0

    @property
    def running(self) -> bool:
        return any(not future.done() for future in self._futures)

    def __enter__(self) -> Self:
        self._threads = ThreadPoolExecutor(len(self._works) or 1)
        self._futures = [self._threads.submit(self._repeat, work) for work in self._works]
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ending.set()
        self._threads.shutdown()
        for future in self._futures if error is None else []:
            future.result()

    def _repeat(self, work: Callable[[], int]) -> None:
        for _ in count() if self._endless else range(1):
            if self._ending.is_set():
                return
            made = work()
            with self._lock:
                self.done += made
