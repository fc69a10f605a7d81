"""One start of ``stentor serve``, and when it reached what."""

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from .client import RequestFailed, stream_completion
from .processes import pss_bytes, tree

HOST: Final = "127.0.0.1"
NAME: Final = "startup"
POLL_SECONDS: Final = 0.02
STOP_SECONDS: Final = 15.0
PROMPT: Final = list(range(1, 17))

_BEGUN: Final = "…"


class StartFailed(Exception):
    """The server did not come up; the message says what it printed."""


class _Line(msgspec.Struct):
    time: datetime
    message: str


_decode_line = msgspec.json.Decoder(_Line).decode


class TimedStart:
    """Context manager: starts a server on a free port, ends it with SIGTERM. All times are seconds since the start."""

    def __init__(self, model: Path, serve: Sequence[str], environment: Mapping[str, str], timeout: float) -> None:
        self._port = _free_port()
        own = ["--served-model-name", NAME, "--host", HOST, "--port", str(self._port), "--log-format", "json"]
        self._command = [sys.executable, "-P", "-m", "stentor.server.main.cli", "serve", str(model), *own, *serve]
        self._environment = {**os.environ, **environment}
        self._timeout = timeout
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self._began_at = 0.0

    def __enter__(self) -> Self:
        self._began, self._began_at = time.perf_counter(), time.time()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=self._environment
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._running
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            self._log.close()

    def wait_until_listening(self) -> float:
        """Until it answers HTTP at all. Raises :class:`StartFailed`."""
        return self._wait_for("/ping")

    def wait_until_ready(self) -> float:
        """Until ``/health`` says 200. Raises :class:`StartFailed`."""
        return self._wait_for("/health")

    async def first_token(self) -> float:
        """Sends a short completion; until its first token. Raises :class:`StartFailed`."""
        body = {"model": NAME, "prompt": PROMPT, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
        try:
            stream = await stream_completion(HOST, self._port, body)
        except (RequestFailed, OSError) as error:
            raise StartFailed(f"the first request failed: {error}") from error
        return stream.arrivals[0][0] - self._began

    def phases(self, ready: float) -> dict[str, float]:
        """Seconds of each phase that the server has logged, up to ``ready``; they follow one another."""
        return read_phases(self._output(), self._began_at, ready)

    def memory(self) -> dict[str, int]:
        """Bytes (PSS) by name of process."""
        found: dict[str, int] = {}
        for pid in tree(self._running.pid):
            called = Path(f"/proc/{pid}/comm").read_text().strip()
            name = "server" if pid == self._running.pid else called.removeprefix("stentor-")
            found[name] = found.get(name, 0) + pss_bytes(pid)
        return found

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server has not been started")
        return self._process

    def _wait_for(self, path: str) -> float:
        while not self._answers(path):
            if self._running.poll() is not None:
                raise StartFailed(f"the server ended with {self._running.returncode}:\n{self._output()}")
            if time.perf_counter() - self._began > self._timeout:
                raise StartFailed(f"no 200 from {path} within {self._timeout:.0f} s:\n{self._output()}")
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - self._began

    def _answers(self, path: str) -> bool:
        # the socket takes connections before anybody reads them: a request waits, and is answered at once then
        connection = http.client.HTTPConnection(HOST, self._port, timeout=1)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", path)
            return connection.getresponse().status == 200
        return False

    def _output(self) -> str:
        # not by seek and read: the server writes at the offset that both share
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode(errors="replace")


def read_phases(log: str, began_at: float, ready: float) -> dict[str, float]:
    """Seconds from each phase's first line to that of the next, the last one to ``ready``.

    Args:
        log: lines of JSON among others; one whose message ends in an ellipsis begins a phase.
        began_at: ``time.time()`` of the start; what comes before the first phase is ``starting processes``.
        ready: seconds from then to the end of the last phase.
    """
    begins: dict[str, float] = {"starting processes": 0.0}
    for text in log.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            line = _decode_line(text)
            if line.message.endswith(_BEGUN):
                begins.setdefault(line.message.removesuffix(_BEGUN), line.time.timestamp() - began_at)
    ends = [*list(begins.values())[1:], ready]
    return {name: end - begin for (name, begin), end in zip(begins.items(), ends, strict=True)}


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port
