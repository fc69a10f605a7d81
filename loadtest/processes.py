"""What the kernel says of a server's processes."""

import contextlib
import os
from pathlib import Path


def children(pid: int) -> list[int]:
    """Direct children of a process; none where it has ended."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def tree(pid: int) -> list[int]:
    """The process and all below it: server, engine, fork server and worker."""
    found = [pid]
    for child in children(pid):
        found += tree(child)
    return found


def named(pid: int, name: str) -> list[int]:
    """The process and all below it that live and have this name: ``stentor-engine``, ``-forksrv``, ``-worker``."""
    found = []
    for each in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            if Path(f"/proc/{each}/comm").read_text().strip() == name and alive(each):
                found.append(each)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between opening and reading
        return False


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads, from the scheduler's own nanosecond count."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def tree_cpu_seconds(pid: int) -> float:
    """CPU time of a process and all below it, threads that have ended included, to the kernel's tick."""
    ticks = 0
    for each in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_bytes(pid: int, *, anonymous_only: bool = False) -> int:
    """Proportional set size."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:" if anonymous_only else "Pss:"):
            return int(line.split()[1]) * 1024
    return 0
