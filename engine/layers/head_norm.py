"""LayerNorm over each head of queries or keys."""

import torch

from .layer_context import LayerContext
from .weights import WeightMap


class HeadLayerNorm:
    """(x - mean) / deviation * weight + bias over each head, with weights of its own or those of all."""

    def __init__(
        self, weights: WeightMap, name: str, heads: int, dim: int, eps: float, context: LayerContext, *, own: bool
    ) -> None:
        """``own``: weights of each head, without a bias, which are stored in one tensor, or where ``name`` has a place
        for the head's number, in one each."""
        self._dim, self._eps = dim, eps
        self._weight = context.empty(heads if own else 1, dim, dtype=torch.float32)
        self._bias = None if own else context.empty(dim, dtype=torch.float32)
        if self._bias is not None:
            weights.add(f"{name}.bias", self._bias)
            weights.add(f"{name}.weight", self._weight, shape=(dim,))
        elif "{}" not in name:
            weights.add(f"{name}.weight", self._weight)
        else:
            for head in range(heads):
                weights.add(f"{name.format(head)}.weight", self._weight[head])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, heads, dim] → the same, a new tensor; computed in float32 and rounded once."""
        normed = torch.nn.functional.layer_norm(x.float(), (self._dim,), eps=self._eps) * self._weight
        return (normed if self._bias is None else normed + self._bias).to(x.dtype)
