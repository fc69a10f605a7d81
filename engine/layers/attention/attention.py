"""Self-attention."""

import math
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, Final, overload

import torch
from torch.nn.functional import pad

from stentor import kernels
from stentor.kernels.forward import CachedHeads, Rotation, Scores, Traced
from stentor.kernels.rotate_and_write import rotate_and_write_kv_

from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.attention_parts import BlockIndexSpec
from ...model_config.spec.model import Backbone
from ..elementwise import elementwise
from ..forward_batch import CacheScales, ForwardBatch, Texts
from ..learned_factors import LearnedFactors
from ..linear.layer_context import LayerContext
from ..linear.parts import BeforePart, tiles
from ..linear.quantized import Delta, Input, Stream, changed
from ..linear.weights import WeightMap
from ..norm import RMSNorm
from ..rank_norm import SplitNorm, rms_over_ranks
from ..rotary import RotaryTables, rotate_apart_
from .answer_window import answer_distances
from .block_index import BlockIndex
from .cached import attend_cached, cache_scales
from .chosen_heads import ChosenHeads, Difference
from .convolved import Convolved
from .distances import Distances
from .drafted import attend_drafted
from .head_norms import norms_of_heads, query_and_key_norms
from .query_latent import QueriesOfLatent
from .region_index import RegionIndex
from .stored_heads import _pass_over_unused, _projections
from .token_conv import key_convs
from .value_experts import ValueExperts

_LEAST_QUERIES: Final = 64
"""Least queries of a part of an attention; for fewer, laying out the keys takes longer."""


class Attention:
    """Grouped-query attention with rotary positions, optional QK-norm, window, soft cap, sinks and gate."""

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> None:
        self._spec = spec = model.layers[layer].attention
        at = model.layer_prefix(layer)
        prefix = f"{at}.{spec.name}"
        self._cache = model.cache_index(layer)
        self._dtype = context.dtype
        self._eps, self._plus_one = model.norm_eps, model.norm_plus_one
        self._before, self._invariant, self._ranks = context.before_part, context.invariant, context.ranks
        self._window, self._chunk = (0, spec.window) if spec.chunked else (spec.window, 0)
        self.into, self.out = _projections(weights, at, spec, model, context)
        self._v_norm = RMSNorm(weights, None, spec.head_dim, self._eps, context) if spec.v_norm else None
        norms = query_and_key_norms(weights, prefix, spec, model, context)
        self._head_norms = norms if spec.qk_norm == "head" else None
        self._full_norms = norms if spec.qk_norm == "full" else None
        self._layer_norms = norms_of_heads(weights, prefix, spec, self._eps, context)
        self._sinks, self._slopes = _sinks(weights, prefix, spec, context), _slopes(spec, context)
        self._distance_bias: torch.Tensor | None = None
        if spec.distance_bias is not None:
            self._distance_bias = rotary.distance_bias(spec.distance_bias, spec.heads)
        elif spec.slopes_of_roots:
            self._distance_bias = rotary.root_distances(spec.slopes)
        self._head_out = RMSNorm(weights, None, spec.head_dim, self._eps, context) if spec.head_out_norm else None
        self._out_norm: SplitNorm | None = None
        if spec.out_norm:
            size = spec.heads * spec.value_dim
            name = f"{prefix}.{spec.out_norm}" if spec.out_norm_weighted else None
            self._out_norm = SplitNorm(weights, name, size, self._eps, context)
        self._cos, self._sin = rotary.of(spec.rope, spec.head_dim)
        self._interleaved = spec.rope is not None and spec.rope.interleaved
        self._query_scales: torch.Tensor | None = None
        if spec.temperature_beta or spec.temperature_power:
            self._query_scales = rotary.query_scales(
                spec.temperature_beta,
                spec.temperature_floor,
                spec.temperature_first,
                spec.temperature_power,
                late=spec.temperature_late,
            )
        self._convolved = Convolved(weights, layer, model, context) if spec.convolved else None
        self._key_convs = key_convs(weights, prefix, spec.key_convs, layer, 0, context) if spec.key_convs else None
        self._distances = Distances(weights, prefix, spec, context) if spec.distances else None
        self._between: ChosenHeads | Difference | QueriesOfLatent | ValueExperts | None = None
        if spec.chosen is not None:
            self._between = ChosenHeads(spec, spec.chosen)
        elif spec.difference is not None:
            self._between = Difference(weights, prefix, spec, spec.difference, self._eps, context)
        elif spec.query_latent is not None:
            self._between = QueriesOfLatent(weights, at, model, spec, spec.query_latent, context)
        elif spec.value_experts is not None:
            self._between = ValueExperts(weights, prefix, spec, spec.value_experts, context)
        self._gate_bias: torch.Tensor | None = None
        if spec.gate_bias:
            self._gate_bias = context.empty(spec.heads, dtype=torch.float32)
            weights.add(f"{prefix}.{spec.gate_bias}", self._gate_bias)
        self._sizes: tuple[int, ...] = spec.q_size + spec.gates, spec.kv_size, spec.kv_heads * spec.value_dim
        self._index: BlockIndex | RegionIndex | None = None
        self._of_gates, self._of_queries = (
            LearnedFactors.of(weights, (f"{prefix}.{name}",), spec.q_size, context, rate=rate, power=2)
            if name
            else None
            for name, rate in ((spec.gate_scales, spec.gate_rate), (spec.query_scales, spec.query_rate))
        )
        if spec.index is not None:
            kind = BlockIndex if isinstance(spec.index, BlockIndexSpec) else RegionIndex
            self._index = kind(weights, layer, model, spec, rotary, context)
            self._sizes = *self._sizes, *(part.size for part in spec.index.parts(spec.name, spec.kv_heads))
        if spec.distances is not None:
            self._sizes = *self._sizes, sum(size for _, size in spec.distances.parts(spec.name, spec.heads))
        if spec.key_convs is not None and (taps := spec.key_convs.taps):
            self._sizes = *self._sizes, sum(size for _, size in taps)
        self.scales = cache_scales(weights, prefix, spec.kv_heads, context)
        _pass_over_unused(weights, prefix, spec)

    def again(self, cache: int, layer: int) -> "Attention":
        """The same weights over the cache with this number, and the states of this layer."""
        found = copy(self)
        found._cache = cache
        if self._key_convs is not None:
            found._key_convs = self._key_convs.again(layer)
        return found

    @overload
    def __call__(self, x: Input, batch: ForwardBatch) -> Stream: ...

    @overload
    def __call__(self, x: Input, batch: ForwardBatch, *, late: bool) -> Delta: ...

    def __call__(self, x: Input, batch: ForwardBatch, *, late: bool = False) -> Delta:
        """x [tokens, hidden], plain, quantised or unnormed → [tokens, hidden]; writes K and V if there are caches.

        ``late``: the last product may be left to the next norm.
        """
        out = self.out.late if late else self.out
        made: Stream = self.into(x, batch.adapter_rows)
        if self._convolved is not None:
            made = self._convolved(made, batch)
        products = made
        if self._between is not None:
            made = self._between.made(products, batch)
        if clip := self._spec.clip:
            made = changed(made, "clipped queries, keys and values", lambda rows: rows.clamp_(-clip, clip))
        if self._full_norms is not None and self._ranks is not None:
            made = self._normed_over_ranks(made)
        parts: Sequence[Stream] = made.split_with_sizes(self._sizes, dim=1)  # split() is slow Python
        q, k, v, *index = parts
        if self._full_norms is not None and self._ranks is None:
            q, k = self._full_norms[0].plain(q), self._full_norms[1].plain(k)
        found: Stream
        if isinstance(q, Traced) or isinstance(k, Traced) or isinstance(v, Traced):
            found = self._traced(q, k, v, batch, *index)
        elif not index:
            found = self.attend(q, k, v, batch)
        else:
            found = self.attend(q, k, v, batch, *(each for each in index if isinstance(each, torch.Tensor)))
        if self._between is not None:
            found = self._between.found(found, products)
        return out(found if self._out_norm is None else self._out_norm(found), batch.adapter_rows)

    def _normed_over_ranks(self, made: Stream) -> Stream:
        """Norm queries and keys over the heads of all workers; [tokens, q, k and v] → the same."""
        if isinstance(made, Traced):
            return made.call("norms over workers", lambda rows, _: self._norm_rows(rows), made.width)
        return self._norm_rows(made)

    def _norm_rows(self, made: torch.Tensor) -> torch.Tensor:
        assert self._full_norms is not None
        assert self._ranks is not None
        *asked, v = made.split_with_sizes(self._sizes, dim=1)
        normed = rms_over_ranks(asked, self._eps, self._ranks)
        weighted = [part * norm.factors for part, norm in zip(normed, self._full_norms, strict=True)]
        return torch.cat([*(part.to(v.dtype) for part in weighted), v], dim=1)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch, *index: torch.Tensor
    ) -> torch.Tensor:
        """Attend with q, k and v [tokens, size] before rotation and head norms, gates among queries → [tokens, heads ·
        value_dim]. ``index``: what is made for an index of blocks, or the numbers for distances and taps."""
        spec, gate = self._spec, None
        if self._key_convs is not None:
            both = self._key_convs.added(torch.cat([k, v], dim=1), batch, *index[1:]).to(k.dtype)
            k, v = (part.contiguous() for part in both.split_with_sizes(self._sizes[1:3], dim=1))
        if spec.gated:
            if spec.gate:
                sizes = (spec.q_size, spec.gates)
                queries, gate = reversed(q.split(sizes[::-1], dim=1)) if spec.gate_first else q.split(sizes, dim=1)
                if self._of_gates is not None:
                    gate = self._of_gates(gate)
                gate = gate.unflatten(1, (spec.heads, -1))
                if self._gate_bias is not None:
                    gate = gate + self._gate_bias.to(gate.dtype)[:, None]
            else:
                queries, gate = q.view(-1, spec.heads, 2, spec.head_dim).unbind(2)
            q = queries.contiguous()
        q = q.view(-1, spec.heads, spec.head_dim)
        k, v = k.view(-1, spec.kv_heads, spec.head_dim), v.view(-1, spec.kv_heads, spec.value_dim)
        if spec.v_dim:
            v = pad(v, (0, spec.head_dim - spec.v_dim))
        if self._v_norm is not None:
            v = self._v_norm.plain(v)
        if self._layer_norms:
            q, k = (norm(part) for norm, part in zip(self._layer_norms, (q, k), strict=True))
        if batch.texts is None:
            found = self._attend_cached(q, k, v, batch, *index)
        else:
            found = self._attend_whole(q, k, v, batch)
        if spec.v_dim:
            return found[:, :, : spec.v_dim].flatten(1)
        if gate is None:
            return found.view(-1, spec.q_size)
        if self._head_out is not None:
            found = self._head_out.plain(found)
        return (found * _opened(gate, spec.gate_activation)).view(-1, spec.q_size)

    def _attend_whole(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """Attention within whole texts; q, k, v [tokens, heads, head_dim] → the shape of q."""
        texts, spec = batch.texts, self._spec
        assert texts is not None
        q, k = self._turned(q, k, batch)
        q = self._scaled(q, batch.positions)
        if texts.seen is not None:
            k, v = k[texts.seen], v[texts.seen]
        if texts.bias is not None:
            return _attend_biased(q, k, v, texts, spec.scale)
        assert not spec.chunked, "no embedder attends in chunks"
        assert not spec.slopes, "no embedder has slopes"
        assert spec.distances is None, "no embedder makes numbers by distance"
        assert self._distance_bias is None, "an encoder makes the bias of its texts once for all layers"
        if self._before is None or spec.window:
            starts = texts.cu_seqlens if texts.query_starts is None else texts.query_starts
            return self._see_whole(q, k, v, starts, texts, self._sinks)
        return self._see_in_parts(q, k, v, texts, self._before)

    def _see_whole(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        q_start: torch.Tensor,
        texts: Texts,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        side = self._spec.window - 1 if self._spec.window else -1  # the window includes the token itself
        return kernels.varlen_attention(
            q,
            k,
            v,
            q_start,
            texts.cu_seqlens,
            texts.varlen.max_seqlen,
            texts.varlen.max_seqlen,
            scale=self._spec.scale,
            causal=self._spec.causal,
            window=(side, side if self._spec.ahead < 0 else self._spec.ahead),
            softcap=self._spec.softcap,
            sinks=sinks,
            layout=texts.layout,
        )

    def _see_in_parts(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, texts: Texts, before: BeforePart
    ) -> torch.Tensor:
        """Attend some heads at a time, laying out their keys once; for a long head, some queries at a time."""
        spec, out = self._spec, q.new_empty(q.shape)
        starts = texts.cu_seqlens if texts.query_starts is None else texts.query_starts
        group = spec.heads // spec.kv_heads
        work = 2 * texts.varlen.max_seqlen * spec.head_dim * group
        for kv_heads, rows in tiles(spec.kv_heads, len(q), work, before, _LEAST_QUERIES):
            heads = slice(group * kv_heads.start, group * kv_heads.stop)
            sinks = None if self._sinks is None else self._sinks[heads]
            own = (starts - rows.start).clamp(0, rows.stop - rows.start)
            found = self._see_whole(q[rows, heads], k[:, kv_heads], v[:, kv_heads], own, texts, sinks)
            if found.shape == q.shape:
                return found
            out[rows, heads] = found
        return out

    def _turned(self, q: torch.Tensor, k: torch.Tensor, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Normed and rotated queries and keys, in the spec's order; mutates its inputs."""
        norms, last = self._head_norms, self._spec.rotated_first
        if norms is not None and not last:
            q, k = norms[0].plain(q), norms[1].plain(k)
        if self._spec.rope is not None:
            cos, sin = (self._cos, self._sin) if batch.rotation is None else batch.rotation
            rotate = rotate_apart_ if cos.shape[1] == q.shape[2] else kernels.rotary_
            rotate(q, k, cos, sin, batch.positions, interleaved=self._interleaved)
        if norms is not None and last:
            q, k = norms[0].plain(q), norms[1].plain(k)
        return (q if self._of_queries is None else self._of_queries(q.flatten(1)).view(q.shape)), k

    def _scaled(self, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Queries [tokens, heads, head_dim] scaled by position."""
        scales = self._query_scales
        return q if scales is None else q * scales[positions].to(q.dtype)[:, None, None]

    def _attend_cached(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch, *index: torch.Tensor
    ) -> torch.Tensor:
        """Causal attention over the cache; q, k, v [tokens, heads, head_dim] → the shape of q."""
        cache, spec = batch.caches[self._cache], self._spec
        if batch.drafted:
            q, k = self._turned(q, k, batch)
            return attend_drafted(q, k, v, batch, cache, spec, cache.scales(self.scales), self._sinks)
        scales = cache.scales(self.scales)
        q = self._written(q, k, v, batch, scales)
        if self._query_scales is not None:
            q = self._scaled(q, batch.positions)
        distances = self._distance_bias
        if self._distances is not None:
            late = self._query_scales if spec.temperature_late else None
            distances = self._distances(index[0], None if late is None else late[batch.positions])
        if spec.answer_window:
            distances = answer_distances(spec, batch)
        if self._index is not None:
            found = self._index.attend(q, index, batch, cache)
            if found is not None:
                return found
        return attend_cached(
            q,
            batch,
            cache,
            spec,
            scales,
            window=self._window,
            chunk=self._chunk,
            sinks=self._sinks,
            slopes=self._slopes,
            distances=distances,
            invariant=self._invariant,
        )

    def _written(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch, scales: CacheScales
    ) -> torch.Tensor:
        """Normed and rotated queries; writes keys and values to the cache. [tokens, heads, head_dim] each."""
        cache, spec = batch.caches[self._cache], self._spec
        attention = batch.attention[cache.group]
        q_norm, k_norm = self._head_norms or (None, None)
        k_scale, v_scale = scales
        if spec.rotated_first or (self._invariant and self._head_norms is not None):
            # a fused launch sums a head's squares in an order that depends on the number of tokens
            q, k = self._turned(q, k, batch)
            kernels.write_kv_(k, v, cache.k, cache.v, attention.slots, k_scale=k_scale, v_scale=v_scale)
            return q
        return rotate_and_write_kv_(
            q,
            k,
            v,
            self._cos,
            self._sin,
            batch.positions,
            cache.k,
            cache.v,
            attention.slots,
            q_norm=q_norm.weight if q_norm else None,
            k_norm=k_norm.weight if k_norm else None,
            eps=self._eps,
            plus_one=self._plus_one,
            interleaved=self._interleaved,
            k_scale=k_scale,
            v_scale=v_scale,
        )

    def keep(self, x: torch.Tensor, batch: ForwardBatch) -> None:
        """Write the keys and values of x [tokens, hidden] to the cache, and nothing else (what drafts blocks)."""
        made = self.into(x, None)
        assert isinstance(made, torch.Tensor)
        q, k, v = made.split_with_sizes(self._sizes, dim=1)
        q, k, v = (part.view(len(x), -1, self._spec.head_dim) for part in (q, k, v))
        self._written(q, k, v, batch, batch.caches[self._cache].scales(self.scales))

    def _traced(self, q: Stream, k: Stream, v: Stream, batch: ForwardBatch, *index: Stream) -> Traced:
        """:meth:`attend` while a pass is recorded."""
        spec, norms = self._spec, self._head_norms
        assert isinstance(q, Traced)
        assert isinstance(k, Traced)
        assert isinstance(v, Traced)
        cache = batch.caches[self._cache]
        if index:
            beside = [part for part in index if isinstance(part, Traced)]
            what = "attention to chosen blocks" if self._distances is None else "attention with numbers by distance"
            return q.beside(k, v, *beside).call(what, self._attend_rows, spec.q_size)
        if spec.answer_window:
            what = "attention to a prompt and the end of an answer"
            return q.beside(k, v).call(what, self._attend_rows, spec.q_size)
        if self._distance_bias is not None:
            return q.beside(k, v).call("attention with a bias by distance", self._attend_rows, spec.q_size)
        if spec.gated or self._layer_norms or spec.v_dim:
            what = "attention with layer norms of heads" if self._layer_norms else "attention with narrow values"
            what = "attention with a gate" if spec.gated else what
            return q.beside(k, v).call(what, self._attend_rows, spec.heads * spec.value_dim)
        if spec.whole_spans and batch.media is not None:
            return q.beside(k, v).call("attention within a picture", self._attend_rows, spec.q_size)
        if self._v_norm is not None:
            v = v.normed_each(self._v_norm.factors, self._eps)
        heads = CachedHeads(
            self._cache,
            *(spec.heads, spec.kv_heads, spec.head_dim),
            group=cache.group,
            scales=self.scales if cache.k.dtype == torch.float8_e4m3fn else None,
        )
        rotation = Rotation(
            self._cos,
            self._sin,
            interleaved=self._interleaved,
            norms=None if norms is None else (norms[0].factors, norms[1].factors),
            eps=self._eps,
            rotated_first=spec.rotated_first,
            query_scales=self._query_scales,
        )
        scores = Scores(spec.scale, self._window, self._chunk, spec.softcap, self._sinks, self._slopes)
        return q.attend(k, v, heads, rotation, scores)

    def _attend_rows(self, qkv: torch.Tensor, batch: Any) -> torch.Tensor:
        """:meth:`attend` with q, k, v and the parts of an index concatenated, float32 [tokens, all]."""
        q, k, v, *index = qkv.to(self._dtype).split(self._sizes, dim=1)
        return self.attend(q, k, v, batch, *index)


def _opened(gate: torch.Tensor, activation: str) -> torch.Tensor:
    """What multiplies the heads' output, of gates [tokens, heads, gates a head] → the same."""
    match activation:
        case "sigmoid":
            return elementwise(torch.sigmoid, gate)
        case "silu":
            return elementwise(torch.nn.functional.silu, gate.float()).to(gate.dtype)
    beta = math.log(2) if activation == "softplus2" else 1.0
    return elementwise(partial(torch.nn.functional.softplus, beta=beta), gate.float()).to(gate.dtype)


def _sinks(weights: WeightMap, prefix: str, spec: AttentionSpec, context: LayerContext) -> torch.Tensor | None:
    """float32 [heads]: a score of each head that takes part in its softmax and has no value. It is 0 if each token
    makes one anew, which all other scores lose then."""
    if spec.distances is not None and spec.distances.sinks:
        return context.zeros(spec.heads)
    if not spec.sinks:
        return None
    sinks = context.empty(spec.heads, dtype=torch.float32)
    weights.add(f"{prefix}.{spec.sinks_name}", sinks)
    weights.alias(f"{prefix}.sinks", f"{prefix}.{spec.sinks_name}")  # transformers' name
    return sinks


def _slopes(spec: AttentionSpec, context: LayerContext) -> torch.Tensor | None:
    """float32 [heads]: what a head's scores lose with distance (ALiBi)."""
    if not spec.slopes or spec.slopes_of_roots:
        return None
    slopes = context.empty(spec.heads, dtype=torch.float32)
    if not context.filled:
        slopes.copy_(torch.tensor(spec.slopes))
    return slopes


def _attend_biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, texts: Texts, scale: float) -> torch.Tensor:
    """Attention with the texts' bias on scores, on padded texts, since no kernel supports it without padding."""
    assert texts.bias is not None
    out = torch.empty_like(q)
    for group in texts.padded:
        length = group.rows.shape[1]
        queries, keys, values = (part[group.rows].transpose(1, 2) for part in (q, k, v))
        mask = texts.bias[None, :, :length, :length].masked_fill(~group.real[:, None, None, :], -torch.inf).to(q.dtype)
        attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
        out.index_copy_(0, group.tokens, attended.transpose(1, 2).flatten(0, 1).index_select(0, group.places))
    return out
