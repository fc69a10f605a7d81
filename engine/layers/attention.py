"""Self-attention over the paged KV cache."""

import torch

from stentor import kernels

from ..models.config import DecoderConfig
from .linear import Linear, Placement
from .norm import RMSNorm
from .weights import WeightMap

LayerCache = tuple[torch.Tensor, torch.Tensor]
"""K and V blocks of one layer, in the layout that ``kernels`` owns."""

RotaryTable = tuple[torch.Tensor, torch.Tensor]


class Attention:
    """Grouped-query attention with rotary positions, optional QK-norm, window and soft cap."""

    def __init__(
        self, weights: WeightMap, prefix: str, config: DecoderConfig, layer: int, rotary: RotaryTable, place: Placement
    ) -> None:
        self._heads, self._kv_heads, self._head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = (
            {f"{prefix}.qkv_proj": q_size + 2 * kv_size}
            if config.fused_projections
            else {f"{prefix}.q_proj": q_size, f"{prefix}.k_proj": kv_size, f"{prefix}.v_proj": kv_size}
        )
        self._split = (q_size, kv_size, kv_size)
        self._qkv = Linear(weights, parts, config.hidden_size, place, bias=config.qkv_bias)
        self._out = Linear(weights, {f"{prefix}.o_proj": config.hidden_size}, q_size, place, bias=config.output_bias)
        self._qk_norm = config.qk_norm
        if config.qk_norm != "none":
            full = config.qk_norm == "full"
            sizes = (q_size, kv_size) if full else (config.head_dim, config.head_dim)
            self._q_norm, self._k_norm = (
                RMSNorm(weights, f"{prefix}.{which}", size, config.rms_eps, place, plus_one=config.norm_plus_one)
                for which, size in zip(("q_norm", "k_norm"), sizes, strict=True)
            )
        self._cos, self._sin = rotary
        self._scale = config.scale
        self._softcap = config.attention_softcap
        self._window = config.sliding_window if config.layer_type(layer) == "sliding" else 0

    def __call__(
        self, x: torch.Tensor, positions: torch.Tensor, cache: LayerCache, batch: kernels.AttentionBatch
    ) -> torch.Tensor:
        """x [tokens, hidden], positions int64 [tokens] → [tokens, hidden]; writes this step's K and V."""
        tokens = x.shape[0]
        q, k, v = torch.split_with_sizes(self._qkv(x), self._split, dim=1)
        if self._qk_norm == "full":
            q, k = self._q_norm(q), self._k_norm(k)
        q = q.view(tokens, self._heads, self._head_dim)
        k = k.view(tokens, self._kv_heads, self._head_dim)
        v = v.view(tokens, self._kv_heads, self._head_dim)
        if self._qk_norm == "head":
            q, k = self._q_norm(q), self._k_norm(k)
        kernels.rotary_(q, k, self._cos, self._sin, positions)
        kernels.write_kv_(k, v, *cache, batch.slots)
        out = kernels.paged_attention(
            q, *cache, batch, scale=self._scale, window=self._window, softcap=self._softcap
        )  # [tokens, heads, head_dim]
        return self._out(out.view(tokens, -1))
