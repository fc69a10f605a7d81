"""A server of any side as a process: started, found ready, weighed, put to sleep, ended."""

import asyncio
import contextlib
import os
import random
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from ..processes import alive, children, cpu_seconds, pss_bytes
from .places import home
from .prompts import Words
from .sides import HOST, Side
from .stream import Answer, StreamError, complete

START_SECONDS: Final = 600.0
STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.02
_FIRST_TOKENS: Final = 8
_Number = TypeVar("_Number", int, float)


class ServerError(Exception):
    """A server did not start, or ended; the message is one line, with what the server said last."""


class Server:
    """Runs from :meth:`start` to :meth:`stop`; both may be called again."""

    def __init__(self, side: Side, weights: Path, port: int) -> None:
        self.side = side
        self.weights = weights
        self.port = port
        self.paused = False
        self._launch = side.launch(weights, port)
        self._log: int | None = None
        """Memory that has no name: what the server prints."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> str:
        """As one would type it, with what is added to the environment; nothing of this machine but folder names."""
        added = [f"{name}={shlex.quote(value)}" for name, value in self._launch.environment.items()]
        return shown(" ".join([*added, shlex.join(self._launch.command)]))

    def start(self, words: Words) -> float:
        """Seconds until the first answer of a few tokens was complete. Raises :class:`ServerError`."""
        began = time.monotonic()
        self._log = os.memfd_create("log", os.MFD_CLOEXEC)
        ours = self.side.peer == "stentor"
        # a peer sees neither our modules nor a folder of ours that is called like one of its own
        hidden = () if ours else ("PYTHONPATH", "PYTHONHOME")
        environment = {key: value for key, value in os.environ.items() if key not in hidden}
        self._process = subprocess.Popen(
            self._launch.command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**environment, **self._launch.environment},
            cwd=None if ours else home(self.side.peer),
            start_new_session=True,  # an interrupt reaches it through stop(), in order
        )
        try:
            self._wait(self._healthy, began)
            self.ask(words, random.Random(0), 16, _FIRST_TOKENS)
        except BaseException:
            self.stop()
            raise
        return time.monotonic() - began

    def ask(self, words: Words, rng: random.Random, prompt: int, output: int) -> Answer:
        """One completion, alone. Raises :class:`ServerError`."""
        body = self.side.body(self.weights, words.prompt(prompt, rng), output)
        try:
            return asyncio.run(asyncio.wait_for(complete(HOST, self.port, body), START_SECONDS))
        except (StreamError, OSError) as error:
            raise ServerError(f"{self.side.name} failed a request: {error}; it said last: {self._last()}") from error

    def memory(self) -> int:
        """Proportional set size of all its processes, in bytes."""
        return sum(_of_each(self._pids(), pss_bytes))

    def cpu(self) -> float:
        """CPU seconds that all of its processes have used."""
        return sum(_of_each(self._pids(), cpu_seconds))

    def pause(self) -> None:
        """Stops every process of it by signal, so that none can spin."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """After :meth:`pause`; otherwise nothing."""
        if self.paused:
            self._signal(signal.SIGCONT)
            self.paused = False

    def stop(self) -> None:
        """Ends it and everything that it started."""
        if self._process is None or self._log is None:
            return
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._signal(signal.SIGKILL)  # those that outlived it
        os.close(self._log)
        self._process = self._log = None

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _wait(self, ready: Callable[[], bool], began: float) -> None:
        assert self._process is not None
        while not ready():
            if self._process.poll() is not None:
                raise ServerError(
                    f"{self.side.name} ended with status {self._process.returncode}; it said last: {self._last()}"
                )
            if time.monotonic() - began > START_SECONDS:
                raise ServerError(
                    f"{self.side.name} was not ready within {START_SECONDS:.0f} s; it said last: {self._last()}"
                )
            time.sleep(_POLL_SECONDS)

    def _last(self) -> str:
        """The last line that it printed which tells of an error, or else the last one."""
        if self._log is None:
            return "nothing"
        size = os.fstat(self._log).st_size
        lines = os.pread(self._log, min(size, 1 << 16), max(0, size - (1 << 16))).decode(errors="replace").splitlines()
        lines = [line.strip() for line in lines if line.strip()]
        telling = [line for line in lines if "rror" in line] or lines or ["nothing"]
        return telling[-1][:300]

    def _pids(self) -> list[int]:
        """It, all below it, and what of its session has outlived its parent."""
        if self._process is None:
            return []
        found: list[int] = []
        waiting = [self._process.pid, *_session(self._process.pid)]
        while waiting:
            pid = waiting.pop()
            if pid not in found and alive(pid):
                found.append(pid)
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    waiting += children(pid)
        return found

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def shown(text: str) -> str:
    """A command or path without this interpreter's place and the user's home."""
    return text.replace(sys.executable, "python").replace(f"{Path.home()}/", "~/")


def _session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(int(entry.name)) == leader:
                    found.append(int(entry.name))
    return found


def _of_each(pids: list[int], measure: Callable[[int], _Number]) -> list[_Number]:
    """Without those that ended meanwhile."""
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(measure(pid))
    return found
