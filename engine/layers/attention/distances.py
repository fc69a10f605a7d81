"""What tokens add to their scores by the distance back to a key (Inkling), and what scores without a value lose
(Inkling 2)."""

import torch

from stentor import kernels

from ...model_config.spec.attention import AttentionSpec
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap
from .head_norms import HeadClip


class Distances:
    """The product of a few numbers of each token and head with a profile of each over distances.

    A softmax with a further score s, which has no value, is one with 0 in its place and all other scores less s. So a
    score that each token makes anew is subtracted here, and the kernel's is 0.
    """

    def __init__(self, weights: WeightMap, prefix: str, spec: AttentionSpec, context: LayerContext) -> None:
        """``prefix``: of the attention."""
        own = spec.distances
        assert own is not None
        self._size, self._extent, self._heads = own.size, own.extent, spec.heads
        self._invariant = context.invariant
        # farther keys get nothing: the last number, which is theirs, has a profile of zeros
        self._profiles = context.empty(self._extent + 1, self._size, dtype=torch.float32)
        if not context.filled:
            self._profiles[-1].zero_()
        stored, profiles = (self._size, self._extent), self._profiles[:-1]
        weights.add(f"{prefix}.{own.profiles}", profiles, shape=stored, read=lambda each: each.T)
        self._clip: HeadClip | None = None
        if own.longest:
            self._clip = HeadClip(weights, f"{prefix}.{own.factors}", spec.heads, own.size, own.longest, context)

    def __call__(self, made: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        """Numbers [tokens, heads · size], and behind them the scores without values [tokens, heads] if there are any →
        float32 [tokens, heads, extent + 1], as :func:`stentor.kernels.paged_attention` takes them; ``scales`` float32
        [tokens] multiply the numbers."""
        numbers, sinks = made.float().tensor_split((self._heads * self._size,), dim=1)
        rows = numbers.unflatten(1, (self._heads, self._size))
        if self._clip is not None:
            rows = self._clip(rows)
        if scales is not None:
            rows = rows * scales[:, None, None]
        found = kernels.linear(rows.reshape(-1, self._size), self._profiles, invariant=self._invariant)
        found = found.view(-1, self._heads, self._extent + 1)
        return found - sinks[:, :, None] if sinks.shape[1] else found
