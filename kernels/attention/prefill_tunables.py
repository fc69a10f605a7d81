"""The prefill attention workloads for the tuner: one prompt of 8192 tokens, and a few tokens after a long prefix, with
the heads of Llama-3.1-8B and Qwen3-32B."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from ..kv_cache.layout import FP8
from ..launching.copy_engine import COPY_ENGINE, THREADS
from ..tuning import Config, Tunable
from .arguments import AttentionArgs
from .prefill_config import attention_key, few_rows
from .triton_prefill import OPERATION, paged_prefill
from .whole_prompt import LIBRARY, attend_whole_prompt, runs_on_library
from .whole_prompt import OPERATION as WHOLE_PROMPT

KEYS = 8192
KV_HEADS, DIM = 8, 128
BLOCK_SIZES = (16, 32, 64, 128)
CACHES = (torch.bfloat16, FP8)
SHARED_BYTES = 227 * 1024


def tunables() -> list[Tunable]:
    """Returns launches of many tiles and of few, without a window, and then cuDNN's kernel beside ours.

    Launches with a window keep their defaults.
    """
    return [
        Tunable(
            OPERATION,
            attention_key(
                DIM, group, torch.bfloat16, cache, size, few=few_rows(tokens * KV_HEADS * group), windowed=False
            ),
            candidates(DIM, torch.bfloat16, cache, size),
            partial(workload, group, tokens, size, cache),
        )
        for group in (4, 8)
        for tokens in (KEYS, 8192 // (KV_HEADS * group))
        for size in BLOCK_SIZES
        for cache in CACHES
    ] + [
        Tunable(
            WHOLE_PROMPT,
            attention_key(DIM, group, torch.bfloat16, torch.bfloat16, size, few=False, windowed=False),
            [LIBRARY],
            partial(whole_prompt, group, size),
        )
        for group in (4, 8)
        for size in BLOCK_SIZES
    ]


def candidates(dim: int, dtype: torch.dtype, kv_dtype: torch.dtype, size: int = 0) -> list[Config]:
    """Returns tiles, warps and stages that fit. For some of them also with keys of a float8 cache that are multiplied
    as stored, or with tiles of other caches that the copy engine brings; ``size``: the cache's block size, 0 without
    one."""

    def shared_bytes(m: int, n: int, stages: int) -> int:
        converted = 0 if kv_dtype == dtype else 2 * n * dim * dtype.itemsize
        return m * dim * dtype.itemsize + stages * 2 * n * dim * kv_dtype.itemsize + converted

    def tiles(shapes: Sequence[tuple[int, int]], most_stages: int, **bits: int) -> list[Config]:
        return [
            Config.of(BLOCK_M=m, BLOCK_N=n, num_warps=warps, num_stages=stages, **bits)
            for m, warps in shapes
            for n in (32, 64, 128)
            for stages in range(2, most_stages + 1)
            if shared_bytes(m, n, stages) <= SHARED_BYTES
        ]

    all_shapes = ((64, 4), (64, 8), (128, 4), (128, 8))
    few_shapes = ((64, 4), (128, 8))
    if kv_dtype == FP8:
        return tiles(all_shapes, 4, SCORE_BITS=16) + tiles(few_shapes, 3, SCORE_BITS=8)
    if not size:
        return tiles(all_shapes, 4)
    copied = [each for each in tiles(few_shapes, 4, LOADS=COPY_ENGINE) if size % each["BLOCK_N"] == 0]
    return tiles(all_shapes, 4, LOADS=THREADS) + copied


def workload(group: int, tokens: int, size: int, cache: torch.dtype, device: torch.device) -> Callable[[], object]:
    paged = sequence(group, tokens, size, cache, device)

    def call() -> torch.Tensor:
        paged_prefill(paged, skipped=0, tokens=tokens)
        return paged.out

    return call


def whole_prompt(group: int, size: int, device: torch.device) -> Callable[[], object]:
    """Returns the attention of an uncached prompt, by the provider that the table names."""
    args = sequence(group, KEYS, size, torch.bfloat16, device)

    def attend() -> torch.Tensor:
        run = attend_whole_prompt if runs_on_library(args, KEYS) else paged_prefill
        run(args, skipped=0, tokens=KEYS)
        return args.out

    return attend


def sequence(group: int, tokens: int, size: int, cache: torch.dtype, device: torch.device) -> AttentionArgs:
    """Returns the last ``tokens`` of a sequence whose keys lie in scattered blocks."""
    width = KEYS // size
    shape = (width, KV_HEADS, size, DIM)
    k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16).to(cache) for _ in "kv")
    q = torch.randn((tokens, KV_HEADS * group, DIM), device=device, dtype=torch.bfloat16)
    table = torch.randperm(width, device=device).int().view(1, width)
    scales = torch.ones(KV_HEADS, device=device) if cache != torch.bfloat16 else None
    return AttentionArgs(
        q,
        k.transpose(2, 3),
        v,
        torch.tensor([0, tokens], device=device, dtype=torch.int32),
        torch.tensor([KEYS], device=device, dtype=torch.int32),
        table,
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
        max_seq_len=KEYS,
    )
