"""What the kernel says of a server's processes. Of one that has ended there is nothing: no children, 0 seconds."""

import os
import time
from glob import glob
from pathlib import Path
from typing import Final

_SCHEDULED: Final = 2
"""Of the clocks of a process, which are numbered by its own number: what the scheduler counts (clock_getcpuclockid(3)).
"""


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between opening and reading
        return ""


def _stat(pid: int) -> list[str]:
    """Fields of proc_pid_stat(5) from the third on: the state first."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    return [int(child) for task in glob(f"/proc/{pid}/task/*") for child in _read(f"{task}/children").split()]


def tree(pid: int) -> list[int]:
    """The process and all below it: server, engine, fork server and worker."""
    return [pid, *(each for child in children(pid) for each in tree(child))]


def named(pid: int, name: str) -> list[int]:
    """The process and all below it that live and have this name: ``stentor-engine``, ``-forksrv``, ``-worker``."""
    return [each for each in tree(pid) if _read(f"/proc/{each}/comm").strip() == name and alive(each)]


def alive(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"])


def stopped(pid: int) -> bool:
    """Whether a signal has stopped it."""
    return _stat(pid)[:1] == ["T"]


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads, those that have ended included."""
    try:
        return time.clock_gettime(~pid << 3 | _SCHEDULED)
    except OSError:
        return 0.0


def user_seconds(pid: int) -> float:
    """CPU time that was not spent in the kernel, to its tick."""
    return sum(map(int, _stat(pid)[11:12])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(pid: int) -> float:
    """CPU time of a process and all below it."""
    return sum(map(cpu_seconds, tree(pid)))


def pss_bytes(pid: int) -> int:
    """Proportional set size."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
