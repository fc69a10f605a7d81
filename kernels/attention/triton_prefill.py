# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Attention of sequences with any number of new tokens over the paged cache."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.copy_engine import COPY_ENGINE, THREADS, copies_unsupported_reason, is_aligned
from ..launching.launch import cdiv, next_power_of_2
from ..launching.repeated import Start, prepare
from ..quantize.fp8 import as_kernel_argument, capability, widen
from ..tuning import pick
from .arguments import AttentionArgs, AttentionTensors
from .prefill_config import FAR, LEAST_KEYS, LOG2E, attention_key, default_config, few_rows, pack_heads
from .prefill_inner import (
    attend,
    find_tile,
    key_range,
    load_near,
    load_rows,
    load_slopes,
    quantize_rows,
    start_softmax,
    store_mean,
    visible_keys,
)
from .prefill_split import count_parts, part_of_keys, part_tiles, prepare_join, store_part
from .triton_decode import multiprocessors

OPERATION = "prefill_attention"
MOST_DIMS = 256
"""The longest side of a tile that the copy engine takes."""


@triton.jit
def find_blocks(table, start, begin, end, SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Returns the block of each key from ``start`` on, one for all if the tile lies in one block; 0 for keys outside
    [begin, end).

    Called one tile ahead, with the result carried round the loop: Triton loads a tile several iterations before its
    use, but only if the address depends on no other load of the same iteration.
    """
    if SIZE % BLOCK_N == 0:
        return tl.load(table + start // SIZE, mask=start < end, other=0)
    else:
        key = start + tl.arange(0, BLOCK_N)
        return tl.load(table + key.to(tl.uint32) // SIZE, mask=(key >= begin) & (key < end), other=0)


@triton.jit
def load_tile(
    k_cache,
    v_cache,
    block,
    start,
    begin,
    end,
    block_stride,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Loads keys [WIDTH, BLOCK_N] and values [BLOCK_N, WIDTH] from ``start`` on; if MASKED, zeros outside [begin, end).

    ``k_cache`` and ``v_cache`` point to the kv head in block 0. If TRANSPOSED, keys lie as [DIM, SIZE].
    """
    lane = tl.arange(0, BLOCK_N)
    dim = tl.arange(0, WIDTH)
    key = start + lane
    inside = (key >= begin) & (key < end) if MASKED else key >= start
    to_block = block.to(tl.int64) * block_stride
    if SIZE % BLOCK_N == 0:
        within = start % SIZE
        k_cache += to_block + within * (1 if TRANSPOSED else DIM)
        v_cache += to_block + within * DIM
        rows = lane * DIM
        columns = lane
    else:
        within = (key.to(tl.uint32) % SIZE).to(tl.int32)
        rows = to_block + within * DIM
        columns = to_block + within
    v = load_rows(v_cache, rows, dim, inside, DIM, WIDTH, MASKED)
    if TRANSPOSED:
        k = load_rows(k_cache, columns, dim * SIZE, inside, DIM * SIZE, WIDTH * SIZE, MASKED)
    else:
        k = load_rows(k_cache, rows, dim, inside, DIM, WIDTH, MASKED)
    return tl.trans(k), v


@triton.jit
def describe_blocks(cache, blocks, block_stride, DIM: tl.constexpr, SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Describes the rows of ``cache``, which points to the kv head in block 0, to the copy engine."""
    return tl.make_tensor_descriptor(cache, [blocks, SIZE, DIM], [block_stride, DIM, 1], [1, BLOCK_N, DIM])


@triton.jit
def copy_tile(keys, values, block, start, DIM: tl.constexpr, SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """As :func:`load_tile` without masks, of a tile within one block, by the copy engine."""
    k = tl.reshape(keys.load([block, start % SIZE, 0]), (BLOCK_N, DIM))
    v = tl.reshape(values.load([block, start % SIZE, 0]), (BLOCK_N, DIM))
    return tl.trans(k), v


@triton.jit
def tile_heads(kv_head, queries, token, PACK: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Returns [BLOCK_M] heads, and which rows have an existing token and head."""
    PACKS: tl.constexpr = (GROUP + PACK - 1) // PACK
    row = tl.arange(0, BLOCK_M)
    member = tl.program_id(1) % PACKS * PACK + row % PACK
    fits = (row < BLOCK_M // PACK * PACK) & (token < queries) & (member < GROUP)
    return kv_head * GROUP + tl.minimum(member, GROUP - 1), fits


@triton.jit
def load_queries(q, q_stride, begins, token, head, fits, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Returns for a sequence whose tokens begin at ``begins``: the rows of ``q`` [BLOCK_M], which elements exist
    [BLOCK_M, WIDTH], and the queries."""
    dim = tl.arange(0, WIDTH)
    rows = (begins + token).to(tl.int64)
    stored = fits[:, None] & (dim < DIM)[None, :]
    queries = tl.load(q + (rows * q_stride + head * DIM)[:, None] + dim[None, :], mask=stored, other=0.0)
    return rows, stored, queries


@triton.jit(
    do_not_specialize=["skipped", "sequences", "tiles", "table_width", "blocks", "window"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "tables"],
)
def _prefill_kernel(
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
    skipped,
    sequences,
    tiles,
    table_width,
    blocks,
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
    SPLIT: tl.constexpr,
    PART_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EXTENT: tl.constexpr = 0,
    SHARED: tl.constexpr = True,
    SCORE_BITS: tl.constexpr = 16,
    LOADS: tl.constexpr = 1,
):
    """A tile of BLOCK_M // PACK tokens by PACK heads of one kv head; see :mod:`.prefill_inner`.

    If SPLIT, the programs of the grid's third axis share its keys, and write to ``partial`` [tokens, heads, programs,
    DIM] and ``partial_lse`` instead of ``out``; see :mod:`.prefill_split`.

    Args:
        skipped: sequences of the batch before the first of this launch.
        scale: of q·k, in units of log 2 unless SOFTCAP.
        GROUP: query heads of a kv head. PACK: those of one tile, all if BLOCK_M holds them.
        DIM, WIDTH: dims of a head, and the power of two that holds them.
        EXTENT: numbers by distance of a query and head, or of a head if SHARED.
        SCORE_BITS: at 8, keys of a float8 cache are multiplied as they are stored, by queries that are rounded to
            float8. At 16 they are widened to the dtype of ``q``.
        LOADS: at 2, the copy engine brings the tiles that all queries see in full, which must each be in one block.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // PACK
    PACKS: tl.constexpr = (GROUP + PACK - 1) // PACK
    # The last tiles of a sequence see the most keys: they start first, so that none is left running alone at the end.
    sequence, tile = find_tile(query_start + skipped, sequences, tiles - 1 - tl.program_id(0), BLOCK_Q)
    sequence += skipped
    begins = tl.load(query_start + sequence)
    queries = tl.load(query_start + sequence + 1) - begins
    if tile * BLOCK_Q >= queries:
        return
    keys = tl.load(seq_lens + sequence)
    kv_head = tl.program_id(1) // PACKS

    token = tile * BLOCK_Q + tl.arange(0, BLOCK_M) // PACK
    head, fits = tile_heads(kv_head, queries, token, PACK, GROUP, BLOCK_M)
    dim = tl.arange(0, WIDTH)
    rows, stored, q_tile = load_queries(q, q_stride, begins, token, head, fits, DIM, WIDTH)

    if SCORE_BITS == 8:
        q_tile, q_factor = quantize_rows(q_tile, k_cache.dtype.element_ty)
        scale *= q_factor
    v_factor = 1.0
    if k_scale is not None:
        scale *= tl.load(k_scale + kv_head)
        v_factor = tl.load(v_scale + kv_head)
    k_cache += kv_head.to(tl.int64) * (SIZE * DIM)
    v_cache += kv_head.to(tl.int64) * (SIZE * DIM)
    table = tables + sequence.to(tl.int64) * table_width

    first = keys - queries + tile * BLOCK_Q
    last = tl.minimum(first + BLOCK_Q, keys) - 1
    begin, end, whole, rest = key_range(first, last, keys, window - 1, 0, WINDOWED, CAUSAL, BLOCK_N)
    if SPLIT:
        # fmt: off
        begin, end, whole, rest = part_of_keys(tl.program_id(2), tl.num_programs(2), begin, end, whole, rest,
                                               BLOCK_N, PART_TILES)
        # fmt: on
    if LOADS == 2:  # COPY_ENGINE
        all_keys = describe_blocks(k_cache, blocks, block_stride, DIM, SIZE, BLOCK_N)
        all_values = describe_blocks(v_cache, blocks, block_stride, DIM, SIZE, BLOCK_N)
    else:
        all_keys = None
        all_values = None
    position = keys - queries + token
    slope = None if slopes is None else load_slopes(slopes, head)
    at = head if SHARED else rows * (tl.num_programs(1) // PACKS * GROUP) + head
    top, total = start_softmax(None if SPLIT else sinks, head, BLOCK_M)
    sums = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    for part in tl.static_range(3):
        if part == 0:
            start_at = begin // BLOCK_N * BLOCK_N
            stop_at = tl.minimum(whole, end)
        elif part == 1:
            start_at = whole
            stop_at = rest
        else:
            start_at = rest
            stop_at = end
        if WINDOWED or part > 0:
            block = find_blocks(table, start_at, begin, stop_at, SIZE, BLOCK_N)
            for start in tl.range(start_at, stop_at, BLOCK_N):
                start = tl.multiple_of(start, BLOCK_N)
                if LOADS == 2 and part == 1:
                    k, v = copy_tile(all_keys, all_values, block, start, DIM, SIZE, BLOCK_N)
                else:
                    # fmt: off
                    k, v = load_tile(k_cache, v_cache, block, start, begin, end, block_stride,
                                      DIM, WIDTH, SIZE, TRANSPOSED, BLOCK_N, part != 1)
                    # fmt: on
                k, v = widen(k, q_tile.dtype), widen(v, q.dtype.element_ty)
                block = find_blocks(table, start + BLOCK_N, begin, stop_at, SIZE, BLOCK_N)
                key = start + tl.arange(0, BLOCK_N)
                visible = visible_keys(position, key, end, window - 1, 0, WINDOWED, CAUSAL)
                # fmt: off
                near = None if distances is None else load_near(distances, at, key, position, fits, EXTENT)
                sums, top, total = attend(q_tile, k, v, sums, top, total, visible, slope, near, key, position,
                                          scale, softcap, part != 1, SOFTCAP, PRECISION)
                # fmt: on
    if SPLIT:
        rows -= tl.load(query_start + skipped)
        items = (rows * (tl.num_programs(1) // PACKS * GROUP) + head) * tl.num_programs(2) + tl.program_id(2)
        part_rows = partial + (items * DIM)[:, None]
        store_part(part_rows + dim[None, :], partial_lse + items, sums, top, total, v_factor, stored, fits)
    else:
        out_rows = out + (rows * (tl.num_programs(1) // PACKS * GROUP * DIM) + head * DIM)[:, None]
        store_mean(out_rows + dim[None, :], sums, total, v_factor, stored)


class PrefillLaunch(NamedTuple):
    """Prepared launches for the sequences after the decode rows, with everything fixed except the addresses of
    tensors."""

    start: Start
    parts: tuple[int, int, int, int] | None
    """[tokens, heads, parts, dim] of the partial results, if programs share keys."""
    join: Start | None

    def run(self, tensors: AttentionTensors, *, query_start: Tensor, seq_lens: Tensor) -> None:
        """Launches the kernels with tensors of the layout that it was prepared for."""
        partial = partial_lse = None
        if self.parts is not None:
            partial, partial_lse = _make_partial(self.parts, tensors.q.device)
        q, k_cache, v_cache, block_tables, *optional, out = tensors
        given = q, k_cache, v_cache, out, query_start, seq_lens, block_tables, *optional
        self.start(*given, partial, partial_lse)
        if self.join is not None:
            self.join(partial, partial_lse, query_start, tensors.sinks, out)


def kernel_arguments(args: AttentionArgs) -> tuple[Tensor | None, ...]:
    """Returns the tensors of a first launch, with float8 caches as the GPU takes them."""
    k_cache, v_cache = as_kernel_argument(args.k_cache), as_kernel_argument(args.v_cache)
    sequences = args.query_start, args.seq_lens, args.block_tables
    return args.q, k_cache, v_cache, args.out, *sequences, *args.optional


def paged_prefill(args: AttentionArgs, *, skipped: int, tokens: int) -> None:
    """Attends the sequences after the first ``skipped``, which have ``tokens`` new tokens in all; writes ``out``."""
    if (launch := prepare_prefill(args, skipped=skipped, tokens=tokens)) is not None:
        launch.run(args.tensors, query_start=args.query_start, seq_lens=args.seq_lens)


def copies_reason(args: AttentionArgs, block_n: int) -> str | None:
    """Returns why the copy engine cannot bring tiles of ``block_n`` keys, or is not worth it; None if it can."""
    k_cache, v_cache = args.k_cache, args.v_cache
    dim, size = k_cache.shape[2:]
    if (reason := copies_unsupported_reason(capability())) is not None:
        return reason
    if k_cache.dtype != args.q.dtype or k_cache.is_contiguous():
        return "it brings keys of the queries' dtype, a token's dims side by side"
    if size % block_n or dim != next_power_of_2(dim) or dim > MOST_DIMS:
        return f"it brings tiles in one block of {size}, not of {block_n}, and dims of powers of two, not {dim}"
    if not (is_aligned(k_cache) and is_aligned(v_cache)):
        return "the cache is at an odd address"
    return None if args.max_seq_len >= LEAST_KEYS else f"no sequence has {LEAST_KEYS} keys"


def prepare_prefill(args: AttentionArgs, *, skipped: int, tokens: int) -> PrefillLaunch | None:
    """Returns the prepared launch of :func:`paged_prefill`; None if there is no token.

    Host numbers bound the grid: a sequence without a token costs a program that ends at once. If the tiles leave much
    of the device idle, several programs share the keys of a tile. Their number depends on the whole batch, which
    changes a row's sums by rounding.
    """
    q, k_cache, window = args.q, args.k_cache, args.window
    sequences = args.seq_lens.shape[0] - skipped
    if not tokens or not sequences:
        return None
    _, heads, dim = q.shape
    _, kv_heads, _, size = k_cache.shape
    group = heads // kv_heads
    few = few_rows(tokens * heads)
    windowed = window != 0
    key = attention_key(dim, group, q.dtype, k_cache.dtype, size, few=few, windowed=windowed)
    default = default_config(dim, q.dtype, k_cache.dtype, few=few, windowed=windowed, paged=True)
    config = pick(OPERATION, key, default)
    if config.sizes.get("LOADS") == COPY_ENGINE and copies_reason(args, config["BLOCK_N"]) is not None:
        config = config.replaced(config.to_json() | {"LOADS": THREADS})
    pack = pack_heads(group, config["BLOCK_M"])
    block_q = config["BLOCK_M"] // pack
    tiles = tokens // block_q + sequences
    packs = kv_heads * cdiv(group, pack)
    busy = max(cdiv(tokens, block_q), min(tokens, sequences)) * packs
    seen = min(args.max_seq_len, abs(window) - 1 + block_q) if windowed else args.max_seq_len
    parts = count_parts(busy, seen, multiprocessors(q.device))
    shape = (tokens, heads, parts, dim) if parts > 1 else None
    partial = partial_lse = join = None
    if shape is not None:
        partial, partial_lse = _make_partial(shape, q.device)
        joined = partial, partial_lse, args.query_start, args.sinks, args.out
        join = prepare_join(*joined, skipped=skipped, sequences=sequences)
    start = prepare(
        _prefill_kernel,
        (tiles, packs, parts),
        (*kernel_arguments(args), partial, partial_lse),
        skipped,
        sequences,
        tiles,
        args.block_tables.shape[1],
        len(k_cache),
        q.stride(0),
        args.v_cache.stride(0),
        args.scale if args.softcap > 0 else args.scale * LOG2E,
        args.softcap,
        max(-FAR, min(window, FAR)),
        config=config,
        GROUP=group,
        PACK=pack,
        DIM=dim,
        WIDTH=max(16, next_power_of_2(dim)),
        SIZE=size,
        TRANSPOSED=k_cache.is_contiguous(),
        CAUSAL=args.causal,
        WINDOWED=windowed,
        SOFTCAP=args.softcap > 0,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        SPLIT=parts > 1,
        PART_TILES=part_tiles(config["BLOCK_N"]) if parts > 1 else 0,
        EXTENT=args.extent,
        SHARED=args.shared,
    )
    return PrefillLaunch(start, shape, join)


def _make_partial(shape: tuple[int, int, int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    partial = torch.empty(shape, dtype=torch.float32, device=device)
    return partial, torch.empty(shape[:3], dtype=torch.float32, device=device)
