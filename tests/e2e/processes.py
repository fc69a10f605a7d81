"""Waiting for what another process brings about, and finding those of a server."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from stentor.loadtest.processes import alive, tree
from stentor.loadtest.server_process import ServerProcess

LIFE = (1 << 20) + 1
"""Offset of the first member's lock in a lease."""


def eventually(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Polls until true; fails with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def below(server: int, name: str) -> list[int]:
    """Processes below a server that live and call themselves ``stentor-NAME``."""
    found = []
    for pid in tree(server)[1:]:
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == f"stentor-{name}" and alive(pid):
                found.append(pid)
    return found


def worker_of(server: ServerProcess, member: int) -> int:
    """The worker that is this member of the lease, by the kernel's list of locks."""
    workers = below(server.pid, "worker")
    for line in Path("/proc/locks").read_text().splitlines():
        kind, _, access, pid, _, start, _ = line.split()[-7:]
        if (kind, access, start) == ("POSIX", "WRITE", str(LIFE + member)) and int(pid) in workers:
            return int(pid)
    raise AssertionError(f"none of {workers} is member {member}")


def engine_of(server: ServerProcess, member: int) -> int:
    """The engine of that worker: it holds a descriptor of its process."""
    worker = worker_of(server, member)
    for engine in below(server.pid, "engine"):
        for info in Path(f"/proc/{engine}/fdinfo").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if f"Pid:\t{worker}\n" in info.read_text():
                    return engine
    raise AssertionError(f"no engine watches {worker}")
