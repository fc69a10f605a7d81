"""A peer that computes in a process of its own, of its own environment, and answers lines of JSON."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ..processes import tree_cpu_seconds
from .places import script


class PeerChild:
    """Context manager around the process, which says its version first and then answers each line with one."""

    def __init__(
        self, peer: str, program: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """``environment`` is added to this process's own. Raises ``RuntimeError`` where the peer is not installed."""
        self._peer = peer
        self.version = ""
        python = script(peer, "python")
        if not python.is_file():
            raise RuntimeError(f"{peer} is not installed (there is no {python}): make peers ARGS={peer}")
        self.command: Final = [str(python), "-P", str(program), *arguments]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Raises ``RuntimeError`` where it does not start."""
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment
        )
        self.version = self._read()["version"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def ask(self, question: Mapping[str, object]) -> tuple[dict[str, Any], float]:
        """The answer, and seconds of CPU that it took. Raises ``RuntimeError`` where the process has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        used = tree_cpu_seconds(self._process.pid)
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        return answer, tree_cpu_seconds(self._process.pid) - used

    def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._peer} ended with {self._process.wait()}; its words are above")
        found: dict[str, Any] = json.loads(line)
        return found
