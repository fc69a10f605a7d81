# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Flash-decoding: a sequence's keys are split among programs, and the last one to finish joins their results.

With s = scale · q·k (softcapped, hidden keys at -∞), a program that took the keys P of one query leaves

    lse = log2 Σ_P 2^(s log2 e)        o = Σ_P 2^(s log2 e - lse) v    (if it sees none of P: -1e30 and 0)

and the whole is Σ_programs 2^(lse - top) o / (Σ_programs 2^(lse - top) + 2^(sink log2 e - top)).

One launch for all layers of a step decides on the device, from the lengths, how many programs each sequence gets.
Together they take about ``target`` items of similar size, however the lengths differ, and the grid does not depend on
the lengths. The queries of all heads that read one kv head, and of all new tokens, are the rows of one matrix.

No program waits for another. Each writes its result to memory and then increments a counter. The one that finds itself
last reads all results in the order of the keys, so the bits do not depend on which one it is. It resets the counter to
zero, so a captured launch can be replayed.
"""

import triton
import triton.language as tl

from ..launching.dependent import follow
from .prefill_inner import first_seen, load_near

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)
"""Below any score, and finite: if all keys are hidden, the weight is 2^(-∞) = 0, not NaN."""
ITEM_NUMBERS = tl.constexpr(6)
"""The numbers in an item of a plan: its row, or -1 if the item is unused; the row's length; the tiles [begin, end) of
keys that the item takes; the row's first item, and how many items it has."""


@triton.jit
def ceil_div(a, b):
    return (a + b - 1) // b


@triton.jit
def new_tokens(query_start, row, there, QUERY_LEN: tl.constexpr):
    """Returns where the new tokens of rows begin, and how many they are; nothing for rows that are not ``there``.

    Without ``query_start`` each row has QUERY_LEN of them, otherwise at most as many.
    """
    if query_start is None:
        return row.to(tl.int64) * QUERY_LEN, row * 0 + QUERY_LEN
    else:
        begin = tl.load(query_start + row, mask=there, other=0)
        return begin.to(tl.int64), tl.load(query_start + row + 1, mask=there, other=0) - begin


@triton.jit
def first_key(length, count, window, WINDOWED: tl.constexpr):
    """Returns the first key that the first of ``count`` new tokens sees."""
    if WINDOWED:
        return first_seen(length - count, window)
    else:
        return length * 0


@triton.jit
def split_counts(
    seq_lens,
    query_start,
    rows,
    target,
    window,
    QUERY_LEN: tl.constexpr,
    WINDOWED: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Returns the numbers [0, ROWS) and into how many items each of these sequences is split: at least 1, at most
    target + rows in all, and 0 from ``rows`` on."""
    row = tl.arange(0, ROWS)
    length = tl.load(seq_lens + row, mask=row < rows, other=0)
    _, count = new_tokens(query_start, row, row < rows, QUERY_LEN)
    tiles = ceil_div(length, TILE) - first_key(length, count, window, WINDOWED) // TILE
    fair = tl.maximum(ceil_div(tl.sum(tiles, 0), target), MIN_TILES)
    return row, tl.where(row < rows, tl.maximum(ceil_div(tiles, fair), 1), 0)


@triton.jit(do_not_specialize=["rows", "items", "target", "window"])
def split_kernel(
    seq_lens,
    query_start,
    plan,
    rows,
    items,
    target,
    window,
    QUERY_LEN: tl.constexpr,
    WINDOWED: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program i writes items [i * BLOCK, (i + 1) * BLOCK) of ``plan`` [items, ITEM_NUMBERS]."""
    # fmt: off
    every_row, counts = split_counts(seq_lens, query_start, rows, target, window,
                                     QUERY_LEN, WINDOWED, TILE, MIN_TILES, ROWS)
    # fmt: on
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.sum((tl.cumsum(counts, 0)[None, :] <= item[:, None]).to(tl.int32), 1)
    first = tl.sum(tl.where(every_row[None, :] < row[:, None], counts[None, :], 0), 1)
    splits = tl.maximum(tl.sum(tl.where(every_row[None, :] == row[:, None], counts[None, :], 0), 1), 1)
    length = tl.load(seq_lens + row, mask=row < rows, other=0)
    _, count = new_tokens(query_start, row, row < rows, QUERY_LEN)
    start = first_key(length, count, window, WINDOWED) // TILE
    stop = ceil_div(length, TILE)
    each = tl.maximum(ceil_div(stop - start, splits), 1)
    begin = start + (item - first) * each
    used = tl.maximum(ceil_div(stop - start, each), 1)
    nobody = (row >= rows) | (item - first >= used)
    to = plan + item * ITEM_NUMBERS
    there = item < items
    tl.store(to, tl.where(nobody, -1, row), mask=there)
    tl.store(to + 1, length, mask=there)
    tl.store(to + 2, begin, mask=there)
    tl.store(to + 3, tl.minimum(begin + each, stop), mask=there)
    tl.store(to + 4, first, mask=there)
    tl.store(to + 5, used, mask=there)


@triton.jit
def block_of(table, tile, in_tile, length, SIZE: tl.constexpr, TILE: tl.constexpr):
    """Returns the blocks of a tile's keys, int32 to save registers: one block, or [TILE] blocks if blocks are
    smaller."""
    if SIZE % TILE == 0:
        return tl.load(table + tile // (SIZE // TILE), mask=tile * TILE < length, other=0)
    else:
        key = tile * TILE + in_tile
        return tl.load(table + key // SIZE, mask=key < length, other=0)


@triton.jit(do_not_specialize=["window", "table_stride"])
def decode_kernel(
    q,
    k_cache,
    v_cache,
    block_tables,
    sinks,
    slopes,
    distances,
    k_scale,
    v_scale,
    out,
    query_start,
    plan,
    partial,
    arrived,
    scale,
    window,
    softcap,
    q_stride,
    out_stride,
    table_stride,
    k_block_stride,
    k_head_stride,
    k_dim_stride,
    k_key_stride,
    v_block_stride,
    v_head_stride,
    v_key_stride,
    QUERY_LEN: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    SIZE: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAPPED: tl.constexpr,
    CAUSAL: tl.constexpr,
    EXTENT: tl.constexpr,
    SHARED: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    JOIN_M: tl.constexpr,
    JOINED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Program (i, j): the j-th item of ``plan`` (:func:`split_kernel`), for BLOCK_M of the queries of one kv head.

    Each row has QUERY_LEN new tokens, or as many of them as ``query_start`` says if it is given.

    If its sequence is one item, it writes to ``out``. Otherwise it writes to ``partial``: means [items, queries, DIM],
    followed by their weights [items, queries]. ``arrived`` [rows, programs of an item] counts the finished items of a
    sequence. JOIN_M: how many of BLOCK_M are queries, rounded up. JOINED: items read at once.
    """
    follow(DEPENDENT)
    item = tl.program_id(1)
    numbers = plan + item * ITEM_NUMBERS
    row = tl.load(numbers)
    if row < 0:
        return
    length = tl.load(numbers + 1)
    begin = tl.load(numbers + 2)
    end = tl.load(numbers + 3)
    first, count = new_tokens(query_start, row, True, QUERY_LEN)
    start = first_key(length, count, window, WINDOWED)

    QUERIES: tl.constexpr = GROUP * QUERY_LEN
    M_BLOCKS: tl.constexpr = (QUERIES + BLOCK_M - 1) // BLOCK_M
    FLOAT8: tl.constexpr = k_cache.dtype.element_ty == tl.float8e4nv
    kv_head = (tl.program_id(0) // M_BLOCKS).to(tl.int64)
    m = tl.program_id(0) % M_BLOCKS * BLOCK_M + tl.arange(0, BLOCK_M)
    token = first + m // GROUP
    head = kv_head * GROUP + m % GROUP
    dim = tl.arange(0, BLOCK_D)
    inside = (m < GROUP * count)[:, None] & (dim < DIM)[None, :]
    queries = tl.load(q + token[:, None] * q_stride + head[:, None] * DIM + dim[None, :], mask=inside, other=0.0)
    factor = tl.full([BLOCK_M], scale, tl.float32)
    if FLOAT8:
        factor *= tl.load(k_scale + kv_head)
        if queries.dtype == tl.bfloat16:
            # float16 holds every float8, and one instruction converts two; bfloat16 takes many.
            wide = queries.to(tl.float32)
            largest = tl.maximum(tl.max(tl.abs(wide), 1), 1e-30)
            queries = (wide / largest[:, None]).to(tl.float16)
            factor *= largest
    if SOFTCAPPED:
        factor *= 2.0 * LOG2_E / softcap
    else:
        factor *= LOG2_E

    position = length - count + m // GROUP
    slope = 0.0
    if slopes is not None:
        slope = tl.load(slopes + head, mask=m < QUERIES, other=0.0)[:, None] * LOG2_E
    table = block_tables + row.to(tl.int64) * table_stride
    keys_of_head = k_cache + kv_head * k_head_stride
    values_of_head = v_cache + kv_head * v_head_stride
    in_tile = tl.arange(0, TILE)
    peak = tl.full([BLOCK_M], LOWEST, tl.float32)
    # Warps share the columns of so few rows. With a sum per column, warps exchange data only at the end.
    COLUMNS: tl.constexpr = TILE if BLOCK_M == 16 else 1
    totals = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    block = block_of(table, begin, in_tile, length, SIZE, TILE)
    for tile in tl.range(begin, end):
        key = tile * TILE + in_tile
        held = (key >= start) & (key < length)
        slot = tile % (SIZE // TILE) * TILE + in_tile if SIZE % TILE == 0 else key % SIZE
        here = block.to(tl.int64)
        k = tl.load(
            keys_of_head + (here * k_block_stride + slot * k_key_stride)[None, :] + (dim * k_dim_stride)[:, None],
            mask=held[None, :] & (dim < DIM)[:, None],
            other=0.0,
        )
        v = tl.load(
            values_of_head + (here * v_block_stride + slot * v_key_stride)[:, None] + dim[None, :],
            mask=held[:, None] & (dim < DIM)[None, :],
            other=0.0,
        )
        # Loaded one iteration before the keys: the pipeline would count the wait for it as one of their stages.
        block = block_of(table, tile + 1, in_tile, length, SIZE, TILE)
        scores = tl.dot(queries, k.to(queries.dtype), input_precision="ieee") * factor[:, None]
        if SOFTCAPPED:
            scores = softcap * LOG2_E * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
        if slopes is not None:
            scores += slope * (key[None, :] - position[:, None]).to(tl.float32)
        if distances is not None:
            at = head if SHARED else token * (tl.num_programs(0) // M_BLOCKS * GROUP) + head
            scores += load_near(distances, at, key, position, m < GROUP * count, EXTENT)
        seen = held[None, :]
        if CAUSAL:
            seen = key[None, :] <= position[:, None]
            if WINDOWED:
                seen &= key[None, :] >= first_seen(position, window)[:, None]
        scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - new_peak)[:, None]
        weights = tl.exp2(scores - new_peak[:, None])
        totals = totals * shrink + (weights if COLUMNS == TILE else tl.sum(weights, 1)[:, None])
        values = v.to(queries.dtype)
        if FLOAT8:
            # Changes no value, but keeps the compiler from reading single bytes in the layout of a dot's operand:
            # values are widened as they lie, 16 bytes at once, and transposed by ldmatrix.
            values = tl.where((key < length)[:, None], values, 0.0)
        sums = tl.dot(weights.to(queries.dtype), values, sums * shrink, input_precision="ieee")
        peak = new_peak

    # read again here: the loop has no registers for what only the end needs
    row = tl.load(numbers, volatile=True)
    first, count = new_tokens(query_start, row, True, QUERY_LEN)
    token = first + m // GROUP
    first_item = tl.load(numbers + 4)
    used = tl.load(numbers + 5)
    total = tl.sum(totals, 1)
    total = tl.where(total > 0.0, total, 1.0)
    if sinks is not None:  # with several items, joining adds it
        above = tl.load(sinks + head, mask=m < QUERIES, other=0.0) * LOG2_E - peak
        total += tl.where(used == 1, tl.exp2(tl.minimum(above, 126.0)), 0.0)
    result = sums / total[:, None]
    if FLOAT8:
        result *= tl.load(v_scale + kv_head)
    if used == 1:
        to = out + token[:, None] * out_stride + head[:, None] * DIM + dim[None, :]
        tl.store(to, result.to(out.dtype.element_ty), mask=inside)
    else:
        every_query = tl.num_programs(0) // M_BLOCKS * QUERIES
        partial_lse = partial + tl.num_programs(1).to(tl.int64) * every_query * DIM
        at = item.to(tl.int64) * every_query + kv_head * QUERIES + m
        tl.store(partial + at[:, None] * DIM + dim[None, :], result, mask=inside)
        tl.store(partial_lse + at, peak + tl.log2(total), mask=m < QUERIES)
        tl.debug_barrier()  # one thread counts for all: their stores come before it
        counter = arrived + row * tl.num_programs(0) + tl.program_id(0)
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == used - 1:
            tl.store(counter, 0)
            # fmt: off
            join_items(partial, partial_lse, out, out_stride, sinks, first, count, first_item, used, every_query,
                       kv_head, tl.program_id(0) % M_BLOCKS * BLOCK_M,
                       QUERY_LEN, GROUP, DIM, BLOCK_D, JOIN_M, JOINED)
            # fmt: on


@triton.jit
def join_items(
    partial,
    partial_lse,
    out,
    out_stride,
    sinks,
    first,
    count,
    first_item,
    used,
    every_query,
    kv_head,
    first_query,
    QUERY_LEN: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    JOIN_M: tl.constexpr,
    JOINED: tl.constexpr,
):
    """Joins the ``used`` items of a sequence from ``first_item`` on, for JOIN_M queries of a kv head from
    ``first_query`` on, and writes to ``out``. The sequence has ``count`` tokens from ``first`` on.

    Reads bypass this multiprocessor's cache, to see what the other ones wrote.
    """
    m = first_query + tl.arange(0, JOIN_M)
    fits = m < GROUP * count
    head = kv_head * GROUP + m % GROUP
    dim = tl.arange(0, BLOCK_D)
    peak = tl.full([JOIN_M], LOWEST, tl.float32)
    total = tl.zeros([JOIN_M], tl.float32)
    if sinks is not None:
        peak = tl.load(sinks + head, mask=fits, other=0.0) * LOG2_E
        total += 1.0
    sums = tl.zeros([JOIN_M, BLOCK_D], tl.float32)
    query = kv_head * (GROUP * QUERY_LEN) + m
    for begin in tl.range(0, used, JOINED):
        number = begin + tl.arange(0, JOINED)
        at = (first_item + number).to(tl.int64)[:, None] * every_query + query[None, :]
        there = (number < used)[:, None] & fits[None, :]
        lse = tl.load(partial_lse + at, mask=there, other=float("-inf"), cache_modifier=".cg")
        means = tl.load(
            partial + at[:, :, None] * DIM + dim[None, None, :],
            mask=there[:, :, None] & (dim < DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        higher = tl.maximum(peak, tl.max(lse, 0))
        shrink = tl.exp2(peak - higher)
        weights = tl.exp2(lse - higher[None, :])
        total = total * shrink + tl.sum(weights, 0)
        sums = sums * shrink[:, None] + tl.sum(weights[:, :, None] * means, 0)
        peak = higher
    result = sums / tl.where(total > 0.0, total, 1.0)[:, None]
    token = first + m // GROUP
    to = out + token[:, None] * out_stride + head[:, None] * DIM + dim[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=fits[:, None] & (dim < DIM)[None, :])
