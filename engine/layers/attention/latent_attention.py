"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434)."""

import itertools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from stentor import kernels
from stentor.kernels.forward import Traced
from stentor.kernels.low_rank import LowRank

from ...model_config.spec.latent_attention import LatentAttentionSpec
from ...model_config.spec.model import Backbone
from ..elementwise import elementwise
from ..forward_batch import ForwardBatch, LayerCache, Texts
from ..linear.adapters import AdapterRows
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear, plain_weight
from ..linear.quantized import Input, Stream
from ..linear.weights import WeightMap
from ..norm import RMSNorm
from ..rotary import RotaryTables
from .query_growth import QueryGrowth
from .token_index import TokenIndex

Added = Sequence[tuple[LowRank, torch.Tensor]]
"""A and B of adapters, and the tokens that use them."""
_EXPANDED_BYTES: Final = 64 << 20
"""Most bytes of keys expanded from latents at once; further heads are computed afterwards."""


class Spans(NamedTuple):
    """Where each row's queries and keys lie."""

    q_start: torch.Tensor
    """int32 [rows + 1]"""
    k_start: torch.Tensor
    """int32 [rows + 1]"""
    most_queries: int
    """Of a row."""
    most_keys: int
    layout: kernels.KeyLayout | None
    causal: bool
    """Whether a token sees only those before it."""


class LatentAttention:
    """Attention with keys and values made from one latent a token, which alone is cached.

    A row attends in one of two forms. *Absorbed*: queries are projected into the latent space, and each head's result
    out of it. *Expanded*: keys and values of all tokens that the row sees are computed. In a prompt the form with less
    work for this chunk length and context is used, independent of the rest of the batch. Rows are always absorbed on a
    device, whose host does not know the lengths; with batch invariance; and behind the prompt, because tokens sampled
    one by one may be recomputed in one chunk.

    With an index, a token sees the tokens that it chooses, or that an earlier layer's index has chosen. Rows that see
    no more tokens than may be chosen are computed without it. A layer may use the latents of an earlier one; it caches
    nothing, or the keys of its index.

    Texts whose tokens see each other are expanded, and cached nowhere.
    """

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> None:
        spec, prefix = model.layers[layer].mixer, model.layer_prefix(layer)
        assert isinstance(spec, LatentAttentionSpec)
        self._spec, self._dtype = spec, context.dtype
        self._cache = model.cache_index(layer if spec.shares < 0 else spec.shares)
        self._keys_cache = model.cache_index(layer)
        """Of the index."""
        into, *of_queries, made, out = spec.attending(model.hidden_size)
        self._into = Linear.of(weights, prefix, into, context, adaptable=True, dtype=context.dtype)
        indexed = spec.index is not None and not spec.index.shared
        self.into = None if indexed else self._into
        """The linear that may take a quantised input; an index needs a plain one."""
        self._queries: Linear | None = None
        if of_queries:
            self._queries = Linear.of(weights, prefix, of_queries[0], context, adaptable=True, dtype=context.dtype)
        if spec.made_apart:
            self._made = context.empty(spec.heads * (spec.nope_dim + spec.v_dim), spec.kv_lora_rank)
        else:
            self._made = plain_weight(weights, prefix, made, context)
        """[heads * (nope_dim + v_dim), kv_lora_rank]"""
        self._added = context.adapted(
            {f"{prefix}.{name}": outputs for name, outputs in made.parts}, made.inputs, plain=True
        )
        """Adapters of this matrix."""
        self.out = Linear.of(weights, prefix, out, context, adaptable=True, dtype=context.stream, summed=True)
        plain = indexed or spec.gated_queries
        norms = [
            RMSNorm(weights, f"{prefix}.{name}", size, spec.norm_eps, context, before=before)
            for (name, size), before in zip(
                spec.latent_norms, (None if plain or not spec.q_lora_rank else self._queries, None), strict=False
            )
        ]
        self._q_norm = norms[0] if spec.q_lora_rank else None
        self._kv_norm = norms[-1] if spec.shares < 0 else None
        keys, self._values = self._by_head(self._made)
        if spec.made_apart:
            transposed = (spec.heads, spec.kv_lora_rank, spec.nope_dim)
            weights.add(
                f"{prefix}.{spec.name}.k_b_proj.weight", keys, shape=transposed, read=lambda k: k.transpose(1, 2)
            )
            weights.add(f"{prefix}.{spec.name}.v_b_proj.weight", self._values)
        self._keys = context.empty(spec.heads, spec.kv_lora_rank, spec.nope_dim)
        """Projects queries into the latent space."""
        weights.derive(self._keys, lambda: keys.transpose(1, 2))
        self._sinks: torch.Tensor | None = None
        if spec.sinks:
            self._sinks = context.empty(spec.heads, dtype=torch.float32)
            weights.add(f"{prefix}.{spec.name}.{spec.sinks}", self._sinks)
        self._rope_norm: RMSNorm | None = None
        if spec.rope_norm:
            name = f"{prefix}.{spec.name}.{spec.rope_norm}"
            self._rope_norm = RMSNorm(weights, name, spec.rope_dim, spec.norm_eps, context)
        self._growth: QueryGrowth | None = None
        if spec.growth:
            self._growth = QueryGrowth(weights, f"{prefix}.{spec.name}.{spec.growth}", spec.heads, context)
        self._cos, self._sin = rotary.of(spec.rope, spec.rope_dim)
        self._query_scales: torch.Tensor | None = None
        if spec.temperature_beta:
            self._query_scales = rotary.query_scales(spec.temperature_beta, spec.temperature_floor, 0)
        self._index: TokenIndex | None = None
        if indexed:
            self._index = TokenIndex(weights, prefix, layer, spec, model.hidden_size, rotary, context)
        self._invariant = context.invariant
        self._chooses = context.device.type == "cpu" and not context.invariant

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden], plain or quantised → [tokens, hidden]; writes latents."""
        if self._index is not None:
            if isinstance(x, Traced):
                found = x.call("sparse latent attention", self._attend_input, self._spec.v_size)
                return self.out(found, batch.adapter_rows)
            assert isinstance(x, torch.Tensor)
            return self.out(self._attend_input(x, batch), batch.adapter_rows)
        made: Stream = self._into(x, batch.adapter_rows)
        if isinstance(made, Traced):
            found = made.call("latent attention", self._attend_rows, self._spec.v_size)
            return self.out(found, batch.adapter_rows)
        return self.out(self.attend(made, batch), batch.adapter_rows)

    def _attend_input(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """:meth:`attend` with the layer's input [tokens, hidden], possibly float32."""
        x = x.to(self._dtype)
        return self.attend(self._into(x, batch.adapter_rows), batch, x)

    def _attend_rows(self, made: torch.Tensor, batch: Any) -> torch.Tensor:
        """:meth:`attend` with float32."""
        return self.attend(made.to(self._dtype), batch)

    def attend(self, made: torch.Tensor, batch: ForwardBatch, x: torch.Tensor | None = None) -> torch.Tensor:
        """Attend with [tokens, queries or their latent, the token's latent, and gates], before norms and rotation →
        [tokens, heads * v_dim].

        ``x``: the layer's input, for an index.
        """
        spec = self._spec
        gates = spec.gate_count
        asked = made.shape[1] - spec.own_dim - gates
        query, kept, gate = made.split_with_sizes((asked, spec.own_dim, gates), dim=1)
        low = None if self._q_norm is None else self._q_norm(query)
        if self._index is not None:
            assert low is None or isinstance(low, torch.Tensor)
            assert x is not None
            batch.chosen.positions = self._index(x, low, batch, batch.caches[self._keys_cache])
        if self._queries is not None:
            assert low is not None
            if spec.gated_queries:
                assert isinstance(low, torch.Tensor)
                low = torch.cat((low, query), dim=1)
            queries = self._queries(low, batch.adapter_rows)
            assert isinstance(queries, torch.Tensor)
            query = queries
        if self._query_scales is not None:
            query = query * self._query_scales[batch.positions].to(query.dtype)[:, None]
        query = query.reshape(len(made), spec.heads, -1)
        if spec.gated_queries:
            query, opening = query.split_with_sizes((spec.nope_dim + spec.rope_dim, spec.v_dim), dim=2)
            gate = opening.flatten(1)
        if self._growth is not None:
            query = self._growth(query, batch.positions)
        q, turning = query.split_with_sizes((spec.nope_dim, spec.rope_dim), dim=2)
        q_rotated, latents = self._rotated(turning, kept, batch)
        added = self._added_by(batch.adapter_rows)
        if batch.texts is None:
            found = self._attend_cached(q, q_rotated, latents, batch, added)
        else:
            assert latents is not None, "layers of an embedder have latents of their own"
            found = self._attend_whole(q, q_rotated, latents, batch.texts, added)
        if not gate.shape[1]:
            return found
        opened = elementwise(torch.sigmoid, gate.float()).to(found.dtype)
        if spec.gate_by_value or spec.gated_queries:
            return found * opened
        return (found.view(-1, spec.heads, spec.v_dim) * opened.unsqueeze(2)).flatten(1)

    def _attend_cached(
        self,
        q: torch.Tensor,
        q_rotated: torch.Tensor,
        latents: torch.Tensor | None,
        batch: ForwardBatch,
        added: Added,
    ) -> torch.Tensor:
        """[tokens, heads, nope_dim] and [tokens, heads, rope_dim] → [tokens, heads * v_dim]; writes ``latents``."""
        spec, cache = self._spec, batch.caches[self._cache]
        attention = batch.attention[cache.group]
        if latents is not None:
            kernels.write_latents_(latents, cache.latents, attention.slots)
        chosen = None if spec.index is None else batch.chosen.positions
        if spec.reach and attention.max_seq_len > spec.reach:
            chosen = _nearest(batch.positions, spec.reach)
        return self._attended(q, q_rotated, cache, attention, chosen, added, batch.drawn)

    def _attend_whole(
        self, q: torch.Tensor, q_rotated: torch.Tensor, latents: torch.Tensor, texts: Texts, added: Added
    ) -> torch.Tensor:
        """The same within whole texts, whose tokens see each other."""
        if texts.seen is not None:
            latents = latents[texts.seen]
            places = torch.full((len(q),), -1, device=q.device)
            places[texts.seen] = torch.arange(len(latents), device=q.device)
            added = [(part, own[own >= 0]) for part, own in ((part, places[own]) for part, own in added)]
        starts = texts.cu_seqlens if texts.query_starts is None else texts.query_starts
        longest = texts.varlen.max_seqlen
        spans = Spans(starts, texts.cu_seqlens, longest, longest, texts.layout, causal=False)
        return self._expanded(q, q_rotated, latents, added, spans)

    def _rotated(
        self, turning: torch.Tensor, kept: torch.Tensor, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The rotated part of queries, [tokens, heads, rope_dim], and the tokens' latents [tokens, latent_dim], of what
        is before norm and rotation; None if the layer uses those of another."""
        spec = self._spec
        latent, shared = kept, kept.new_zeros(len(kept), spec.rope_dim)
        if self._kv_norm is not None:
            latent, shared = kept.split_with_sizes((spec.kv_lora_rank, spec.rope_dim), dim=1)
        if self._rope_norm is not None:
            shared = self._rope_norm.plain(shared.contiguous())
        q_rotated, k_rotated = turning, shared.unsqueeze(1)
        if spec.rope is not None:
            q_rotated, k_rotated = self._halves(turning), self._halves(k_rotated)
            kernels.rotary_(q_rotated, k_rotated, self._cos, self._sin, batch.positions)
        if self._kv_norm is None:
            return q_rotated, None
        normed = self._kv_norm.plain(latent)
        if spec.latent_scale != 1.0:
            normed = normed * spec.latent_scale
        return q_rotated, torch.cat([normed, k_rotated.squeeze(1)], dim=1)

    def _added_by(self, rows: AdapterRows | None) -> Added:
        """The adapters that change the matrix of keys and values."""
        if rows is None or self._added is None:
            return ()
        found = ((self._added.get(slot), own) for slot, own in rows)
        return [(part, own) for what, own in found if what is not None for part in what.parts]

    def _halves(self, rotating: torch.Tensor) -> torch.Tensor:
        """A copy of [tokens, heads, rope_dim] with pairs (i, i + rope_dim / 2); done for queries and keys alike, so
        that their products are unchanged."""
        if not self._spec.interleaved:
            return rotating.clone()
        return rotating.reshape(*rotating.shape[:2], -1, 2).transpose(2, 3).flatten(2)

    def _attended(
        self,
        q: torch.Tensor,
        q_rotated: torch.Tensor,
        cache: LayerCache,
        attention: kernels.AttentionBatch,
        chosen: torch.Tensor | None,
        added: Added,
        drawn: Sequence[bool],
    ) -> torch.Tensor:
        """[tokens, heads, nope_dim] and [tokens, heads, rope_dim] → [tokens, heads * v_dim]"""
        if not self._chooses:
            return self._absorbed(q, q_rotated, cache, attention, chosen, added)
        starts, lengths = attention.query_start.tolist(), attention.seq_lens.tolist()
        spans = [slice(first, end) for first, end in itertools.pairwise(starts)]
        counts = [span.stop - span.start for span in spans]
        absorbed = [
            behind or length < count or self._spec.absorbs(count, length - count)
            for count, length, behind in zip(counts, lengths, drawn, strict=True)
        ]
        if all(absorbed):
            return self._absorbed(q, q_rotated, cache, attention, chosen, added)
        out = q.new_empty(len(q), self._spec.v_size)
        for row, span in enumerate(spans):
            if not absorbed[row]:
                latents = kernels.latents_of(cache.latents, attention.block_tables[row], lengths[row])
                every = torch.arange(lengths[row])
                own = [(part, every) for part, tokens in added if bool((tokens == span.start).any())]
                begin, ends = (torch.tensor([0, count], dtype=torch.int32) for count in (counts[row], lengths[row]))
                one = Spans(begin, ends, counts[row], lengths[row], kernels.lay_out_keys(ends), causal=True)
                out[span] = self._expanded(q[span], q_rotated[span], latents, own, one)
        if any(absorbed):
            rows = torch.tensor(absorbed)
            tokens = rows.repeat_interleave(torch.tensor(counts))
            some = None if chosen is None else chosen[tokens]
            places = tokens.cumsum(0) - 1
            rest = [(part, places[own[tokens[own]]]) for part, own in added]
            batch = _only(attention, rows, tokens)
            out[tokens] = self._absorbed(q[tokens], q_rotated[tokens], cache, batch, some, rest)
        return out

    def _absorbed(
        self,
        q: torch.Tensor,
        q_rotated: torch.Tensor,
        cache: LayerCache,
        attention: kernels.AttentionBatch,
        chosen: torch.Tensor | None,
        added: Added,
    ) -> torch.Tensor:
        """Absorbed attention. Adapters are added on both ways: (K + s B A)ᵀ q, and (V + s B A) times the result."""
        spec = self._spec
        inside = kernels.linear_heads(q, self._keys, invariant=self._invariant)
        for part, own in added:
            keys, _ = self._by_head(part.up)
            low = torch.einsum("thn,hnr->thr", q[own].to(keys.dtype), keys)
            inside[own] += (low @ part.down * part.scale).to(inside.dtype)
        found = kernels.latent_attention(
            torch.cat([inside, q_rotated], dim=2),
            cache.latents,
            attention,
            rank=spec.kv_lora_rank,
            scale=spec.scale,
            chosen=chosen,
            pool=spec.index.pool if spec.index and chosen is not None else 1,
            sinks=self._sinks,
        )
        out = kernels.linear_heads(found, self._values, invariant=self._invariant)
        for part, own in added:
            _, values = self._by_head(part.up)
            low = found[own].to(values.dtype) @ part.down.T
            out[own] += (torch.einsum("thr,hvr->thv", low, values) * part.scale).to(out.dtype)
        return out.view(len(q), spec.v_size)

    def _by_head(self, made: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The matrix of all heads' keys and values, or an adapter's B → [heads, nope_dim, ...] and [heads, v_dim,
        ...]."""
        spec = self._spec
        keys, values = made.reshape(spec.heads, -1, made.shape[1]).split_with_sizes((spec.nope_dim, spec.v_dim), dim=1)
        return keys, values

    def _expanded(
        self, q: torch.Tensor, q_rotated: torch.Tensor, latents: torch.Tensor, added: Added, spans: Spans
    ) -> torch.Tensor:
        """Expanded attention of the last tokens of each row over ``latents`` [length, latent_dim], which end with
        rotated parts. ``added``: the latents that each adapter changes."""
        spec, length = self._spec, len(latents)
        latent, shared = latents.split_with_sizes((spec.kv_lora_rank, spec.rope_dim), dim=1)
        width = max(spec.nope_dim + spec.rope_dim, spec.v_dim)  # kernels need equal widths
        step = max(1, _EXPANDED_BYTES // (length * width * latents.itemsize))
        out = q.new_empty(len(q), spec.heads, spec.v_dim)
        for first in range(0, spec.heads, step):
            some = slice(first, min(first + step, spec.heads))
            weight = self._made.view(spec.heads, -1, spec.kv_lora_rank)[some].flatten(0, 1)
            made = kernels.linear(latent, weight)
            for part, own in added:
                up = part.up.reshape(spec.heads, -1, part.up.shape[1])[some].flatten(0, 1)
                made[own] += (latent[own].to(up.dtype) @ part.down.T @ up.T * part.scale).to(made.dtype)
            made = made.view(length, some.stop - first, -1)
            nope, values = made.split_with_sizes((spec.nope_dim, spec.v_dim), dim=2)
            attended = kernels.varlen_attention(
                _joined(width, q[:, some], q_rotated[:, some]),
                _joined(width, nope, shared.unsqueeze(1).expand(-1, nope.shape[1], -1)),
                _joined(width, values),
                spans.q_start,
                spans.k_start,
                spans.most_queries,
                spans.most_keys,
                scale=spec.scale,
                causal=spans.causal,
                sinks=None if self._sinks is None else self._sinks[some],
                layout=spans.layout,
            )
            out[:, some] = attended[..., : spec.v_dim]
        return out.view(len(q), spec.v_size)


def _nearest(positions: torch.Tensor, count: int) -> torch.Tensor:
    """int32 [tokens, count]: of a token at positions int64 [tokens], the first of the last ``count`` up to its own, and
    those behind it."""
    first = (positions - count + 1).clamp(min=0).int()
    return first[:, None] + torch.arange(count, dtype=torch.int32, device=positions.device)


def _joined(width: int, *parts: torch.Tensor) -> torch.Tensor:
    """Concatenate [tokens, heads, dims] → [tokens, heads, width], padded with zeros."""
    behind = width - sum(part.shape[2] for part in parts)
    return torch.cat([*parts, parts[0].new_zeros(1).expand(*parts[0].shape[:2], behind)], dim=2)


def _only(batch: kernels.AttentionBatch, rows: torch.Tensor, tokens: torch.Tensor) -> kernels.AttentionBatch:
    """The batch of the sequences selected by ``rows``, with the tokens selected by ``tokens``."""
    counts = batch.query_start.diff()[rows]
    lengths = batch.seq_lens[rows]
    starts = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    return kernels.AttentionBatch(
        query_start=starts,
        seq_lens=lengths,
        block_tables=batch.block_tables[rows],
        slots=batch.slots[tokens],
        max_query_len=int(counts.max()),
        max_seq_len=int(lengths.max()),
    )
