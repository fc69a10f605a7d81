# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Multiplies tiles of inputs by tiles of a weight that are dequantised in registers, on tensor cores."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import cdiv, launch
from ..tuning import Config, pick
from .triton_weights import weights_at
from .weight import CodedMatrices, code_form_of, tensors_of

OPERATION = "linear_coded"


@triton.jit(do_not_specialize=["tokens"])
def linear_kernel(
    x,
    weight,
    scales,
    code_factors,
    zeros,
    bias,
    out,
    tokens,
    x_stride,
    outputs,
    inputs,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out = x Wᵀ + bias; programs of one tile of the weight are adjacent, so that it is read once."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    stored = (weight, scales, code_factors, zeros)
    tiles_t = tl.cdiv(tokens, BLOCK_T)
    row = (tl.program_id(0) % tiles_t).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = (tl.program_id(0) // tiles_t).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    there, wanted = row < tokens, column < outputs
    within = tl.arange(0, BLOCK_K)
    given = x + row[:, None] * x_stride + within[None, :]
    total = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        inside = start + within < inputs
        left = tl.load(given + start, mask=there[:, None] & inside[None, :], other=0.0)
        right = weights_at(stored, column, start, inputs, wanted, BLOCK_N, BLOCK_K, DTYPE, FORM, True)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=wanted, other=0.0).to(tl.float32)[None, :]
    to = out + row[:, None] * outputs + column[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=there[:, None] & wanted[None, :])


def run(x: Tensor, weight: CodedMatrices, bias: Tensor | None) -> Tensor:
    """Runs :func:`stentor.kernels.linear_coded` on checked arguments."""
    tokens, inputs = x.shape
    outputs = weight.shape[1]
    config = pick(OPERATION, key(weight, tokens, x.dtype), default(tokens, x.dtype))
    out = x.new_empty((tokens, outputs))
    launch(
        linear_kernel,
        (cdiv(tokens, config["BLOCK_T"]) * cdiv(outputs, config["BLOCK_N"]),),
        *(x, *tensors_of(weight), bias, out, tokens, x.stride(0), outputs, inputs),
        config=config,
        HAS_BIAS=bias is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        FORM=code_form_of(weight),
    )
    return out


def key(weight: CodedMatrices, tokens: int, dtype: torch.dtype) -> str:
    _, outputs, inputs = weight.shape
    bucket = next((size for size in (16, 64) if tokens <= size), 256)
    return f"{outputs}x{inputs} {weight.kind} t{bucket} {str(dtype).removeprefix('torch.')}"


def default(tokens: int, dtype: torch.dtype) -> Config:
    if dtype == torch.float32:
        return Config.of(num_warps=4, num_stages=2, BLOCK_T=16, BLOCK_N=32, BLOCK_K=32)
    if tokens <= 16:
        return Config.of(num_warps=4, num_stages=4, BLOCK_T=16, BLOCK_N=32, BLOCK_K=128)
    if tokens <= 64:
        return Config.of(num_warps=4, num_stages=4, BLOCK_T=64, BLOCK_N=64, BLOCK_K=64)
    return Config.of(num_warps=8, num_stages=3, BLOCK_T=128, BLOCK_N=128, BLOCK_K=64)


def candidates(tokens: int) -> list[Config]:
    tiles = [(16, 16, 4), (16, 32, 4), (16, 64, 4), (64, 64, 4), (64, 128, 8), (128, 64, 8), (128, 128, 8)]
    return [
        Config.of(num_warps=warps, num_stages=stages, BLOCK_T=rows, BLOCK_N=columns, BLOCK_K=width)
        for rows, columns, warps in tiles
        if rows <= max(16, tokens)
        for width in (64, 128)
        for stages in (3, 4)
        if stages * (rows + columns) * width * 2 <= 200 * 1024
    ]
