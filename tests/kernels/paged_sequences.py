"""Sequences over a shuffled paged cache, as the tests of attention take them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stentor.kernels.attention import AttentionBatch, paged_attention
from stentor.kernels.kv_cache import make_kv_cache
from stentor.kernels.variants import Choice
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.helpers import normal

FP8 = torch.float8_e4m3fn


@dataclass
class Step:
    """New tokens of several sequences, and the caches with all their keys; unwritten slots hold NaN."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    batch: AttentionBatch
    dense: list[tuple[Tensor, Tensor]]
    """Keys and values of each sequence as the caches hold them: [kv_heads, length, dim] float32."""
    k_scale: Tensor | None
    v_scale: Tensor | None

    def run(self, variant: Choice = "triton", **options: Any) -> Tensor:
        k, v = self.k_cache, self.v_cache
        if variant == "reference":  # it multiplies hidden keys by zero
            k, v = (cache.float().nan_to_num().to(cache.dtype) for cache in (k, v))
        options = {"scale": self.q.shape[2] ** -0.5, "k_scale": self.k_scale, "v_scale": self.v_scale, **options}
        return paged_attention(self.q, k, v, self.batch, variant=variant, **options)


def make_step(
    sequences: list[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 32,
    size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    transposed: bool = False,
    decode_rows: int = 0,
    decode_query_len: int = 1,
) -> Step:
    """``sequences``: (keys, new tokens) of each. What a sequence holds depends on its number and nothing else.

    ``transposed``: keys lie as on the CPU, ``[blocks, heads, dim, size]``.
    """
    cache_dtype = cache_dtype or dtype
    counts = [-(-length // size) for length, _ in sequences]
    blocks = sum(counts) + 2
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(1)).int()
    caches = make_kv_cache(blocks, kv_heads, dim, size, torch.float32, "cpu", keys_transposed=False)
    tables = torch.full((len(sequences), max(counts) + 1), -9, dtype=torch.int32)  # unused entries lead nowhere
    for cache in caches:
        cache.fill_(float("nan"))
    scales = [(0.5 + torch.arange(kv_heads) / 8 + part).to(DEVICE) for part in (0.0, 0.25)]
    dense, queries = [], []
    for s, (length, new) in enumerate(sequences):
        used = order[sum(counts[:s]) : sum(counts[:s]) + counts[s]]
        tables[s, : counts[s]] = used
        block, offset = used.long()[torch.arange(length) // size], torch.arange(length) % size
        k, v = (normal(300, kv_heads, dim, seed=10 * s + part)[:length].to(cache_dtype).float() for part in (1, 2))
        caches[0][block, :, :, offset] = k
        caches[1][block, :, offset, :] = v
        if cache_dtype == FP8:
            k, v = (rows * scale.cpu().view(-1, 1) for rows, scale in zip((k, v), scales, strict=True))
        dense.append((k.transpose(0, 1), v.transpose(0, 1)))
        queries.append(normal(300, heads, dim, seed=10 * s + 3, dtype=dtype)[max(0, length - new) :][:new])
    news = [new for _, new in sequences]
    k_cache, v_cache = (cache.to(cache_dtype) for cache in caches)
    k_cache = k_cache.contiguous() if transposed else k_cache.transpose(2, 3).contiguous().transpose(2, 3)
    batch = AttentionBatch(
        torch.tensor([0, *news]).cumsum(0).int().to(DEVICE),
        torch.tensor([length for length, _ in sequences], dtype=torch.int32, device=DEVICE),
        tables.to(DEVICE),
        torch.zeros(sum(news), dtype=torch.int64, device=DEVICE),
        max(news),
        max(length for length, _ in sequences),
        decode_rows,
        decode_query_len,
    )
    k_scale, v_scale = scales if cache_dtype == FP8 else (None, None)
    q = torch.cat(queries).to(DEVICE)
    return Step(q, k_cache.to(DEVICE), v_cache.contiguous().to(DEVICE), batch, dense, k_scale, v_scale)
