# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Writes rows to the KV cache: a program takes a tile of tokens by heads, each a row of the head's dims."""

import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import cdiv, launch, next_power_of_2
from ..quantize.fp8 import as_kernel_argument, round_to_fp8
from ..tuning import Config, pick

FEW_TOKENS = 512
"""Up to this many tokens programs are small, so that there are many of them."""


@triton.jit
def tile_rows(tokens, heads, group, BLOCK_TOKENS: tl.constexpr, BLOCK_HEADS: tl.constexpr):
    """Returns token and head of each row of this program's tile, and whether that row exists.

    Consecutive rows are consecutive tokens of one head: neighbours in a cache of transposed keys.
    """
    row = tl.arange(0, BLOCK_TOKENS * BLOCK_HEADS)
    token = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + row % BLOCK_TOKENS
    head = group * BLOCK_HEADS + row // BLOCK_TOKENS
    return token, head, (token < tokens) & (head < heads)


@triton.jit
def slot_rows(
    cache, slots, token, head, heads, inside, DIM: tl.constexpr, SIZE: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """Returns where each row's slot begins in a cache, and whether it is written: its slot is not negative."""
    slot = tl.load(slots + token, mask=inside, other=-1)
    written = inside & (slot >= 0)
    slot = tl.where(written, slot, 0)
    within = slot % SIZE if TRANSPOSED else slot % SIZE * DIM
    return cache + (slot // SIZE * heads + head) * (SIZE * DIM) + within, written


@triton.jit
def load_scales(scale, head, inside):
    """Loads each row's scale; ones if the cache has none."""
    if scale is None:
        return tl.full(head.shape, 1.0, tl.float32)
    else:
        return tl.load(scale + head, mask=inside, other=1.0)


@triton.jit
def store_rows(rows, dim, written, x, scales, DIM: tl.constexpr, SIZE: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Stores ``x`` [rows, dims] at the dims ``dim``, below ``DIM``, of ``rows`` [rows] of a cache.

    A uint8 cache holds float8's bits. In a transposed cache neighbouring tokens are adjacent, so threads go by rows.
    """
    dtype: tl.constexpr = rows.dtype.element_ty
    if dtype == tl.float8e4nv or dtype == tl.uint8:
        x = tl.div_rn(x.to(tl.float32), tl.broadcast_to(scales[:, None], x.shape))
        x = round_to_fp8(tl.clamp(x, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL), dtype)
    else:
        x = x.to(dtype)
    if TRANSPOSED:
        tl.store(rows[None, :] + dim[:, None] * SIZE, tl.trans(x), mask=written[None, :] & (dim < DIM)[:, None])
    else:
        tl.store(rows[:, None] + dim[None, :], x, mask=written[:, None] & (dim < DIM)[None, :])


@triton.jit
def copy_rows(
    x,
    stride,
    cache,
    slots,
    scale,
    tokens,
    heads,
    group,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """Writes the heads of ``group`` of ``x`` [tokens, heads, DIM], unchanged, to their slots."""
    token, head, inside = tile_rows(tokens, heads, group, BLOCK_TOKENS, BLOCK_HEADS)
    to, written = slot_rows(cache, slots, token, head, heads, inside, DIM, SIZE, TRANSPOSED)
    dim = tl.arange(0, WIDTH)
    rows = x + token * stride + head * DIM
    values = tl.load(rows[:, None] + dim[None, :], mask=written[:, None] & (dim < DIM)[None, :], other=0.0)
    store_rows(to, dim, written, values, load_scales(scale, head, inside), DIM, SIZE, TRANSPOSED)


@triton.jit(do_not_specialize=["tokens"])
def _write_kv_kernel(
    k,
    v,
    k_cache,
    v_cache,
    slots,
    k_scale,
    v_scale,
    k_stride,
    v_stride,
    tokens,
    heads,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    groups = tl.cdiv(heads, BLOCK_HEADS)
    group = tl.program_id(1)
    # fmt: off
    if group < groups:
        copy_rows(k, k_stride, k_cache, slots, k_scale, tokens, heads, group,
                  DIM, WIDTH, SIZE, TRANSPOSED, BLOCK_TOKENS, BLOCK_HEADS)
    else:
        copy_rows(v, v_stride, v_cache, slots, v_scale, tokens, heads, group - groups,
                  DIM, WIDTH, SIZE, False, BLOCK_TOKENS, BLOCK_HEADS)
    # fmt: on


def tile_config(operation: str, dim: int, heads: int, tokens: int) -> Config:
    """Returns the tile of an operation on [tokens, heads, dim]: 8 heads of a token, and more tokens if there are
    many."""
    few = tokens <= FEW_TOKENS
    many = 4 if dim <= 128 else 2
    default = _tile(1 if few else many, min(8, next_power_of_2(heads)), 2 if few else 4)
    return pick(operation, tile_key(dim, heads, tokens), default)


def tile_key(dim: int, heads: int, tokens: int) -> str:
    return f"dim{dim} heads{heads} {'few' if tokens <= FEW_TOKENS else 'many'}"


def tile_candidates() -> list[Config]:
    return [
        _tile(tokens, heads, warps)
        for tokens, heads in ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (2, 8), (4, 4), (4, 8), (8, 4), (16, 1), (16, 2))
        for warps in (1, 2, 4, 8)
        if 8 <= 4 * tokens * heads // warps <= 64  # pairs of 128 dims per thread, times 2
    ]


def _tile(tokens: int, heads: int, warps: int) -> Config:
    return Config.of(
        BLOCK_TOKENS=tokens,
        BLOCK_HEADS=heads,
        num_warps=warps,
        num_stages=1,
        fuse_multiply_add=False,  # rotary rounds products and sums separately, as the reference does
    )


def write_kv_(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    tokens, heads, dim = k.shape
    config = tile_config("write_kv", dim, heads, tokens)
    launch(
        _write_kv_kernel,
        (cdiv(tokens, config["BLOCK_TOKENS"]), 2 * cdiv(heads, config["BLOCK_HEADS"])),
        k,
        v,
        as_kernel_argument(k_cache),
        as_kernel_argument(v_cache),
        slots,
        k_scale,
        v_scale,
        k.stride(0),
        v.stride(0),
        tokens,
        heads,
        config=config,
        DIM=dim,
        WIDTH=next_power_of_2(dim),
        SIZE=k_cache.shape[3],
        TRANSPOSED=k_cache.is_contiguous(),
    )
