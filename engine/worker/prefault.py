"""Memory for KV blocks that are not in use yet, taken from the system while nothing else is to be done."""

from collections.abc import Iterable, Sequence

import torch

from stentor.kernels.native.memory import HUGE, take_pages
from stentor.protocols.ipc.steps import StepPlan

AHEAD_BYTES = 256 << 20
"""Of blocks that nobody has used yet, at most; but one page of each tensor."""
_SHARE = 4
"""At most one part in so many of the whole cache is taken ahead."""


class Prefault:
    """Keeps the pages of the next blocks at hand, over all tensors of a KV cache.

    A page that is touched for the first time is zeroed by the kernel, and on a virtual machine first found by its host.
    Within a step that is dear: a block lies in every layer, so that all layers come to a new page in the same step, and
    every thread waits for it. Blocks are handed out in order until all have been used once; only then are they used
    again.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], ahead_bytes: int = AHEAD_BYTES) -> None:
        """``tensors`` are contiguous, [num_blocks, ...]; pages of those that are smaller than the first, as scales are,
        are not taken ahead."""
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
        """Whether there is a page to take."""
        page = self._next // len(self._tensors)
        used = -(-self._used * self._block_bytes // HUGE)
        return page < used + self._ahead and page * HUGE < self._bytes and not self._failed

    def note(self, plan: StepPlan) -> None:
        """Takes notice of the blocks that a plan's rows have been given."""
        for new in plan.new:
            self._reach(new.blocks)
        for row in plan.rows:
            self._reach(row.new_blocks)

    def take_one(self) -> None:
        """Takes the next page: of every tensor its first one, then of every tensor its second."""
        at, which = divmod(self._next, len(self._tensors))
        tensor = self._tensors[which]
        start = at * HUGE
        self._failed = not take_pages(tensor, start, min(HUGE, tensor.nbytes - start))
        self._next += 1

    def _reach(self, blocks: Iterable[int]) -> None:
        self._used = max(self._used, max(blocks, default=-1) + 1)
