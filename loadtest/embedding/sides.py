"""Whoever makes vectors of texts: our server over HTTP, or sentence-transformers in a process of its own."""

import base64
import json
import os
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import msgspec

from ..peers.places import script
from ..processes import cpu_seconds, tree
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

        used = _cpu_seconds(self._server.pid)
        began = time.perf_counter()
        with ThreadPoolExecutor(self._connections) as threads:
            list(threads.map(work, range(self._connections)))
        seconds = time.perf_counter() - began
        return Encoded(seconds, _cpu_seconds(self._server.pid) - used, [vector for part in found for vector in part])


class SentenceTransformers:
    """Context manager around the peer's process. Raises ``RuntimeError`` where there is none or it does not start."""

    name = PEER

    def __init__(self, model: Path, dtype: str, threads: int) -> None:
        self.version = ""
        python = script(PEER, "python")
        if not python.is_file():
            raise RuntimeError(f"{PEER} is not installed (there is no {python}): make peers ARGS={PEER}")
        child = Path(__file__).with_name("sentence_transformers_child.py")
        self.command: Final = [
            *(str(python), "-P", str(child), str(model), "--dtype", dtype, "--threads", str(threads)),
        ]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        self.version = self._read()["version"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def encode(self, texts: Sequence[str], batch: int) -> Encoded:
        assert self._process is not None
        assert self._process.stdin is not None
        used = _cpu_seconds(self._process.pid)
        self._process.stdin.write(json.dumps({"texts": list(texts), "batch": batch}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        used = _cpu_seconds(self._process.pid) - used
        data = base64.b64decode(answer["vectors"])
        size = len(data) // len(texts)
        vectors = [data[start : start + size] for start in range(0, len(data), size)]
        return Encoded(answer["seconds"], used, vectors)

    def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{PEER} ended with {self._process.wait()}; its words are above")
        found: dict[str, Any] = json.loads(line)
        return found


def _cpu_seconds(pid: int) -> float:
    return sum(cpu_seconds(each) for each in tree(pid))
