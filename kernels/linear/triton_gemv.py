# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""out[n] = Σ_k weight[n, k] x[k]: one token by a 16-bit weight, limited by memory bandwidth.

A program streams ``BLOCK_N`` rows of the weight, 16 bytes per thread and load, with sums in float32.
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.dependent import fetch_weights, follow
from ..launching.launch import cdiv
from ..launching.repeated import prepare
from ..tuning import Config, Tunable, pick

OPERATION = "linear_gemv"
LIBRARY = Config.of(BLOCK_N=1, BLOCK_K=1, STAGES=1)
"""Stands for torch's product, which runs if no table has better sizes."""
DEFAULT = Config.of(num_warps=4, BLOCK_N=4, BLOCK_K=1024, STAGES=2)
"""The block sizes if this kernel is asked for by name and the table has none."""

# [N, K] of Llama-3.1-8B's and Qwen3-32B's products, the heads last
SHAPES = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
    *((10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600), (151936, 5120)),
)


@triton.jit
def linear_gemv_kernel(
    x,
    weight,
    bias,
    out,
    rows,
    width,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    fetch_weights(weight, row, rows, 0, width, BLOCK_K, DEPENDENT)
    follow(DEPENDENT)
    within = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in tl.range(0, width, BLOCK_K, num_stages=STAGES):
        column = start + within
        inside = column < width
        values = tl.load(
            weight + row[:, None] * width + column[None, :],
            mask=(row[:, None] < rows) & inside[None, :],
            other=0.0,
            eviction_policy="evict_first",
        )
        token = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        total += values.to(tl.float32) * token[None, :]
    result = tl.sum(total, 1)
    if bias is not None:
        result += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=row < rows)


def config_of(x: Tensor, weight: Tensor) -> Config:
    """Returns the table's block sizes; :data:`LIBRARY` if it has none."""
    return pick(OPERATION, gemv_key(weight.shape[0], weight.shape[1], x.dtype), LIBRARY)


def prepare_gemv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """Prepares the product of ``x`` [1, K] by contiguous ``weight`` [N, K], for these and other tensors of the same
    layout."""
    config = config_of(x, weight)
    if config == LIBRARY:
        config = DEFAULT
    (rows, width), grid = weight.shape, (cdiv(weight.shape[0], config["BLOCK_N"]),)
    start = prepare(linear_gemv_kernel, grid, (x, weight, bias, x), rows, width, config=config)

    def gemv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out = x.new_empty((1, rows))
        start(x, weight, bias, out)
        return out

    return gemv


def candidates() -> list[Config]:
    """Returns block sizes with 16 to 64 values of the weight per thread: two to eight loads of 16 bytes."""
    return [
        Config.of(num_warps=warps, BLOCK_N=rows, BLOCK_K=width, STAGES=stages)
        for rows in (2, 4, 8, 16)
        for width in (512, 1024, 2048)
        for warps in (4, 8)
        for stages in (1, 3)
        if 16 <= rows * width // (32 * warps) <= 64
    ]


def tunables() -> list[Tunable]:
    return [
        Tunable(OPERATION, gemv_key(rows, width, torch.bfloat16), candidates(), partial(_workload, rows, width))
        for rows, width in SHAPES
    ]


def gemv_key(rows: int, width: int, dtype: torch.dtype) -> str:
    return f"{rows}x{width}_{str(dtype).removeprefix('torch.')}"


def _workload(rows: int, width: int, device: torch.device) -> Callable[[], object]:
    from . import linear

    weight = torch.randn(rows, width, dtype=torch.bfloat16, device=device)
    x = torch.randn(1, width, dtype=torch.bfloat16, device=device)
    return partial(linear, x, weight)
