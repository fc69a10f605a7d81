"""Cross-attention of tokens to encoded audio."""

import torch
from msgspec.structs import replace

from stentor import kernels

from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.model import Backbone
from ..forward_batch import ForwardBatch
from ..linear.adapters import AdapterRows
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear
from ..linear.quantized import Input
from ..linear.weights import WeightMap


class CrossAttention:
    """Queries come from tokens. Keys and values come from what an encoder made, computed once, in the caches of encoder
    slots."""

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, spec: AttentionSpec, context: LayerContext
    ) -> None:
        self._layer, self._spec, prefix = layer, spec, model.layer_prefix(layer)
        into, out = spec.projections(model.hidden_size)
        q = replace(into, parts=into.parts[:1])
        kv = replace(into, parts=into.parts[1:], inputs=spec.encoded or into.inputs)
        self._q = Linear.of(weights, prefix, q, context, adaptable=True, dtype=context.dtype)
        self._kv = Linear.of(weights, prefix, kv, context, adaptable=True, dtype=context.dtype)
        self._out = Linear.of(weights, prefix, out, context, adaptable=True, dtype=context.stream)

    def keys_and_values(self, encoded: torch.Tensor, rows: AdapterRows | None = None) -> tuple[torch.Tensor, ...]:
        """encoded [positions, size] → k and v, each [positions, kv_heads, head_dim]; ``rows``: their adapters."""
        return self._kv(encoded, rows).view(len(encoded), 2, self._spec.kv_heads, self._spec.head_dim).unbind(1)

    def __call__(self, x: Input, batch: ForwardBatch) -> torch.Tensor:
        """x [tokens, hidden] → the same; stores its queries in the batch if requested."""
        audio, spec = batch.encoded, self._spec
        assert audio is not None
        assert isinstance(x, torch.Tensor)
        q = self._q(x, batch.adapter_rows).view(len(x), spec.heads, spec.head_dim)
        if audio.queries is not None:
            audio.queries[self._layer] = q
        cache = audio.caches[self._layer]
        found = kernels.paged_attention(q, cache.k, cache.v, audio.attention, scale=spec.scale, softcap=spec.softcap)
        return self._out(found.view(len(x), -1), batch.adapter_rows)
