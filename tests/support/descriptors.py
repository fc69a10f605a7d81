"""Which descriptors this process has opened and not closed."""

from pathlib import Path


def open_descriptors() -> set[tuple[int, str]]:
    """Each open descriptor's number and what it stands for.

    To find what was left open, take ``open_descriptors() - before``. A count would not do: what an earlier test of the
    same process left to the garbage collector may be closed between the two.
    """
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add((int(entry.name), str(entry.readlink())))
        except FileNotFoundError:  # the folder that is being read
            continue
    return found
