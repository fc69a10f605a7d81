"""The latent attention that the tuner tries: 64 sequences of 4096 tokens, with the heads of DeepSeek-V3 and V2-Lite."""

from collections.abc import Callable
from functools import partial

import torch

from ..attention import AttentionBatch
from ..tuning import Config, Tunable, by_reference
from . import latent_attention
from .triton import OPERATION, latent_key

ROWS, TOKENS = 64, 4096
RANK, DIM = 512, 576
BLOCK_SIZES = (16, 64)
HEADS = (16, 128)
SHARED_BYTES = 160 * 1024
"""The most shared memory for tiles in flight."""


def tunables() -> list[Tunable]:
    return [
        Tunable(
            OPERATION,
            latent_key(DIM, RANK, heads, size, torch.bfloat16),
            candidates(heads),
            made,
            by_reference(made),
        )
        for heads in HEADS
        for size in BLOCK_SIZES
        for made in [partial(workload, heads, size)]
    ]


def candidates(heads: int) -> list[Config]:
    """Returns tiles, warps and stages that fit, each with few and with many programs."""
    return [
        Config.of(TILE=tile, BLOCK_M=rows, MIN_KEYS=128, PROGRAMS_PER_SM=programs, num_warps=warps, num_stages=stages)
        for tile in (16, 32, 64)
        for rows in (16, 32, 64)
        for warps in (4, 8)
        for stages in (2, 3, 4)
        if rows <= heads and stages * tile * DIM * 2 <= SHARED_BYTES and rows * RANK <= 4096 * warps
        for programs in (1, 2, 4)
    ]


def workload(heads: int, size: int, device: torch.device) -> Callable[[], object]:
    """Returns a call of one launch on scattered blocks."""
    generator = torch.Generator(device).manual_seed(0)
    q = torch.randn((ROWS, heads, DIM), device=device, dtype=torch.bfloat16, generator=generator)
    cache, batch = scattered(DIM, size, device)
    return partial(latent_attention, q, cache, batch, rank=RANK, scale=DIM**-0.5)


def scattered(dim: int, size: int, device: torch.device) -> tuple[torch.Tensor, AttentionBatch]:
    """Returns a cache of ``dim`` numbers per token in blocks of ``size``, and a batch of the next token of every
    sequence."""
    width = TOKENS // size
    generator = torch.Generator(device).manual_seed(0)
    cache = torch.randn((ROWS * width, size, dim), device=device, dtype=torch.bfloat16, generator=generator)
    return cache, AttentionBatch(
        torch.arange(ROWS + 1, device=device, dtype=torch.int32),
        torch.full((ROWS,), TOKENS, device=device, dtype=torch.int32),
        torch.randperm(ROWS * width, device=device, generator=generator).int().view(ROWS, width),
        torch.zeros(ROWS, device=device, dtype=torch.int64),
        1,
        TOKENS,
        ROWS,
    )
