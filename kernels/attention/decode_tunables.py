"""The decode attention workloads for the tuner: few long sequences and then many short ones, with the heads of
Llama-3.1-8B and Qwen3-32B.

Block sizes are the same for all lengths of a model. Those that are 2 % faster for the long ones alone hold so much
shared memory that a multiprocessor runs one program at a time: decode attention of 256 short sequences then took 2.9 ms
a step on an H200, where the launcher's own had taken 1.4.
"""

from collections.abc import Callable, Hashable
from functools import partial

import torch

from ..tuning import Config, Tunable
from .arguments import AttentionArgs
from .triton_decode import OPERATION, decode_key, paged_decode, query_block

BATCHES = ((64, 4096), (256, 128))
"""Sequences, and keys of each: about 275 and 45 µs on an H200."""
KV_HEADS, DIM = 8, 128
BLOCK_SIZES = (16, 32, 64, 128)
CACHES = (torch.bfloat16, torch.float8_e4m3fn)
SHARED_BYTES = 160 * 1024
"""The most shared memory for tiles in flight: an H200's multiprocessor has 227 KiB for one program and its other
needs."""


def tunables() -> list[Tunable]:
    """Returns both models' shapes for one new token, and the larger group's for eight.

    For one token the groups of 4 and of 8 fill one tile of queries and share a key.
    """
    return [
        Tunable(
            OPERATION,
            decode_key(DIM, query_block(group * query_len, DIM, torch.bfloat16), size, dtype),
            candidates(dtype),
            partial(workload, group, query_len, size, dtype),
        )
        for group, query_len in ((8, 1), (8, 8))
        for size in BLOCK_SIZES
        for dtype in CACHES
    ]


def candidates(dtype: torch.dtype) -> list[Config]:
    """Returns tiles, warps and stages that fit, each with few and with many programs."""
    return [
        Config.of(TILE=tile, MIN_KEYS=128, PROGRAMS_PER_SM=programs, num_warps=warps, num_stages=stages)
        for tile in (32, 64, 128)
        for warps in (4, 8)
        for stages in (3, 4, 5)
        if (stages - 1) * tile * DIM * dtype.itemsize * 2 <= SHARED_BYTES and (warps == 4 or tile == 128)
        for programs in (4, 8, 16)
    ]


def workload(group: int, query_len: int, size: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """Returns one layer's decode of each batch, with ready plans, on scattered blocks; the long batch has 1 GiB of keys
    and values in bfloat16."""
    calls = [_batch(rows, keys, group, query_len, size, dtype, device) for rows, keys in BATCHES]

    return lambda: [call() for call in calls]


def _batch(
    rows: int, keys: int, group: int, query_len: int, size: int, dtype: torch.dtype, device: torch.device
) -> Callable[[], object]:
    width = keys // size
    generator = torch.Generator(device).manual_seed(0)
    shape = (rows * width, KV_HEADS, size, DIM)
    k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16, generator=generator).to(dtype) for _ in "kv")
    tokens, heads = rows * query_len, KV_HEADS * group
    q = torch.randn((tokens, heads, DIM), device=device, dtype=torch.bfloat16, generator=generator)
    tables = torch.randperm(rows * width, device=device, generator=generator).int().view(rows, width)
    scales = torch.ones(KV_HEADS, device=device) if dtype == torch.float8_e4m3fn else None
    starts = torch.arange(rows + 1, device=device, dtype=torch.int32) * query_len
    lengths = torch.full((rows,), keys, device=device, dtype=torch.int32)
    args = AttentionArgs(
        q,
        k.transpose(2, 3),
        v,
        starts,
        lengths,
        tables,
        torch.empty_like(q),
        scale=DIM**-0.5,
        window=0,
        softcap=0.0,
        sinks=None,
        slopes=None,
        distances=None,
        causal=True,
        k_scale=scales,
        v_scale=scales,
        max_seq_len=keys,
    )
    plans: dict[Hashable, torch.Tensor] = {}

    def call() -> torch.Tensor:
        paged_decode(args, rows=rows, query_len=query_len, plans=plans)
        return args.out

    return call
