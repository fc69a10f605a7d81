"""Attention to the last tokens and to compressed entries of everything before them (DeepSeek V4, V4.1)."""

from collections.abc import Iterator
from typing import Any, Final

import torch

from stentor import kernels
from stentor.kernels.forward import Traced

from ...model_config.spec.compressed_attention import CompressedAttentionSpec
from ...model_config.spec.model import Backbone
from ..elementwise import elementwise
from ..forward_batch import ForwardBatch, LayerCache
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear, plain_weight
from ..linear.quantized import Input, Stream
from ..linear.weights import WeightMap
from ..norm import RMSNorm
from ..rotary import RotaryTables
from .compressor import Compressor, rotated
from .entries import EntryBlocks, PassTokens, completed
from .entry_index import EntryIndex
from .token_history import CachedTokens, TokenHistory, keep_inputs_

_BYTES_AT_ONCE: Final = 64 << 20
"""Most bytes of keys that are brought together at once on a device."""


class CompressedAttention:
    """All heads see the same vectors, which are keys and values at once. Each head has a learned score without a
    value. Outputs are rotated back, so that what a vector gives depends on its distance alone. A layer may use the
    entries of an earlier one, and the choice of entries that an earlier index has made.

    On a CPU each token is computed over exactly what it sees, so that its bits do not depend on the batch. On a device
    all tokens have as many keys as the longest may see, some of them masked: nothing is read from it.
    """

    into: Linear | None = None
    """Several linears take the input, some of them of plain weights."""

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> None:
        spec, prefix = model.layers[layer].mixer, model.layer_prefix(layer)
        assert isinstance(spec, CompressedAttentionSpec)
        hidden, name = model.hidden_size, f"{prefix}.{spec.name}"
        self._spec, self._layer = spec, layer
        self._cache = model.cache_index(layer if spec.shares < 0 else spec.shares)
        self._dtype, self._invariant = context.dtype, context.invariant
        self._by_token = context.device.type == "cpu"

        def linear(projection: Any) -> Linear:
            return Linear.of(weights, prefix, projection, context, adaptable=True, dtype=context.dtype)

        self._into, self._queries = linear(spec.into(hidden)), linear(spec.queries())
        self._grouped = plain_weight(weights, prefix, spec.grouped(), context)
        self._out = Linear.of(
            weights, prefix, spec.out(hidden), context, adaptable=True, dtype=context.stream, summed=True
        )
        self._low_norm = RMSNorm(weights, f"{name}.q_norm", spec.q_lora_rank, spec.norm_eps, context)
        self._norm = RMSNorm(weights, f"{name}.kv_norm", spec.head_dim, spec.norm_eps, context)
        weights.alias(f"{name}.norm.weight", f"{name}.kv_norm.weight")  # as transformers 5.23 saves it
        self._head_norm = RMSNorm(weights, None, spec.head_dim, spec.norm_eps, context) if spec.norms_queries else None
        self._sinks = context.empty(spec.heads, dtype=torch.float32)
        weights.add(f"{name}.attn_sink", self._sinks)
        table = self._cos, self._sin = rotary.of(spec.rope, spec.rope_dim)
        self._compressing = linear(spec.compressing(hidden)) if spec.compressed else None
        self._compressors = [
            Compressor(weights, prefix, part, size, spec, table, context) for part, size in spec.compressed
        ]
        self._index = EntryIndex(weights, prefix, spec, hidden, table, context) if spec.own_index else None

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden] → the same; writes vectors to states or the cache, and entries to the cache."""
        if isinstance(x, Traced):
            found: Stream = x.call("compressed attention", self._attend, self._spec.out_size)
        else:
            assert isinstance(x, torch.Tensor)
            found = self._attend(x, batch)
        return self._out(found, batch.adapter_rows)

    def keep(self, x: torch.Tensor, batch: ForwardBatch) -> None:
        """Write the vectors of x [tokens, hidden] to the cache, of a layer that caches tokens."""
        made = self._into(x.to(self._dtype), batch.adapter_rows)
        assert isinstance(made, torch.Tensor)
        held = batch.caches[self._cache]
        vector = self._vectors(made[:, self._spec.q_lora_rank :], batch.positions)
        kernels.write_latents_(vector.to(held.latents.dtype), held.latents, batch.attention[held.group].slots)

    def _vectors(self, made: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Keys and values [tokens, head_dim] of a product of the layer's input."""
        return self._rotated(self._norm.plain(made.contiguous())[:, None], positions)[:, 0]

    def _attend(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """The layer's input [tokens, hidden], possibly float32 → the groups' outputs [tokens, groups · rank]"""
        spec, adapters = self._spec, batch.adapter_rows
        x = x.to(self._dtype)
        low, vector = self._into(x, adapters).split_with_sizes((spec.q_lora_rank, spec.head_dim), dim=1)
        low = self._low_norm.plain(low.contiguous())
        queries = self._queries(low, adapters).view(-1, spec.head_dim)
        if self._head_norm is not None:
            queries = self._head_norm.plain(queries)
        q = self._rotated(queries.view(len(x), spec.heads, spec.head_dim), batch.positions)
        vector = self._vectors(vector, batch.positions)
        if batch.drafted:
            return self._projected(self._attended_blocks(q, vector, batch), batch)
        blocks, cache, chosen = None, None, None
        window: TokenHistory | CachedTokens
        if spec.caches_tokens:
            held = batch.caches[self._cache]
            attention = batch.attention[held.group]
            kernels.write_latents_(vector.to(held.latents.dtype), held.latents, attention.slots)
            tokens = PassTokens.of(attention.query_start, batch.positions)
            window = CachedTokens(held.latents, attention)
        else:
            rows = batch.states.rows
            tokens = PassTokens.of(rows.cu_seqlens, batch.positions)
            window = TokenHistory(vector, batch.states.of_layer[self._layer][0], rows)
        if spec.ratio:
            cache = batch.caches[self._cache]
            attention = batch.attention[cache.group]
            blocks = EntryBlocks(attention.block_tables, cache.block, spec.ratio)
            if self._compressing is not None:
                self._compress(self._compressing(x, adapters), tokens, batch, cache, blocks)
            most = attention.max_seq_len // spec.ratio
            if self._index is not None:
                self._index(x, low, tokens, batch, cache, blocks)
            chosen = None if spec.index is None else batch.chosen.positions
            if chosen is None:
                chosen = torch.arange(most, device=x.device).expand(len(x), -1)
        attend = self._attended if self._by_token else self._attended_together
        found = attend(q, window, tokens, cache, blocks, chosen)
        if not spec.caches_tokens:
            keep_inputs_(vector, batch, self._layer)
        return self._projected(found, batch)

    def _projected(self, found: torch.Tensor, batch: Any) -> torch.Tensor:
        """What heads have found [tokens, heads, head_dim] → the groups' outputs [tokens, groups · rank]"""
        spec = self._spec
        found = self._rotated(found, batch.positions, back=True)
        groups = found.view(len(found), spec.out_groups, -1)
        weight = self._grouped.view(spec.out_groups, spec.out_rank, -1)
        return kernels.linear_heads(groups, weight, invariant=self._invariant).flatten(1)

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor, *, back: bool = False) -> torch.Tensor:
        """x [tokens, heads, head_dim] with its last dimensions rotated by ``positions`` [tokens], or ``back``."""
        sin = -self._sin if back else self._sin
        return rotated(x, self._cos, sin, positions, self._spec.rope_dim)

    def _compress(
        self, made: torch.Tensor, tokens: PassTokens, batch: Any, cache: LayerCache, blocks: EntryBlocks
    ) -> None:
        """Write the entries that tokens of the pass complete. ``made``: vectors and gates of these tokens."""
        spec = self._spec
        if spec.depth < 2:
            for entries, target in self._entries(made[:, None], tokens.positions, cache):
                kernels.write_latents_(entries.to(target.dtype), target, batch.attention[cache.group].slots)
            return
        states = batch.states
        inputs = TokenHistory(made, states.of_layer[self._layer][1], states.rows)
        found = completed(inputs, tokens, spec.ratio, spec.depth)
        if found is not None:
            for entries, target in self._entries(found.inputs, found.first, cache):
                found.write_(entries, target, blocks)
        keep_inputs_(made, batch, self._layer, 1)

    def _entries(
        self, inputs: torch.Tensor, first: torch.Tensor, cache: LayerCache
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Entries, and keys of the index, each with its place in the cache. See :meth:`.Compressor.__call__`."""
        spec = self._spec
        if spec.makes_keys and self._index is not None:
            (compressor,) = self._compressors
            still = compressor.still(inputs, first)
            yield compressor.turned(still, first), cache.latents
            yield self._index.keys(still, first), cache.index
            return
        parts = inputs.split_with_sizes([spec.channels_of(size) for _, size in spec.compressed], dim=2)
        for compressor, part, target in zip(self._compressors, parts, cache.tensors, strict=True):
            yield compressor(part, first), target

    def _attended_blocks(self, q: torch.Tensor, vectors: torch.Tensor, batch: Any) -> torch.Tensor:
        """[tokens, heads, head_dim] → the same, of blocks that are drafted: each token sees its whole block, and the
        last ``window`` cached tokens before this."""
        held, out = batch.caches[self._cache], torch.empty_like(q)
        attention, sinks = batch.attention[held.group], self._sinks[:, None]
        cached = CachedTokens(held.latents, attention)
        last = attention.query_start.diff().long() - 1
        for span in batch.drafted:
            own = slice(span.first, span.first + span.count)
            row = torch.tensor([span.sequence], device=q.device)
            count = min(span.start, self._spec.window)
            keys = cached.until(row, last[row], count)[0].to(q.dtype)
            keys = torch.cat([keys, vectors[own]]).float()
            scores = torch.einsum("thd,kd->thk", q[own].float(), keys) * self._spec.scale
            weights = torch.cat([scores, sinks.expand(span.count, -1, 1)], dim=2).softmax(2)[:, :, :-1]
            out[own] = torch.einsum("thk,kd->thd", weights, keys).to(out.dtype)
        return out

    def _attended(
        self,
        q: torch.Tensor,
        window: TokenHistory | CachedTokens,
        tokens: PassTokens,
        cache: LayerCache | None,
        blocks: EntryBlocks | None,
        chosen: torch.Tensor | None,
    ) -> torch.Tensor:
        """[tokens, heads, head_dim] → the same, a token at a time. ``chosen``: int64 [tokens, most], entries in any
        order, of which those that are not complete, or below 0, are not seen."""
        spec, out = self._spec, torch.empty_like(q)
        positions, sinks = tokens.positions.tolist(), self._sinks[:, None]
        seen: torch.Tensor | None = None
        places: torch.Tensor | None = None
        if blocks is not None and chosen is not None:
            seen = (chosen >= 0) & (chosen < ((tokens.positions + 1) // spec.ratio)[:, None])
            places = blocks.slots(tokens.rows, chosen.clamp(min=0))
        for at, position in enumerate(positions):
            count = min(position + 1, spec.window)
            one = slice(at, at + 1)
            keys = window.until(tokens.rows[one], tokens.offsets[one], count)[0]
            if places is not None and seen is not None and cache is not None:
                entries = cache.latents.view(-1, spec.head_dim)[places[at][seen[at]]]
                keys = torch.cat([keys, entries.to(keys.dtype)])
            keys = keys.float()
            scores = torch.cat([q[at].float() @ keys.T * spec.scale, sinks], dim=1)
            raised = elementwise(torch.exp, scores - scores.amax(1, keepdim=True))
            out[at] = (raised[:, :-1] @ keys / raised.sum(1, keepdim=True)).to(out.dtype)
        return out

    def _attended_together(
        self,
        q: torch.Tensor,
        window: TokenHistory | CachedTokens,
        tokens: PassTokens,
        cache: LayerCache | None,
        blocks: EntryBlocks | None,
        chosen: torch.Tensor | None,
    ) -> torch.Tensor:
        """:meth:`_attended`, many tokens at a time."""
        spec, out = self._spec, torch.empty_like(q)
        back = torch.arange(spec.window - 1, -1, -1, device=q.device)
        most = spec.window + (0 if chosen is None else chosen.shape[1])
        for some in torch.arange(len(q)).split(max(1, _BYTES_AT_ONCE // (most * spec.head_dim * 4))):
            part = slice(int(some[0]), int(some[-1]) + 1)
            rows, positions = tokens.rows[part], tokens.positions[part]
            keys = window.until(rows, tokens.offsets[part], spec.window).float()
            seen = back[None] <= positions[:, None]
            if blocks is not None and chosen is not None and cache is not None:
                entries = chosen[part]
                places = blocks.slots(rows, entries.clamp(min=0))
                keys = torch.cat([keys, cache.latents.view(-1, spec.head_dim)[places].float()], dim=1)
                visible = (entries >= 0) & (entries < ((positions + 1) // spec.ratio)[:, None])
                seen = torch.cat([seen, visible], dim=1)
            keys = keys.masked_fill(~seen[:, :, None], 0.0)
            scores = torch.bmm(q[part].float(), keys.transpose(1, 2)) * spec.scale
            scores = scores.masked_fill(~seen[:, None], -torch.inf)
            sinks = self._sinks[None, :, None].expand(len(scores), -1, -1)
            weights = torch.cat([scores, sinks], dim=2).softmax(2)[:, :, :-1]
            out[part] = torch.bmm(weights, keys).to(out.dtype)
        return out
