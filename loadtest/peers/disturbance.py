"""Who else computed during a measurement: the other servers of the run, and everything else on the machine."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .figures import Round
from .running import Server

_BUSY: Final = (1, 2, 3, 6, 7, 8)
"""Columns of /proc/stat's first line: user, nice, system, irq, softirq, steal (proc_stat(5))."""


class Disturbance:
    """CPU time, from when it is made, of all but the measured server and this client."""

    def __init__(self, measured: Server, others: Sequence[Server]) -> None:
        self._measured = measured
        self._others = others
        self._began = time.monotonic()
        self._before = self._now()

    def figures(self) -> Round:
        """Cores' worth of CPU time since: ``others_cores`` of servers that should be idle, ``strangers_cores`` of
        processes that are not of this run.
        """
        seconds = time.monotonic() - self._began
        busy, ours, others = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return {"others_cores": others / seconds, "strangers_cores": max(0.0, busy - ours - others) / seconds}

    def _now(self) -> tuple[float, float, float]:
        times = os.times()
        ours = self._measured.cpu() + times.user + times.system
        return busy_seconds(), ours, sum(server.cpu() for server in self._others)


def busy_seconds(stat: Path = Path("/proc/stat")) -> float:
    """CPU seconds that the machine has computed since it started, over all cores."""
    fields = stat.read_text().split("\n", 1)[0].split()
    return sum(int(fields[number]) for number in _BUSY) / os.sysconf("SC_CLK_TCK")
