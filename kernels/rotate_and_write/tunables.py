"""The steps before attention that the tuner tries: the shapes of Llama-3.1-8B and, with QK-norm, Qwen3-32B."""

from collections.abc import Callable

import torch

from ..kv_cache import make_kv_cache
from ..kv_cache.triton import tile_candidates, tile_key
from ..tuning import Tunable
from .reference import HeadTensors
from .triton import prepare_rotate_and_write

KV_HEADS, HEAD_DIM, BLOCK_SIZE, TABLE = 8, 128, 16, 8192


def tunables() -> list[Tunable]:
    return [_tunable(tokens, q_heads, norm) for q_heads, norm in ((32, False), (64, True)) for tokens in (64, 8192)]


def _tunable(tokens: int, q_heads: int, has_norm: bool) -> Tunable:
    def workload(device: torch.device) -> Callable[[], object]:
        heads = (q_heads, KV_HEADS, KV_HEADS)
        fused = torch.randn(tokens, sum(heads) * HEAD_DIM, dtype=torch.bfloat16, device=device)
        parts = fused.split([count * HEAD_DIM for count in heads], dim=1)
        q, k, v = (part.view(tokens, count, HEAD_DIM) for part, count in zip(parts, heads, strict=True))
        norm = torch.ones(HEAD_DIM, dtype=q.dtype, device=device) if has_norm else None
        angles = torch.randn(TABLE, HEAD_DIM // 2, device=device)
        cos, sin = angles.cos(), angles.sin()  # q, which is overwritten, keeps its magnitude
        positions = torch.arange(tokens, device=device) % TABLE
        blocks = tokens // BLOCK_SIZE * 4
        caches = make_kv_cache(blocks, KV_HEADS, HEAD_DIM, BLOCK_SIZE, q.dtype, device)
        slots = torch.randperm(blocks * BLOCK_SIZE, device=device)[:tokens]
        for cache in caches:
            cache.zero_()
        tensors = HeadTensors(q, k, v, cos, sin, positions, *caches, slots, norm, norm, None, None)

        def call() -> object:
            prepare_rotate_and_write(tensors, 1e-6, False, False, None)(*tensors)
            return q, caches

        return call

    return Tunable("rotate_and_write", tile_key(HEAD_DIM, q_heads, tokens), tile_candidates(), workload)
