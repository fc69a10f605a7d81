"""Resources of this server's processes, read from ``/proc`` when the metrics page is requested.

The process tree is walked anew each time: a restarted engine or worker has another pid.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
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
_UTIME, _STIME, _STARTED, _RSS = 11, 12, 19, 21
"""Places in ``/proc/PID/stat`` after the name in brackets (proc(5): fields 14, 15, 22 and 24)."""


class Usage(msgspec.Struct):
    processes: int = 0
    resident_bytes: int = 0
    open_fds: int = 0
    cpu_seconds: float = 0.0


class _Process(msgspec.Struct, frozen=True):
    role: str
    identity: tuple[int, str]
    """Its pid and when it started: pids are used again."""
    resident_bytes: int
    open_fds: int
    cpu_ticks: int


class ProcessCollector:
    """Figures of the process that scrapes and of all below it, added up by role."""

    def __init__(self, model: str, server: int) -> None:
        """``server`` is the process id of the first."""
        self._model = model
        self._server = server
        self._cpu_ticks: dict[str, int] = defaultdict(int)
        """By role, over all processes that there were: what one used after the last look at it is lost."""
        self._seen: dict[tuple[int, str], int] = {}
        """CPU ticks of each process at the last look."""

    def collect(self) -> Iterator[Metric]:
        processes = list(_processes(self._server))
        usage = _added_up(processes)
        for each in processes:
            self._cpu_ticks[each.role] += each.cpu_ticks - self._seen.get(each.identity, 0)
        self._seen = {each.identity: each.cpu_ticks for each in processes}
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
            "stentor:process_cpu_seconds",
            "CPU seconds (user and system) of the processes of this kind, also of those that have ended.",
            None,
            labels,
        )
        for role, one in sorted(usage.items()):
            values = (self._model, role)
            resident.add_metric(values, one.resident_bytes)
            fds.add_metric(values, one.open_fds)
            count.add_metric(values, one.processes)
        for role, ticks in sorted(self._cpu_ticks.items()):
            cpu.add_metric((self._model, role), ticks / _TICKS)
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
    return _added_up(_processes(server))


def _added_up(processes: Iterable[_Process]) -> dict[str, Usage]:
    found: dict[str, Usage] = defaultdict(Usage)
    for each in processes:
        one = found[each.role]
        one.processes += 1
        one.resident_bytes += each.resident_bytes
        one.open_fds += each.open_fds
        one.cpu_seconds += each.cpu_ticks / _TICKS
    return dict(found)


def _processes(server: int) -> Iterator[_Process]:
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
        role = "server" if pid == server else ROLES.get(name, "helper")
        resident, ticks = int(fields[_RSS]) * _PAGE, int(fields[_UTIME]) + int(fields[_STIME])
        yield _Process(role, (pid, fields[_STARTED]), resident, fds, ticks)


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
