"""A server as a process: launched on a port, found ready, ended; of ours, for as long as a block lasts."""

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 270.0
"""Four models take 14 seconds of a core, and twenty times as long where others have most of it. A server that crashes
is noticed at once."""
_STOP_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.02


class StartFailed(Exception):
    """A server did not come up; the message says why, in one line."""


class Launched:
    """A server's process and what it prints, from :meth:`launch` to :meth:`end`; both may be called again."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.began = self.began_at = 0.0
        """Of the last launch, by ``time.perf_counter()`` and ``time.time()``."""
        self._log: int | None = None
        """Memory that has no name: what the server prints."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._running.pid

    def launch(self, command: Sequence[str], **options: Any) -> None:
        """``options`` are those of ``subprocess.Popen``."""
        self._log = os.memfd_create("log", os.MFD_CLOEXEC)
        self.began, self.began_at = time.perf_counter(), time.time()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, **options
        )

    def wait_until(self, path: str, seconds: float) -> float:
        """Seconds from the launch until ``path`` answers 200. Raises :class:`StartFailed`."""
        while not self._answers(path):
            if self._running.poll() is not None:
                raise StartFailed(f"ended with status {self._running.returncode}")
            if time.perf_counter() - self.began > seconds:
                raise StartFailed(f"gave no 200 from {path} within {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)
        return time.perf_counter() - self.began

    def wait(self, seconds: float) -> int:
        """The exit code of a server that ends by itself within ``seconds``."""
        return self._running.wait(seconds)

    def end(self, seconds: float = _STOP_SECONDS) -> None:
        """SIGTERM, and SIGKILL after ``seconds``; nothing where it does not run."""
        if self._process is None or self._log is None:
            return
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._log)
            self._log = None

    def output(self) -> str:
        """What it has printed so far."""
        if self._log is None:
            raise RuntimeError("the server has not been started")
        # not by seek and read: the server writes at the offset that both share
        return os.pread(self._log, os.fstat(self._log).st_size, 0).decode(errors="replace")

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server has not been started")
        return self._process

    def _answers(self, path: str) -> bool:
        # the socket takes connections before anybody reads them: a request waits, and is answered at once then
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", path)
            return connection.getresponse().status == 200
        return False


class ServerProcess(Launched):
    """Context manager around a real ``stentor serve``: enters once ``/health`` answers 200, ends it with SIGTERM."""

    def __init__(
        self,
        arguments: Sequence[str],
        module: str = "stentor.server.main.cli",
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``environment`` is added to this process's own."""
        held = hold_port()
        super().__init__(held.getsockname()[1])
        weakref.finalize(self, held.close)
        self.seconds_to_ready = 0.0
        self._arguments = list(arguments)
        self._module = module
        self.environment = {**os.environ, **(environment or {})}

    @property
    def command(self) -> list[str]:
        """How it was started; the port comes last."""
        serve = [sys.executable, "-P", "-m", self._module, "serve", *self._arguments]
        return [*serve, "--host", HOST, "--port", str(self.port)]

    def __enter__(self) -> Self:
        self.launch(self.command, env=self.environment)
        try:
            self.seconds_to_ready = self.wait_until("/health", _START_SECONDS)
        except StartFailed:
            printed = self.output()
            self.end()
            raise SystemExit(f"the server did not start:\n{printed}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def hold_port() -> socket.socket:
    """A socket bound to a free port. While it is open, no program that asks for any free port gets this one; a server,
    which sets ``SO_REUSEADDR``, can listen on it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, 0))
    return sock


def free_port() -> int:
    with hold_port() as sock:
        port: int = sock.getsockname()[1]
        return port
