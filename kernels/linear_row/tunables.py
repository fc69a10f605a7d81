"""The products behind norms that the tuner tries: those of Llama-3.1-8B and Qwen3-32B."""

from collections.abc import Callable
from functools import partial

import torch

from ..launch import next_power_of_2
from ..tuning import Config, Tunable
from . import normed_linear
from .triton import OPERATION, row_key

# [N, K], and whether the product is gated
SHAPES = ((6144, 4096, False), (28672, 4096, True), (10240, 5120, False), (51200, 5120, True))
SHARED_BYTES = 200 * 1024
"""The most shared memory of a multiprocessor for tiles in flight."""


def candidates(width: int, *, gated: bool) -> list[Config]:
    """Returns block sizes with up to 64 values of the weight per thread."""
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


def tunables() -> list[Tunable]:
    return [
        Tunable(
            OPERATION,
            row_key(rows, width, torch.bfloat16, gated=gated),
            candidates(width, gated=gated),
            partial(_workload, rows, width, gated),
        )
        for rows, width, gated in SHAPES
    ]


def _workload(rows: int, width: int, gated: bool, device: torch.device) -> Callable[[], object]:
    weight = torch.randn(rows, width, dtype=torch.bfloat16, device=device)
    # x is 0, so that the residual does not change over many calls
    x, norm = (make(1, width, dtype=torch.bfloat16, device=device) for make in (torch.zeros, torch.ones))
    residual = torch.randn_like(x)
    return partial(normed_linear, x, norm[0], weight, 1e-5, residual=residual, kind="silu" if gated else None)
