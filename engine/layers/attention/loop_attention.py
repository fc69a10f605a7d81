"""Attention of a later loop over layers: to its own last tokens, and to what the first loop kept."""

from typing import Any

import torch

from stentor.kernels.forward import Traced
from stentor.kernels.rotate_and_write import rotate_and_write_kv_

from ...model_config.spec.model import Backbone
from ..elementwise import between, elementwise
from ..forward_batch import ForwardBatch
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear
from ..linear.quantized import Input, Stream
from ..linear.weights import WeightMap
from ..rotary import RotaryTables
from .attention import Attention
from .cached import attend_cached


class LoopAttention:
    """gate · attention to the first loop's keys and values + (1 - gate) · attention to its own within a window, with
    the first loop's projections; gate = sigmoid(w · q + b) for each head (IQuest LoopCoder)."""

    def __init__(
        self,
        first: Attention,
        weights: WeightMap,
        layer: int,
        model: Backbone,
        rotary: RotaryTables,
        context: LayerContext,
    ) -> None:
        """``first``: of the first loop."""
        self._spec = spec = model.layers[layer].attention
        assert spec.loop is not None
        self.into: Linear = first.into
        self.out: Linear = first.out
        self._cache, self._first = model.cache_index(layer), model.cache_index(spec.loop.first)
        self._cos, self._sin = rotary.of(spec.rope, spec.head_dim)
        self._eps, self._dtype, self._invariant = model.norm_eps, context.dtype, context.invariant
        self._scales = first.scales
        self._gate = context.empty(spec.heads, spec.head_dim, dtype=torch.float32)
        self._bias = context.empty(spec.heads, dtype=torch.float32)
        weights.add(f"{spec.loop.gate}.weight", self._gate)
        weights.add(f"{spec.loop.gate}.bias", self._bias)

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden], plain, quantised or unnormed → [tokens, hidden]; writes K and V."""
        made: Stream = self.into(x, batch.adapter_rows)
        if isinstance(made, Traced):
            found = made.call("attention to two loops", self._attend_rows, self._spec.q_size)
            return self.out(found, batch.adapter_rows)
        assert isinstance(made, torch.Tensor)
        return self.out(self.attend(made, batch), batch.adapter_rows)

    def attend(self, qkv: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, queries, keys and values] → [tokens, heads · head_dim]"""
        spec = self._spec
        q, k, v = qkv.split((spec.q_size, spec.kv_size, spec.kv_size), dim=1)
        q = q.reshape(-1, spec.heads, spec.head_dim)
        k, v = (part.reshape(-1, spec.kv_heads, spec.head_dim) for part in (k, v))
        own, first = batch.caches[self._cache], batch.caches[self._first]
        k_scale, v_scale = own.scales(self._scales)
        q = rotate_and_write_kv_(
            q,
            k,
            v,
            self._cos,
            self._sin,
            batch.positions,
            own.k,
            own.v,
            batch.attention[own.group].slots,
            q_norm=None,
            k_norm=None,
            eps=self._eps,
            plus_one=False,
            interleaved=False,
            k_scale=k_scale,
            v_scale=v_scale,
        )
        near, far = (
            attend_cached(
                q, batch, cache, spec, cache.scales(self._scales), window=window, invariant=self._invariant
            ).float()
            for cache, window in ((own, spec.window), (first, 0))
        )
        gate = elementwise(torch.sigmoid, (q.float() * self._gate).sum(-1, keepdim=True) + self._bias[:, None])
        return between(near, far, gate).to(qkv.dtype).view(-1, spec.q_size)

    def _attend_rows(self, qkv: torch.Tensor, batch: Any) -> torch.Tensor:
        """:meth:`attend` with float32."""
        return self.attend(qkv.to(self._dtype), batch)
