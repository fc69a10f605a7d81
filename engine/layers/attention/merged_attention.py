"""Attention of a decoder to its own tokens and to what an encoder made, in one softmax (T5Gemma 2)."""

import torch

from stentor import kernels

from ...model_config.spec.model import Backbone
from ..elementwise import between, elementwise
from ..forward_batch import ForwardBatch
from ..linear.adapters import AdapterRows
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap
from ..rotary import RotaryTables
from .attention import Attention


class MergedAttention(Attention):
    """softmax(scale · q [k, k']ᵀ) [v, v'], with k' and v' of the encoder's output, made with the same projections and
    norms, which do not rotate. They are in the caches of encoder slots.

    Both parts are attended apart, each with the sum of its exponentials, by which their outputs are weighted.
    """

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> None:
        super().__init__(weights, layer, model, rotary, context)
        self._layer = layer

    def keys_and_values(self, encoded: torch.Tensor, rows: AdapterRows | None = None) -> tuple[torch.Tensor, ...]:
        """encoded [positions, hidden] → k and v, each [positions, kv_heads, head_dim]; ``rows``: their adapters."""
        made = self.into(encoded, rows)
        assert isinstance(made, torch.Tensor)
        _, k, v = made.split_with_sizes(self._sizes, dim=1)
        k, v = (part.unflatten(1, (self._spec.kv_heads, -1)) for part in (k, v))
        return (k if self._head_norms is None else self._head_norms[1].plain(k.contiguous())), v

    def _attend_cached(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch, *_index: torch.Tensor
    ) -> torch.Tensor:
        """Attention over the caches of both; q, k, v [tokens, heads, head_dim] → the shape of q."""
        encoded, spec, own = batch.encoded, self._spec, batch.caches[self._cache]
        assert encoded is not None
        q = self._written(q, k, v, batch, own.scales(self.scales))
        far = encoded.caches[self._layer]
        near_sums, far_sums = (q.new_empty(q.shape[:2], dtype=torch.float32) for _ in range(2))
        near = kernels.paged_attention(
            q,
            own.k,
            own.v,
            batch.attention[own.group],
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
            logsums=near_sums,
            invariant=self._invariant,
        )
        found = kernels.paged_attention(
            q,
            far.k,
            far.v,
            encoded.attention,
            scale=spec.scale,
            softcap=spec.softcap,
            logsums=far_sums,
            invariant=self._invariant,
        )
        share = elementwise(torch.sigmoid, near_sums - far_sums)[..., None]
        return between(found.float(), near.float(), share).to(q.dtype)
