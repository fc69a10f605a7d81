# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Rotates heads in tiles of tokens by heads; both members of a pair are in one thread."""

import triton
import triton.language as tl
from torch import Tensor

from ..kv_cache.triton import store_rows, tile_config, tile_rows
from ..launching.launch import cdiv, launch, next_power_of_2


@triton.jit
def load_angles(
    cos,
    sin,
    positions,
    positions_stride,
    token,
    inside,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    SECTION_1: tl.constexpr,
    SECTION_2: tl.constexpr,
):
    """Loads cosines and sines [rows, WIDTH] of each row's token.

    Frequencies from ``SECTION_1`` on take their position from the second row of ``positions``, those from ``SECTION_2``
    on from the third.
    """
    pair = tl.arange(0, WIDTH)
    position = tl.load(positions + token, mask=inside, other=0)[:, None] * HALF
    if SECTION_1 < HALF:
        second = tl.load(positions + positions_stride + token, mask=inside, other=0)[:, None] * HALF
        third = tl.load(positions + 2 * positions_stride + token, mask=inside, other=0)[:, None] * HALF
        later = tl.where((pair < SECTION_2)[None, :], second, third)
        position = tl.where((pair < SECTION_1)[None, :], position, later)
    at = position + pair[None, :]
    fits = inside[:, None] & (pair < HALF)[None, :]
    return tl.load(cos + at, mask=fits, other=0.0), tl.load(sin + at, mask=fits, other=0.0)


@triton.jit
def load_pairs(rows, inside, HALF: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Loads the first and the second members [rows, WIDTH] of the pairs of each of ``rows``, float32."""
    if INTERLEAVED:
        dim = tl.arange(0, 2 * WIDTH)
        both = tl.load(rows[:, None] + dim[None, :], mask=inside[:, None] & (dim < 2 * HALF)[None, :], other=0.0)
        first, second = tl.split(tl.reshape(both, [rows.shape[0], WIDTH, 2]))
    else:
        pair = tl.arange(0, WIDTH)
        at = rows[:, None] + pair[None, :]
        fits = inside[:, None] & (pair < HALF)[None, :]
        first, second = tl.load(at, mask=fits, other=0.0), tl.load(at + HALF, mask=fits, other=0.0)
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def store_pairs(
    rows,
    written,
    first,
    second,
    scales,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SIZE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Stores pairs in the positions of :func:`load_pairs`, in rows of a tensor or of a cache."""
    if INTERLEAVED:
        both = tl.reshape(tl.join(first, second), [rows.shape[0], 2 * WIDTH])
        store_rows(rows, tl.arange(0, 2 * WIDTH), written, both, scales, 2 * HALF, SIZE, TRANSPOSED)
    else:
        # rows begin HALF later, because the second members' padding must not be stored as dims
        pair = tl.arange(0, WIDTH)
        later = rows + HALF * (SIZE if TRANSPOSED else 1)
        store_rows(rows, pair, written, first, scales, HALF, SIZE, TRANSPOSED)
        store_rows(later, pair, written, second, scales, HALF, SIZE, TRANSPOSED)


@triton.jit
def rotate_pairs(first, second, c, s):
    return first * c - second * s, second * c + first * s


@triton.jit
def _turn_heads(
    x,
    stride,
    cos,
    sin,
    positions,
    positions_stride,
    tokens,
    heads,
    group,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SECTION_1: tl.constexpr,
    SECTION_2: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    token, head, inside = tile_rows(tokens, heads, group, BLOCK_TOKENS, BLOCK_HEADS)
    rows = x + token * stride + head * DIM
    first, second = load_pairs(rows, inside, HALF, WIDTH, INTERLEAVED)
    c, s = load_angles(cos, sin, positions, positions_stride, token, inside, HALF, WIDTH, SECTION_1, SECTION_2)
    first, second = rotate_pairs(first, second, c, s)
    store_pairs(rows, inside, first, second, None, HALF, WIDTH, INTERLEAVED, 1, False)


@triton.jit(do_not_specialize=["tokens", "positions_stride"])
def _rotary_kernel(
    q,
    k,
    cos,
    sin,
    positions,
    q_stride,
    k_stride,
    positions_stride,
    tokens,
    q_heads,
    k_heads,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SECTION_1: tl.constexpr,
    SECTION_2: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    q_groups = tl.cdiv(q_heads, BLOCK_HEADS)
    group = tl.program_id(1)
    # fmt: off
    if group < q_groups:
        _turn_heads(q, q_stride, cos, sin, positions, positions_stride, tokens, q_heads, group,
                    DIM, HALF, WIDTH, INTERLEAVED, SECTION_1, SECTION_2, BLOCK_TOKENS, BLOCK_HEADS)
    else:
        _turn_heads(k, k_stride, cos, sin, positions, positions_stride, tokens, k_heads, group - q_groups,
                    DIM, HALF, WIDTH, INTERLEAVED, SECTION_1, SECTION_2, BLOCK_TOKENS, BLOCK_HEADS)
    # fmt: on


def section_ends(sections: tuple[int, int, int] | None, half: int) -> tuple[int, int]:
    """Returns the frequencies at which the second and the third section begin; ``half`` if each token has one
    position."""
    return (half, half) if sections is None else (sections[0], sections[0] + sections[1])


def rotary_(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    interleaved: bool,
    sections: tuple[int, int, int] | None,
) -> None:
    tokens, q_heads, dim = q.shape
    k_heads, half = k.shape[1], cos.shape[1]
    config = tile_config("rotary", dim, q_heads, tokens)
    block = config["BLOCK_HEADS"]
    section_1, section_2 = section_ends(sections, half)
    launch(
        _rotary_kernel,
        (cdiv(tokens, config["BLOCK_TOKENS"]), cdiv(q_heads, block) + cdiv(k_heads, block)),
        q,
        k,
        cos,
        sin,
        positions,
        q.stride(0),
        k.stride(0),
        positions.stride(0),
        tokens,
        q_heads,
        k_heads,
        config=config,
        DIM=dim,
        HALF=half,
        WIDTH=next_power_of_2(half),
        INTERLEAVED=interleaved,
        SECTION_1=section_1,
        SECTION_2=section_2,
    )
