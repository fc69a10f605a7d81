"""Launches the Triton kernels with grids from host numbers alone, so that a captured launch is right for any
lengths."""

import torch
from torch import Tensor

from ..attention import AttentionBatch
from ..attention.triton_decode import MIN_DOT, padded_rows
from ..launching.launch import cdiv, launch, next_power_of_2
from ..tuning import Config, pick
from .triton_kernels import score_kernel, select_kernel

OPERATION = "sparse_index"
SCORES_BYTES = 256 << 20
"""The most memory for scores at once; if there are more tokens, they are processed in turns."""
_SELECT = Config.of(TILE=2048, num_warps=8, num_stages=1)


def top_tokens(
    q: Tensor, weights: Tensor, cache: Tensor, batch: AttentionBatch, top_k: int, ratio: int, block: int
) -> Tensor:
    """Runs :func:`stentor.kernels.top_tokens`. Nothing waits for the device, and nothing on it is checked."""
    tokens, heads, dim = q.shape
    size, width = cache.shape[1], batch.max_seq_len // ratio
    out = torch.empty((tokens, top_k), dtype=torch.int32, device=q.device)
    if tokens == 0:
        return out
    config = pick(OPERATION, index_key(dim, heads, size, q.dtype), default_config(q.dtype))
    scored = width > top_k
    most = min(tokens, max(1, SCORES_BYTES // (4 * width))) if scored else tokens
    scores = torch.empty((most, width) if scored else (1, 1), dtype=torch.int32, device=q.device)
    rows = padded_rows(batch.num_sequences)
    for first in range(0, tokens, most):
        count = min(most, tokens - first)
        if scored:
            launch(
                score_kernel,
                (count, cdiv(width, config["TILE"])),
                q,
                weights,
                cache,
                batch.query_start,
                batch.seq_lens,
                batch.block_tables,
                scores,
                first,
                batch.num_sequences,
                batch.block_tables.stride(0),
                width,
                config=Config.of(
                    TILE=config["TILE"],
                    BLOCK_H=max(MIN_DOT, next_power_of_2(heads)),
                    BLOCK_D=max(MIN_DOT, next_power_of_2(dim)),
                    num_warps=config.num_warps,
                    num_stages=config.num_stages,
                ),
                HEADS=heads,
                DIM=dim,
                SIZE=size,
                BLOCK=block,
                RATIO=ratio,
                TOP=top_k,
                SEQUENCES=rows,
            )
        launch(
            select_kernel,
            (count,),
            scores,
            batch.query_start,
            batch.seq_lens,
            out,
            first,
            batch.num_sequences,
            width,
            config=_SELECT,
            RATIO=ratio,
            TOP=top_k,
            SEQUENCES=rows,
        )
    return out


def index_key(dim: int, heads: int, size: int, dtype: torch.dtype) -> str:
    """Returns the tuning table's key."""
    return f"dim{dim}_heads{heads}_{str(dtype).removeprefix('torch.')}_block{size}"


def default_config(dtype: torch.dtype) -> Config:
    """Returns the default: TILE keys per program."""
    if dtype == torch.float32:  # without tensor cores both factors of a product are held in registers
        return Config.of(TILE=MIN_DOT, num_warps=8, num_stages=1)
    return Config.of(TILE=64, num_warps=4, num_stages=1)
