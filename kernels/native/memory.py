"""Memory for data that is read over and over, in huge pages if the system has them."""

import contextlib
import ctypes
import mmap
import os
from typing import Final

import torch

HUGE = 2 << 20
_LINE: Final = 64
_STRETCH: Final = 16 << 20

_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_MADV_POPULATE_WRITE: Final = 23
"""From Linux 5.14."""
_MADV_COLLAPSE: Final = 25
"""From Linux 6.1."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_P, _N, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes, _libc.mmap.restype = (_P, _N, _I, _I, _I, ctypes.c_int64), _P
_libc.munmap.argtypes = (_P, _N)
_libc.madvise.argtypes = (_P, _N, _I)
_libc.mprotect.argtypes = (_P, _N, _I)


def empty_huge(nbytes: int) -> torch.Tensor:
    """Returns uint8 [nbytes] of zeros, at the start of a page; pages are allocated when first touched.

    Raises:
        MemoryError: the address space has no room.
    """
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    try:
        memory = mmap.mmap(-1, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for {nbytes} bytes: {error}") from error
    if nbytes >= HUGE:
        with contextlib.suppress(OSError):  # without huge pages, small ones do
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=nbytes)


class HugeArena:
    """Memory for many small parts that are freed together, allocated one after another from stretches of
    :func:`empty_huge`.

    Parts of a stretch that are never asked for take no pages.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._taken = 0

    def take(self, nbytes: int) -> torch.Tensor:
        """Returns uint8 [nbytes], at a multiple of 64 bytes. Raises MemoryError."""
        if nbytes > len(self._memory) - self._taken:
            self._memory, self._taken = empty_huge(max(nbytes, _STRETCH)), 0
        first = self._taken
        self._taken = -(-(first + nbytes) // _LINE) * _LINE
        return self._memory[first : first + nbytes]


def take_pages(tensor: torch.Tensor, start: int, nbytes: int) -> bool:
    """Allocates the pages of bytes [start, start + nbytes) of a contiguous tensor, without changing its contents.

    Returns False if the kernel cannot do that, or has no memory left.
    """
    begin = tensor.data_ptr() + start
    first = begin // mmap.PAGESIZE * mmap.PAGESIZE
    return not _libc.madvise(first, begin + nbytes - first, _MADV_POPULATE_WRITE)


def keep_freed_memory() -> None:
    """Lets the allocator keep freed memory, up to 256 MiB, so that short-lived tensors of some megabytes do not cause
    page faults each time.

    Without glibc it does nothing.
    """
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest value that it takes
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)


class SharedHuge:
    """Bytes [first, first + nbytes) of a memory file, mapped so that huge pages fit; unmapped with the last tensor.

    Huge pages of a file must be requested one by one: they are in place where :meth:`enlarge` or :meth:`join` has
    returned True, and then every mapping of the file has them.
    """

    def __init__(self, fd: int, first: int, nbytes: int, *, writable: bool) -> None:
        """Maps the bytes; ``first`` and ``nbytes`` are multiples of :data:`HUGE`, within the file. Raises OSError."""
        self.nbytes = nbytes
        # an aligned range is cut out of a larger one
        self._room, self._room_bytes = 0, nbytes + HUGE
        self._room = _mapped(None, self._room_bytes, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self._start = -(-self._room // HUGE) * HUGE
        protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        flags = mmap.MAP_SHARED | _MAP_FIXED | (0 if writable else mmap.MAP_POPULATE)
        _mapped(self._start, nbytes, protection, flags, fd, first)

    def __del__(self) -> None:
        if self._room:
            _libc.munmap(self._room, self._room_bytes)

    def tensor(self, start: int, nbytes: int) -> torch.Tensor:
        """Returns uint8 [nbytes] at byte ``start``; if not writable, it must not be written to."""
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        array = (ctypes.c_ubyte * nbytes).from_address(self._start + start)
        array.owner = self  # type: ignore[attr-defined]  # whoever has the tensor has the mapping
        return torch.frombuffer(array, dtype=torch.uint8)

    def enlarge(self, start: int, nbytes: int) -> bool:
        """Gives untouched bytes huge pages of zeros; returns False if there are none.

        ``start`` and ``nbytes`` are multiples of :data:`HUGE`.
        """
        for page in range(self._start + start, self._start + start + nbytes, HUGE):
            ctypes.c_ubyte.from_address(page).value = 0  # only a page that exists can be made larger
        return self.join(start, nbytes)

    def join(self, start: int, nbytes: int) -> bool:
        """The same for bytes that are there, also where they are read or read-only; they stay as they are."""
        return not _libc.madvise(self._start + start, nbytes, _MADV_COLLAPSE)

    def protect(self) -> None:
        """Makes the mapping read-only: a write through it then kills the process. Raises OSError."""
        if _libc.mprotect(self._start, self.nbytes, mmap.PROT_READ):
            raise OSError(ctypes.get_errno(), f"mprotect: {os.strerror(ctypes.get_errno())}")


def _mapped(address: int | None, nbytes: int, protection: int, flags: int, fd: int, first: int) -> int:
    found: int | None = _libc.mmap(address, nbytes, protection, flags, fd, first)
    if found is None or found == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), f"mmap of {nbytes} bytes: {os.strerror(ctypes.get_errno())}")
    return found
