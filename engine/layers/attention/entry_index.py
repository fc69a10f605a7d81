"""The index that chooses the entries that each token sees (DeepSeek V4, V4.1)."""

from typing import Any

import torch

from stentor import kernels

from ...model_config.spec.compressed_attention import CompressedAttentionSpec
from ..forward_batch import LayerCache
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear
from ..linear.weights import WeightMap
from ..norm import RMSNorm
from ..rotary import RotaryTable
from .candidates import candidate_blocks, top_candidates
from .compressor import rotated
from .entries import EntryBlocks, PassTokens


class EntryIndex:
    """Head weights and scores are float32 in any compute dtype, because rounding can change the choice between near
    scores."""

    def __init__(
        self,
        weights: WeightMap,
        prefix: str,
        spec: CompressedAttentionSpec,
        hidden: int,
        table: RotaryTable,
        context: LayerContext,
    ) -> None:
        """``prefix``: of the layer."""
        assert spec.index is not None
        self._spec, self._rope_dim = spec.index, spec.rope_dim
        self._by_token = context.device.type == "cpu"
        self._cos, self._sin = table
        queries, by_head = spec.indexing(hidden)
        self._queries = Linear.of(weights, prefix, queries, context, dtype=context.dtype)
        exact = context.exact(f"{prefix}.{by_head.parts[0][0]}")
        self._by_head = Linear.of(weights, prefix, by_head, exact)
        self._key: Linear | None = None
        if spec.makes_keys:
            self._key = Linear.of(weights, prefix, spec.keying(), context, dtype=context.dtype)
            name = f"{prefix}.{spec.name}.indexer.k_norm"
            self._key_norm = RMSNorm(weights, name, spec.index.head_dim, spec.norm_eps, context)

    def keys(self, entries: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """Keys [n, index head_dim] of entries [n, head_dim] before their rotation; ``first``: int64 [n], positions by
        which they rotate."""
        assert self._key is not None
        return self._turned(self._key_norm.plain(self._key(entries))[:, None], first)[:, 0]

    def __call__(
        self,
        x: torch.Tensor,
        low: torch.Tensor,
        tokens: PassTokens,
        batch: Any,
        cache: LayerCache,
        blocks: EntryBlocks,
    ) -> None:
        """Leave the chosen entries in the batch's ``chosen``: int64 [tokens, top_k], ascending, followed by -1; None if
        all are seen.

        Args:
            x: the layer's input [tokens, hidden]; ``low``: the queries' latents [tokens, q_lora_rank].
            batch: a :class:`..forward_batch.ForwardBatch`; ``tokens``: those of it.
        """
        spec, attention, chosen = self._spec, batch.attention[cache.group], batch.chosen
        chosen.positions = None
        most = attention.max_seq_len // blocks.ratio
        if most <= spec.top_k:
            return
        q = self._turned(self._queries(low).view(len(x), spec.heads, spec.head_dim), tokens.positions)
        q, by_head = q.to(cache.index.dtype), (self._by_head(x.float()) * spec.scale).contiguous()
        if spec.candidates is not None and most > spec.candidates.most:
            if not spec.candidates.chooses:
                chosen.positions = top_candidates(
                    q, by_head, cache.index, tokens, blocks, chosen.blocks, spec, by_token=self._by_token
                )
                return
            chosen.blocks = candidate_blocks(
                q, by_head, cache.index, tokens, blocks, most, spec.candidates, by_token=self._by_token
            )
        taken = q, by_head, cache.index, attention
        chosen.positions = kernels.top_tokens(*taken, top_k=spec.top_k, ratio=blocks.ratio, block=blocks.block).long()

    def _turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return rotated(x, self._cos, self._sin, positions, self._rope_dim)
