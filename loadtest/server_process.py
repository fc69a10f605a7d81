"""A real ``stentor serve`` on a free port, for as long as a block lasts."""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.hub import resolve_model

_HOST = "127.0.0.1"
_START_SECONDS = 120.0
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.02


class ServerProcess:
    """Context manager: leaves once ``/health`` answers 200, ends with SIGTERM."""

    def __init__(self, arguments: Sequence[str], module: str = "stentor.server.main.cli") -> None:
        self._arguments = list(arguments)
        self._module = module
        self._log: IO[bytes] | None = None
        held = hold_port()
        self.port: int = held.getsockname()[1]
        weakref.finalize(self, held.close)
        self.seconds_to_ready = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server has not been started")
        return self._process.pid

    @property
    def command(self) -> list[str]:
        """How it was started; the port comes last."""
        serve = [sys.executable, "-P", "-m", self._module, "serve", *self._arguments]
        return [*serve, "--host", _HOST, "--port", str(self.port)]

    def wait(self, seconds: float) -> int:
        """The exit code of a server that ends by itself within ``seconds``."""
        if self._process is None:
            raise RuntimeError("the server has not been started")
        return self._process.wait(seconds)

    @property
    def weights(self) -> Path:
        """The file or folder that holds the served model."""
        checkpoint = open_checkpoint(resolve_model(self._arguments[0]), "auto")
        return checkpoint.files[0] if checkpoint.format == "gguf" else checkpoint.folder

    def __enter__(self) -> Self:
        began = time.monotonic()
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
        )
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() - began > _START_SECONDS:
                printed = self.output()
                self.__exit__(None, None, None)
                raise SystemExit(f"the server did not start:\n{printed}")
            time.sleep(_POLL_SECONDS)
        self.seconds_to_ready = time.monotonic() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None or self._log is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._log.close()

    def output(self) -> str:
        """What it has printed so far."""
        if self._log is None:
            raise RuntimeError("the server has not been started")
        # not by seek and read: the server writes at the offset that both share
        log = self._log.fileno()
        return os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{_HOST}:{self.port}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def hold_port() -> socket.socket:
    """A socket bound to a free port. Until it is closed nobody else gets the port who does not ask for it by number;
    a server, which sets ``SO_REUSEADDR``, can listen on it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((_HOST, 0))
    return sock


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((_HOST, 0))
        port: int = sock.getsockname()[1]
        return port
