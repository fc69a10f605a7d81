"""Whoever makes vectors of texts: our server over HTTP, or sentence-transformers in a process of its own."""

import base64
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

import msgspec

from ..peers.child import PeerChild
from ..processes import tree_cpu_seconds
from ..server_process import ServerProcess
from .asking import Connection

PEER: Final = "sentence-transformers"


class Encoded(msgspec.Struct, frozen=True):
    """What came of some texts, in order, and how long all of them took together."""

    seconds: float
    cpu_seconds: float
    """Of all processes of the side: on a machine with neighbours a steadier figure than the time."""
    vectors: list[bytes]
    """Of float32."""


class Side(Protocol):
    @property
    def name(self) -> str: ...

    def encode(self, texts: Sequence[str], batch: int) -> Encoded:
        """``batch`` of them at a time."""


class Ours:
    """A server that is running, over ``connections`` at a time."""

    name = "stentor"

    def __init__(self, server: ServerProcess, model: str, connections: int) -> None:
        self._server = server
        self._model = model
        self._connections = connections

    def encode(self, texts: Sequence[str], batch: int) -> Encoded:
        parts = [texts[start : start + batch] for start in range(0, len(texts), batch)]
        places = iter(range(len(parts)))  # whoever is free takes the next; next() of it is one step of the interpreter
        found: list[list[bytes]] = [[] for _ in parts]

        def work(_: int) -> None:
            with Connection(self._server.port, self._model) as connection:
                for place in places:
                    found[place] = connection.ask(parts[place]).vectors

        used = tree_cpu_seconds(self._server.pid)
        began = time.perf_counter()
        with ThreadPoolExecutor(self._connections) as threads:
            list(threads.map(work, range(self._connections)))
        seconds = time.perf_counter() - began
        return Encoded(
            seconds, tree_cpu_seconds(self._server.pid) - used, [vector for part in found for vector in part]
        )


class SentenceTransformers(PeerChild):
    """The peer's process."""

    name = PEER

    def __init__(self, model: Path, dtype: str, threads: int) -> None:
        program = Path(__file__).with_name("sentence_transformers_child.py")
        arguments = [str(model), "--dtype", dtype, "--threads", str(threads)]
        super().__init__(PEER, program, arguments, {"HF_HUB_OFFLINE": "1"})

    def encode(self, texts: Sequence[str], batch: int) -> Encoded:
        answer, used = self.ask({"texts": list(texts), "batch": batch})
        data = base64.b64decode(answer["vectors"])
        size = len(data) // len(texts)
        vectors = [data[start : start + size] for start in range(0, len(data), size)]
        return Encoded(answer["seconds"], used, vectors)
