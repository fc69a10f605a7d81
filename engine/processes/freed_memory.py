"""Gives the system what a process has freed: the C library keeps pages that anything lies near, for ever.

A process that once made millions of small things stays as large as it was then; trimmed, it is as large as what lives.
"""

import ctypes
import os
from functools import cache
from typing import Final

GROWN: Final = 32 << 20
"""Bytes beyond what is there anyway, from which on trimming is worth its milliseconds."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's."""


@cache
def _statm() -> int:
    """Kept open: a process may forbid itself to open anything after its first look."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def resident_bytes() -> int:
    """Of this process, which must not fork after the first call. Not ``ru_maxrss``, which a process inherits."""
    return int(os.pread(_statm(), 256, 0).split()[1]) * _PAGE


def give_back() -> None:
    """Takes some milliseconds, in which other threads run unless they allocate. Nothing where the C library cannot."""
    if _trim is not None:
        _trim(0)


def grown_since(born: int) -> int:
    """Bytes by which this process is larger than ``born``, once what it has freed is given back if that is much."""
    if resident_bytes() > born + GROWN:
        give_back()
    return resident_bytes() - born
