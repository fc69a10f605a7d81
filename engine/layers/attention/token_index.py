"""The index of sparse latent attention, which chooses the tokens that each token sees (DeepSeek-V3.2,
arXiv:2512.02556)."""

import torch

from stentor import kernels

from ...model_config.spec.latent_attention import LatentAttentionSpec
from ..forward_batch import ForwardBatch, LayerCache
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear
from ..linear.weights import WeightMap
from ..norm import LayerNorm
from ..rotary import RotaryTables
from .pooled_keys import PooledKeys
from .query_growth import QueryGrowth


class TokenIndex:
    """Caches one key a token, or a pool of tokens, beside the latents; each token sees those with the best scores.

    Head weights and scores are float32 in any compute dtype, because rounding can change the choice between near
    scores.
    """

    def __init__(
        self,
        weights: WeightMap,
        prefix: str,
        layer: int,
        spec: LatentAttentionSpec,
        hidden: int,
        rotary: RotaryTables,
        context: LayerContext,
    ) -> None:
        """``prefix``: of the ``layer``-th layer."""
        assert spec.index is not None
        self._spec, self._dtype, name = spec.index, context.dtype, spec.index_name
        queries, key, by_head = spec.index.projections(name, hidden, spec.q_lora_rank)
        self._queries = Linear.of(weights, prefix, queries, context, adaptable=True, dtype=context.dtype)
        self._key = Linear.of(weights, prefix, key, context, adaptable=True, dtype=context.dtype)
        exact = context.exact(f"{prefix}.{by_head.parts[0][0]}")
        self._by_head = Linear.of(weights, prefix, by_head, exact, adaptable=True)
        self._norm = LayerNorm(weights, f"{prefix}.{name}.k_norm", spec.index.head_dim, spec.index.norm_eps, context)
        self._input_norm: LayerNorm | None = None
        if spec.index.input_norm:
            stored = f"{prefix}.{name}.{spec.index.input_norm}"
            self._input_norm = LayerNorm(weights, stored, hidden, spec.index.norm_eps, context)
        self._growth: QueryGrowth | None = None
        if spec.index.growth:
            self._growth = QueryGrowth(weights, f"{prefix}.{name}.{spec.index.growth}", spec.index.heads, context)
        self._pools: PooledKeys | None = None
        if spec.index.gates:
            self._pools = PooledKeys(weights, f"{prefix}.{name}", layer, spec.index, hidden, context)
        self._cos, self._sin = rotary.of(spec.rope, spec.rope_dim)
        self._rotates = spec.rope is not None
        self._turned_last = spec.rope_dim if spec.index.rotates_last else 0

    def __call__(
        self, x: torch.Tensor, latent: torch.Tensor | None, batch: ForwardBatch, cache: LayerCache
    ) -> torch.Tensor | None:
        """The tokens that each token attends to, int32 [tokens, most], as :func:`stentor.kernels.latent_attention`
        takes them; None if all tokens are seen.

        Takes the layer's input [tokens, hidden] and the queries' latents [tokens, q_lora_rank], if queries are made of
        them. Writes keys.
        """
        spec, rows, attention = self._spec, batch.adapter_rows, batch.attention[cache.group]
        key = self._norm.exact(self._key(x, rows)).to(self._dtype).unsqueeze(1)
        asking = latent if self._input_norm is None else self._input_norm.exact(x).to(self._dtype)
        assert asking is not None
        q = self._queries(asking, rows).view(len(x), spec.heads, spec.head_dim)
        if self._growth is not None:
            q = self._growth(q, batch.positions)
        if self._turned_last:  # in keys and queries alike, which their products do not show
            q, key = (each.roll(self._turned_last, 2) for each in (q, key))
        if self._rotates:
            kernels.rotary_(q, key, self._cos, self._sin, batch.positions, interleaved=spec.interleaved)
        if self._pools is None:
            kernels.write_latents_(key.squeeze(1), cache.index, attention.slots)
        else:
            self._pools.write_(key.squeeze(1), x, batch, cache)
        if attention.max_seq_len <= spec.most:
            return None
        by_head = self._by_head(x.float(), rows) * spec.scale
        if self._pools is None:
            return kernels.top_tokens(q, by_head, cache.index, attention, top_k=spec.top_k)
        most, pool = spec.top_k // spec.pool, spec.pool
        pools = kernels.top_tokens(q, by_head, cache.index, attention, top_k=most, ratio=pool, block=cache.block)
        return kernels.tokens_of_pools(pools, batch.positions, pool)
