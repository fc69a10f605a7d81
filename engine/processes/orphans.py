"""Workers whose parent died, and that are ours to bury.

The kernel kills them with the engine or the fork server that began them. Where this process is the first of a
container, it is also their new parent, and they stay in its table until it asks how they ended.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

_WORKER: Final = "stentor-worker"
"""What a process is called that this one never starts itself."""


def reap_orphans() -> int:
    """Reaps those that are dead; how many."""
    reaped = 0
    for pid in _children():
        with contextlib.suppress(OSError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            if name == _WORKER and rest.split()[0] == "Z":
                os.waitpid(pid, os.WNOHANG)
                reaped += 1
    return reaped


def _children() -> list[int]:
    """None where the kernel does not say."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
