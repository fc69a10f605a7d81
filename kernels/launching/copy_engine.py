"""The engine that copies whole tiles to shared memory (TMA, from Hopper on), as a choice of kernels' block sizes.

One instruction of one thread copies a tile, where threads need an address, a mask and a copy for every 16 bytes. A
kernel describes each tensor to the engine once; the launch gives its programs memory for that (:mod:`.compiled`).
"""

from typing import Final

from torch import Tensor

THREADS: Final = 1
COPY_ENGINE: Final = 2
"""The size ``LOADS`` of a kernel: what brings its tiles."""
ALIGNED_BYTES: Final = 16
"""Addresses of tensors, and distances between their rows, are multiples of it."""


def copies_unsupported_reason(capability: int) -> str | None:
    """Returns why a GPU of this compute capability has no copy engine; None if it has one. Triton's interpreter, of
    capability 0, follows descriptors too."""
    if 0 < capability < 90:
        return f"copies of whole tiles came with compute capability 9.0, this is {capability / 10}"
    return None


def is_aligned(tensor: Tensor) -> bool:
    """Whether a tensor begins where the engine can; torch's allocations do."""
    return tensor.storage_offset() * tensor.itemsize % ALIGNED_BYTES == 0
