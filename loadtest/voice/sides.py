"""Whoever transcribes files: our server over HTTP, or faster-whisper in a process of its own."""

import http.client
import json
from contextlib import AbstractContextManager
from pathlib import Path

import httpx

from ..peers.libraries import OURS, Side, ask_all, library_side, post
from ..server_process import ServerProcess

Body = tuple[str, bytes]
"""Content type and body of an upload."""


def ours(server: ServerProcess) -> Side:
    """A server that is running: texts of files, so many of them at a time."""
    return Side(OURS, lambda load, size: ask_all(server, [_form(Path(file)) for file in load], size, _ask))


def faster_whisper(model: Path, compute_type: str, threads: int, workers: int = 1) -> AbstractContextManager[Side]:
    """Of ``workers`` at a time, each with so many threads."""
    name = f"faster-whisper {compute_type}" + (f" x{workers}" if workers > 1 else "")
    options = ["--dtype", compute_type, "--threads", str(threads), "--workers", str(workers)]
    return library_side(name, "faster-whisper", str(model), *options)


def _ask(connection: http.client.HTTPConnection, body: Body) -> list[str]:
    return [str(json.loads(post(connection, "/v1/audio/transcriptions", body[1], body[0]))["text"])]


def _form(file: Path) -> Body:
    request = httpx.Request("POST", "http://localhost", files={"file": (file.name, file.read_bytes())})
    return request.headers["content-type"], request.read()
