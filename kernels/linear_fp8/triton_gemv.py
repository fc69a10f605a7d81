# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""out[n] = Σ_k weight[n, k] x[k]: one token by an 8-bit weight, limited by memory bandwidth.

A program streams ``BLOCK_N`` rows of the weight, 16 bytes per thread and load, and widens ``x`` once for all of them.
It takes so few rows that the programs fill the GPU without splitting K.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.dependent import fetch_weights, follow
from ..launching.launch import cdiv, next_power_of_2
from ..launching.repeated import prepare
from ..quantize.fp8 import as_kernel_argument, widen
from ..quantize.operands import Operands, Product
from ..tuning import Config, Tunable, pick
from .workloads import tunables_of

OPERATION = "linear_8bit_gemv"


@triton.jit
def gemv_kernel(
    x,
    x_scale,
    weight,
    weight_scale,
    bias,
    out,
    rows,
    width,
    weight_scale_stride,
    X_GROUPED: tl.constexpr,
    W_BLOCKED: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK_N
    row = first + tl.arange(0, BLOCK_N)
    fetch_weights(weight, row, rows, 0, width, BLOCK_K, DEPENDENT)
    follow(DEPENDENT)
    within = tl.arange(0, BLOCK_K)
    # One scale for each group of columns: a load for each column took four times as long.
    IN_GROUP: tl.constexpr = min(128, BLOCK_K)
    GROUPS: tl.constexpr = BLOCK_K // IN_GROUP
    group = tl.arange(0, GROUPS) * IN_GROUP
    total = tl.zeros([BLOCK_N, BLOCK_K], SUM)
    for start in tl.range(0, width, BLOCK_K, num_stages=STAGES):
        column = start + within
        inside = column < width
        values = tl.load(
            weight + row[:, None] * width + column[None, :],
            mask=(row[:, None] < rows) & inside[None, :],
            other=0.0,
            eviction_policy="evict_first",
        )
        token = widen(tl.load(x + column, mask=inside, other=0.0), SUM)
        if X_GROUPED or W_BLOCKED:
            scale = tl.full([GROUPS], 1.0, tl.float32)
            if X_GROUPED:
                scale *= tl.load(x_scale + (start + group) // 128, mask=start + group < width, other=0.0)
            if W_BLOCKED:  # all rows of the program are in one block
                block = weight_scale + (first // 128) * weight_scale_stride
                scale *= tl.load(block + (start + group) // 128, mask=start + group < width, other=0.0)
            token = tl.reshape(tl.reshape(token, (GROUPS, IN_GROUP)) * scale[:, None], (BLOCK_K,))
        total += widen(values, SUM) * token[None, :]
    result = tl.sum(total, 1).to(tl.float32)
    if x_scale is not None and not X_GROUPED:
        result *= tl.load(x_scale)
    if not W_BLOCKED:
        result *= tl.load(weight_scale + row * weight_scale_stride, mask=row < rows, other=0.0)
    if bias is not None:
        result += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=row < rows)


def prepare_gemv(operands: Operands) -> Product:
    """Prepares the product of one token, with any scales."""
    _, rows, width = operands.shape
    x, x_scale, weight, weight_scale, bias = operands.tensors
    out_dtype, config = operands.out_dtype, pick(OPERATION, key(operands), default(operands))
    if operands.weight_scales == "block" and 128 % config["BLOCK_N"]:
        raise ValueError(f"{OPERATION}: with blocks BLOCK_N must divide 128, not be {config['BLOCK_N']}")
    start = prepare(
        gemv_kernel,
        (cdiv(rows, config["BLOCK_N"]),),
        (
            as_kernel_argument(x),
            x_scale,
            as_kernel_argument(weight),
            weight_scale,
            bias,
            x.new_empty(0, dtype=out_dtype),
        ),
        *(rows, width, operands.weight_scale_stride),
        config=config,
        X_GROUPED=operands.input_scales == "group",
        W_BLOCKED=operands.weight_scales == "block",
        SUM=tl.int32 if x.dtype == torch.int8 else tl.float32,
    )

    def gemv(x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
        out = x.new_empty((1, rows), dtype=out_dtype)
        start(x, x_scale, weight, weight_scale, bias, out)
        return out

    return gemv


def key(operands: Operands) -> str:
    _, rows, width = operands.shape
    return f"{rows}x{width} {operands.kinds}"


def default(operands: Operands) -> Config:
    width = operands.shape[2]
    # 64 values of the weight per thread: four loads of 16 bytes in flight
    return Config.of(num_warps=4, BLOCK_N=8, BLOCK_K=min(1024, max(next_power_of_2(width), 32)), STAGES=3)


def candidates() -> list[Config]:
    return [
        Config.of(num_warps=warps, BLOCK_N=rows, BLOCK_K=width, STAGES=stages)
        for rows in (4, 8, 16)
        for width in (512, 1024, 2048)
        for warps in (2, 4, 8)
        for stages in (1, 3, 4)
        if 16 <= rows * width // (32 * warps) <= 128
    ]


def tunables() -> list[Tunable]:
    """Returns the tunables of both operations, at one token."""
    return tunables_of(OPERATION, tokens=1, key=key, prepare=prepare_gemv, candidates=lambda _: candidates())
