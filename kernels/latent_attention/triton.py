"""Starts the Triton kernels: grids from host numbers alone, so that a captured launch is right for any lengths."""

import torch
from torch import Tensor

from ..attention import AttentionBatch
from ..attention.triton_decode import MIN_DOT, multiprocessors, padded_rows
from ..launch import cdiv, launch, next_power_of_2
from ..tuning import Config, pick
from .triton_kernels import join_kernel, latent_kernel

OPERATION = "latent_attention"


def latent_attention(
    q: Tensor, cache: Tensor, batch: AttentionBatch, rank: int, scale: float, chosen: Tensor | None = None
) -> Tensor:
    """See :func:`stentor.kernels.latent_attention`. Nothing on the device is waited for, nor looked at here."""
    tokens, heads, dim = q.shape
    size = cache.shape[1]
    out = q.new_empty((tokens, heads, rank))
    if tokens == 0:
        return out
    sparse = chosen is not None
    key = latent_key(dim, rank, heads, size, q.dtype, sparse=sparse)
    config = pick(OPERATION, key, default_config(heads, rank, q.dtype, sparse=sparse))
    tile, rows = config["TILE"], config["BLOCK_M"]
    m_blocks = cdiv(heads, rows)
    top = 0 if chosen is None else chosen.shape[1]
    most = cdiv(min(batch.max_seq_len, top or batch.max_seq_len), config["MIN_KEYS"])
    wanted = cdiv(multiprocessors(q.device) * config["PROGRAMS_PER_SM"], tokens * m_blocks)
    splits = max(1, min(most, wanted))
    kept = splits if splits > 1 else 0
    partial = torch.empty((tokens, heads, kept, rank), dtype=torch.float32, device=q.device)
    partial_lse = torch.empty((tokens, heads, kept), dtype=torch.float32, device=q.device)
    shared = {
        "HEADS": heads,
        "RANK": rank,
        "TOP": top,
        "SEQUENCES": padded_rows(batch.num_sequences),
        "MIN_TILES": cdiv(config["MIN_KEYS"], tile),
    }
    block_r = max(MIN_DOT, next_power_of_2(rank))
    launch(
        latent_kernel,
        (tokens * m_blocks, splits),
        q,
        cache,
        batch.query_start,
        batch.seq_lens,
        batch.block_tables,
        chosen if chosen is not None else batch.block_tables,
        out,
        partial,
        partial_lse,
        batch.num_sequences,
        splits,
        scale,
        batch.block_tables.stride(0),
        config=Config.of(
            TILE=tile,
            BLOCK_M=rows,
            BLOCK_R=block_r,
            BLOCK_P=max(MIN_DOT, next_power_of_2(dim - rank)),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        ),
        DIM=dim,
        SIZE=size,
        **shared,
    )
    if splits > 1:
        launch(
            join_kernel,
            (tokens, heads),
            partial,
            partial_lse,
            batch.query_start,
            batch.seq_lens,
            out,
            batch.num_sequences,
            splits,
            config=Config.of(TILE=tile, BLOCK_R=block_r, num_warps=4, num_stages=1),
            **shared,
        )
    return out


def latent_key(dim: int, rank: int, heads: int, size: int, dtype: torch.dtype, *, sparse: bool = False) -> str:
    """The tuning table's key."""
    seen = "_sparse" if sparse else ""
    return f"rank{rank}_dim{dim}_heads{heads}_{str(dtype).removeprefix('torch.')}_block{size}{seen}"


def default_config(heads: int, rank: int, dtype: torch.dtype, *, sparse: bool = False) -> Config:
    """TILE latents a turn, of BLOCK_M heads; parts have MIN_KEYS or more, and there are PROGRAMS_PER_SM of them. Where
    latents are chosen their places take registers, and 64 heads would spill."""
    if dtype == torch.float32:  # without tensor cores both factors of a product wait in registers
        return Config.of(TILE=MIN_DOT, BLOCK_M=MIN_DOT, MIN_KEYS=128, PROGRAMS_PER_SM=2, num_warps=8, num_stages=1)
    rows = min(32 if sparse else 64, max(MIN_DOT, next_power_of_2(heads)))
    return Config.of(TILE=32, BLOCK_M=rows, MIN_KEYS=128, PROGRAMS_PER_SM=2, num_warps=8, num_stages=2)
