"""Few tokens by a 16-bit weight: the kernel of 8-bit weights, without scales."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..launching.launch import cdiv
from ..linear_fp8.triton_skinny import MAX_TOKENS, block_of_tokens, prepare_few
from ..tuning import Config, Tunable, pick
from .triton_gemv import SHAPES, gemv_key

OPERATION = "linear_skinny"
LIBRARY = Config.of(BLOCK_T=1, BLOCK_N=1, BLOCK_K=1, SPLITS=1)
"""Stands for torch's product, which runs if no table has better sizes."""
SHARED_BYTES = 200 * 1024
"""The most shared memory of a multiprocessor for tiles in flight."""
MOST_PROGRAMS = 1024
"""The most programs that K is split for."""


def config_of(x: Tensor, weight: Tensor) -> Config:
    """Returns the table's block sizes; :data:`LIBRARY` if it has none."""
    return pick(OPERATION, skinny_key(x.shape[0], weight.shape[0], weight.shape[1], x.dtype), LIBRARY)


def skinny_key(tokens: int, rows: int, width: int, dtype: torch.dtype) -> str:
    return f"{gemv_key(rows, width, dtype)}_t{block_of_tokens(tokens)}"


def prepare_skinny(x: Tensor, weight: Tensor, bias: Tensor | None, *, streamed: bool = False) -> Callable[..., Tensor]:
    """Prepares the product of ``x`` [T, K], up to :data:`MAX_TOKENS` rows, by ``weight`` [N, K], both contiguous, for
    these and other tensors of the same layout; ``streamed``: see :func:`..linear_fp8.triton_skinny.prepare_few`."""
    config = config_of(x, weight)
    if config == LIBRARY:
        config = default(x.shape[0])
    few = prepare_few(x, None, weight, None, bias, x.dtype, config, streamed=streamed)
    return lambda x, weight, *others: few(x, None, weight, None, *others)


def default(tokens: int) -> Config:
    """Returns the block sizes if this kernel is asked for by name and the table has none."""
    return Config.of(num_warps=4, num_stages=3, BLOCK_T=block_of_tokens(tokens), BLOCK_N=64, BLOCK_K=128, SPLITS=1)


def candidates(tokens: int, outputs: int) -> list[Config]:
    """Returns block sizes that fit in shared memory; K is split if there are few tiles of rows."""
    block = block_of_tokens(tokens)
    return [
        Config.of(num_warps=warps, num_stages=stages, BLOCK_T=block, BLOCK_N=rows, BLOCK_K=width, SPLITS=splits)
        for rows, warps in ((32, 4), (64, 4), (128, 4))
        for width in (64, 128, 256)
        for stages in (3, 5)
        for splits in (1, 2, 4, 8)
        if 2 * (rows + block) * width * stages <= SHARED_BYTES
        and (splits == 1 or splits * cdiv(outputs, rows) <= MOST_PROGRAMS)
    ]


def tunables() -> list[Tunable]:
    return [
        Tunable(
            OPERATION,
            skinny_key(tokens, rows, width, torch.bfloat16),
            candidates(tokens, rows),
            partial(_workload, tokens, rows, width),
        )
        for tokens in (16, 32, MAX_TOKENS)
        for rows, width in SHAPES
    ]


def _workload(tokens: int, rows: int, width: int, device: torch.device) -> Callable[[], object]:
    from . import linear

    weight = torch.randn(rows, width, dtype=torch.bfloat16, device=device)
    x = torch.randn(tokens, width, dtype=torch.bfloat16, device=device)
    return partial(linear, x, weight)
