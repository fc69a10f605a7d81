"""What tokens add to their scores by the distance back to a key (Inkling)."""

import torch

from stentor import kernels

from ...model_config.spec.attention import AttentionSpec
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap


class Distances:
    """The product of a few numbers of each token and head with a profile of each over distances."""

    def __init__(self, weights: WeightMap, prefix: str, spec: AttentionSpec, context: LayerContext) -> None:
        """``prefix``: of the attention."""
        assert spec.distances is not None
        self._size, self._extent, self._heads = spec.distances.size, spec.distances.extent, spec.heads
        self._invariant = context.invariant
        # farther keys get nothing: the last number, which is theirs, has a profile of zeros
        self._profiles = context.empty(self._extent + 1, self._size, dtype=torch.float32)
        if not context.filled:
            self._profiles[-1].zero_()
        stored, own = (self._size, self._extent), self._profiles[:-1]
        weights.add(f"{prefix}.{spec.distances.profiles}", own, shape=stored, read=lambda each: each.T)

    def __call__(self, numbers: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        """Numbers [tokens, heads · size] → float32 [tokens, heads, extent + 1], as
        :func:`stentor.kernels.paged_attention` takes them; ``scales`` float32 [tokens] multiply them."""
        rows = numbers.float()
        if scales is not None:
            rows = rows * scales[:, None]
        made = kernels.linear(rows.reshape(-1, self._size), self._profiles, invariant=self._invariant)
        return made.view(-1, self._heads, self._extent + 1)
