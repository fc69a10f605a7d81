"""Elementwise functions whose results do not depend on the neighbours of a value."""

from collections.abc import Callable
from typing import Final

import torch

_VECTORS: Final = 64
"""Values: a multiple of any processor's vector length."""
_AT_ONCE: Final = 1 << 14
"""Values that torch computes in one thread."""


def elementwise(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """``function`` of each value of ``x``, of any shape.

    On a CPU, torch computes the values behind the last whole vector, and at the end of each thread's part, differently.
    Padding leaves no such values.
    """
    if x.device.type != "cpu":
        return function(x)
    flat = torch.nn.functional.pad(x.reshape(-1), (0, -x.numel() % _VECTORS))
    return torch.cat([function(part) for part in flat.split(_AT_ONCE)])[: x.numel()].view(x.shape)


def between(x: torch.Tensor, y: torch.Tensor, share: torch.Tensor | float) -> torch.Tensor:
    """x + share · (y - x). torch's ``lerp`` rounds the values behind the last whole vector differently."""
    return x + share * (y - x)
