"""Launches the Triton kernels with grids from host numbers alone, so that a captured launch is right for any
lengths."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..attention import AttentionBatch
from ..attention.triton_decode import MIN_DOT, multiprocessors, padded_rows
from ..launching.launch import cdiv, next_power_of_2
from ..launching.repeated import Start, prepare
from ..tuning import Config, pick
from .triton_kernels import join_kernel, latent_kernel

OPERATION = "latent_attention"


class LatentLaunch(NamedTuple):
    """A launch with everything fixed except the addresses of tensors."""

    attend: Start
    join: Start | None
    """None if each token has one program."""
    shape: tuple[int, int, int]
    """The shape of the result."""
    kept: int
    """Parts per token that are to be joined."""

    def run(
        self, q: Tensor, cache: Tensor, batch: AttentionBatch, chosen: Tensor | None, sinks: Tensor | None
    ) -> Tensor:
        """Launches the kernels. Nothing waits for the device, and nothing on it is checked."""
        tokens, heads, rank = self.shape
        out = q.new_empty(self.shape)
        partial = torch.empty((tokens, heads, self.kept, rank), dtype=torch.float32, device=q.device)
        partial_lse = torch.empty((tokens, heads, self.kept), dtype=torch.float32, device=q.device)
        starts, lens, tables = batch.query_start, batch.seq_lens, batch.block_tables
        choices = tables if chosen is None else chosen
        self.attend(q, cache, starts, lens, tables, choices, sinks, out, partial, partial_lse)
        if self.join is not None:
            self.join(partial, partial_lse, starts, lens, sinks, out)
        return out


def prepare_latents(
    q: Tensor,
    cache: Tensor,
    batch: AttentionBatch,
    rank: int,
    scale: float,
    chosen: Tensor | None,
    pool: int,
    sinks: Tensor | None,
) -> LatentLaunch:
    """Returns the prepared launch of :func:`stentor.kernels.latent_attention`."""
    tokens, heads, dim = q.shape
    size = cache.shape[1]
    sparse = chosen is not None
    key = latent_key(dim, rank, heads, size, q.dtype, sparse=sparse)
    config = pick(OPERATION, key, default_config(heads, q.dtype, sparse=sparse))
    tile, rows = config["TILE"], config["BLOCK_M"]
    m_blocks = cdiv(heads, rows)
    top = 0 if chosen is None else chosen.shape[1]
    most = cdiv(min(batch.max_seq_len, top or batch.max_seq_len), config["MIN_KEYS"])
    wanted = cdiv(multiprocessors(q.device) * config["PROGRAMS_PER_SM"], max(1, tokens * m_blocks))
    splits = max(1, min(most, wanted))
    shape, kept = (tokens, heads, rank), splits if splits > 1 else 0
    out = q.new_empty(shape)
    partial, partial_lse = (q.new_empty(0, dtype=torch.float32) for _ in range(2))
    starts, lens, tables = batch.query_start, batch.seq_lens, batch.block_tables
    shared = {
        "HEADS": heads,
        "RANK": rank,
        "TOP": top,
        "POOL": pool,
        "SEQUENCES": padded_rows(batch.num_sequences),
        "MIN_TILES": cdiv(config["MIN_KEYS"], tile),
    }
    block_r = max(MIN_DOT, next_power_of_2(rank))
    attend = prepare(
        latent_kernel,
        (tokens * m_blocks, splits),
        (q, cache, starts, lens, tables, tables if chosen is None else chosen, sinks, out, partial, partial_lse),
        batch.num_sequences,
        splits,
        scale,
        tables.stride(0),
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
    join = None
    if splits > 1:
        join = prepare(
            join_kernel,
            (tokens, heads),
            (partial, partial_lse, starts, lens, sinks, out),
            batch.num_sequences,
            splits,
            config=Config.of(TILE=tile, BLOCK_R=block_r, num_warps=4, num_stages=1),
            **shared,
        )
    return LatentLaunch(attend, join, shape, kept)


def latent_key(dim: int, rank: int, heads: int, size: int, dtype: torch.dtype, *, sparse: bool = False) -> str:
    """Returns the tuning table's key."""
    seen = "_sparse" if sparse else ""
    return f"rank{rank}_dim{dim}_heads{heads}_{str(dtype).removeprefix('torch.')}_block{size}{seen}"


def default_config(heads: int, dtype: torch.dtype, *, sparse: bool = False) -> Config:
    """Returns the default: TILE latents per iteration, of BLOCK_M heads; parts have MIN_KEYS or more, with
    PROGRAMS_PER_SM of them.

    If latents are chosen, their positions take registers, and 64 heads would spill.
    """
    if dtype == torch.float32:  # without tensor cores both factors of a product are held in registers
        return Config.of(TILE=MIN_DOT, BLOCK_M=MIN_DOT, MIN_KEYS=128, PROGRAMS_PER_SM=2, num_warps=8, num_stages=1)
    rows = min(32 if sparse else 64, max(MIN_DOT, next_power_of_2(heads)))
    return Config.of(TILE=32, BLOCK_M=rows, MIN_KEYS=128, PROGRAMS_PER_SM=2, num_warps=8, num_stages=2)
