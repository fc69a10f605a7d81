"""Shows how a run goes: on a terminal a picture that a process of its own draws, elsewhere a line now and then.

Drawing takes milliseconds, and the load's event loop has none to spare: a stream that is read late is measured late.
"""

import contextlib
import os
import subprocess
import sys
from types import TracebackType
from typing import IO, Final, Self

import msgspec

from .meter import Snapshot

LINE_SECONDS: Final = 5.0
_END_SECONDS: Final = 5.0


class LiveView:
    """A child that draws; a snapshot that its pipe cannot take at once is dropped.

    It is there once the child has imported what it needs, so that none of that falls into the run.
    """

    def __init__(self) -> None:
        ready, theirs = os.pipe()
        command = [sys.executable, "-P", "-m", "stentor.loadtest.serving.live", str(theirs)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[theirs])
        os.close(theirs)
        os.read(ready, 1)  # until the child closes its end, or dies
        os.close(ready)
        assert self._child.stdin is not None
        self._pipe = self._child.stdin.fileno()
        os.set_blocking(self._pipe, False)

    def show(self, snapshot: Snapshot) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._pipe, msgspec.json.encode(snapshot) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class LineView:
    """A line every few seconds, for logs."""

    def __init__(self, out: IO[str], every: float = LINE_SECONDS) -> None:
        self._out = out
        self._every = every
        self._due = every
        self._before: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        if snapshot.seconds < self._due:
            return
        print(self._line(snapshot), file=self._out, flush=True)
        self._before = snapshot
        while self._due <= snapshot.seconds:
            self._due += self._every

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def _line(self, now: Snapshot) -> str:
        of = f"/{now.planned}" if now.planned is not None else ""
        parts = [
            f"{now.seconds:6.1f} s",
            *([now.stage] if now.stage else []),
            f"{now.completed}{of} done",
            f"{now.in_flight} running",
            f"{token_rate(self._before, now):,.0f} tokens/s",
            f"TTFT p50 {milliseconds(now.ttft_p50)} p99 {milliseconds(now.ttft_p99)}",
            f"ITL p50 {milliseconds(now.itl_p50)} p99 {milliseconds(now.itl_p99)}",
            f"{now.errors} failed",
        ]
        return "  ".join(parts)


def token_rate(before: Snapshot | None, now: Snapshot) -> float:
    """Output tokens a second between two snapshots, or since the start."""
    tokens, seconds = (before.tokens, before.seconds) if before is not None else (0, 0.0)
    return (now.tokens - tokens) / (now.seconds - seconds) if now.seconds > seconds else 0.0


def milliseconds(value: float | None) -> str:
    """A latency for a narrow place."""
    return "-" if value is None else f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"
