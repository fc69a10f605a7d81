"""The token choices that the tuner tries: 64 sequences of 4096 tokens, with the index of DeepSeek-V3.2 and of GLM-5."""

from collections.abc import Callable
from functools import partial

import torch

from ..latent_attention.tunables import BLOCK_SIZES, ROWS, scattered
from ..tuning import Config, Tunable
from .triton import OPERATION, index_key, top_tokens

DIM, TOP_K = 128, 2048
HEADS = (64, 32)


def tunables() -> list[Tunable]:
    return [
        Tunable(OPERATION, index_key(DIM, heads, size, torch.bfloat16), candidates(), partial(workload, heads, size))
        for heads in HEADS
        for size in BLOCK_SIZES
    ]


def candidates() -> list[Config]:
    """Returns tiles and warps."""
    return [Config.of(TILE=tile, num_warps=warps, num_stages=1) for tile in (32, 64, 128) for warps in (4, 8)]


def workload(heads: int, size: int, device: torch.device) -> Callable[[], object]:
    """Returns a call of one launch on scattered blocks."""
    generator = torch.Generator(device).manual_seed(0)
    q = torch.randn((ROWS, heads, DIM), device=device, dtype=torch.bfloat16, generator=generator)
    weights = torch.randn((ROWS, heads), device=device, generator=generator)
    cache, batch = scattered(DIM, size, device)
    return partial(top_tokens, q, weights, cache, batch, TOP_K, 1, size)
