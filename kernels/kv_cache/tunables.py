"""The write to the KV cache at the shape of Llama-3.1-8B."""

from collections.abc import Callable

import torch

from ..tuning import Tunable
from .layout import make_kv_cache
from .triton import tile_candidates, tile_key, write_kv_

KV_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 128, 16


def tunables() -> list[Tunable]:
    return [_tunable(tokens) for tokens in (64, 8192)]


def _tunable(tokens: int) -> Tunable:
    def workload(device: torch.device) -> Callable[[], object]:
        fused = torch.randn(tokens, 6 * KV_HEADS * HEAD_DIM, dtype=torch.bfloat16, device=device)
        k, v = (part.view(tokens, KV_HEADS, HEAD_DIM) for part in fused.split(KV_HEADS * HEAD_DIM, dim=1)[-2:])
        blocks = tokens // BLOCK_SIZE * 4
        caches = make_kv_cache(blocks, KV_HEADS, HEAD_DIM, BLOCK_SIZE, k.dtype, device)
        slots = torch.randperm(blocks * BLOCK_SIZE, device=device)[:tokens]
        for cache in caches:
            cache.zero_()

        def call() -> object:
            write_kv_(k, v, *caches, slots, None, None)
            return caches

        return call

    return Tunable("write_kv", tile_key(HEAD_DIM, KV_HEADS, tokens), tile_candidates(), workload)
