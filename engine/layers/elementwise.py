"""Functions of single values, bitwise the same whatever stands beside a value."""

from collections.abc import Callable
from typing import Final

import torch

_VECTORS: Final = 64
"""Values: a multiple of those that any processor takes at once."""
_AT_ONCE: Final = 1 << 14
"""Values that torch does not share out among threads."""


def elementwise(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """``function`` of each value of ``x``, of any shape.

    On a CPU torch computes what is left over behind whole vectors, and behind each thread's part, in another way than
    the vectors: here nothing is left over.
    """
    if x.device.type != "cpu":
        return function(x)
    flat = torch.nn.functional.pad(x.reshape(-1), (0, -x.numel() % _VECTORS))
    return torch.cat([function(part) for part in flat.split(_AT_ONCE)])[: x.numel()].view(x.shape)
