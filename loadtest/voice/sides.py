"""Whoever transcribes files: our server over HTTP, or faster-whisper in a process of its own."""

import http.client
import json
from pathlib import Path

import httpx

from ..peers.libraries import OURS, Done, LibrarySide, Load, ask_all, post
from ..server_process import ServerProcess

Body = tuple[str, bytes]
"""Content type and body of an upload."""


class Ours:
    """A server that is running."""

    name = OURS

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def run(self, load: Load, size: int) -> Done:
        """Texts of files, ``size`` of them at a time."""
        return ask_all(self._server, [_form(Path(file)) for file in load], size, _ask)


def faster_whisper(model: Path, compute_type: str, threads: int, workers: int = 1) -> LibrarySide:
    """Of ``workers`` at a time, each with so many threads."""
    name = f"faster-whisper {compute_type}" + (f" x{workers}" if workers > 1 else "")
    options = ["--dtype", compute_type, "--threads", str(threads), "--workers", str(workers)]
    return LibrarySide(name, "faster-whisper", str(model), *options)


def _ask(connection: http.client.HTTPConnection, body: Body) -> list[str]:
    return [str(json.loads(post(connection, "/v1/audio/transcriptions", body[1], body[0]))["text"])]


def _form(file: Path) -> Body:
    request = httpx.Request("POST", "http://localhost", files={"file": (file.name, file.read_bytes())})
    return request.headers["content-type"], request.read()
