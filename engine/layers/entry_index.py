"""The index that chooses the entries that each token sees (DeepSeek-V4)."""

from typing import Final

import torch

from ..model_config.compressed_attention_spec import CompressedAttentionSpec
from .compressor import turned
from .entry_pages import EntryPages
from .forward_batch import LayerCache
from .layer_context import LayerContext
from .linear import Linear
from .rotary import RotaryTable
from .weights import WeightMap

_BYTES_AT_ONCE: Final = 64 << 20
"""Most bytes of keys that are brought together at once on a device."""


class EntryIndex:
    """Head weights and scores are float32 in any compute dtype, because rounding can change the choice between near
    scores. On a CPU each token is computed by itself, as in the attention."""

    def __init__(
        self,
        weights: WeightMap,
        prefix: str,
        spec: CompressedAttentionSpec,
        hidden: int,
        turns: RotaryTable,
        context: LayerContext,
    ) -> None:
        """``prefix``: of the layer."""
        assert spec.index is not None
        self._spec, self._rope_dim = spec.index, spec.rope_dim
        self._cos, self._sin = turns
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
        visible: torch.Tensor,
        most: int,
        cache: LayerCache,
        pages: EntryPages,
    ) -> torch.Tensor:
        """The chosen entries, int64 [tokens, top_k]: ascending, those that are not complete last.

        Args:
            x: the layer's input [tokens, hidden]; ``low``: the queries' latents [tokens, q_lora_rank].
            rows, positions: int64 [tokens].
            visible: int64 [tokens], the complete entries of each token; at most ``most``.
        """
        spec = self._spec
        q = turned(
            self._queries(low).view(len(x), spec.heads, spec.head_dim), self._cos, self._sin, positions, self._rope_dim
        ).float()
        by_head = self._by_head(x.float()) * spec.scale
        keys = cache.index.view(-1, spec.head_dim)
        numbers = torch.arange(most, device=x.device)
        if self._by_token:
            chosen = numbers[: spec.top_k].repeat(len(x), 1)
            for at, count in enumerate(visible.tolist()):
                if count > spec.top_k:
                    own = keys[pages.slots(rows[at : at + 1], numbers[None, :count])[0]].float()
                    scores = by_head[at] @ torch.relu(q[at] @ own.T)
                    chosen[at] = scores.topk(spec.top_k).indices.sort().values
            return chosen
        found = []
        for some in torch.arange(len(x)).split(max(1, _BYTES_AT_ONCE // (most * spec.head_dim * 4))):
            part = slice(int(some[0]), int(some[-1]) + 1)
            own = keys[pages.slots(rows[part], numbers.expand(len(some), -1))].float()
            products = torch.relu(torch.bmm(q[part], own.transpose(1, 2)))  # [tokens, heads, entries]
            scores = torch.bmm(by_head[part, None], products)[:, 0]
            scores = scores.masked_fill(numbers >= visible[part, None], -torch.inf)
            found.append(scores.topk(spec.top_k, dim=1).indices.sort(1).values)
        return torch.cat(found)
