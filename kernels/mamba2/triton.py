# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Mamba-2 for few tokens: a program takes some dims of a head, with its state in registers, through the tokens of a row
one by one.

Rows of more than a few tokens are cut into chunks instead (:mod:`.triton_chunks`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import cdiv, launch, next_power_of_2
from ..state_rows import StateRows
from ..state_slots import load_state, store_state
from ..tuning import Config, pick
from . import triton_chunks

OPERATION = "mamba2"
FEW = 8
"""If the longest row has at most this many tokens, they are taken one by one."""


@triton.jit
def _mamba_kernel(
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
    BLOCK_DIMS: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(cu_seqlens + row)
    end = tl.load(cu_seqlens + row + 1)
    dim = tl.program_id(2) * BLOCK_DIMS + tl.arange(0, BLOCK_DIMS)
    column = tl.arange(0, WIDTH)
    at = dim[:, None] * STATE_DIM + column[None, :]
    inside = (dim < HEAD_DIM)[:, None] & (column < STATE_DIM)[None, :]
    memory = load_state(state, reads, at, inside, HEADS, HEAD_DIM * STATE_DIM)
    rate = tl.load(A + head)
    skip = tl.load(D + head)
    group = head // REPEATS * STATE_DIM
    for t in range(0, end - start):
        token = start.to(tl.int64) + t
        step = tl.load(dt + token * HEADS + head)
        value = tl.load(x + token * x_stride + head * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
        put = tl.load(B + token * B_stride + group + column, mask=column < STATE_DIM, other=0.0).to(tl.float32)
        take = tl.load(C + token * C_stride + group + column, mask=column < STATE_DIM, other=0.0).to(tl.float32)
        memory = memory * tl.exp(step * rate) + (step * value)[:, None] * put[None, :]
        if state.dtype.element_ty != tl.float32:
            memory = memory.to(state.dtype.element_ty).to(tl.float32)
        sums = tl.sum(memory * take[None, :], 1) + skip * value
        tl.store(out + (token * HEADS + head) * HEAD_DIM + dim, sums.to(out.dtype.element_ty), mask=dim < HEAD_DIM)
    store_state(memory, state, writes, at, inside, HEADS, HEAD_DIM * STATE_DIM)


def default_config() -> Config:
    return Config.of(BLOCK_DIMS=16, num_warps=4)


def candidates() -> list[Config]:
    return [Config.of(BLOCK_DIMS=block, num_warps=warps) for block in (4, 8, 16, 32, 64) for warps in (1, 2, 4, 8)]


def mamba_key(state_dim: int) -> str:
    return f"n{state_dim}"


def mamba2(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor, rows: StateRows) -> Tensor:
    _, heads, head_dim = x.shape
    state_dim = B.shape[2]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sizes = {"REPEATS": heads // B.shape[1], "HEADS": heads, "HEAD_DIM": head_dim, "STATE_DIM": state_dim}
    sizes["WIDTH"] = next_power_of_2(state_dim)
    chunked = rows.longest > FEW
    if chunked:
        sizes |= triton_chunks.sizes_of(x, state_dim)
        key, default = triton_chunks.chunks_key(state_dim, x.dtype), triton_chunks.default_config()
        config = pick(triton_chunks.OPERATION, key, default)
    else:
        config = pick(OPERATION, mamba_key(state_dim), default_config())
    launch(
        triton_chunks.chunks_kernel if chunked else _mamba_kernel,
        (len(rows), heads, cdiv(head_dim, config["BLOCK_DIMS"])),
        *(x, dt, A, B, C, D, state, out, *rows.tensors, x.stride(0), B.stride(0), C.stride(0)),
        config=config,
        **sizes,
    )
    return out
