"""A transformer block whose weights several layers share (Zamba, Zamba2)."""

from collections.abc import Iterable
from typing import Any

import torch

from stentor import kernels
from stentor.kernels.forward import Traced

from ..model_config.spec.model import Backbone
from ..model_config.spec.projection import Projection
from ..model_config.spec.shared_block import SharedBlockSpec
from .attention.cached import attend_cached, cache_scales
from .forward_batch import ForwardBatch
from .linear.layer_context import LayerContext
from .linear.linear import Linear
from .linear.quantized import Stream
from .linear.weights import WeightMap
from .mlp import kernel_kind
from .norm import RMSNorm
from .rotary import RotaryTables


class SharedWeights:
    """The projections, norms and rotary tables that all layers with the block use."""

    def __init__(
        self, weights: WeightMap, model: Backbone, spec: SharedBlockSpec, rotary: RotaryTables, context: LayerContext
    ) -> None:
        prefix, hidden = model.layer_prefix(spec.source), model.hidden_size
        into, out = spec.attention.projections(hidden)
        gate_up, down = spec.mlp.projections(hidden)
        self.into, self.out, self.gate_up, self.down = (
            Linear.of(weights, prefix, projection, context, dtype=context.dtype)
            for projection in (into, out, gate_up, down)
        )
        self.norms = [
            RMSNorm(weights, f"{prefix}.{name}", size, model.norm_eps, context)
            for name, size in zip(spec.norms, (spec.attention.inputs * hidden, hidden), strict=True)
        ]
        self.cos, self.sin = rotary.of(spec.attention.rope, spec.attention.head_dim)


class _Addition:
    """Additions of low rank to parts of a product."""

    def __init__(
        self, weights: WeightMap, prefix: str, down: Projection, ups: Iterable[Projection], context: LayerContext
    ) -> None:
        self._down = Linear.of(weights, prefix, down, context, dtype=context.dtype)
        self._ups = [Linear.of(weights, prefix, up, context, dtype=context.dtype) for up in ups]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, inputs] → [tokens, outputs of all parts]"""
        low = _plain(self._down(x)).chunk(len(self._ups), dim=1)
        return torch.cat([_plain(up(part.contiguous())) for up, part in zip(self._ups, low, strict=True)], dim=1)


class SharedBlock:
    """A layer's use of a block. A CPU's program makes one call for all of it."""

    def __init__(
        self,
        weights: WeightMap,
        layer: int,
        model: Backbone,
        spec: SharedBlockSpec,
        shared: SharedWeights,
        context: LayerContext,
    ) -> None:
        self._spec, self._shared, self._hidden, self._dtype = spec, shared, model.hidden_size, context.dtype
        self._cache, self._invariant = model.cache_index(layer), context.invariant
        source, prefix = model.layer_prefix(spec.source), model.layer_prefix(layer)
        additions = [_Addition(weights, source, down, ups, context) for down, ups in spec.additions(model.hidden_size)]
        self._of_gates = additions[-1] if additions else None
        self._of_heads = additions[0] if spec.adapts_attention else None
        self._linear = Linear.of(weights, prefix, spec.out(model.hidden_size), context, dtype=context.stream)
        self._scales = cache_scales(weights, f"{prefix}.{spec.attention.name}", spec.attention.kv_heads, context)
        if layer != spec.source:  # files may store what is shared again
            stored = spec.shapes(prefix, prefix, model.hidden_size, shared=True)
            weights.pass_over(*(name for name, _ in stored if f"{prefix}.{spec.name}." in name))

    def __call__(self, x: Stream, batch: ForwardBatch) -> Stream:
        """The stream x [tokens, hidden] → the same with the block's output added; x is unchanged."""
        if isinstance(x, Traced):
            words = batch.carried.words
            assert isinstance(words, Traced)
            return x.call("a shared block", self._added, self._hidden, words)
        assert isinstance(batch.carried.words, torch.Tensor)
        return self._added(x, batch.carried.words, batch)

    def _added(self, x: torch.Tensor, words: torch.Tensor, batch: Any) -> torch.Tensor:
        """x and the tokens' embeddings, each [tokens, hidden] → x plus the block's output"""
        shared, spec = self._shared, self._spec.attention
        before, between = shared.norms
        both = before.exact(torch.cat((x, words), dim=1)).to(self._dtype)
        made = _plain(shared.into(both))
        if self._of_heads is not None:
            made = made + self._of_heads(both)
        attended = _plain(shared.out(self._attended(made, batch, spec.head_dim)))
        taken = between.exact(attended).to(self._dtype)
        gates = _plain(shared.gate_up(taken))
        if self._of_gates is not None:
            gates = gates + self._of_gates(taken)
        worked = _plain(shared.down(kernels.gated_activation(gates, kernel_kind(self._spec.mlp.activation))))
        return x + _plain(self._linear(worked)).to(x.dtype)

    def _attended(self, made: torch.Tensor, batch: ForwardBatch, head_dim: int) -> torch.Tensor:
        """Queries, keys and values [tokens, all heads] → [tokens, heads · head_dim]; writes keys and values."""
        spec, shared, cache = self._spec.attention, self._shared, batch.caches[self._cache]
        sizes = (spec.q_size, spec.kv_size, spec.kv_size)
        q, k, v = (part.reshape(len(made), -1, head_dim) for part in made.split_with_sizes(sizes, dim=1))
        if spec.rope is not None:
            kernels.rotary_(q, k, shared.cos, shared.sin, batch.positions, interleaved=spec.rope.interleaved)
        k_scale, v_scale = scales = cache.scales(self._scales)
        slots = batch.attention[cache.group].slots
        kernels.write_kv_(k, v, cache.k, cache.v, slots, k_scale=k_scale, v_scale=v_scale)
        return attend_cached(q, batch, cache, spec, scales, window=0, invariant=self._invariant).reshape(len(made), -1)


def _plain(made: Stream) -> torch.Tensor:
    assert isinstance(made, torch.Tensor)
    return made
