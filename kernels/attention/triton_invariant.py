# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Attention that sums in one order, whatever else is in the batch.

The keys of a query are taken in parts of PART_KEYS, which begin at multiples of it. With s = scale · q·k (softcapped,
hidden keys at -∞), a part P leaves

    lse = log2 Σ_P 2^(s log2 e)        o = Σ_P 2^(s log2 e - lse) v

and parts are joined one by one in their order. All tiles have one size, hold decode rows and prompts alike, and mask
every key, so a row's result depends only on its own position, query and keys. Keys that only other rows of its tile see
add exact zeros.

If there are few tiles, programs share the parts of each, and a second kernel joins them; otherwise one program joins
its own parts. Both join by the same operations on the same numbers. Products and sums are not fused, so both round
alike.
"""

import torch
import triton
import triton.language as tl

from ..launching.launch import cdiv, interpreted, launch, next_power_of_2
from ..quantize.fp8 import widen
from ..tuning import Config
from .arguments import AttentionArgs
from .prefill_config import FAR, LOG2E, pack_heads
from .prefill_inner import attend, find_tile, key_range, load_near, load_slopes, start_softmax, store_mean, visible_keys
from .triton_decode import multiprocessors
from .triton_prefill import find_blocks, kernel_arguments, load_queries, load_tile, tile_heads

PART_KEYS = 512
SCRATCH_BYTES = 64 << 20
"""The most scratch memory for the second kernel; if it would be more, a program takes all parts of its tile."""


@triton.jit
def _tile(query_start, seq_lens, sequences, tile, window, PACK: tl.constexpr, BLOCK_M: tl.constexpr,
          BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):  # fmt: skip
    """Returns for the ``tile``-th tile: its sequence, how many tokens that has and where they begin, [BLOCK_M] tokens,
    the keys [begin, end) that some of them see, and the sequence's number of keys."""
    BLOCK_Q: tl.constexpr = BLOCK_M // PACK
    sequence, number = find_tile(query_start, sequences, tile, BLOCK_Q)
    begins = tl.load(query_start + sequence)
    queries = tl.load(query_start + sequence + 1) - begins
    keys = tl.load(seq_lens + sequence)
    token = number * BLOCK_Q + tl.arange(0, BLOCK_M) // PACK
    first = keys - queries + number * BLOCK_Q
    last = tl.minimum(first + BLOCK_Q, keys) - 1
    begin, end, _, _ = key_range(first, last, keys, window - 1, 0, WINDOWED, CAUSAL, BLOCK_N)
    end = tl.where(number * BLOCK_Q < queries, end, 0)  # the tile has no token of the sequence
    return sequence, queries, begins, token, begin, end, keys


@triton.jit
def _join(peak, total, mean, lse, part):
    """Joins a part's ``lse`` [M] and mean [M, D] with those of the parts before."""
    higher = tl.maximum(peak, lse)
    pivot = tl.where(higher == float("-inf"), 0.0, higher)  # no key has been seen yet
    shrink = tl.exp2(peak - pivot)
    weight = tl.exp2(lse - pivot)
    return higher, total * shrink + weight, mean * shrink[:, None] + part * weight[:, None]


@triton.jit(
    do_not_specialize=["sequences", "tiles", "table_width", "most_parts", "window"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "tables"],
)
def invariant_kernel(
    q,
    k_cache,
    v_cache,
    out,
    query_start,
    seq_lens,
    tables,
    sinks,
    slopes,
    distances,
    k_scale,
    v_scale,
    partial,
    partial_lse,
    sequences,
    tiles,
    table_width,
    most_parts,
    q_stride,
    block_stride,
    scale,
    softcap,
    window,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    PART: tl.constexpr,
    EXTENT: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Program (i, j, k): for the i-th tile of tokens and the j-th heads, the parts k, k + n, k + 2n, …, where n is the
    size of the grid's third axis.

    If n is 1, it writes ``out``, else ``partial`` [tokens, heads, most_parts, DIM] and ``partial_lse`` [tokens, heads,
    most_parts].
    """
    PACKS: tl.constexpr = (GROUP + PACK - 1) // PACK
    tile = tiles - 1 - tl.program_id(0)  # the last tiles of a sequence see the most keys
    sequence, queries, begins, token, begin, end, keys = _tile(
        query_start, seq_lens, sequences, tile, window, PACK, BLOCK_M, BLOCK_N, CAUSAL, WINDOWED
    )
    kv_head = tl.program_id(1) // PACKS
    head, fits = tile_heads(kv_head, queries, token, PACK, GROUP, BLOCK_M)
    dim = tl.arange(0, WIDTH)
    rows, stored, q_tile = load_queries(q, q_stride, begins, token, head, fits, DIM, WIDTH)
    v_factor = 1.0
    if k_scale is not None:
        scale *= tl.load(k_scale + kv_head)
        v_factor = tl.load(v_scale + kv_head)
    k_cache += kv_head.to(tl.int64) * (SIZE * DIM)
    v_cache += kv_head.to(tl.int64) * (SIZE * DIM)
    table = tables + sequence.to(tl.int64) * table_width
    position = keys - queries + token
    heads = tl.num_programs(1) // PACKS * GROUP
    at = head if SHARED else rows * heads + head
    alone = tl.num_programs(2) == 1

    slope = None if slopes is None else load_slopes(slopes, head)
    peak, total = start_softmax(sinks, head, BLOCK_M)
    mean = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    for part in tl.range(begin // PART + tl.program_id(2), tl.cdiv(end, PART), tl.num_programs(2)):
        first = tl.maximum(part * PART, begin // BLOCK_N * BLOCK_N)
        stop = tl.minimum(part * PART + PART, end)
        top, weight = start_softmax(None, head, BLOCK_M)
        sums = tl.zeros([BLOCK_M, WIDTH], tl.float32)
        block = find_blocks(table, first, begin, stop, SIZE, BLOCK_N)
        for start in tl.range(first, stop, BLOCK_N):
            start = tl.multiple_of(start, BLOCK_N)
            # fmt: off
            k, v = load_tile(k_cache, v_cache, block, start, begin, end, block_stride,
                             DIM, WIDTH, SIZE, TRANSPOSED, BLOCK_N, True)
            # fmt: on
            k, v = widen(k, q_tile.dtype), widen(v, q_tile.dtype)
            block = find_blocks(table, start + BLOCK_N, begin, stop, SIZE, BLOCK_N)
            key = start + tl.arange(0, BLOCK_N)
            visible = visible_keys(position, key, end, window - 1, 0, WINDOWED, CAUSAL)
            # fmt: off
            near = None if distances is None else load_near(distances, at, key, position, fits, EXTENT)
            sums, top, weight = attend(q_tile, k, v, sums, top, weight, visible, slope, near, key, position,
                                       scale, softcap, True, SOFTCAP, PRECISION)
            # fmt: on
        seen = weight > 0.0
        weight = tl.where(seen, weight, 1.0)
        lse = tl.where(seen, top + tl.log2(weight), float("-inf"))
        found = sums / weight[:, None]
        if alone:
            peak, total, mean = _join(peak, total, mean, lse, found)
        else:
            items = (rows * heads + head) * most_parts + part
            tl.store(partial_lse + items, lse, mask=fits)
            tl.store(partial + (items * DIM)[:, None] + dim[None, :], found, mask=stored)
    if alone:
        to = out + (rows * (heads * DIM) + head * DIM)[:, None] + dim[None, :]
        store_mean(to, mean, total, v_factor, stored)


@triton.jit(
    do_not_specialize=["sequences", "most_parts", "window"],
    do_not_specialize_on_alignment=["query_start", "seq_lens"],
)
def join_kernel(
    partial,
    partial_lse,
    out,
    query_start,
    seq_lens,
    sinks,
    v_scale,
    sequences,
    most_parts,
    window,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    PART: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Program (i, j): joins the parts of the i-th tile of tokens and the j-th heads."""
    PACKS: tl.constexpr = (GROUP + PACK - 1) // PACK
    _, queries, begins, token, begin, end, _ = _tile(
        query_start, seq_lens, sequences, tl.program_id(0), window, PACK, BLOCK_M, BLOCK_N, CAUSAL, WINDOWED
    )
    kv_head = tl.program_id(1) // PACKS
    head, fits = tile_heads(kv_head, queries, token, PACK, GROUP, BLOCK_M)
    dim = tl.arange(0, WIDTH)
    rows = (begins + token).to(tl.int64)
    stored = fits[:, None] & (dim < DIM)[None, :]
    heads = tl.num_programs(1) // PACKS * GROUP
    peak, total = start_softmax(sinks, head, BLOCK_M)
    mean = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    for part in tl.range(begin // PART, tl.cdiv(end, PART)):
        items = (rows * heads + head) * most_parts + part
        lse = tl.load(partial_lse + items, mask=fits, other=float("-inf"))
        found = tl.load(partial + (items * DIM)[:, None] + dim[None, :], mask=stored, other=0.0)
        peak, total, mean = _join(peak, total, mean, lse, found)
    v_factor = 1.0
    if v_scale is not None:
        v_factor = tl.load(v_scale + kv_head)
    to = out + (rows * (heads * DIM) + head * DIM)[:, None] + dim[None, :]
    store_mean(to, mean, total, v_factor, stored)


def paged_invariant(args: AttentionArgs) -> None:
    """Attends all tokens of all sequences; writes ``out``. Host numbers bound the grid, and change no bits."""
    q, k_cache, window = args.q, args.k_cache, args.window
    sequences = args.seq_lens.shape[0]
    tokens, heads, dim = q.shape
    if not tokens or not sequences:
        return
    _, kv_heads, _, size = k_cache.shape
    group = heads // kv_heads
    windowed = window != 0
    config = _config(q.dtype)
    pack = pack_heads(group, config["BLOCK_M"])
    block_q = config["BLOCK_M"] // pack
    tiles, packs = tokens // block_q + sequences, kv_heads * cdiv(group, pack)
    most_parts = cdiv(args.max_seq_len, PART_KEYS)
    programs = _sharing(
        max(cdiv(tokens, block_q), min(tokens, sequences)) * packs,
        most_parts,
        4 * tokens * heads * most_parts * (dim + 1),
        multiprocessors(q.device),
    )
    kept = tokens if programs > 1 else 0
    partial = torch.empty((kept, heads, most_parts, dim), dtype=torch.float32, device=q.device)
    partial_lse = torch.empty((kept, heads, most_parts), dtype=torch.float32, device=q.device)
    shared = {
        "GROUP": group,
        "PACK": pack,
        "DIM": dim,
        "WIDTH": max(16, next_power_of_2(dim)),
        "CAUSAL": args.causal,
        "WINDOWED": windowed,
        "PART": PART_KEYS,
    }
    within = max(-FAR, min(window, FAR))
    launch(
        invariant_kernel,
        (tiles, packs, programs),
        *(*kernel_arguments(args), partial, partial_lse),
        *(sequences, tiles, args.block_tables.shape[1], most_parts, q.stride(0), args.v_cache.stride(0)),
        *(args.scale if args.softcap > 0 else args.scale * LOG2E, args.softcap, within),
        config=config,
        SIZE=size,
        TRANSPOSED=k_cache.is_contiguous(),
        SOFTCAP=args.softcap > 0,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        EXTENT=args.extent,
        SHARED=args.shared,
        **shared,
    )
    if programs == 1:
        return
    launch(
        join_kernel,
        (tiles, packs),
        *(partial, partial_lse, args.out, args.query_start, args.seq_lens, args.sinks, args.v_scale),
        *(sequences, most_parts, within),
        config=config,
        **shared,
    )


def _sharing(tiles: int, parts: int, scratch: int, multiprocessors: int) -> int:
    """Returns how many programs share the ``parts`` of each of this many tiles; 1 if the tiles occupy most of the
    device."""
    if 2 * tiles > multiprocessors or scratch > SCRATCH_BYTES:
        return 1
    return max(1, min(parts, 2 * multiprocessors // tiles))


def _config(dtype: torch.dtype) -> Config:
    """Returns block sizes that depend on the model only, so that they are the same in every step."""
    if interpreted():
        return Config.of(BLOCK_M=16, BLOCK_N=16, fuse_multiply_add=False)
    if dtype == torch.float32:  # multiplied without tensor cores
        return Config.of(BLOCK_M=32, BLOCK_N=16, num_warps=8, num_stages=2, fuse_multiply_add=False)
    # the sums of a part and of those before it are in registers: four warps would spill
    return Config.of(BLOCK_M=64, BLOCK_N=32, num_warps=8, num_stages=3, fuse_multiply_add=False)
