# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Flash-decoding over latents: a token's visible latents are split among programs, and a second kernel joins their
results.

Some heads of one token are the rows of a program's products: a tile of latents is read once, as keys of all of them and
then as their values. A program that took the latents P leaves, as :mod:`..attention.decode_kernels` does,

    lse = log2 Σ_P 2^(s log2 e)        o = Σ_P 2^(s log2 e - lse) c

The device computes from the lengths how much each program takes. If a token sees chosen latents only, these take the
place of all latents: number i of them is at position i of its tiles.
"""

import triton
import triton.language as tl

from ..attention.decode_kernels import LOG2_E, LOWEST, block_of, ceil_div


@triton.jit
def tokens_seen(query_start, seq_lens, token, sequences, SEQUENCES: tl.constexpr):
    """Returns the sequence of a token, and how many tokens it sees; 0 for padding."""
    number = tl.arange(0, SEQUENCES)
    ends = tl.load(query_start + 1 + number, mask=number < sequences, other=2147483647)
    row = tl.sum((ends <= token).to(tl.int32), 0)
    behind = tl.load(query_start + 1 + row) - 1 - token
    return row, tl.maximum(tl.load(seq_lens + row) - behind, 0)


@triton.jit
def attended(seen, TOP: tl.constexpr, POOL: tl.constexpr):
    """Returns how many of the tokens it sees it attends to: all if TOP, the room for choices, is 0. Those of a last,
    incomplete pool of POOL tokens are always chosen."""
    if TOP > 0:
        return tl.minimum(seen, TOP - (POOL - 1) + seen % POOL)
    else:
        return seen


@triton.jit
def slot_of_chosen(table, chosen, tile, in_tile, length, SIZE: tl.constexpr, TILE: tl.constexpr):
    """Returns the slots [TILE] of the cache that hold a tile's latents."""
    key = tile * TILE + in_tile
    position = tl.load(chosen + key, mask=key < length, other=0)
    block = tl.load(table + position // SIZE, mask=key < length, other=0)
    return block.to(tl.int64) * SIZE + position % SIZE


@triton.jit
def tiles_each(seen, splits, TILE: tl.constexpr, MIN_TILES: tl.constexpr):
    """Returns how many tiles each of ``splits`` programs takes; the last ones may take fewer or none."""
    return tl.maximum(ceil_div(ceil_div(seen, TILE), splits), MIN_TILES)


@triton.jit
def sink_weight(sinks, head, peak, HEADS: tl.constexpr):
    """Returns what the sinks of heads add to sums of weights whose origin is ``peak``; capped, to stay finite."""
    above = tl.load(sinks + head, mask=head < HEADS, other=0.0) * LOG2_E - peak
    return tl.exp2(tl.minimum(above, 126.0))


@triton.jit(do_not_specialize=["sequences", "splits", "table_stride"])
def latent_kernel(
    q,
    cache,
    query_start,
    seq_lens,
    block_tables,
    choices,
    sinks,
    out,
    partial,
    partial_lse,
    sequences,
    splits,
    scale,
    table_stride,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    TOP: tl.constexpr,
    POOL: tl.constexpr,
    DIM: tl.constexpr,
    SIZE: tl.constexpr,
    SEQUENCES: tl.constexpr,
    MIN_TILES: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Program (i, j): part j of what a token sees, for BLOCK_M of its heads.

    If there is one part, it writes to ``out``, else to ``partial`` [tokens, heads, splits, RANK] and ``partial_lse``
    [tokens, heads, splits].
    """
    M_BLOCKS: tl.constexpr = (HEADS + BLOCK_M - 1) // BLOCK_M
    token = tl.program_id(0) // M_BLOCKS
    split = tl.program_id(1)
    row, seen = tokens_seen(query_start, seq_lens, token, sequences, SEQUENCES)
    seen = attended(seen, TOP, POOL)
    each = tiles_each(seen, splits, TILE, MIN_TILES)
    begin = split * each
    end = tl.minimum(begin + each, ceil_div(seen, TILE))
    if (split > 0) & (begin >= end):
        return

    head = tl.program_id(0) % M_BLOCKS * BLOCK_M + tl.arange(0, BLOCK_M)
    query = token.to(tl.int64) * HEADS + head
    r, p = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_P)
    inside = (head < HEADS)[:, None] & (r < RANK)[None, :]
    latent_part = tl.load(q + query[:, None] * DIM + r[None, :], mask=inside, other=0.0)
    turning = (p < DIM - RANK)[None, :]
    rotated_part = tl.load(
        q + query[:, None] * DIM + RANK + p[None, :], mask=(head < HEADS)[:, None] & turning, other=0.0
    )

    table = block_tables + row.to(tl.int64) * table_stride
    in_tile = tl.arange(0, TILE)
    peak = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    chosen = choices + token.to(tl.int64) * TOP
    if TOP > 0:
        place = slot_of_chosen(table, chosen, begin, in_tile, seen, SIZE, TILE)
    else:
        place = block_of(table, begin, in_tile, seen, SIZE, TILE).to(tl.int64)
    for tile in tl.range(begin, end):
        key = tile * TILE + in_tile
        held = key < seen
        if TOP > 0:
            latents = cache + place * DIM
        else:
            slot = tile % (SIZE // TILE) * TILE + in_tile if SIZE % TILE == 0 else key % SIZE
            latents = cache + (place * SIZE + slot) * DIM
        c = tl.load(latents[:, None] + r[None, :], mask=held[:, None] & (r < RANK)[None, :], other=0.0)
        rotated = tl.load(latents[:, None] + RANK + p[None, :], mask=held[:, None] & turning, other=0.0)
        # Loaded one iteration before the latents: the pipeline would count the wait for it as one of their stages.
        if TOP > 0:
            place = slot_of_chosen(table, chosen, tile + 1, in_tile, seen, SIZE, TILE)
        else:
            place = block_of(table, tile + 1, in_tile, seen, SIZE, TILE).to(tl.int64)
        scores = tl.dot(latent_part, tl.trans(c), input_precision="ieee")
        scores = tl.dot(rotated_part, tl.trans(rotated), scores, input_precision="ieee") * (scale * LOG2_E)
        scores = tl.where(held[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores - new_peak[:, None])
        total = total * shrink + tl.sum(weights, 1)
        sums = tl.dot(weights.to(c.dtype), c, sums * shrink[:, None], input_precision="ieee")
        peak = new_peak

    if sinks is not None:  # with several parts, joining adds it
        total += tl.where(splits == 1, sink_weight(sinks, head, peak, HEADS), 0.0)
    total = tl.where(total > 0.0, total, 1.0)
    result = sums / total[:, None]
    if splits == 1:
        tl.store(out + query[:, None] * RANK + r[None, :], result.to(out.dtype.element_ty), mask=inside)
    else:
        at = query * splits + split
        tl.store(partial + at[:, None] * RANK + r[None, :], result, mask=inside)
        tl.store(partial_lse + at, peak + tl.log2(total), mask=head < HEADS)


@triton.jit(do_not_specialize=["sequences", "splits"])
def join_kernel(
    partial,
    partial_lse,
    query_start,
    seq_lens,
    sinks,
    out,
    sequences,
    splits,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    TOP: tl.constexpr,
    POOL: tl.constexpr,
    SEQUENCES: tl.constexpr,
    MIN_TILES: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Program (i, j): joins the parts that :func:`latent_kernel` wrote for head j of token i."""
    token = tl.program_id(0)
    _, seen = tokens_seen(query_start, seq_lens, token, sequences, SEQUENCES)
    seen = attended(seen, TOP, POOL)
    used = tl.maximum(ceil_div(ceil_div(seen, TILE), tiles_each(seen, splits, TILE, MIN_TILES)), 1)
    query = token.to(tl.int64) * HEADS + tl.program_id(1)
    r = tl.arange(0, BLOCK_R)
    peak = tl.full([], LOWEST, tl.float32)
    total = tl.zeros([], tl.float32)
    sums = tl.zeros([BLOCK_R], tl.float32)
    for split in tl.range(0, used):
        at = query * splits + split
        lse = tl.load(partial_lse + at)
        part = tl.load(partial + at * RANK + r, mask=r < RANK, other=0.0)
        new_peak = tl.maximum(peak, lse)
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(lse - new_peak)
        total = total * shrink + weight
        sums = sums * shrink + weight * part
        peak = new_peak
    if sinks is not None:
        total += sink_weight(sinks, tl.program_id(1), peak, HEADS)
    result = sums / tl.where(total > 0.0, total, 1.0)
    tl.store(out + query * RANK + r, result.to(out.dtype.element_ty), mask=r < RANK)
