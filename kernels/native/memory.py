"""Memory for what is read over and over, in large pages where the system has them."""

import contextlib
import mmap

import torch

HUGE = 2 << 20


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
