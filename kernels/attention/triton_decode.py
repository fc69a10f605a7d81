"""Launches the decode kernels with a grid from host numbers alone, so that a captured launch is right for any
lengths."""

from collections.abc import Hashable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..forced import forced
from ..launching.launch import cdiv, next_power_of_2
from ..launching.repeated import Start, prepare
from ..tuning import Config, pick
from .arguments import AttentionArgs, AttentionTensors
from .decode_kernels import ITEM_NUMBERS, decode_kernel, split_kernel

OPERATION = "paged_decode"

MIN_DOT = 16
"""Rows and columns of the smallest tensor core product in Triton."""
TILE_BYTES = 16384
"""Bytes of the keys in one tile by default, and of its values. To hide the memory's latency some ten times as many must
be in flight: on an H200 with about three programs per multiprocessor and one or two stages ahead in each."""
JOINED_NUMBERS = 8192
"""Numbers that one iteration of the joining loop reads, from several items at once, into registers."""
PLANNED_NUMBERS = 4096
"""Numbers that a program of the plan compares: its items with each row."""
MOST_PLANNED = 256
"""The most items that a program of the plan writes."""
LEAST_COUNTERS = 1 << 16
_COUNTERS: dict[torch.device, list[Tensor]] = {}
"""Counters of finished programs; the last tensor of each list is in use. See :func:`counters`."""


class DecodeLaunch(NamedTuple):
    """Prepared launches for decode rows, with everything fixed except the addresses of tensors."""

    items: int
    """Items of a plan: the most parts that the keys of all rows are split into."""
    planned_by: Hashable
    """Everything but lengths that a plan depends on."""
    split: Start
    scratch: int
    """Numbers of scratch memory for the programs' partial results."""
    arrived: Tensor
    """int32 [rows, programs of an item]: zeros before and after."""
    start: Start

    def run(
        self,
        tensors: AttentionTensors,
        *,
        seq_lens: Tensor,
        query_start: Tensor | None,
        plans: dict[Hashable, Tensor],
    ) -> None:
        """Launches the kernels with tensors of the layout that it was prepared for.

        Uses the plan in ``plans``, which belong to these lengths, and adds it if missing.
        """
        plan = plans.get(self.planned_by)
        if plan is None:
            plan = torch.empty((self.items, ITEM_NUMBERS.value), dtype=torch.int32, device=tensors.q.device)
            self.split(seq_lens, query_start, plan)
            plans[self.planned_by] = plan
        scratch = torch.empty(self.scratch, dtype=torch.float32, device=tensors.q.device)
        self.start(*tensors, query_start, plan, scratch, self.arrived)


def paged_decode(
    args: AttentionArgs, *, rows: int, query_len: int, ragged: bool = False, plans: dict[Hashable, Tensor] | None = None
) -> None:
    """Attends the new tokens of the first ``rows`` sequences, and writes their rows of ``out``.

    Each has ``query_len`` of them, and ``query_start`` is not read; if ``ragged``, it has at most as many, and
    ``query_start`` says which. For the same lengths of all ``rows`` the result is always the same. Other lengths in the
    batch may split a sequence elsewhere, which changes its sums by rounding. Float8 caches need compute capability 8.9.
    ``plans``: the plans shared by layers (:class:`.AttentionBatch`).
    """
    if rows:
        launch = prepare_decode(args, rows=rows, query_len=query_len, ragged=ragged)
        starts = args.query_start if ragged else None
        launch.run(args.tensors, seq_lens=args.seq_lens, query_start=starts, plans={} if plans is None else plans)


def prepare_decode(args: AttentionArgs, *, rows: int, query_len: int, ragged: bool = False) -> DecodeLaunch:
    """Returns the prepared launch of :func:`paged_decode`, for one row or more."""
    q, k_cache, v_cache, window = args.q, args.k_cache, args.v_cache, args.window
    _, kv_heads, dim, size = k_cache.shape
    group = q.shape[1] // kv_heads
    queries = group * query_len
    block_m = query_block(queries, dim, q.dtype)
    config = pick(OPERATION, decode_key(dim, block_m, size, k_cache.dtype), default_config(dim, k_cache.dtype))
    tile = config["TILE"]
    min_tiles = cdiv(config["MIN_KEYS"], tile)
    windowed = window != 0
    seen = min(args.max_seq_len, abs(window) + query_len - 1 + tile) if windowed else args.max_seq_len
    most_splits = max(1, cdiv(cdiv(seen, tile), min_tiles))
    target = max(1, multiprocessors(q.device) * config["PROGRAMS_PER_SM"] // kv_heads)
    items = min(target + rows, rows * most_splits)
    programs = kv_heads * cdiv(queries, block_m)
    arrived = counters(q.device, rows * programs)
    kept = items if most_splits > 1 else 0
    scratch = torch.empty(kept * kv_heads * queries * (dim + 1), dtype=torch.float32, device=q.device)
    block_d = max(MIN_DOT, next_power_of_2(dim))
    join_m = min(block_m, next_power_of_2(queries))
    plan = torch.empty((items, ITEM_NUMBERS.value), dtype=torch.int32, device=q.device)
    sharing = {"QUERY_LEN": query_len, "WINDOWED": windowed}
    starts = args.query_start if ragged else None
    padded = padded_rows(rows)
    # not fitted to `items`, which changes from step to step: each size is a kernel that is compiled while streams wait
    block = max(1, min(PLANNED_NUMBERS // padded, MOST_PLANNED))
    split = prepare(
        split_kernel,
        (cdiv(items, block),),
        (args.seq_lens, starts, plan),
        rows,
        items,
        target,
        window,
        config=Config.of(TILE=tile, num_warps=4),
        MIN_TILES=min_tiles,
        ROWS=padded,
        BLOCK=block,
        **sharing,
    )
    start = prepare(
        decode_kernel,
        (programs, items),
        (*args.tensors, starts, plan, scratch, arrived),
        args.scale,
        window,
        args.softcap,
        q.stride(0),
        args.out.stride(0),
        args.block_tables.stride(0),
        *k_cache.stride(),
        *v_cache.stride()[:3],
        config=Config.of(
            TILE=tile, BLOCK_M=block_m, BLOCK_D=block_d, num_warps=config.num_warps, num_stages=config.num_stages
        ),
        GROUP=group,
        DIM=dim,
        SIZE=size,
        SOFTCAPPED=args.softcap > 0,
        CAUSAL=args.causal,
        EXTENT=args.extent,
        SHARED=args.shared,
        JOIN_M=join_m,
        JOINED=max(1, JOINED_NUMBERS // (join_m * block_d)),
        **sharing,
    )
    planned_by = rows, query_len, window, tile, min_tiles, target, items
    return DecodeLaunch(items, planned_by, split, len(scratch), arrived, start)


def counters(device: torch.device, count: int) -> Tensor:
    """Returns ``count`` or more int32 zeros for launches that leave zeros and follow one another on one stream.

    They are never freed, because captured launches hold their addresses. Redirected launches get counters of their own.
    """
    if forced.get().launch is not None:
        return torch.zeros(count, dtype=torch.int32, device=device)
    made = _COUNTERS.setdefault(device, [])
    if not made or len(made[-1]) < count:
        made.append(torch.zeros(max(LEAST_COUNTERS, next_power_of_2(count)), dtype=torch.int32, device=device))
    return made[-1]


def query_block(queries: int, dim: int, dtype: torch.dtype) -> int:
    """Returns the rows of a program's tile of queries, as many as registers hold.

    If there are more queries, several programs read the same keys, which the L2 cache then has.
    """
    most = MIN_DOT if dtype == torch.float32 else 64 if dim <= 128 else 32
    filled: int = max(MIN_DOT, next_power_of_2(queries))
    return min(most, filled)


def padded_rows(rows: int) -> int:
    """Returns ``rows`` rounded up to one of a few numbers, because a kernel is compiled for each."""
    padded = MIN_DOT if rows > 1 else 1
    while padded < rows:
        padded *= 4
    return padded


def decode_key(dim: int, block_m: int, size: int, dtype: torch.dtype) -> str:
    """Returns the tuning table's key, for the caches' dtype and block size."""
    return f"dim{dim}_queries{block_m}_{str(dtype).removeprefix('torch.')}_block{size}"


def default_config(dim: int, dtype: torch.dtype) -> Config:
    """Returns the default: TILE keys per iteration; sequences are split into parts of at least MIN_KEYS,
    PROGRAMS_PER_SM in all."""
    row_bytes = max(MIN_DOT, next_power_of_2(dim)) * dtype.itemsize
    # Without tensor cores both factors of a product are held in registers, and larger tiles would spill.
    most = MIN_DOT if dtype == torch.float32 else 64
    tile = min(most, max(MIN_DOT, TILE_BYTES // row_bytes))
    stages = 3 if tile * row_bytes >= TILE_BYTES else 4
    return Config.of(TILE=tile, MIN_KEYS=128, PROGRAMS_PER_SM=8, num_warps=4, num_stages=stages)


@cache
def multiprocessors(device: torch.device) -> int:
    """Returns the multiprocessors of ``device``; those of a Hopper GPU if there is none."""
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_properties(device).multi_processor_count
    return 132
