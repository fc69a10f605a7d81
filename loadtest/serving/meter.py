"""Counters of a running load, and the progress line that shows them."""

from collections import deque
from typing import Final, TextIO

from ..record import quantile

LINE_SECONDS: Final = 5.0
"""Between two lines of a log."""
_RECENT: Final = 2048


class Meter:
    """Counters, and the latest latencies in seconds. Nothing here grows with the length of a run."""

    def __init__(self) -> None:
        self.stage = ""
        self.completed = 0
        self.errors = 0
        self.in_flight = 0
        self.peak = 0
        self.tokens = 0
        self.ttft: deque[float] = deque(maxlen=_RECENT)
        self.gaps: deque[float] = deque(maxlen=_RECENT)
        """Between two reads of one stream."""

    def begin(self) -> None:
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)


class ProgressLine:
    """Shows how a run goes: on a terminal one line that is written over, elsewhere a line every few seconds."""

    def __init__(self, out: TextIO, requests: int = 0, seconds: float = 0.0) -> None:
        """``requests`` and ``seconds``: how many are planned in all, where it is known."""
        self._out = out
        self._live = out.isatty()
        self._of = f"/{requests}" if requests else ""
        self._until = f"/{seconds:g}" if seconds else ""
        self._due = 0.0 if self._live else LINE_SECONDS
        self._before = (0.0, 0)

    def show(self, meter: Meter, seconds: float) -> None:
        """``seconds``: since the run's start."""
        if seconds < self._due:
            return
        before, tokens = self._before
        rate = (meter.tokens - tokens) / (seconds - before) if seconds > before else 0.0
        parts = [
            f"{seconds:6.1f}{self._until} s",
            meter.stage,
            f"{meter.completed}{self._of} done",
            f"{meter.in_flight} running",
            f"{rate:,.0f} tokens/s",
            f"TTFT {_percentiles(meter.ttft)}",
            f"ITL {_percentiles(meter.gaps)}",
            f"{meter.errors} failed",
        ]
        line = "  ".join(filter(None, parts))
        print(f"\r\x1b[K{line}" if self._live else line, end="" if self._live else "\n", file=self._out, flush=True)
        self._before = seconds, meter.tokens
        if not self._live:
            self._due = (seconds // LINE_SECONDS + 1) * LINE_SECONDS

    def clear(self) -> None:
        """Leaves a terminal as it was."""
        if self._live:
            print("\r\x1b[K", end="", file=self._out, flush=True)


def _percentiles(recent: deque[float]) -> str:
    ordered = sorted(recent)
    return f"p50 {1e3 * quantile(ordered, 0.5):,.1f} p99 {1e3 * quantile(ordered, 0.99):,.1f} ms" if ordered else "-"
