# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="possibly-undefined"
"""Norms, rotates and caches heads in tiles of tokens by heads of q, k or v; a head stays in registers from projection
to cache."""

import triton
import triton.language as tl

from ..kv_cache.triton import copy_rows, load_scales, slot_rows, store_rows, tile_config, tile_rows
from ..launching.dependent import follow
from ..launching.launch import cdiv, next_power_of_2
from ..launching.repeated import Start, prepare
from ..quantize.fp8 import as_kernel_argument
from ..rotary import Sections
from ..rotary.triton import load_angles, load_pairs, rotate_pairs, section_ends, store_pairs
from .reference import HeadTensors


@triton.jit
def _scaled(x, factor, weight, dtype: tl.constexpr, PLUS_ONE: tl.constexpr):
    """Applies the last steps of a norm, rounding to ``dtype`` where the norm does; float32."""
    normed = x * factor
    if PLUS_ONE:
        return (normed * (1.0 + weight)).to(dtype).to(tl.float32)
    else:
        return (normed.to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)


@triton.jit
def _prepare_heads(
    x,
    stride,
    norm,
    eps,
    cos,
    sin,
    positions,
    positions_stride,
    cache,
    slots,
    scale,
    tokens,
    heads,
    group,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SECTION_1: tl.constexpr,
    SECTION_2: tl.constexpr,
    SIZE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """Norms heads unless ``norm`` is None, rotates them, and stores them in the cache, or in place if that is None."""
    dtype: tl.constexpr = x.dtype.element_ty
    token, head, inside = tile_rows(tokens, heads, group, BLOCK_TOKENS, BLOCK_HEADS)
    rows = x + token * stride + head * DIM
    first, second = load_pairs(rows, inside, HALF, WIDTH, INTERLEAVED)
    # the dims after the rotated ones: those of q are left alone unless they are normed
    HAS_REST: tl.constexpr = 2 * HALF < DIM and (norm is not None or cache is not None)
    if HAS_REST:
        rest_dim = 2 * HALF + tl.arange(0, REST_WIDTH)
        fits = inside[:, None] & (rest_dim < DIM)[None, :]
        rest = tl.load(rows[:, None] + rest_dim[None, :], mask=fits, other=0.0).to(tl.float32)
    if norm is not None:
        squares = tl.sum(first * first + second * second, 1, keep_dims=True)
        if HAS_REST:
            squares += tl.sum(rest * rest, 1, keep_dims=True)
        factor = tl.rsqrt(squares / DIM + eps)
        # every row reads the weights: they come from the first-level cache, and lie as the rows do
        first_weight, second_weight = load_pairs(norm + head * 0, inside, HALF, WIDTH, INTERLEAVED)
        first = _scaled(first, factor, first_weight, dtype, PLUS_ONE)
        second = _scaled(second, factor, second_weight, dtype, PLUS_ONE)
        if HAS_REST:
            weight = tl.load(norm + (head * 0)[:, None] + rest_dim[None, :], mask=fits, other=0.0).to(tl.float32)
            rest = _scaled(rest, factor, weight, dtype, PLUS_ONE)
    c, s = load_angles(cos, sin, positions, positions_stride, token, inside, HALF, WIDTH, SECTION_1, SECTION_2)
    first, second = rotate_pairs(first, second, c, s)
    first, second = first.to(dtype), second.to(dtype)
    if cache is None:
        store_pairs(rows, inside, first, second, None, HALF, WIDTH, INTERLEAVED, 1, False)
        if HAS_REST:
            store_rows(rows, rest_dim, inside, rest, None, DIM, 1, False)
    else:
        to, written = slot_rows(cache, slots, token, head, heads, inside, DIM, SIZE, TRANSPOSED)
        scales = load_scales(scale, head, inside)
        store_pairs(to, written, first, second, scales, HALF, WIDTH, INTERLEAVED, SIZE, TRANSPOSED)
        if HAS_REST:
            store_rows(to, rest_dim, written, rest, scales, DIM, SIZE, TRANSPOSED)


@triton.jit(do_not_specialize=["tokens", "positions_stride"])
def _rotate_and_write_kernel(
    q,
    k,
    v,
    cos,
    sin,
    positions,
    k_cache,
    v_cache,
    slots,
    q_norm,
    k_norm,
    k_scale,
    v_scale,
    eps,
    q_stride,
    k_stride,
    v_stride,
    positions_stride,
    tokens,
    q_heads,
    kv_heads,
    DIM: tl.constexpr,
    DIM_WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SECTION_1: tl.constexpr,
    SECTION_2: tl.constexpr,
    SIZE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    follow(DEPENDENT)
    q_groups, kv_groups = tl.cdiv(q_heads, BLOCK_HEADS), tl.cdiv(kv_heads, BLOCK_HEADS)
    group = tl.program_id(1)
    # fmt: off
    if group < q_groups:
        _prepare_heads(q, q_stride, q_norm, eps, cos, sin, positions, positions_stride, None, None, None,
                       tokens, q_heads, group, DIM, HALF, WIDTH, REST_WIDTH, PLUS_ONE, INTERLEAVED,
                       SECTION_1, SECTION_2, SIZE, TRANSPOSED, BLOCK_TOKENS, BLOCK_HEADS)
    elif group < q_groups + kv_groups:
        _prepare_heads(k, k_stride, k_norm, eps, cos, sin, positions, positions_stride, k_cache, slots, k_scale,
                       tokens, kv_heads, group - q_groups, DIM, HALF, WIDTH, REST_WIDTH, PLUS_ONE, INTERLEAVED,
                       SECTION_1, SECTION_2, SIZE, TRANSPOSED, BLOCK_TOKENS, BLOCK_HEADS)
    else:
        copy_rows(v, v_stride, v_cache, slots, v_scale, tokens, kv_heads, group - q_groups - kv_groups,
                  DIM, DIM_WIDTH, SIZE, False, BLOCK_TOKENS, BLOCK_HEADS)
    # fmt: on


def prepare_rotate_and_write(
    of: HeadTensors, eps: float, plus_one: bool, interleaved: bool, sections: Sections | None
) -> Start:
    """Prepares a launch with all of these tensors. Queries are written to ``q``; ``k`` and ``v`` do not change."""
    tokens, q_heads, dim = of.q.shape
    kv_heads, half = of.k.shape[1], of.cos.shape[1]
    config = tile_config("rotate_and_write", dim, q_heads, tokens)
    block = config["BLOCK_HEADS"]
    section_1, section_2 = section_ends(sections, half)
    return prepare(
        _rotate_and_write_kernel,
        (cdiv(tokens, config["BLOCK_TOKENS"]), cdiv(q_heads, block) + 2 * cdiv(kv_heads, block)),
        of._replace(k_cache=as_kernel_argument(of.k_cache), v_cache=as_kernel_argument(of.v_cache)),
        eps,
        *(rows.stride(0) for rows in (of.q, of.k, of.v, of.positions)),
        tokens,
        q_heads,
        kv_heads,
        config=config,
        DIM=dim,
        DIM_WIDTH=next_power_of_2(dim),
        HALF=half,
        WIDTH=next_power_of_2(half),
        REST_WIDTH=next_power_of_2(max(1, dim - 2 * half)),
        PLUS_ONE=plus_one,
        INTERLEAVED=interleaved,
        SECTION_1=section_1,
        SECTION_2=section_2,
        SIZE=of.k_cache.shape[3],
        TRANSPOSED=of.k_cache.is_contiguous(),
    )
