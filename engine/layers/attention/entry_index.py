"""The index that chooses the entries that each token sees (DeepSeek-V4)."""

import torch

from stentor import kernels

from ...model_config.spec.compressed_attention import CompressedAttentionSpec
from ..forward_batch import LayerCache
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear
from ..linear.weights import WeightMap
from ..rotary import RotaryTable
from .compressor import rotated
from .entry_blocks import EntryBlocks


class EntryIndex:
    """Head weights and scores are float32 in any compute dtype, because rounding can change the choice between near
    scores. On a CPU each token is computed by itself, as in the attention; on a device one kernel reads the keys from
    their blocks, as many as each token sees."""

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
        self._cos, self._sin = table
        queries, by_head = spec.indexing(hidden)
        self._queries = Linear.of(weights, prefix, queries, context, dtype=context.dtype)
        exact = context.exact(f"{prefix}.{by_head.parts[0][0]}")
        self._by_head = Linear.of(weights, prefix, by_head, exact)
        self._by_token = context.device.type == "cpu"

    def chooses(self, entries: int) -> bool:
        """Whether fewer than so many entries are seen."""
        return entries > self._spec.top_k

    def __call__(
        self,
        x: torch.Tensor,
        low: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        attention: kernels.AttentionBatch,
        cache: LayerCache,
        blocks: EntryBlocks,
    ) -> torch.Tensor:
        """The chosen entries, int64 [tokens, top_k]: ascending; last those that are not complete, or -1.

        Args:
            x: the layer's input [tokens, hidden]; ``low``: the queries' latents [tokens, q_lora_rank].
            rows, positions: int64 [tokens].
            attention: the sequences and blocks of the layer's cache.
        """
        spec = self._spec
        q = rotated(
            self._queries(low).view(len(x), spec.heads, spec.head_dim), self._cos, self._sin, positions, self._rope_dim
        )
        by_head = self._by_head(x.float()) * spec.scale
        if not self._by_token:
            taken = q.to(cache.index.dtype), by_head.contiguous(), cache.index, attention
            chosen = kernels.top_tokens(*taken, top_k=spec.top_k, ratio=blocks.ratio, block=blocks.block)
            return chosen.long()
        keys, visible = cache.index.view(-1, spec.head_dim), (positions + 1) // blocks.ratio
        numbers = torch.arange(attention.max_seq_len // blocks.ratio, device=x.device)
        chosen = numbers[: spec.top_k].repeat(len(x), 1)
        for at, count in enumerate(visible.tolist()):
            if count > spec.top_k:
                own = keys[blocks.slots(rows[at : at + 1], numbers[None, :count])[0]].float()
                scores = by_head[at] @ torch.relu(q[at].float() @ own.T)
                chosen[at] = scores.topk(spec.top_k).indices.sort().values
        return chosen
