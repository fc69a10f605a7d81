"""Our server and libraries side by side, transcribing files or making vectors of texts: every side gets the same loads
in turn, and only one works at a time.

A library computes in a process of its own environment, which runs :mod:`.library_child`. Ratios are of times in the
same round, so that a machine that slows down slows all sides.
"""

import http.client
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import httpx
import msgspec

from ..processes import tree_cpu_seconds
from ..server_process import HOST, ServerProcess
from ..tool import ToolError
from .places import script

OURS: Final = "stentor"
_TIMEOUT: Final = 600.0

Load = Sequence[str]
Part = TypeVar("Part")


class Done(NamedTuple):
    """What a side made of one load, in order, and how long all of it took together."""

    seconds: float
    cpu_seconds: float
    """Of all threads of all processes of the side: on a machine with neighbours a steadier figure than the time."""
    made: list[str]


class Side(NamedTuple):
    """One of the libraries that are compared. ``run`` takes a load, so much of it at a time."""

    name: str
    run: Callable[[Load, int], Done]
    version: str = ""


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One side under one load."""

    side: str
    load: str
    size: int
    seconds: list[float]
    """Of each round."""
    ratio: float
    """Median, over rounds, of this side's time over ours."""
    cpu_seconds: list[float]
    cpu_ratio: float
    """Median, over rounds, of this side's processor time over ours."""


Rounds = Mapping[tuple[str, str], Sequence[Done]]
"""What came of each round, by side and load."""


def run_rounds(
    sides: Sequence[Side], rounds: Sequence[Mapping[str, Load]], size: Callable[[str, str], int]
) -> dict[tuple[str, str], list[Done]]:
    """Every side under every load, in turn; ``size`` is asked by names of side and load."""
    found: dict[tuple[str, str], list[Done]] = {}
    for number, loads in enumerate(rounds, 1):
        for name, load in loads.items():
            for side in sides:
                done = side.run(load, size(side.name, name))
                print(
                    f"{number} {side.name:<26} {name:>6}  {done.seconds:.2f} s, {done.cpu_seconds:.2f} s of CPU",
                    flush=True,
                )
                found.setdefault((side.name, name), []).append(done)
    return found


def timed_fields(rounds: Rounds, side: str, load: str, size: int) -> dict[str, Any]:
    """The fields of :class:`Timed`."""
    pairs = list(zip(rounds[side, load], rounds[OURS, load], strict=True))
    return {
        "side": side,
        "load": load,
        "size": size,
        "seconds": [round(done.seconds, 4) for done, _ in pairs],
        "ratio": round(statistics.median(done.seconds / ours.seconds for done, ours in pairs), 3),
        "cpu_seconds": [round(done.cpu_seconds, 2) for done, _ in pairs],
        "cpu_ratio": round(
            statistics.median(done.cpu_seconds / max(ours.cpu_seconds, 0.01) for done, ours in pairs), 3
        ),
    }


def ask_all(
    server: ServerProcess,
    parts: Sequence[Part],
    connections: int,
    ask: Callable[[http.client.HTTPConnection, Part], list[str]],
) -> Done:
    """Sends the parts of a load to our server over ``connections`` that are kept: a free one takes the next part."""
    places = iter(range(len(parts)))  # next() of it is one step of the interpreter
    made: list[list[str]] = [[] for _ in parts]

    def work(_: int) -> None:
        with closing(connect(server.port)) as connection:
            for place in places:
                made[place] = ask(connection, parts[place])

    used, began = tree_cpu_seconds(server.pid), time.perf_counter()
    with ThreadPoolExecutor(connections) as threads:
        list(threads.map(work, range(connections)))
    seconds = time.perf_counter() - began
    return Done(seconds, tree_cpu_seconds(server.pid) - used, [one for part in made for one in part])


def connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(HOST, port, timeout=_TIMEOUT)


def post(connection: http.client.HTTPConnection, path: str, body: bytes, kind: str = "application/json") -> bytes:
    """The answer's body. Raises :class:`ToolError` for any status but 200, OSError and ``HTTPException``."""
    connection.request("POST", path, body, {"content-type": kind})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise ToolError(f"the server answered {answer.status}: {content[:300]!r}")
    return content


@contextmanager
def library_side(name: str, peer: str, *arguments: str) -> Iterator[Side]:
    """The library's process for the length of the block. Raises :class:`ToolError` where the peer is not installed, and
    where the process ends."""
    python = script(peer, "python")
    if not python.is_file():
        raise ToolError(f"{peer} is not installed (there is no {python}): make peers ARGS={peer}")
    process = subprocess.Popen(
        [str(python), "-P", str(Path(__file__).with_name("library_child.py")), peer, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    questions, answers = process.stdin, process.stdout
    assert questions is not None
    assert answers is not None

    def read() -> dict[str, Any]:
        line = answers.readline()
        if not line:
            raise ToolError(f"{peer} ended with {process.wait()}; its words are above")
        found: dict[str, Any] = json.loads(line)
        return found

    def run(load: Load, size: int) -> Done:
        used = tree_cpu_seconds(process.pid)
        questions.write(json.dumps({"load": list(load), "size": size}) + "\n")
        questions.flush()
        answer = read()
        return Done(answer["seconds"], tree_cpu_seconds(process.pid) - used, answer["made"])

    try:
        yield Side(name, run, read()["version"])
    finally:
        process.kill()
        process.communicate()


def transcriber(server: ServerProcess) -> Side:
    """Our server, which is running: texts of files, so many of them at a time. Uploads are made before the clock."""

    def upload(file: str) -> httpx.Request:
        request = httpx.Request("POST", "http://localhost", files={"file": (Path(file).name, Path(file).read_bytes())})
        request.read()
        return request

    def ask(connection: http.client.HTTPConnection, form: httpx.Request) -> list[str]:
        answer = post(connection, "/v1/audio/transcriptions", form.content, form.headers["content-type"])
        return [str(json.loads(answer)["text"])]

    return Side(OURS, lambda load, size: ask_all(server, list(map(upload, load)), size, ask))


def faster_whisper(model: Path, compute_type: str, threads: int, workers: int = 1) -> AbstractContextManager[Side]:
    """Of ``workers`` at a time, each with so many threads."""
    name = f"faster-whisper {compute_type}" + (f" x{workers}" if workers > 1 else "")
    options = ["--dtype", compute_type, "--threads", str(threads), "--workers", str(workers)]
    return library_side(name, "faster-whisper", str(model), *options)


class _Vector(msgspec.Struct):
    embedding: str


class _Vectors(msgspec.Struct):
    data: list[_Vector]


def vectors_of(model: str, connection: http.client.HTTPConnection, texts: Sequence[str]) -> list[str]:
    """One request: base64 of float32, in order. Raises what :func:`post` raises."""
    body = msgspec.json.encode({"model": model, "input": texts, "encoding_format": "base64"})
    answer = msgspec.json.decode(post(connection, "/v1/embeddings", body), type=_Vectors)
    return [each.embedding for each in answer.data]


def embedder(server: ServerProcess, model: str, connections: int) -> Side:
    """Our server, which is running, over ``connections`` at a time: vectors of texts, so many of them a request."""

    def run(load: Load, size: int) -> Done:
        parts = [load[start : start + size] for start in range(0, len(load), size)]
        return ask_all(server, parts, connections, partial(vectors_of, model))

    return Side(OURS, run)


def sentence_transformers(model: Path, dtype: str, threads: int) -> AbstractContextManager[Side]:
    name = "sentence-transformers"
    return library_side(name, name, str(model), "--dtype", dtype, "--threads", str(threads))
