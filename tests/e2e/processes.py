"""Waiting for what another process brings about, and finding those of a server."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from stentor.engine.sharing.lease import MAX_MEMBERS
from stentor.loadtest.processes import named

GUARD = 1 << 20
"""Offset of the lock that a member of a lease has while it changes it."""
LIFE = GUARD + 1
"""Offset of the first member's lock in a lease."""


def eventually(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Polls until true; fails with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def below(server: int, name: str) -> list[int]:
    """Processes below a server that live and call themselves ``stentor-NAME``."""
    return named(server, f"stentor-{name}")


def locks_of(pid: int) -> set[int]:
    """Offsets of the record locks that a process has, by the kernel's list."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {int(line[-2]) for line in lines if "->" not in line and (line[-7], line[-4]) == ("POSIX", str(pid))}


def number_of(worker: int) -> int:
    """Which member of a lease a worker is, from 0."""
    (number,) = (offset - LIFE for offset in locks_of(worker) if LIFE <= offset < LIFE + MAX_MEMBERS)
    return number


def worker_of(server: int, member: int) -> int:
    """The worker below this process that is this member of the lease, from 0; one that is dying is no member."""
    (worker,) = (worker for worker in below(server, "worker") if LIFE + member in locks_of(worker))
    return worker


def engine_of(server: int, member: int) -> int:
    """The engine of that worker: it holds a descriptor of its process."""
    worker = worker_of(server, member)
    for engine in below(server, "engine"):
        for info in Path(f"/proc/{engine}/fdinfo").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if f"Pid:\t{worker}\n" in info.read_text():
                    return engine
    raise AssertionError(f"no engine watches {worker}")
