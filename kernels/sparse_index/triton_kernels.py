# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Scores what each token sees, and finds the positions of the largest scores by a radix search.

Scores are stored as integers in the same order as the floats. The search finds the least chosen one, 8 bits per pass. A
last pass writes the positions in order, of equal scores the first.
"""

import triton
import triton.language as tl

from ..attention.decode_kernels import block_of, ceil_div
from ..latent_attention.triton_kernels import tokens_seen

SIGN = tl.constexpr(-2147483648)


@triton.jit(do_not_specialize=["first", "sequences", "table_stride", "width"])
def score_kernel(
    q,
    weights,
    cache,
    query_start,
    seq_lens,
    block_tables,
    scores,
    first,
    sequences,
    table_stride,
    width,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    RATIO: tl.constexpr,
    TOP: tl.constexpr,
    SEQUENCES: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (i, j): scores tile j of what token ``first + i`` sees, if that is more than it chooses; writes to
    ``scores`` int32 [tokens, width].

    SIZE: places of a block of BLOCK tokens, for entries of RATIO tokens each.
    """
    at = tl.program_id(0).to(tl.int64)
    token = first + tl.program_id(0)
    tile = tl.program_id(1)
    row, seen = tokens_seen(query_start, seq_lens, token, sequences, SEQUENCES)
    seen = seen // RATIO
    if (seen <= TOP) | (tile * TILE >= seen):
        return
    h, d, in_tile = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D), tl.arange(0, TILE)
    query = token.to(tl.int64) * HEADS + h
    heads = tl.load(q + query[:, None] * DIM + d[None, :], mask=(h < HEADS)[:, None] & (d < DIM)[None, :], other=0.0)
    weight = tl.load(weights + query, mask=h < HEADS, other=0.0)
    table = block_tables + row.to(tl.int64) * table_stride
    position = tile * TILE + in_tile
    held = position < seen
    if BLOCK == SIZE * RATIO:
        block = block_of(table, tile, in_tile, seen, SIZE, TILE).to(tl.int64)
        place = position % SIZE
    else:
        last = position * RATIO + (RATIO - 1)
        block = tl.load(table + last // BLOCK, mask=held, other=0).to(tl.int64)
        place = last % BLOCK // RATIO
    keys = cache + (block * SIZE + place) * DIM
    k = tl.load(keys[:, None] + d[None, :], mask=held[:, None] & (d < DIM)[None, :], other=0.0)
    products = tl.maximum(tl.dot(heads, tl.trans(k), input_precision="ieee"), 0.0)
    bits = (tl.sum(products * weight[:, None], 0) + 0.0).to(tl.int32, bitcast=True)
    tl.store(scores + at * width + position, bits ^ ((bits >> 31) & 0x7FFFFFFF), mask=held)


@triton.jit(do_not_specialize=["first", "sequences", "width"])
def select_kernel(
    scores,
    query_start,
    seq_lens,
    out,
    first,
    sequences,
    width,
    RATIO: tl.constexpr,
    TOP: tl.constexpr,
    SEQUENCES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program i: writes the positions of what token ``first + i`` chooses to ``out`` [tokens, TOP]."""
    token = first + tl.program_id(0)
    _, seen = tokens_seen(query_start, seq_lens, token, sequences, SEQUENCES)
    seen = seen // RATIO
    chosen = out + token.to(tl.int64) * TOP
    in_tile = tl.arange(0, TILE)
    if seen <= TOP:
        for tile in tl.range(0, (TOP + TILE - 1) // TILE):
            position = tile * TILE + in_tile
            tl.store(chosen + position, tl.where(position < seen, position, -1), mask=position < TOP)
        return

    mine = scores + tl.program_id(0).to(tl.int64) * width
    tiles = ceil_div(seen, TILE)
    digits = tl.arange(0, 256)
    found = tl.full([], 0, tl.int32)
    missing = tl.full([], TOP, tl.int32)
    for shift in tl.static_range(24, -1, -8):
        counts = tl.zeros([256], tl.int32)
        for tile in tl.range(0, tiles):
            position = tile * TILE + in_tile
            key = tl.load(mine + position, mask=position < seen, other=0) ^ SIGN
            like = position < seen
            if shift < 24:
                like = like & (((key ^ found) >> (shift + 8)) == 0)
            counts += tl.histogram((key >> shift) & 255, 256, mask=like)
        from_here = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
        digit = tl.sum((from_here >= missing).to(tl.int32), 0) - 1
        missing -= tl.sum(tl.where(digits > digit, counts, 0), 0)
        found = found | (digit << shift)

    least = found ^ SIGN
    written = tl.full([], 0, tl.int32)
    for tile in tl.range(0, tiles):
        position = tile * TILE + in_tile
        key = tl.load(mine + position, mask=position < seen, other=SIGN)
        equal = ((key == least) & (position < seen)).to(tl.int32)
        taken = ((key > least) & (position < seen)).to(tl.int32) + equal * (tl.cumsum(equal, 0) <= missing).to(tl.int32)
        tl.store(chosen + written + tl.cumsum(taken, 0) - 1, position, mask=taken > 0)
        written += tl.sum(taken, 0)
        missing -= tl.sum(equal, 0)
