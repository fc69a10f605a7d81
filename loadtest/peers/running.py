"""A server of any side as a process: started, found ready, weighed, ended."""

import asyncio
import contextlib
import os
import random
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from ..client import StreamError, complete
from ..processes import alive, cpu_seconds, pss_bytes, tree
from ..server_process import Launched, StartFailed
from .places import home
from .prompts import Words
from .sides import Room, Side

START_SECONDS: Final = 600.0
STOP_SECONDS: Final = 20.0
_FIRST_TOKENS: Final = 8


class ServerError(Exception):
    """A server did not start, or ended; the message is one line, with what the server said last."""


class Server(Launched):
    """Runs from :meth:`start` to :meth:`stop`; both may be called again."""

    def __init__(self, side: Side, weights: Path, port: int, room: Room) -> None:
        super().__init__(port)
        self.side = side
        self.weights = weights
        self._start = side.launch(weights, port, room)

    @property
    def command(self) -> str:
        """The command line that starts it, with what is added to the environment."""
        added = [f"{name}={shlex.quote(value)}" for name, value in self._start.environment.items()]
        return shown(" ".join([*added, shlex.join(self._start.command)]))

    def start(self, words: Words) -> float:
        """Seconds until the first answer of a few tokens was complete. Raises :class:`ServerError`."""
        return self.start_with(self.side.body(self.weights, words.prompt(16, random.Random(0)), _FIRST_TOKENS))

    def start_with(self, body: Mapping[str, Any], path: str = "/v1/completions") -> float:
        """The same with a request of one's own."""
        ours = self.side.peer == "stentor"
        # a peer must import neither our modules nor a folder of ours that is called like one of its own
        hidden = () if ours else ("PYTHONPATH", "PYTHONHOME")
        environment = {key: value for key, value in os.environ.items() if key not in hidden}
        self.launch(
            self._start.command,
            env={**environment, **self._start.environment},
            cwd=None if ours else home(self.side.peer),
            start_new_session=True,  # an interrupt reaches it through stop(), in order
        )
        try:
            self.wait_until("/health", START_SECONDS)
            asyncio.run(asyncio.wait_for(complete(self.port, body, path), START_SECONDS))
        except (StartFailed, StreamError, TimeoutError) as error:
            said = self._last()
            self.stop()
            why = str(error) or "gave no answer in time"
            raise ServerError(f"{self.side.name} {why}; it said last: {said}") from None
        except BaseException:
            self.stop()
            raise
        return time.perf_counter() - self.began

    def memory(self) -> int:
        """Proportional set size of all its processes, in bytes."""
        return sum(map(pss_bytes, self._pids()))

    def cpu(self) -> float:
        """CPU seconds that all of its processes have used."""
        return sum(map(cpu_seconds, self._pids()))

    def stop(self) -> None:
        """Ends it and everything that it started."""
        if self._process is None:
            return
        self.end(STOP_SECONDS)
        for pid in self._pids():  # those that outlived it
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process = None

    def _last(self) -> str:
        """The last line that it printed which tells of an error, or else the last one."""
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        telling = [line for line in lines if "rror" in line] or lines or ["nothing"]
        return telling[-1][:300]

    def _pids(self) -> list[int]:
        """It, all below it, and what of its session has outlived its parent."""
        if self._process is None:
            return []
        session = filter(partial(_in_session, self._process.pid), map(int, filter(str.isdecimal, os.listdir("/proc"))))
        return [pid for pid in {each for pid in session for each in tree(pid)} if alive(pid)]


def shown(text: str) -> str:
    """A command or path without this interpreter's place and the user's home."""
    return text.replace(sys.executable, "python").replace(f"{Path.home()}/", "~/")


def _in_session(leader: int, pid: int) -> bool:
    try:
        return os.getsid(pid) == leader
    except (ProcessLookupError, PermissionError):
        return False
