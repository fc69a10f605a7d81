"""Linear layers, fused where a checkpoint stores them apart."""

from dataclasses import dataclass

import torch

from stentor import kernels

from .weights import WeightMap


@dataclass(frozen=True)
class Placement:
    """How tensors are made and multiplied: one value passed to every layer."""

    device: torch.device
    dtype: torch.dtype
    invariant: bool
    """Bitwise the same row whatever the batch."""

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)


class Linear:
    """y = x Wᵀ + b with W [sum of parts, inputs]; each part is a projection stored under its own name."""

    def __init__(
        self, weights: WeightMap, parts: dict[str, int], inputs: int, placement: Placement, *, bias: bool = False
    ) -> None:
        outputs = sum(parts.values())
        self.weight = placement.empty(outputs, inputs)
        self.bias = placement.empty(outputs) if bias else None
        self._invariant = placement.invariant
        start = 0
        for name, size in parts.items():
            weights.add(f"{name}.weight", self.weight[start : start + size])
            if self.bias is not None:
                weights.add(f"{name}.bias", self.bias[start : start + size])
            start += size

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, inputs] → [tokens, outputs]."""
        return kernels.linear(x, self.weight, self.bias, invariant=self._invariant)
