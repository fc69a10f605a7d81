# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The gated delta rule for few tokens: a program takes some columns of a head's state, kept in registers, through the
tokens of a row one by one.

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
from .reference import L2_EPS

OPERATION = "gated_delta"
FEW = 8
"""If the longest row has at most this many tokens, they are taken one by one."""


@triton.jit
def _delta_kernel(
    q,
    k,
    v,
    decay,
    beta,
    state,
    out,
    cu_seqlens,
    reads,
    writes,
    q_stride,
    k_stride,
    v_stride,
    scale,
    eps,
    REPEATS: tl.constexpr,
    V_HEADS: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    K_WIDTH: tl.constexpr,
    L2NORM: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(cu_seqlens + row)
    end = tl.load(cu_seqlens + row + 1)
    dim = tl.arange(0, K_WIDTH)
    column = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    at = dim[:, None] * V_DIM + column[None, :]
    inside = (dim < K_DIM)[:, None] & (column < V_DIM)[None, :]
    memory = load_state(state, reads, at, inside, V_HEADS, K_DIM * V_DIM)
    for t in range(0, end - start):
        token = start.to(tl.int64) + t
        query = tl.load(q + token * q_stride + head // REPEATS * K_DIM + dim, mask=dim < K_DIM, other=0.0).to(
            tl.float32
        )
        key = tl.load(k + token * k_stride + head // REPEATS * K_DIM + dim, mask=dim < K_DIM, other=0.0).to(tl.float32)
        value = tl.load(v + token * v_stride + head * V_DIM + column, mask=column < V_DIM, other=0.0).to(tl.float32)
        if L2NORM:
            query *= tl.rsqrt(tl.sum(query * query, 0) + eps)
            key *= tl.rsqrt(tl.sum(key * key, 0) + eps)
        if BY_CHANNEL:
            passed = tl.load(decay + (token * V_HEADS + head) * K_DIM + dim, mask=dim < K_DIM, other=0.0)
            memory *= tl.exp(passed)[:, None]
        else:
            memory *= tl.exp(tl.load(decay + token * V_HEADS + head))
        found = tl.sum(key[:, None] * memory, 0)
        change = tl.load(beta + token * V_HEADS + head) * (value - found)
        memory += key[:, None] * change[None, :]
        if state.dtype.element_ty != tl.float32:
            memory = memory.to(state.dtype.element_ty).to(tl.float32)
        sums = scale * tl.sum(query[:, None] * memory, 0)
        tl.store(out + (token * V_HEADS + head) * V_DIM + column, sums.to(out.dtype.element_ty), mask=column < V_DIM)
    store_state(memory, state, writes, at, inside, V_HEADS, K_DIM * V_DIM)


def default_config() -> Config:
    return Config.of(BLOCK_V=32, num_warps=4)


def candidates() -> list[Config]:
    return [Config.of(BLOCK_V=block, num_warps=warps) for block in (8, 16, 32, 64) for warps in (1, 2, 4, 8)]


def delta_key(k_dim: int) -> str:
    return f"k{k_dim}"


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    rows: StateRows,
    scale: float,
    l2norm: bool,
) -> Tensor:
    _, v_heads, v_dim = v.shape
    k_dim = q.shape[2]
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    factors = [decay, beta]
    sizes = {"REPEATS": v_heads // q.shape[1], "V_HEADS": v_heads, "K_DIM": k_dim, "L2NORM": l2norm}
    by_channel = decay.dim() == 3
    sizes |= {"K_WIDTH": next_power_of_2(k_dim), "BY_CHANNEL": by_channel}
    chunked = rows.longest > FEW
    if chunked:
        sizes |= triton_chunks.sizes_of(q, k_dim)
        key = triton_chunks.chunks_key(k_dim, q.dtype, by_channel)
        config = pick(triton_chunks.OPERATION, key, triton_chunks.default_config())
        factors.append(triton_chunks.inverses_of(q, k, decay, beta, rows, config, sizes))
    else:
        config = pick(OPERATION, delta_key(k_dim), default_config())
    launch(
        triton_chunks.chunks_kernel if chunked else _delta_kernel,
        (len(rows), v_heads, cdiv(v_dim, config["BLOCK_V"])),
        *(q, k, v, *factors, state, out, *rows.tensors),
        *(q.stride(0), k.stride(0), v.stride(0), scale, L2_EPS),
        config=config,
        V_DIM=v_dim,
        **sizes,
    )
    return out
