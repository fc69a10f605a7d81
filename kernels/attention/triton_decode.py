"""Starts the decode kernels: a grid from host numbers alone, so that a captured launch is right for any lengths."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..launch import cdiv, next_power_of_2
from ..repeated import Start, prepare
from ..tuning import Config, pick
from .decode_kernels import decode_kernel, reduce_kernel

OPERATION = "paged_decode"

MIN_DOT = 16
"""Rows and columns of the smallest product of a tensor core, as Triton has them."""
TILE_BYTES = 16384
"""Of the keys in one tile by default, and of its values: some ten times that must be under way to fill the memory's
latency, on an H200 with about three programs a multiprocessor and a stage or two ahead in each."""
REDUCED_AT_ONCE = 16
"""Items that one turn of the reduction reads."""


class DecodeLaunches(NamedTuple):
    """Launches for decode rows, of which all is settled but where tensors lie."""

    partial: torch.Size
    """[items, queries, dim]: what the first leaves for the second; no items where there is no second."""
    attend: Start
    reduce: Start | None

    def start(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        seq_lens: Tensor,
        block_tables: Tensor,
        sinks: Tensor | None,
        k_scale: Tensor | None,
        v_scale: Tensor | None,
        out: Tensor,
    ) -> None:
        """With tensors laid out as those of :func:`prepare_decode`."""
        partial = torch.empty(self.partial, dtype=torch.float32, device=q.device)
        partial_lse = torch.empty(self.partial[:2], dtype=torch.float32, device=q.device)
        tensors = q, k_cache, v_cache, seq_lens, block_tables, sinks, k_scale, v_scale, out
        self.attend(*tensors, partial, partial_lse)
        if self.reduce is not None:
            self.reduce(partial, partial_lse, seq_lens, sinks, out)


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    out: Tensor,
    *,
    rows: int,
    query_len: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    causal: bool,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    max_seq_len: int,
) -> None:
    """Attends the new tokens of the first ``rows`` sequences, ``query_len`` each; writes out[: rows * query_len].

    Nothing is checked here, and nothing on the device is waited for: lengths and block tables are read there.
    Given the lengths of all ``rows`` the result is always the same; other lengths in the batch may split a
    sequence elsewhere, which changes its sums by rounding.

    Args:
        q: [T, Hq, D], heads and dims contiguous; token i of sequence s is row s * query_len + i.
        k_cache: [blocks, Hkv, D, size] of any strides; v_cache: [blocks, Hkv, size, D], dims contiguous; the dtype
            of ``q``, or float8_e4m3fn (compute capability 8.9).
        query_start: not read, since the tokens stand where ``query_len`` says.
        seq_lens: [rows or more] int32; 0 makes a sequence's output zeros.
        block_tables: [rows or more, max_blocks] int32; entries past a sequence or before its window are not followed.
        out: [T, Hq, D] of the dtype of ``q``, heads and dims contiguous.
        scale, window, softcap, sinks, causal, k_scale, v_scale: as for :func:`stentor.kernels.paged_attention`.
        max_seq_len: an upper bound of ``seq_lens``, also of those with which a captured launch is replayed.
    """
    if rows == 0:
        return
    launches = prepare_decode(
        q,
        k_cache,
        v_cache,
        seq_lens,
        block_tables,
        out,
        rows=rows,
        query_len=query_len,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        causal=causal,
        k_scale=k_scale,
        v_scale=v_scale,
        max_seq_len=max_seq_len,
    )
    launches.start(q, k_cache, v_cache, seq_lens, block_tables, sinks, k_scale, v_scale, out)


def prepare_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    out: Tensor,
    *,
    rows: int,
    query_len: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    causal: bool,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    max_seq_len: int,
) -> DecodeLaunches:
    """What :func:`paged_decode` starts, of one row at least."""
    _, kv_heads, dim, size = k_cache.shape
    group = q.shape[1] // kv_heads
    queries = group * query_len
    block_m = query_block(queries, dim, q.dtype)
    config = pick(OPERATION, decode_key(dim, block_m, size, k_cache.dtype), default_config(dim, k_cache.dtype))
    tile = config["TILE"]
    min_tiles = cdiv(config["MIN_KEYS"], tile)
    windowed = window != 0
    seen = min(max_seq_len, abs(window) + query_len - 1 + tile) if windowed else max_seq_len
    most_splits = max(1, cdiv(cdiv(seen, tile), min_tiles))
    target = max(1, multiprocessors(q.device) * config["PROGRAMS_PER_SM"] // kv_heads)
    items = min(target + rows, rows * most_splits)
    kept = items if most_splits > 1 else 0
    partial = torch.empty((kept, kv_heads * queries, dim), dtype=torch.float32, device=q.device)
    partial_lse = torch.empty(partial.shape[:2], dtype=torch.float32, device=q.device)
    block_d = max(MIN_DOT, next_power_of_2(dim))
    shared = {
        "QUERY_LEN": query_len,
        "GROUP": group,
        "DIM": dim,
        "WINDOWED": windowed,
        "MIN_TILES": min_tiles,
        "ROWS": padded_rows(rows),
    }
    attend = prepare(
        decode_kernel,
        (kv_heads * cdiv(queries, block_m), items),
        (q, k_cache, v_cache, seq_lens, block_tables, sinks, k_scale, v_scale, out, partial, partial_lse),
        rows,
        target,
        scale,
        window,
        softcap,
        q.stride(0),
        out.stride(0),
        block_tables.stride(0),
        *k_cache.stride(),
        *v_cache.stride()[:3],
        config=Config.of(
            TILE=tile, BLOCK_M=block_m, BLOCK_D=block_d, num_warps=config.num_warps, num_stages=config.num_stages
        ),
        SIZE=size,
        SOFTCAPPED=softcap > 0,
        CAUSAL=causal,
        **shared,
    )
    if most_splits == 1:
        return DecodeLaunches(partial.shape, attend, None)
    reduce = prepare(
        reduce_kernel,
        (kv_heads * queries, rows),
        (partial, partial_lse, seq_lens, sinks, out),
        rows,
        target,
        window,
        out.stride(0),
        config=Config.of(TILE=tile, BLOCK_SPLITS=REDUCED_AT_ONCE, BLOCK_D=block_d, num_warps=4, num_stages=1),
        **shared,
    )
    return DecodeLaunches(partial.shape, attend, reduce)


def query_block(queries: int, dim: int, dtype: torch.dtype) -> int:
    """Rows of a program's tile of queries, as many as registers hold.

    Where there are more, several programs read the same keys, which the L2 cache then has.
    """
    most = MIN_DOT if dtype == torch.float32 else 64 if dim <= 128 else 32
    filled: int = max(MIN_DOT, next_power_of_2(queries))
    return min(most, filled)


def padded_rows(rows: int) -> int:
    """At least ``rows``, one of few numbers: a kernel is compiled for each."""
    padded = MIN_DOT if rows > 1 else 1
    while padded < rows:
        padded *= 4
    return padded


def decode_key(dim: int, block_m: int, size: int, dtype: torch.dtype) -> str:
    """The tuning table's key, for the caches' dtype and block size."""
    return f"dim{dim}_queries{block_m}_{str(dtype).removeprefix('torch.')}_block{size}"


def default_config(dim: int, dtype: torch.dtype) -> Config:
    """TILE keys a turn; a sequence is split into parts of MIN_KEYS or more, PROGRAMS_PER_SM of them in all."""
    row_bytes = max(MIN_DOT, next_power_of_2(dim)) * dtype.itemsize
    # Without tensor cores both factors of a product wait in registers: larger tiles are spilled.
    most = MIN_DOT if dtype == torch.float32 else 64
    tile = min(most, max(MIN_DOT, TILE_BYTES // row_bytes))
    stages = 3 if tile * row_bytes >= TILE_BYTES else 4
    return Config.of(TILE=tile, MIN_KEYS=128, PROGRAMS_PER_SM=8, num_warps=4, num_stages=stages)


@cache
def multiprocessors(device: torch.device) -> int:
    """Of ``device``; those of a Hopper where there is none."""
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_properties(device).multi_processor_count
    return 132
