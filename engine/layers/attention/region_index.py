"""The index of attention to regions of tokens (Step 5)."""

from collections.abc import Sequence

import torch

from stentor import kernels

from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.attention_parts import RegionIndexSpec
from ...model_config.spec.model import Backbone
from ..forward_batch import ForwardBatch, LayerCache
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap
from ..norm import LayerNorm, RMSNorm
from ..rotary import RotaryTables
from .entries import EntryBlocks, PassTokens, completed, gated_sums
from .token_history import TokenHistory, keep_inputs_


class RegionIndex:
    """Caches one key a region beside keys and values; the heads of a key-value head see the regions that it chooses.

    A region's key is written when its last token comes. Until then a state holds the keys and gates of its tokens.
    While no row of a step has more tokens than may be seen, nothing is scored.
    """

    def __init__(
        self,
        weights: WeightMap,
        layer: int,
        model: Backbone,
        spec: AttentionSpec,
        rotary: RotaryTables,
        context: LayerContext,
    ) -> None:
        index = spec.index
        assert isinstance(index, RegionIndexSpec)
        self._spec, self._scale, self._kv_heads, self._layer = index, spec.scale, spec.kv_heads, layer
        self._choice = kernels.BlockChoice(index.size, index.top_k + 1)
        stored = f"{model.layer_prefix(layer)}.{spec.name}.{index.prefix}"
        plus_one = model.norm_plus_one
        self._q_norm = RMSNorm(weights, f"{stored}q_norm", index.head_dim, model.norm_eps, context, plus_one=plus_one)
        self._k_norm = LayerNorm(weights, f"{stored}k_norm", index.head_dim, model.norm_eps, context)
        self._cos, self._sin = rotary.of(index.rope, index.head_dim)
        self._dtype, self._invariant = context.dtype, context.invariant

    def attend(
        self, q: torch.Tensor, made: Sequence[torch.Tensor], batch: ForwardBatch, cache: LayerCache
    ) -> torch.Tensor | None:
        """Attention of q [tokens, heads, head_dim], normed and rotated, to the chosen tokens → the same shape; None if
        all are seen.

        Takes the index's queries, key, gates and weights ``made``, [tokens, size] each, before norms and rotation.
        Writes keys of regions; those of the attention are written.
        """
        spec, attention = self._spec, batch.attention[cache.group]
        own, key, gates, by_head = made
        own = self._q_norm.plain(own.reshape(-1, self._kv_heads * spec.heads, spec.head_dim))
        key = self._k_norm.exact(key).to(self._dtype).unsqueeze(1)
        kernels.rotary_(own, key, self._cos, self._sin, batch.positions, interleaved=spec.rope.interleaved)
        self._write_(torch.cat([key.squeeze(1), gates], dim=1), batch, cache)
        if attention.max_seq_len <= spec.most:
            return None
        seen = kernels.seen_by(attention)
        chosen = kernels.top_regions(
            own.contiguous(),
            by_head.float().contiguous(),
            cache.index,
            attention,
            seen,
            self._choice,
            groups=self._kv_heads,
            block=cache.block,
        )
        return kernels.block_attention(
            q.contiguous(),
            cache.k,
            cache.v,
            attention,
            seen,
            chosen,
            self._choice,
            scale=self._scale,
            invariant=self._invariant,
        )

    def _write_(self, inputs: torch.Tensor, batch: ForwardBatch, cache: LayerCache) -> None:
        """Write the keys of the regions that tokens of the pass complete; ``inputs``: their keys and gates [tokens,
        2 · head_dim]."""
        assert batch.states is not None, "the rows of the batch have no recurrent states"
        rows, size = batch.states.rows, self._spec.size
        history = TokenHistory(inputs, batch.states.of_layer[self._layer][0], rows)
        if (complete := completed(history, PassTokens.of(rows.cu_seqlens, batch.positions), size, size)) is not None:
            keys, gates = complete.inputs.float().chunk(2, dim=2)
            blocks = EntryBlocks(batch.attention[cache.group].block_tables, cache.block, size)
            complete.write_(gated_sums(keys, gates).to(cache.index.dtype), cache.index, blocks)
        keep_inputs_(inputs, batch, self._layer)
