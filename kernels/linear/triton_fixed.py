# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""out[t, n] = Σ_k x[t, k] weight[n, k] in tiles of one size, for any number of tokens.

A sum runs along K from beginning to end, in steps of one width and by one instruction, so that a token's result does
not depend on the number of tokens. The weight is the left operand: its rows fill the instruction's 64.
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import cdiv, interpreted, launch
from ..tuning import Config, Tunable, pick
from .reference import linear
from .triton_gemv import SHAPES, gemv_key

OPERATION = "linear_fixed"
TUNED_TOKENS = 64
"""The number of tokens that the tuner times; its block sizes are then used for any number."""
_TOGETHER = 8
"""Tiles of tokens that are adjacent in launch order, and share the weight's tile in the cache."""


@triton.jit(do_not_specialize=["tokens"])
def linear_fixed_kernel(
    x,
    weight,
    bias,
    out,
    tokens,
    rows,
    width,
    x_stride,
    weight_stride,
    PRECISION: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    program = tl.program_id(0)
    tiles_t, tiles_n = tl.cdiv(tokens, BLOCK_T), tl.cdiv(rows, BLOCK_N)
    band = program // (TOGETHER * tiles_n)
    in_band = tl.minimum(tiles_t - band * TOGETHER, TOGETHER)
    within_band = program % (TOGETHER * tiles_n)
    token = (band * TOGETHER + within_band % in_band).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    row = (within_band // in_band).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    within = tl.arange(0, BLOCK_K)
    weights = weight + row[:, None] * weight_stride + within[None, :]
    inputs = x + token[None, :] * x_stride + within[:, None]
    total = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for start in range(0, width, BLOCK_K):
        inside = start + within < width
        left = tl.load(weights + start, mask=(row[:, None] < rows) & inside[None, :], other=0.0)
        right = tl.load(inputs + start, mask=inside[:, None] & (token[None, :] < tokens), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    if bias is not None:
        total += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)[:, None]
    inside = (row[:, None] < rows) & (token[None, :] < tokens)
    tl.store(out + token[None, :] * rows + row[:, None], total.to(out.dtype.element_ty), mask=inside)


def linear_fixed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiplies ``x`` [T, K] by ``weight`` [N, K], rows of both contiguous; ``bias`` [N]."""
    (tokens, width), rows = x.shape, weight.shape[0]
    config = pick(OPERATION, gemv_key(rows, width, x.dtype), default(x.dtype))
    out = torch.empty(tokens, rows, dtype=x.dtype, device=x.device)
    launch(
        linear_fixed_kernel,
        (cdiv(tokens, config["BLOCK_T"]) * cdiv(rows, config["BLOCK_N"]),),
        *(x, weight, bias, out, tokens, rows, width, x.stride(0), weight.stride(0)),
        config=config,
        PRECISION="ieee",
        TOGETHER=_TOGETHER,
    )
    return out


def default(dtype: torch.dtype) -> Config:
    if interpreted():
        return Config.of(BLOCK_T=16, BLOCK_N=32, BLOCK_K=32)
    if dtype == torch.float32:  # no tensor cores: larger tiles would spill
        return Config.of(num_warps=4, num_stages=3, BLOCK_T=32, BLOCK_N=64, BLOCK_K=32)
    return Config.of(num_warps=4, num_stages=4, BLOCK_T=64, BLOCK_N=64, BLOCK_K=64)


def candidates() -> list[Config]:
    return [
        Config.of(num_warps=4, num_stages=stages, BLOCK_T=tokens, BLOCK_N=rows, BLOCK_K=width)
        for tokens in (16, 32, 64, 128)
        for rows in (64, 128)
        for width in (64, 128)
        for stages in (3, 4, 6)
        if 2 * stages * (tokens + rows) * width <= 160 * 1024
    ]


def tunables() -> list[Tunable]:
    return [
        Tunable(
            OPERATION,
            gemv_key(rows, width, torch.bfloat16),
            candidates(),
            partial(_workload, rows, width, linear_fixed),
            partial(_workload, rows, width, linear),
        )
        for rows, width in SHAPES
    ]


def _workload(
    rows: int, width: int, run: Callable[[Tensor, Tensor, None], Tensor], device: torch.device
) -> Callable[[], object]:
    weight = torch.randn(rows, width, dtype=torch.bfloat16, device=device)
    x = torch.randn(TUNED_TOKENS, width, dtype=torch.bfloat16, device=device)
    return partial(run, x, weight, None)
