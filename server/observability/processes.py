"""Resources of this server's processes, read from ``/proc`` when the metrics page is requested.

The process tree is walked anew each time: a restarted engine or worker has another pid. Its CPU seconds then begin at 0
again, as a counter's may.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

ROLES: Final = {
    "stentor-engine": "engine",
    "stentor-worker": "worker",
    "stentor-forksrv": "forkserver",
    "stentor-speech": "speech",
}
"""By a process's own name; all others are helpers."""

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_UTIME, _STIME, _RSS = 11, 12, 21
"""Places in ``/proc/PID/stat`` after the name in brackets (proc(5): fields 14, 15 and 24)."""


@dataclass(slots=True)
class Usage:
    processes: int = 0
    resident_bytes: int = 0
    open_fds: int = 0
    cpu_seconds: float = 0.0


class ProcessCollector:
    """Figures of the process that scrapes and of all below it, added up by role."""

    def __init__(self, model: str) -> None:
        self._model = model

    def collect(self) -> Iterator[Metric]:
        usage = usage_by_role(os.getpid())
        labels = ("model_name", "process")
        resident = GaugeMetricFamily(
            "stentor:process_resident_memory_bytes",
            "Resident memory of the processes of this kind, in bytes.",
            None,
            labels,
        )
        fds = GaugeMetricFamily(
            "stentor:process_open_fds", "Open file descriptors of the processes of this kind.", None, labels
        )
        count = GaugeMetricFamily("stentor:processes", "Running processes of this kind.", None, labels)
        cpu = CounterMetricFamily(
            "stentor:process_cpu_seconds", "CPU seconds (user and system) of the processes of this kind.", None, labels
        )
        for role, one in sorted(usage.items()):
            values = (self._model, role)
            resident.add_metric(values, one.resident_bytes)
            fds.add_metric(values, one.open_fds)
            count.add_metric(values, one.processes)
            cpu.add_metric(values, one.cpu_seconds)
        yield from (resident, fds, count, cpu)


def resident_bytes(pid: int) -> int | None:
    """None once it has ended."""
    try:
        _, fields = _stat(Path(f"/proc/{pid}"))
        return int(fields[_RSS]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def usage_by_role(server: int) -> dict[str, Usage]:
    """``server`` is a process id. A process that ends meanwhile is skipped."""
    found: dict[str, Usage] = defaultdict(Usage)
    waiting = [server]
    while waiting:
        pid = waiting.pop()
        folder = Path(f"/proc/{pid}")
        try:
            name, fields = _stat(folder)
            fds = len(os.listdir(folder / "fd"))
            waiting += _children(folder)
        except (OSError, ValueError, IndexError):
            continue
        one = found["server" if pid == server else ROLES.get(name, "helper")]
        one.processes += 1
        one.resident_bytes += int(fields[_RSS]) * _PAGE
        one.open_fds += fds
        one.cpu_seconds += (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS
    return dict(found)


def _stat(folder: Path) -> tuple[str, list[str]]:
    """The name, which may hold anything, and the fields after it."""
    before, _, after = (folder / "stat").read_text(errors="replace").rpartition(")")
    return before.partition("(")[2], after.split()


def _children(folder: Path) -> list[int]:
    """Children of all threads: a child belongs to the thread that started it."""
    found = []
    for thread in (folder / "task").iterdir():
        try:
            found += [int(word) for word in (thread / "children").read_text().split()]
        except OSError:  # the thread has ended, or the kernel does not report it
            continue
    return found
