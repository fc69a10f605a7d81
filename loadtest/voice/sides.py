"""Whoever transcribes files: our server over HTTP, or faster-whisper in a process of its own."""

import contextlib
import http.client
import json
import os
import subprocess
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import msgspec

from ..peers.places import script
from ..processes import tree
from ..server_process import ServerProcess
from .clips import Clip

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
        used = _cpu_seconds(self._server.pid)
        began = time.perf_counter()
        with ThreadPoolExecutor(parallel) as threads:
            texts = list(threads.map(self._ask, bodies))
        seconds = time.perf_counter() - began
        return Transcribed(seconds, _cpu_seconds(self._server.pid) - used, _audio_seconds(files), texts)

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


class FasterWhisper:
    """Context manager around the peer's process. Raises ``RuntimeError`` where there is none or it does not start."""

    def __init__(self, model: Path, compute_type: str, threads: int, workers: int = 1) -> None:
        self.name = f"faster-whisper {compute_type}" + (f" x{workers}" if workers > 1 else "")
        self.version = ""
        python = script("faster-whisper", "python")
        if not python.is_file():
            raise RuntimeError(
                f"faster-whisper is not installed (there is no {python}): make peers ARGS=faster-whisper"
            )
        child = Path(__file__).with_name("faster_whisper_child.py")
        self.command: Final = [
            *(str(python), "-P", str(child), str(model), "--compute-type", compute_type),
            *("--threads", str(threads), "--workers", str(workers)),
        ]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = self._read()["version"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def transcribe(self, files: Sequence[Path], parallel: int) -> Transcribed:
        assert self._process is not None
        assert self._process.stdin is not None
        used = _cpu_seconds(self._process.pid)
        self._process.stdin.write(json.dumps({"files": [str(file) for file in files], "parallel": parallel}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        used = _cpu_seconds(self._process.pid) - used
        return Transcribed(answer["seconds"], used, _audio_seconds(files), answer["texts"])

    def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"faster-whisper ended with {self._process.wait()}; its words are above")
        found: dict[str, Any] = json.loads(line)
        return found


def _audio_seconds(files: Sequence[Path]) -> float:
    return sum(Clip(file, "").seconds for file in files)


def _cpu_seconds(pid: int) -> float:
    """Of a process and all below it, threads that have ended included."""
    ticks = 0
    for each in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


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
