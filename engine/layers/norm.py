"""RMSNorm (arXiv:1910.07467) and its fusion with the residual stream."""

import torch

from stentor import kernels

from .linear import Placement
from .weights import WeightMap


class RMSNorm:
    """x / rms(x) * weight, or * (1 + weight) with ``plus_one``."""

    def __init__(
        self, weights: WeightMap, name: str, size: int, eps: float, placement: Placement, *, plus_one: bool = False
    ) -> None:
        self.weight = placement.empty(size)
        self._eps = eps
        self._plus_one = plus_one
        weights.add(f"{name}.weight", self.weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Over the last dimension of x."""
        return kernels.rms_norm(x, self.weight, self._eps, plus_one=self._plus_one)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Adds x [tokens, size] to ``residual`` in place and normalises the sum."""
        return kernels.add_rms_norm(x, residual, self.weight, self._eps, plus_one=self._plus_one)
