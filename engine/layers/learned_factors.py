"""Learned factors on each column of a product (Dory, nGPT's scales, arXiv:2410.01131)."""

import torch

from .linear.layer_context import LayerContext
from .linear.weights import WeightMap


class LearnedFactors:
    """x · (rate · r) ** power, with a learned r of each column."""

    def __init__(self, learned: torch.Tensor, rate: float, power: int) -> None:
        """``learned``: float32 [columns], which is filled later."""
        self._learned, self._rate, self._power = learned, rate, power

    @classmethod
    def of(
        cls, weights: WeightMap, names: tuple[str, ...], size: int, context: LayerContext, *, rate: float, power: int
    ) -> "LearnedFactors":
        """Of products one behind the other, whose factors have these stored names and ``size`` columns each."""
        learned = context.empty(len(names) * size, dtype=torch.float32)
        for name, part in zip(names, learned.split(size), strict=True):
            weights.add(name, part)
        return cls(learned, rate, power)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, columns] → a new tensor; computed in float32 and rounded once."""
        return (x.float() * (self._learned * self._rate) ** self._power).to(x.dtype)
