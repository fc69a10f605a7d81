"""A layer of cross-attention to pictures, which tokens without one pass as they are."""

from collections.abc import Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch.nn.functional import scaled_dot_product_attention

from stentor.kernels.forward import Traced

from ..model_config.spec.model import Backbone
from .forward_batch import ForwardBatch
from .layer import make_feed_forward
from .linear.layer_context import LayerContext
from .linear.linear import Linear
from .linear.quantized import Delta, Stream
from .linear.weights import WeightMap
from .norm import RMSNorm, added_


class PictureLayer:
    """x + tanh(a) attention(norm(x)), then x + tanh(b) mlp(norm(x)), for tokens that see a picture.

    Keys and values are made once a picture (:meth:`keys_and_values`). Each run of tokens attends by itself, so that
    what it gets does not depend on other rows.
    """

    def __init__(self, weights: WeightMap, layer: int, model: Backbone, context: LayerContext) -> None:
        spec, prefix, hidden = model.layers[layer], model.layer_prefix(layer), model.hidden_size
        assert spec.cross is not None
        assert spec.mlp is not None
        assert spec.picture_gates is not None
        self.number, self._spec, self._hidden = layer, spec.cross, hidden
        self._dtype, self._stream, self._invariant = context.dtype, context.stream, context.invariant
        into, out = spec.cross.projections(hidden)
        q, kv = (replace(into, parts=parts) for parts in (into.parts[:1], into.parts[1:]))
        self._q = Linear.of(weights, prefix, q, context, adaptable=True, dtype=context.dtype)
        # not adaptable: requests with different adapters share the keys of a picture
        self._kv = Linear.of(weights, prefix, kv, context, dtype=context.dtype)
        self._out = Linear.of(weights, prefix, out, context, adaptable=True, dtype=context.stream)
        self._mlp = make_feed_forward(weights, layer, model, spec.mlp, context)

        def norm(name: str, size: int) -> RMSNorm:
            return RMSNorm(weights, f"{prefix}.{name}", size, model.norm_eps, context)

        assert spec.cross.qk_norm_names is not None
        self._q_norm, self._k_norm = (
            norm(f"{spec.cross.name}.{name}", spec.cross.head_dim) for name in spec.cross.qk_norm_names
        )
        self._cross_in, self._mlp_in = norm(spec.norms.cross_in, hidden), norm(spec.norms.mlp_in, hidden)
        self._gates = [context.empty(1, dtype=torch.float32) for _ in spec.picture_gates]
        for name, gate in zip(spec.picture_gates, self._gates, strict=True):
            weights.add(f"{prefix}.{name}", gate)

    def keys_and_values(self, states: torch.Tensor) -> torch.Tensor:
        """States of a picture [states, hidden] → [2, key-value heads, states, head_dim]"""
        spec = self._spec
        made = self._kv(states.to(self._dtype)).view(len(states), 2, spec.kv_heads, spec.head_dim)
        k, v = made.unbind(1)
        return torch.stack((self._k_norm.plain(k.contiguous()), v)).transpose(1, 2).contiguous()

    def __call__(self, delta: Delta | None, residual: Stream, batch: ForwardBatch) -> tuple[Delta | None, Stream]:
        """As :meth:`.layer.Layer.__call__`."""
        if batch.media is None:
            return delta, residual
        x = residual if delta is None else added_(residual, delta)
        if isinstance(x, Traced):
            return None, x.call("attention to pictures", self._changed, self._hidden)
        assert isinstance(x, torch.Tensor)
        return None, self._changed(x, batch).to(self._stream)

    def _changed(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """x [tokens, hidden] behind the layer"""
        assert batch.media is not None
        if not batch.media.seen:
            return x
        rows, spec = batch.adapter_rows, self._spec
        q = self._q(self._cross_in.exact(x).to(self._dtype), rows).view(-1, spec.heads, spec.head_dim)
        q = self._q_norm.plain(q)
        found = torch.zeros_like(q)
        for span in batch.media.seen:
            own = slice(span.first, span.first + span.count)
            found[own] = self._attended(q[own], [keys[self.number] for keys in span.keys])
        sums = x.float() + self._gates[0].tanh() * self._out(found.flatten(1), rows).float()
        made = self._mlp(self._mlp_in.exact(sums).to(self._dtype), batch)
        assert isinstance(made, torch.Tensor)
        sums = sums + self._gates[1].tanh() * made.float()
        changed = x.clone()
        for span in batch.media.seen:
            own = slice(span.first, span.first + span.count)
            changed[own] = sums[own].to(x.dtype)
        return changed

    def _attended(self, q: torch.Tensor, keys: Sequence[torch.Tensor]) -> torch.Tensor:
        """q [tokens, heads, head_dim], and what :meth:`keys_and_values` made of each picture → as q"""
        k, v = keys[0] if len(keys) == 1 else torch.cat(list(keys), 2)
        parts = q.split(1) if self._invariant else (q,)  # torch's sums depend on the number of queries
        found = (
            scaled_dot_product_attention(
                part.transpose(0, 1)[None], k[None], v[None], scale=self._spec.scale, enable_gqa=True
            )
            for part in parts
        )
        return torch.cat([part[0].transpose(0, 1) for part in found])
