"""Attention to an earlier layer's keys and values, or another model's."""

from typing import Any

import torch

from stentor import kernels
from stentor.kernels.forward import Traced

from ...model_config.spec.model import Backbone
from ..forward_batch import ForwardBatch
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear
from ..linear.quantized import Input, Stream
from ..linear.weights import WeightMap
from ..norm import RMSNorm
from ..rotary import RotaryTables
from .cached import attend_cached, cache_scales


class SharedAttention:
    """Attention with queries only: the layer has no keys, values or cache (Gemma 4)."""

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> None:
        self._spec = spec = model.layers[layer].attention
        assert spec.qk_norm_names is not None
        prefix = model.layer_prefix(layer)
        source = model.keys_of or model
        self._cache, self._dtype = source.cache_index(spec.shares), context.dtype
        self._invariant = context.invariant
        into, out = spec.projections(model.hidden_size)
        self.into = Linear.of(weights, prefix, into, context, adaptable=True, dtype=context.dtype)
        self.out = Linear.of(weights, prefix, out, context, adaptable=True, dtype=context.stream, summed=True)
        prefix = f"{prefix}.{spec.name}"
        self._norm = RMSNorm(weights, f"{prefix}.{spec.qk_norm_names[0]}", spec.head_dim, model.norm_eps, context)
        self._cos, self._sin = rotary.of(spec.rope, spec.head_dim)
        shared = f"{source.layer_prefix(spec.shares)}.{spec.name}"
        self._scales = cache_scales(weights, shared, spec.kv_heads, context)
        # published files hold tensors that the layer does not use
        weights.pass_over(*(f"{prefix}.{name}.weight" for name in ("k_proj", "v_proj", spec.qk_norm_names[1])))

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden], plain or quantised → [tokens, hidden]"""
        q: Stream = self.into(x, batch.adapter_rows)
        if isinstance(q, Traced):
            found = q.call("attention to another layer's keys", self._attend_rows, self._spec.q_size)
            return self.out(found, batch.adapter_rows)
        return self.out(self.attend(q, batch), batch.adapter_rows)

    def attend(self, q: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, heads · head_dim], before rotation and norm → the same"""
        spec, cache = self._spec, batch.caches[self._cache]
        q = self._norm.plain(q.view(-1, spec.heads, spec.head_dim))
        if spec.rope is not None:
            unused = q.new_zeros(len(q), 1, spec.head_dim)
            kernels.rotary_(q, unused, self._cos, self._sin, batch.positions, interleaved=spec.rope.interleaved)
        scales = cache.scales(self._scales)
        out = attend_cached(q, batch, cache, spec, scales, window=spec.window, invariant=self._invariant)
        return out.view(-1, spec.q_size)

    def _attend_rows(self, q: torch.Tensor, batch: Any) -> torch.Tensor:
        """:meth:`attend` with float32."""
        return self.attend(q.to(self._dtype), batch)
