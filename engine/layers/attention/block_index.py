"""The index of attention to blocks of tokens (MiniMax-M3)."""

from collections.abc import Sequence

import torch

from stentor import kernels

from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.attention_parts import BlockIndexSpec
from ...model_config.spec.model import Backbone
from ..forward_batch import ForwardBatch, LayerCache
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap
from ..norm import RMSNorm
from ..rotary import RotaryTables


class BlockIndex:
    """Caches one key a token beside keys and values; the heads of a key-value head see the blocks that it chooses.

    While no row of a step has more tokens than may be chosen, all are seen and nothing is scored.
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
        assert isinstance(spec.index, BlockIndexSpec)
        self._spec, self._scale, self._kv_heads = spec.index, spec.scale, spec.kv_heads
        self._choice = kernels.BlockChoice(spec.index.size, spec.index.top_k, spec.index.local)
        self._norms = [
            RMSNorm(
                weights,
                f"{model.layer_prefix(layer)}.{name}",
                spec.index.head_dim,
                model.norm_eps,
                context,
                plus_one=model.norm_plus_one,
            )
            for name in spec.index.norms(spec.name)
        ]
        self._rotates = spec.rope is not None
        self._interleaved = spec.rope is not None and spec.rope.interleaved
        self._cos, self._sin = rotary.of(spec.rope, spec.head_dim)
        self._invariant = context.invariant

    def attend(
        self, q: torch.Tensor, made: Sequence[torch.Tensor], batch: ForwardBatch, cache: LayerCache
    ) -> torch.Tensor | None:
        """Attention of q [tokens, heads, head_dim], normed and rotated, to the chosen tokens → the same shape; None if
        all are seen.

        Takes what is ``made`` for the index: queries [tokens, kv heads · dim] and key [tokens, dim], before norms and
        rotation.
        Writes its key; those of the attention are written.
        """
        attention = batch.attention[cache.group]
        own, key = made
        q_norm, k_norm = self._norms
        own = q_norm.plain(own.reshape(-1, self._kv_heads, self._spec.head_dim))
        key = k_norm.plain(key.reshape(-1, 1, self._spec.head_dim))
        if self._rotates:
            kernels.rotary_(own, key, self._cos, self._sin, batch.positions, interleaved=self._interleaved)
        kernels.write_latents_(key.squeeze(1), cache.index, attention.slots)
        if attention.max_seq_len <= self._spec.most:
            return None
        seen = kernels.seen_by(attention)
        chosen = kernels.top_blocks(own, cache.index, attention, seen, self._choice)
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
