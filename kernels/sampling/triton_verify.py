"""Launches the verification of drafted tokens."""

import torch
import triton

from ..launch import launch
from ..tuning import Config
from .tables import SamplerTables
from .triton_rejection import gumbel_max_residual, rejection_sample, sum_weights, take_tokens
from .triton_step import draw_rows


def verify_(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    slots: torch.Tensor,
    tables: SamplerTables,
    tokens: torch.Tensor,
    accepted: torch.Tensor,
) -> None:
    """See :func:`stentor.kernels.sampling.verify_`."""
    sequences, span, vocabulary = logits.shape
    rows = logits.flatten(0, 1)
    sampled_token_ids = torch.empty(sequences * span, dtype=torch.int64, device=logits.device)
    probable = draft_probs is not None
    step = draw_rows(rows, slots, tables.params, tables, sampled_token_ids, drafts=drafts, limits=probable)

    tiles = step.tile_max.shape[1]
    tile_count = triton.next_power_of_2(tiles)
    config = Config.of(num_warps=1, fuse_multiply_add=False)
    wide = Config.of(BLOCK=step.block, num_warps=8, fuse_multiply_add=False)
    shared = {"SPAN": span, "EDITS": True, "WORK": logits.dtype != torch.float32, "TILES": tile_count}
    row = (rows, rows.stride(0), step.work, slots, tables.params, step.tile_max, step.limits)
    q = sampled_token_ids if draft_probs is None else draft_probs
    sums = torch.empty(step.tile_max.shape if probable else 1, dtype=torch.float32, device=logits.device)
    leaders = (sequences, tiles) if probable else 1
    tile_value = torch.empty(leaders, dtype=torch.float64, device=logits.device)
    tile_winner = torch.empty(leaders, dtype=torch.int32, device=logits.device)
    if probable:
        launch(sum_weights, (sequences * span, tiles), *row, sums, vocabulary, tiles, config=wide, **shared)
    launch(
        rejection_sample, (sequences,), *row, sums, drafts, q, sampled_token_ids, accepted, vocabulary, tiles,
        config=config, PROBABLE=probable, **shared,
    )  # fmt: skip
    if probable:
        launch(
            gumbel_max_residual, (sequences, tiles), *row, sums, q, accepted, tile_value, tile_winner,
            vocabulary, tiles, config=wide, **shared,
        )  # fmt: skip
    launch(
        take_tokens, (sequences,), slots, tables.params, tables.seen, drafts, sampled_token_ids, accepted, tile_value,
        tile_winner, tokens, vocabulary, tiles, config=config, SPAN=span,
        SEEN=tables.seen.shape[1] > 0, PROBABLE=probable, TILES=tile_count,
    )  # fmt: skip
