"""The control groups of this process, which are those of its container or its systemd unit.

::

    proc/self/cgroup                             its group for each controller of version 1, and of version 2
    sys/fs/cgroup/GROUP/…, …/unified/GROUP/…     files of version 2
    sys/fs/cgroup/CONTROLLER/GROUP/…             files of version 1

Missing or unreadable files mean that there is no limit.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_MOUNT: Final = "sys/fs/cgroup"
_MEMORY_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of versions 2 and 1: the limit, what is used, and the field of ``memory.stat`` with unmapped pages of files."""


class MemoryGroup(NamedTuple):
    """A group with a limit. All in bytes."""

    limit: int
    used: int
    reclaimable: int
    """Pages of files, which count as used and are freed on demand."""


def group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the process's group and its ancestors; some may not exist.

    In a container without a cgroup namespace the group's path is the host's, and the mount is the container's own.
    """
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            mounts = (_MOUNT, f"{_MOUNT}/unified")
        elif controller in controllers.split(","):
            mounts = (f"{_MOUNT}/{controllers}", f"{_MOUNT}/{controller}")
        else:
            continue
        for mount in dict.fromkeys(root / each for each in mounts):
            folder = mount / path.strip("/")
            yield folder
            while folder != mount:
                folder = folder.parent
                yield folder


def memory_groups(root: Path = Path("/")) -> Iterator[MemoryGroup]:
    """The groups whose limits apply to this process."""
    for folder in group_folders(root, "memory"):
        for limit, used, pages in _MEMORY_FILES:
            most, now = (text_of(folder / file).strip() for file in (limit, used))
            if most.isdecimal() and now.isdecimal():  # else "max", or no such file
                yield MemoryGroup(int(most), int(now), _field(text_of(folder / "memory.stat"), pages))


def text_of(path: Path) -> str:
    """The contents; "" where they cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> int:
    """A field of a file of ``name number`` lines; 0 if missing."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0)
