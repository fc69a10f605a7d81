"""What the kernel says of a server's processes. Of one that has ended there is nothing: no children, 0 seconds."""

import os
from glob import glob
from pathlib import Path


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


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads, from the scheduler's own nanosecond count."""
    counts = (_read(f"{task}/schedstat").split() for task in glob(f"/proc/{pid}/task/*"))
    return sum(int(count[0]) for count in counts if count) / 1e9


def user_seconds(pid: int) -> float:
    """CPU time that was not spent in the kernel, to its tick."""
    return sum(map(int, _stat(pid)[11:12])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(pid: int) -> float:
    """CPU time of a process and all below it, threads that have ended included, to the kernel's tick."""
    return sum(int(ticks) for each in tree(pid) for ticks in _stat(each)[11:13]) / os.sysconf("SC_CLK_TCK")


def pss_bytes(pid: int) -> int:
    """Proportional set size."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
