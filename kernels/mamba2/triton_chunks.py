# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Mamba-2 for prompts, a chunk at a time (arXiv:2405.21060, section 6): within a chunk, tokens see each other as in
attention.

With c_i the sum of dt A up to token i of a chunk, S the state before it and S' after it:

    y_i = exp(c_i) S C_i + Σ_{j ≤ i} exp(c_i - c_j) dt_j (C_i · B_j) x_j + D x_i
    S' = exp(c_end) S + Σ_j exp(c_end - c_j) dt_j x_j ⊗ B_j

A program takes some dims of a head through the chunks of a row; their state stays in registers.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import next_power_of_2
from ..state_slots import load_state, store_state
from ..tuning import Config

OPERATION = "mamba2_chunks"


@triton.jit
def chunks_kernel(
    x,
    dt,
    A,
    B,
    C,
    D,
    state,
    out,
    cu_seqlens,
    reads,
    writes,
    x_stride,
    B_stride,
    C_stride,
    REPEATS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    STATE_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_DIMS: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(cu_seqlens + row)
    length = tl.load(cu_seqlens + row + 1) - start
    dim = tl.program_id(2) * BLOCK_DIMS + tl.arange(0, BLOCK_DIMS)
    column = tl.arange(0, WIDTH)
    at = dim[:, None] * STATE_DIM + column[None, :]
    inside = (dim < HEAD_DIM)[:, None] & (column < STATE_DIM)[None, :]
    memory = load_state(state, reads, at, inside, HEADS, HEAD_DIM * STATE_DIM)  # [dims, state_dim]
    rate = tl.load(A + head)
    skip = tl.load(D + head)
    group = head // REPEATS * STATE_DIM
    step = tl.arange(0, CHUNK)
    seen = step[:, None] >= step[None, :]
    for begin in range(0, length, CHUNK):
        here = begin + step < length
        token = start.to(tl.int64) + begin + step
        columns = here[:, None] & (column < STATE_DIM)[None, :]
        dims = here[:, None] & (dim < HEAD_DIM)[None, :]
        # past the end of the row nothing is added and nothing decays
        weight = tl.load(dt + token * HEADS + head, mask=here, other=0.0)
        passed = tl.cumsum(weight * rate, 0)
        total = tl.sum(weight * rate, 0)
        put = tl.load(B + token[:, None] * B_stride + group + column[None, :], mask=columns, other=0.0).to(tl.float32)
        take = tl.load(C + token[:, None] * C_stride + group + column[None, :], mask=columns, other=0.0).to(tl.float32)
        value = tl.load(x + token[:, None] * x_stride + head * HEAD_DIM + dim[None, :], mask=dims, other=0.0).to(
            tl.float32
        )
        between = tl.exp(tl.minimum(passed[:, None] - passed[None, :], 0.0)) * weight[None, :]
        scores = tl.dot(take, tl.trans(put), input_precision=PRECISION)
        scores = tl.where(seen, scores * between, 0.0)
        sums = tl.dot(take, tl.trans(memory), input_precision=PRECISION) * tl.exp(passed)[:, None]
        sums += tl.dot(scores, value, input_precision=PRECISION)
        sums += skip * value
        to = out + (token * HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
        tl.store(to, sums.to(out.dtype.element_ty), mask=dims)
        put = put * (weight * tl.exp(total - passed))[:, None]
        memory = memory * tl.exp(total) + tl.dot(tl.trans(value), put, input_precision=PRECISION)
    store_state(memory, state, writes, at, inside, HEADS, HEAD_DIM * STATE_DIM)


def default_config() -> Config:
    """Returns the largest sizes that spill no register on Hopper at the dims of its models."""
    return Config.of(CHUNK=32, BLOCK_DIMS=16, num_warps=4, num_stages=1)


def candidates() -> list[Config]:
    return [
        Config.of(CHUNK=chunk, BLOCK_DIMS=block, num_warps=warps, num_stages=stages)
        for chunk in (16, 32, 64)
        for block in (16, 32, 64)
        for warps in (4, 8)
        for stages in (1, 2)
    ]


def chunks_key(state_dim: int, dtype: torch.dtype) -> str:
    return f"n{state_dim}-{'f32' if dtype == torch.float32 else 'f16'}"


def sizes_of(x: Tensor, state_dim: int) -> dict[str, Any]:
    """Returns the constants of this kernel beyond those of the kernel for few tokens."""
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    return {"WIDTH": max(16, next_power_of_2(state_dim)), "PRECISION": precision}
