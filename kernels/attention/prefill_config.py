"""Block sizes of the kernels that take many queries of a sequence, and how many heads share a tile."""

import torch

from ..kv_cache.layout import FP8
from ..launching.copy_engine import THREADS
from ..launching.launch import interpreted
from ..quantize.fp8 import capability
from ..tuning import Config

LOG2E = 1.4426950408889634
FAR = 1 << 30
"""A window that hides nothing; positions can be added to it in 32 bits."""
FEW_ROWS = 8192
"""Up to this many tokens times heads tiles are small, so that every multiprocessor gets one."""
LARGE_SHARED = (80, 90, 100, 103)
"""Compute capabilities with 164 KiB or more of shared memory per program; the others have 99."""


def pack_heads(group: int, block: int) -> int:
    """Returns how many heads of a kv head one tile of ``block`` rows holds."""
    return min(group, block)


def few_rows(rows: int) -> bool:
    """Whether a launch of this many tokens times heads uses small tiles."""
    return rows <= FEW_ROWS


def attention_key(
    dim: int, group: int, dtype: torch.dtype, kv_dtype: torch.dtype, size: int = 0, *, few: bool, windowed: bool
) -> str:
    """Returns the tuning table's key. ``size`` is the cache's block size, 0 without one."""
    names = "_".join(str(each).removeprefix("torch.") for each in (dtype, kv_dtype))
    where = f"block{size}" if size else "unpaged"
    span = "_windowed" if windowed else ""
    return f"dim{dim}_group{group}_{names}_{where}{span}_{'few' if few else 'many'}"


LEAST_KEYS = 2048
"""The copy engine brings tiles of longer sequences only: a program describes the cache to it first."""


def default_config(
    dim: int, dtype: torch.dtype, kv_dtype: torch.dtype, *, few: bool, windowed: bool, paged: bool = False
) -> Config:
    """Returns the largest tiles that fit the device's registers and shared memory.

    Over a ``paged`` cache, keys of float8 are widened, and threads bring tiles. Products by keys as stored, and tiles
    that the copy engine brings, run only where the tuner found them faster.
    """
    choices = {"SCORE_BITS": 16} if kv_dtype == FP8 else {"LOADS": THREADS} if paged else {}
    if interpreted():
        return Config.of(BLOCK_M=32, BLOCK_N=32, **choices)
    wide = dim > 128
    if dtype == torch.float32:  # multiplied without tensor cores
        return Config.of(BLOCK_M=32, BLOCK_N=16, num_warps=8, num_stages=2, **choices)
    arch = capability()
    small_shared = arch not in LARGE_SHARED
    if small_shared or ((few or wide) and arch < 90) or (few and wide):
        stages = 2 if small_shared else 3
        return Config.of(BLOCK_M=64, BLOCK_N=32 if wide else 64, num_warps=8, num_stages=stages, **choices)
    if few:
        return Config.of(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3, **choices)
    if wide or arch < 90:
        return Config.of(BLOCK_M=128, BLOCK_N=32, num_warps=8, num_stages=3, **choices)
    if windowed or kv_dtype != dtype:
        return Config.of(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3, **choices)
    return Config.of(BLOCK_M=128, BLOCK_N=128, num_warps=8, num_stages=3, **choices)
