"""Factors on queries that grow with the logarithm of the position (Mistral Large 4)."""

import torch

from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap


class QueryGrowth:
    """Multiplies the queries of a head at position p by scale · log(1 + p) + bias, with a scale and a bias a head."""

    def __init__(self, weights: WeightMap, name: str, heads: int, context: LayerContext) -> None:
        """``name``: stored prefix of both."""
        self._scale, self._bias = (context.empty(heads, dtype=torch.float32) for _ in range(2))
        weights.add(f"{name}.scale", self._scale)
        weights.add(f"{name}.bias", self._bias)

    def __call__(self, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """q [tokens, heads, dim] at positions int64 [tokens] → the same shape"""
        factors = torch.log((positions + 1).float())[:, None] * self._scale + self._bias  # [tokens, heads]
        return q * factors.to(q.dtype).unsqueeze(2)
