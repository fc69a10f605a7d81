"""Faults in memory for unused KV blocks while the worker is idle."""

from collections.abc import Iterable, Sequence

import torch

from stentor.kernels.native.memory import HUGE, take_pages
from stentor.protocols.ipc.steps import StepPlan

AHEAD_BYTES = 256 << 20
"""Most bytes of unused blocks that are faulted in, but at least one page of each tensor."""
_SHARE = 4
"""At most this part of the whole cache is faulted in ahead."""


class Prefault:
    """Faults in the pages of the next blocks, in all tensors of a KV cache.

    The kernel zeroes a page at its first touch, and on a virtual machine the host has to provide it. Within a step that
    is expensive: a block lies in every layer, so all layers reach a new page in the same step, and every thread waits.
    Blocks are handed out in order until all have been used once, and are reused only then.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], ahead_bytes: int = AHEAD_BYTES) -> None:
        """``tensors``: contiguous, [num_blocks, ...]. Those smaller than the first, such as scales, are ignored."""
        self._tensors = tensors = [tensor for tensor in tensors if tensor.nbytes >= tensors[0].nbytes]
        self._block_bytes = tensors[0][0].nbytes
        self._bytes = tensors[0].nbytes
        ahead = min(ahead_bytes, self._bytes * len(tensors) // _SHARE)
        self._ahead = max(1, ahead // (HUGE * len(tensors)))
        self._used = 0
        self._next = 0
        self._failed = False

    @property
    def wanted(self) -> bool:
        """Whether a page should be faulted in."""
        page = self._next // len(self._tensors)
        used = -(-self._used * self._block_bytes // HUGE)
        return page < used + self._ahead and page * HUGE < self._bytes and not self._failed

    def note(self, plan: StepPlan) -> None:
        """Record the blocks of a plan's rows."""
        for new in plan.new:
            self._reach(new.blocks)
        for row in plan.rows:
            self._reach(row.new_blocks)

    def take_one(self) -> None:
        """Fault in the next page: the first of every tensor, then the second of every tensor."""
        at, which = divmod(self._next, len(self._tensors))
        tensor = self._tensors[which]
        start = at * HUGE
        self._failed = not take_pages(tensor, start, min(HUGE, tensor.nbytes - start))
        self._next += 1

    def _reach(self, blocks: Iterable[int]) -> None:
        self._used = max(self._used, max(blocks, default=-1) + 1)
