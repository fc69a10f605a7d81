"""Memory for what is read over and over, in large pages where the system has them."""

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
"""Linux 5.14."""
_MADV_COLLAPSE: Final = 25
"""Linux 6.1."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_P, _N, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes, _libc.mmap.restype = (_P, _N, _I, _I, _I, ctypes.c_int64), _P
_libc.munmap.argtypes = (_P, _N)
_libc.madvise.argtypes = (_P, _N, _I)
_libc.mprotect.argtypes = (_P, _N, _I)


def empty_huge(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes] of zeros, at the start of a page; pages are taken as they are touched.

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
        with contextlib.suppress(OSError):  # a kernel without large pages: small ones do
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=nbytes)


class Room:
    """Memory for many small parts that come and go together: one after another in stretches of :func:`empty_huge`. What
    is never asked for takes no pages."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._taken = 0

    def take(self, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes], at a multiple of 64 bytes. Raises MemoryError."""
        if nbytes > len(self._memory) - self._taken:
            self._memory, self._taken = empty_huge(max(nbytes, _STRETCH)), 0
        first = self._taken
        self._taken = -(-(first + nbytes) // _LINE) * _LINE
        return self._memory[first : first + nbytes]


def take_pages(tensor: torch.Tensor, start: int, nbytes: int) -> bool:
    """Has the pages of bytes [start, start + nbytes) of a contiguous tensor at hand, whose contents stay what they are.

    Returns False where the kernel cannot do that, or has no memory left.
    """
    begin = tensor.data_ptr() + start
    first = begin // mmap.PAGESIZE * mmap.PAGESIZE
    return not _libc.madvise(first, begin + nbytes - first, _MADV_POPULATE_WRITE)


def keep_freed_memory() -> None:
    """Lets the allocator keep what this process frees, up to 256 MiB: tensors of some megabytes that come and go are
    not faulted in anew each time. Where the C library is not glibc, nothing happens."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest that it takes
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)


class SharedHuge:
    """Bytes [first, first + nbytes) of a memory file, mapped so that large pages fit; unmapped with the last tensor.

    Large pages of a file must be asked for one by one: they are where :meth:`enlarge` has been and returned True, and
    every mapping of the file has them then.
    """

    def __init__(self, fd: int, first: int, nbytes: int, *, writable: bool) -> None:
        """``first`` and ``nbytes`` are multiples of :data:`HUGE`, within the file. Raises OSError."""
        self.nbytes = nbytes
        # room that is aligned is cut out of room that is larger
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
        """uint8 [nbytes] at byte ``start``; one that is not writable must not be written to."""
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        array = (ctypes.c_ubyte * nbytes).from_address(self._start + start)
        array.owner = self  # type: ignore[attr-defined]  # whoever has the tensor has the mapping
        return torch.frombuffer(array, dtype=torch.uint8)

    def enlarge(self, start: int, nbytes: int) -> bool:
        """Gives bytes that nobody has touched large pages of zeros; False where there are none.

        ``start`` and ``nbytes`` are multiples of :data:`HUGE`.
        """
        for page in range(self._start + start, self._start + start + nbytes, HUGE):
            ctypes.c_ubyte.from_address(page).value = 0  # only what is there can be made larger
        return not _libc.madvise(self._start + start, nbytes, _MADV_COLLAPSE)

    def protect(self) -> None:
        """A write through this mapping ends the process from now on. Raises OSError."""
        if _libc.mprotect(self._start, self.nbytes, mmap.PROT_READ):
            raise OSError(ctypes.get_errno(), f"mprotect: {os.strerror(ctypes.get_errno())}")


def _mapped(address: int | None, nbytes: int, protection: int, flags: int, fd: int, first: int) -> int:
    found: int | None = _libc.mmap(address, nbytes, protection, flags, fd, first)
    if found is None or found == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), f"mmap of {nbytes} bytes: {os.strerror(ctypes.get_errno())}")
    return found
