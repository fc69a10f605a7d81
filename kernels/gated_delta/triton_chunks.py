# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The gated delta rule for prompts, computing the changes of all tokens of a chunk at once (arXiv:2412.06464, section
3.3).

With c_i the sum of decays up to token i of a chunk, S the state before it and S' after it, the changes d solve

    d_i + Σ_{j < i} beta_i exp(c_i - c_j) (k_i · k_j) d_j = beta_i (v_i - exp(c_i) k_iᵀ S)

This is a triangular system. The first kernel computes its inverse row by row, for all chunks at once. The second one
takes some columns of a head's state, kept in registers, through the chunks of a row:

    o_i = scale (exp(c_i) q_iᵀ S + Σ_{j ≤ i} exp(c_i - c_j) (q_i · k_j) d_j)
    S' = exp(c_end) S + Σ_j exp(c_end - c_j) k_j ⊗ d_j

If each channel has its own decay (arXiv:2510.26692), c_i is one sum per channel, and its factors apply to the terms of
the products over channels. These products are then summed in float32, one column after the other. Tensor cores would
need exp(c_i - c_j) split into two factors, which overflow if a decay is strong. The first kernel computes these
products, and stores those of queries and keys after each inverse.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.prefill_inner import find_tile
from ..launching.launch import launch, next_power_of_2
from ..state_rows import StateRows
from ..state_slots import load_state, store_state
from ..tuning import Config
from .reference import L2_EPS

OPERATION = "gated_delta_chunks"


@triton.jit
def _load_heads(x, token, stride, here, dim, eps, DIM: tl.constexpr, L2NORM: tl.constexpr):
    """Loads [tokens, dims] float32 of one head, which begins at ``x``; zeros for tokens that are not ``here``."""
    mask = here[:, None] & (dim < DIM)[None, :]
    heads = tl.load(x + token[:, None] * stride + dim[None, :], mask=mask, other=0.0).to(tl.float32)
    if L2NORM:
        heads *= tl.rsqrt(tl.sum(heads * heads, 1) + eps)[:, None]
    return heads


@triton.jit
def _load_decays(decay, token, here, dim, head, V_HEADS: tl.constexpr, K_DIM: tl.constexpr):
    """Loads [tokens, dims] float32 of the channels of one head; zeros for tokens that are not ``here``."""
    mask = here[:, None] & (dim < K_DIM)[None, :]
    return tl.load(decay + (token * V_HEADS + head)[:, None] * K_DIM + dim[None, :], mask=mask, other=0.0)


@triton.jit
def _decayed_products(x, key, passed, step, CHUNK: tl.constexpr):
    """Returns [tokens, tokens] float32: x_i · k_j, with each channel decayed from token j to i; meaningless for j >
    i."""
    products = tl.zeros([CHUNK, CHUNK], tl.float32)
    for j in range(CHUNK):
        own = (step == j)[:, None]
        since = tl.exp(tl.minimum(passed - tl.sum(tl.where(own, passed, 0.0), 0)[None, :], 0.0))
        column = tl.sum(x * since * tl.sum(tl.where(own, key, 0.0), 0)[None, :], 1)
        products = tl.where((step == j)[None, :], column[:, None], products)
    return products


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["cu_seqlens"])
def _inverse_kernel(
    q,
    k,
    decay,
    beta,
    inverses,
    cu_seqlens,
    rows,
    q_stride,
    k_stride,
    eps,
    REPEATS: tl.constexpr,
    V_HEADS: tl.constexpr,
    K_DIM: tl.constexpr,
    K_WIDTH: tl.constexpr,
    L2NORM: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row, tile = find_tile(cu_seqlens, rows, tl.program_id(0), CHUNK)
    head = tl.program_id(1)
    start = tl.load(cu_seqlens + row)
    length = tl.load(cu_seqlens + row + 1) - start
    if tile * CHUNK >= length:
        return
    step = tl.arange(0, CHUNK)
    here = tile * CHUNK + step < length
    token = start.to(tl.int64) + tile * CHUNK + step
    dim = tl.arange(0, K_WIDTH)
    key = _load_heads(k + head // REPEATS * K_DIM, token, k_stride, here, dim, eps, K_DIM, L2NORM)
    factor = tl.load(beta + token * V_HEADS + head, mask=here, other=0.0)
    square = step[:, None] * CHUNK + step[None, :]
    to = inverses + (tl.program_id(0).to(tl.int64) * V_HEADS + head) * (CHUNK * CHUNK * (2 if BY_CHANNEL else 1))
    if BY_CHANNEL:
        passed = tl.cumsum(_load_decays(decay, token, here, dim, head, V_HEADS, K_DIM), 0)
        query = _load_heads(q + head // REPEATS * K_DIM, token, q_stride, here, dim, eps, K_DIM, L2NORM)
        scores = _decayed_products(query, key, passed, step, CHUNK)
        tl.store(to + CHUNK * CHUNK + square, scores)
        system = _decayed_products(key, key, passed, step, CHUNK) * factor[:, None]
    else:
        passed = tl.cumsum(tl.load(decay + token * V_HEADS + head, mask=here, other=0.0), 0)
        between = tl.exp(tl.minimum(passed[:, None] - passed[None, :], 0.0)) * factor[:, None]
        system = tl.dot(key, tl.trans(key), input_precision=PRECISION) * between
    below = step[:, None] > step[None, :]
    inverse = tl.where(below, -system, 0.0)
    for i in range(1, CHUNK):  # computes row i from the finished rows above it
        own = (step == i)[:, None]
        line = tl.sum(tl.where(own, inverse, 0.0), 0)
        line += tl.sum(line[:, None] * inverse, 0)
        inverse = tl.where(own, line[None, :], inverse)
    inverse += tl.where(step[:, None] == step[None, :], 1.0, 0.0)
    tl.store(to + square, inverse)


@triton.jit
def chunks_kernel(
    q,
    k,
    v,
    decay,
    beta,
    inverses,
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
    PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(cu_seqlens)
    start = tl.load(cu_seqlens + row)
    length = tl.load(cu_seqlens + row + 1) - start
    dim = tl.arange(0, K_WIDTH)
    column = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    at = dim[:, None] * V_DIM + column[None, :]
    inside = (dim < K_DIM)[:, None] & (column < V_DIM)[None, :]
    memory = load_state(state, reads, at, inside, V_HEADS, K_DIM * V_DIM)  # [k_dim, columns]
    q += head // REPEATS * K_DIM
    k += head // REPEATS * K_DIM
    step = tl.arange(0, CHUNK)
    square = step[:, None] * CHUNK + step[None, :]
    chunk = ((start - first) // CHUNK + row).to(tl.int64)  # as find_tile numbers them
    for begin in range(0, length, CHUNK):
        here = begin + step < length
        token = start.to(tl.int64) + begin + step
        columns = here[:, None] & (column < V_DIM)[None, :]
        factor = tl.load(beta + token * V_HEADS + head, mask=here, other=0.0)
        key = _load_heads(k, token, k_stride, here, dim, eps, K_DIM, L2NORM)
        value = tl.load(v + token[:, None] * v_stride + head * V_DIM + column[None, :], mask=columns, other=0.0).to(
            tl.float32
        )
        matrices = inverses + (chunk * V_HEADS + head) * (CHUNK * CHUNK * (2 if BY_CHANNEL else 1))
        inverse = tl.load(matrices + square)
        # past the end of the row nothing is added and nothing decays
        if BY_CHANNEL:
            log_factor = _load_decays(decay, token, here, dim, head, V_HEADS, K_DIM)
            passed = tl.cumsum(log_factor, 0)
            decayed = tl.exp(passed)
            found = tl.dot(key * decayed, memory, input_precision=PRECISION)
        else:
            log_factor = tl.load(decay + token * V_HEADS + head, mask=here, other=0.0)
            passed = tl.cumsum(log_factor, 0)
            decayed = tl.exp(passed)[:, None]
            found = tl.dot(key, memory, input_precision=PRECISION) * decayed
        total = tl.sum(log_factor, 0)
        change = tl.dot(inverse, (value - found) * factor[:, None], input_precision=PRECISION)
        query = _load_heads(q, token, q_stride, here, dim, eps, K_DIM, L2NORM)
        if BY_CHANNEL:
            scores = tl.load(matrices + CHUNK * CHUNK + square)
            sums = tl.dot(query * decayed, memory, input_precision=PRECISION)
            left = tl.exp(total[None, :] - passed)
            kept = tl.exp(total)[:, None]
        else:
            scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
            scores *= tl.exp(tl.minimum(passed[:, None] - passed[None, :], 0.0))
            sums = tl.dot(query, memory, input_precision=PRECISION) * decayed
            left = tl.exp(total - passed)[:, None]
            kept = tl.exp(total)
        scores = tl.where(step[:, None] >= step[None, :], scores, 0.0)
        sums += tl.dot(scores, change, input_precision=PRECISION)
        to = out + (token * V_HEADS + head)[:, None] * V_DIM + column[None, :]
        tl.store(to, (scale * sums).to(out.dtype.element_ty), mask=columns)
        memory = memory * kept + tl.dot(tl.trans(key * left), change, input_precision=PRECISION)
        chunk += 1
    store_state(memory, state, writes, at, inside, V_HEADS, K_DIM * V_DIM)


def default_config() -> Config:
    """Returns the largest sizes that spill no register on Hopper at the dims of its models."""
    return Config.of(CHUNK=16, BLOCK_V=32, num_warps=4, num_stages=1)


def candidates() -> list[Config]:
    return [
        Config.of(CHUNK=chunk, BLOCK_V=block, num_warps=warps, num_stages=stages)
        for chunk in (16, 32, 64)
        for block in (16, 32, 64)
        for warps in (4, 8)
        for stages in (1, 2)
    ]


def chunks_key(k_dim: int, dtype: torch.dtype, by_channel: bool) -> str:
    return f"k{k_dim}-{'f32' if dtype == torch.float32 else 'f16'}{'-channels' if by_channel else ''}"


def sizes_of(q: Tensor, k_dim: int) -> dict[str, Any]:
    """Returns the constants of these kernels beyond those of the kernel for few tokens."""
    precision = "ieee" if q.dtype == torch.float32 else "tf32"
    return {"K_WIDTH": max(16, next_power_of_2(k_dim)), "PRECISION": precision}


def inverses_of(
    q: Tensor, k: Tensor, decay: Tensor, beta: Tensor, rows: StateRows, config: Config, sizes: dict[str, Any]
) -> Tensor:
    """Returns float32 [chunks, v_heads, CHUNK, CHUNK].

    If each channel has its own decay, [chunks, v_heads, 2, CHUNK, CHUNK]: the products of queries and keys follow each
    inverse.
    """
    tokens, v_heads = beta.shape
    chunk = config["CHUNK"]
    tiles, matrices = tokens // chunk + len(rows), (2,) if decay.dim() == 3 else ()
    inverses = torch.empty(tiles, v_heads, *matrices, chunk, chunk, dtype=torch.float32, device=k.device)
    launch(
        _inverse_kernel,
        (tiles, v_heads),
        *(q, k, decay, beta, inverses, rows.cu_seqlens, len(rows), q.stride(0), k.stride(0), L2_EPS),
        config=Config.of(CHUNK=chunk, num_warps=config.num_warps, num_stages=1),
        **sizes,
    )
    return inverses
