"""Returns freed memory to the system.

The C library keeps a page while anything on it is allocated, so a process that once held millions of small objects
stays that large. Trimming shrinks it to its living objects.
"""

import ctypes
import os
from functools import cache
from typing import Final

GROWN: Final = 32 << 20
"""Growth in bytes from which trimming is worth its milliseconds."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc only."""


@cache
def _statm() -> int:
    """Kept open, because a process may forbid itself later to open files."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def resident_bytes() -> int:
    """Resident memory of this process, which must not fork after the first call. (A process inherits ``ru_maxrss``.)"""
    return int(os.pread(_statm(), 256, 0).split()[1]) * _PAGE


def give_back() -> None:
    """Trim the heap, in some milliseconds; other threads run unless they allocate. Does nothing without
    ``malloc_trim``."""
    if _trim is not None:
        _trim(0)


def grown_since(born: int) -> int:
    """Bytes by which this process exceeds ``born``, trimmed first if it has grown much."""
    if resident_bytes() > born + GROWN:
        give_back()
    return resident_bytes() - born
