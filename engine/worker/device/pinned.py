"""A pool of pinned memory for steps."""

from collections import defaultdict, deque
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .device import Device

_SMALLEST_BYTES = 256
_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}

Pieces = deque[torch.Tensor]


class PinnedPool:
    """Keeps every buffer that it made.

    torch's pinned allocator records an event on the stream when a buffer is freed, and queries it before reuse. If the
    finishing thread freed a buffer during a capture, the event would become part of the graph, and querying it is an
    error that ends the worker.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._spare: defaultdict[int, Pieces] = defaultdict(deque)
        """Free buffers by size in bytes. Only the launching thread takes; a deque's operations are atomic."""

    def step(self) -> "StepMemory":
        """Memory for one step."""
        return StepMemory(self)

    def take(self, nbytes: int) -> torch.Tensor:
        """uint8, at least ``nbytes``."""
        size = max(_SMALLEST_BYTES, 1 << (nbytes - 1).bit_length())
        spare = self._spare[size]
        return spare.popleft() if spare else self.device.pinned(size, torch.uint8)

    def give(self, pieces: list[torch.Tensor]) -> None:
        """Return buffers, which no queued copy may use any more."""
        for piece in pieces:
            self._spare[len(piece)].append(piece)


class StepMemory:
    """The buffers of a step until it is done: pinned memory, and tensors that the device reads."""

    def __init__(self, pool: PinnedPool) -> None:
        self._pool = pool
        self._pieces: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] = []

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat pinned tensor."""
        if not count:
            return torch.empty(0, dtype=dtype)
        nbytes = count * dtype.itemsize
        piece = self._pool.take(nbytes)
        self._pieces.append(piece)
        return piece[:nbytes].view(dtype)

    def bring(self, numbers: npt.NDArray[Any]) -> torch.Tensor:
        """Copy numbers to the device, for work queued from now on, without waiting."""
        host = self.pinned(numbers.size, _DTYPES[numbers.dtype])
        host.numpy()[:] = numbers.ravel()
        target = torch.empty(numbers.shape, dtype=host.dtype, device=self._pool.device.torch_device)
        if numbers.size:
            self._pool.device.upload(target.view(-1), host)
        self.keep(target)
        return target

    def keep(self, tensor: torch.Tensor) -> None:
        self._kept.append(tensor)

    def release(self) -> None:
        """Release all buffers, after the step is done and its results are read."""
        pieces, self._pieces = self._pieces, []
        self._kept.clear()
        self._pool.give(pieces)
