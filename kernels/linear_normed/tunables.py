"""The products behind norms that the tuner tries: those of Llama-3.1-8B and Qwen3-32B."""

from collections.abc import Callable
from functools import partial

import torch

from ..launching.launch import next_power_of_2
from ..tuning import Config, Tunable
from . import MOST_ROWS, normed_linear, triton_row, triton_skinny
from .triton_row import row_key
from .triton_skinny import skinny_key

# [N, K], and whether the product is gated
SHAPES = ((6144, 4096, False), (28672, 4096, True), (10240, 5120, False), (51200, 5120, True))
SHARED_BYTES = 200 * 1024
"""The most shared memory of a multiprocessor for tiles in flight."""


def candidates(width: int, *, gated: bool) -> list[Config]:
    """Returns block sizes for one row, with up to 64 values of the weight per thread."""
    block, parts = next_power_of_2(width), 2 if gated else 1
    return [
        Config.of(num_warps=warps, BLOCK_N=rows, PROGRAMS_PER_SM=programs, STAGES=stages)
        for rows in (1, 2, 4, 8)
        for warps in (4, 8, 16)
        for programs in (1, 2)
        for stages in (1, 2, 3)
        if 16 <= parts * rows * block // (32 * warps) <= 64
        and (stages == 1 or programs * (stages - 1) * parts * rows * block * 2 <= SHARED_BYTES)
    ]


def skinny_candidates(tokens: int, *, gated: bool) -> list[Config]:
    """Returns block sizes for 16, 32 or 64 rows, of which a thread norms up to 64 values at once."""
    parts = 2 if gated else 1
    return [
        Config.of(num_warps=4, num_stages=stages, BLOCK_T=tokens, BLOCK_N=rows, BLOCK_K=width)
        for rows in (32, 64, 128)
        for width in (64, 128, 256)
        for stages in (3, 5)
        if tokens * width <= 64 * 128 and 2 * (parts * rows + tokens) * width * stages <= SHARED_BYTES
    ]


def tunables() -> list[Tunable]:
    dtype = torch.bfloat16
    return [
        Tunable(
            triton_row.OPERATION,
            row_key(rows, width, dtype, gated=gated),
            candidates(width, gated=gated),
            partial(_workload, 1, rows, width, gated),
        )
        for rows, width, gated in SHAPES
    ] + [
        Tunable(
            triton_skinny.OPERATION,
            skinny_key(tokens, rows, width, dtype, gated=gated),
            skinny_candidates(tokens, gated=gated),
            partial(_workload, tokens, rows, width, gated),
        )
        for tokens in (16, 32, MOST_ROWS)
        for rows, width, gated in SHAPES
    ]


def _workload(tokens: int, rows: int, width: int, gated: bool, device: torch.device) -> Callable[[], object]:
    weight = torch.randn(rows, width, dtype=torch.bfloat16, device=device)
    stream = torch.randn(tokens, width, dtype=torch.bfloat16, device=device)
    norm = torch.ones_like(stream[0])
    normed = partial(normed_linear, norm=norm, weight=weight, eps=1e-5, kind="silu" if gated else None)
    if tokens == 1:  # x is 0, so that the residual does not change over many calls
        return partial(normed, torch.zeros_like(stream), residual=stream)
    squares = torch.full((width // 64, tokens), 64.0, device=device)  # about those of 64 columns each
    return partial(normed, stream, squares=squares)
