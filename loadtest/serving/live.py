"""Draws a run on a terminal, in a process of its own: snapshots come on stdin, a JSON object a line, until it ends.

The one argument is a descriptor that is closed once all is imported.
"""

import os
import signal
import sys
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .meter import Snapshot
from .view import milliseconds, token_rate

HISTORY: Final = 240
"""Snapshots that the sparkline remembers."""
_BARS: Final = "▁▂▃▄▅▆▇█"
_SMOOTH: Final = 4
"""Snapshots that a current rate is taken over."""


def sparkline(values: Iterable[float], width: int) -> str:
    """The last ``width`` values as bars, the greatest of them full height."""
    kept = list(values)[-width:]
    top = max(kept, default=0.0)
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] if top > 0 else _BARS[0] for value in kept)


class Picture:
    """The latest snapshot, and rates of those before."""

    def __init__(self) -> None:
        self._recent: deque[Snapshot] = deque(maxlen=_SMOOTH + 1)
        self._rates: deque[float] = deque(maxlen=HISTORY)
        self._peak = 0.0

    def take(self, snapshot: Snapshot) -> None:
        self._recent.append(snapshot)
        rate = token_rate(self._recent[0] if len(self._recent) > 1 else None, snapshot)
        self._rates.append(rate)
        self._peak = max(self._peak, rate)

    def render(self, width: int) -> RenderableType:
        now = self._recent[-1]
        share, done = _progress(now)
        head = Table.grid(padding=(0, 2))
        head.add_row(ProgressBar(total=1.0, completed=share, width=min(40, width // 2)), Text(done))
        body = Table.grid(padding=(0, 2))
        body.add_column(style="dim")
        body.add_column()
        if now.stage:
            body.add_row("stage", now.stage)
        body.add_row("running", f"{now.in_flight}")
        failed = Text(str(now.errors), style="bold red" if now.errors else "")
        body.add_row("failed", failed)
        body.add_row(
            "tokens/s", f"{self._rates[-1]:,.0f}  [dim]mean {token_rate(None, now):,.0f}, peak {self._peak:,.0f}"
        )
        body.add_row("", Text(sparkline(self._rates, min(60, max(10, width - 20))), style="cyan"))
        body.add_row("TTFT", f"p50 {milliseconds(now.ttft_p50)}  p99 {milliseconds(now.ttft_p99)}")
        body.add_row("ITL", f"p50 {milliseconds(now.itl_p50)}  p99 {milliseconds(now.itl_p99)}")
        return Group(head, body)


def _progress(now: Snapshot) -> tuple[float, str]:
    ended = now.completed + now.errors
    shares = [ended / now.planned] if now.planned else []
    shares += [now.seconds / now.planned_seconds] if now.planned_seconds else []
    of = f"/{now.planned}" if now.planned is not None else ""
    until = f"/{now.planned_seconds:g}" if now.planned_seconds is not None else ""
    return min(1.0, max(shares, default=0.0)), f"{ended}{of} requests, {now.seconds:.0f}{until} s"


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the load ends first, and closes our stdin
    picture, console = Picture(), Console()
    decode = msgspec.json.Decoder(Snapshot).decode
    os.close(int(sys.argv[1]))
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for line in sys.stdin.buffer:
            picture.take(decode(line))
            live.update(picture.render(console.width), refresh=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
