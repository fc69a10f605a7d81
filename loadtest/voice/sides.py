"""Whoever transcribes files: our server over HTTP, or faster-whisper in a process of its own."""

import http.client
import json
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

import msgspec

from ..peers.child import PeerChild
from ..processes import tree_cpu_seconds
from ..server_process import ServerProcess
from .clips import Clip

PEER: Final = "faster-whisper"
_TIMEOUT: Final = 600.0


class Transcribed(msgspec.Struct, frozen=True):
    """What came of some files, in order, and how long all of them took together."""

    seconds: float
    cpu_seconds: float
    """Of all threads of all processes of the side: on a machine with neighbours a steadier figure than the time."""
    audio_seconds: float
    texts: list[str]


class Side(Protocol):
    @property
    def name(self) -> str: ...

    def transcribe(self, files: Sequence[Path], parallel: int) -> Transcribed:
        """``parallel`` of them at a time."""


class Ours:
    """A server that is running."""

    name = "stentor"

    def __init__(self, server: ServerProcess, fields: Sequence[tuple[str, str]] = ()) -> None:
        self._server = server
        self._fields = fields

    def transcribe(self, files: Sequence[Path], parallel: int) -> Transcribed:
        bodies = [_form(file, self._fields) for file in files]
        used = tree_cpu_seconds(self._server.pid)
        began = time.perf_counter()
        with ThreadPoolExecutor(parallel) as threads:
            texts = list(threads.map(self._ask, bodies))
        seconds = time.perf_counter() - began
        return Transcribed(seconds, tree_cpu_seconds(self._server.pid) - used, _audio_seconds(files), texts)

    def _ask(self, body: tuple[str, bytes]) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=_TIMEOUT)
        try:
            connection.request("POST", "/v1/audio/transcriptions", body[1], {"content-type": body[0]})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"the server answered {answer.status}: {content[:300]!r}")
        return str(json.loads(content)["text"])


class FasterWhisper(PeerChild):
    """The peer's process."""

    def __init__(self, model: Path, compute_type: str, threads: int, workers: int = 1) -> None:
        self.name = f"{PEER} {compute_type}" + (f" x{workers}" if workers > 1 else "")
        program = Path(__file__).with_name("faster_whisper_child.py")
        arguments = [str(model), "--compute-type", compute_type, "--threads", str(threads), "--workers", str(workers)]
        super().__init__(PEER, program, arguments)

    def transcribe(self, files: Sequence[Path], parallel: int) -> Transcribed:
        answer, used = self.ask({"files": [str(file) for file in files], "parallel": parallel})
        return Transcribed(answer["seconds"], used, _audio_seconds(files), answer["texts"])


def _audio_seconds(files: Sequence[Path]) -> float:
    return sum(Clip(file, "").seconds for file in files)


def _form(file: Path, fields: Sequence[tuple[str, str]]) -> tuple[str, bytes]:
    """Content type and body of an upload."""
    border = uuid.uuid4().hex
    parts = [
        f'--{border}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields
    ]
    head = f'--{border}\r\ncontent-disposition: form-data; name="file"; filename="{file.name}"\r\n\r\n'.encode()
    return f"multipart/form-data; boundary={border}", b"".join(
        (*parts, head, file.read_bytes(), f"\r\n--{border}--\r\n".encode())
    )
