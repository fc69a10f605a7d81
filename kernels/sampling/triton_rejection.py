# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Rejection sampling after the draws: which drafts are accepted, and which token follows them."""

import torch
import triton
import triton.language as tl

from ..launching.launch import launch
from ..tuning import Config
from . import tables
from .tables import SamplerTables
from .triton_filter import row_peak
from .triton_finish import passes
from .triton_noise import NO_ID, below, gumbel, ln, noise_word, row_key
from .triton_rows import (
    FLAGS,
    INDEX,
    INVERSE_TEMPERATURE,
    MIN_P_THRESHOLD,
    PARAMS,
    PENALTIES,
    SEED,
    edits_of,
    float_number,
    load_logits,
    number,
)
from .triton_step import draw_rows

RESIDUAL_NOISE = tl.constexpr(tables.RESIDUAL_NOISE)
ACCEPT_NOISE = tl.constexpr(tables.ACCEPT_NOISE)


@triton.jit
def load_weights(
    logits, row_stride, work, slot_params, limits, row, slot, place, peak, ids, live, vocabulary,
    EDITS: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """Returns exp of the logits that the filters keep, relative to the most likely token, which has 1; float32."""
    edited = tl.full((), 0, tl.int64)
    if EDITS:
        edited = edits_of(slot_params, slot, place)
    x = load_logits(logits, work, row, row_stride, vocabulary, ids, live, edited, WORK)
    limit, limit_id = tl.load(limits + row * 2), tl.load(limits + row * 2 + 1)
    kept = passes(x, ids, limit, limit_id, peak, float_number(slot_params, slot, MIN_P_THRESHOLD))
    return tl.where(kept & live, tl.exp(below(x, peak) * float_number(slot_params, slot, INVERSE_TEMPERATURE)), 0.0)


@triton.jit
def sum_weights(
    logits, row_stride, work, slots, slot_params, tile_max, limits, sums, vocabulary, tiles,
    SPAN: tl.constexpr, EDITS: tl.constexpr, WORK: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid [S * SPAN, tiles]. Writes ``sums`` [S * SPAN, tiles] float32 for rows that draw."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    slot = tl.load(slots + row // SPAN)
    if slot < 0:
        return
    if float_number(slot_params, slot, INVERSE_TEMPERATURE) == 0.0:
        return
    peak = row_peak(tile_max, row, tiles, TILES)
    ids = tile * BLOCK + tl.arange(0, BLOCK)
    place = (row % SPAN).to(tl.int32)
    weights = load_weights(
        logits,
        row_stride,
        work,
        slot_params,
        limits,
        row,
        slot,
        place,
        peak,
        ids,
        ids < vocabulary,
        vocabulary,
        EDITS,
        WORK,
    )
    tl.store(sums + row * tiles + tile, tl.sum(weights, 0))


@triton.jit
def rejection_sample(
    logits, row_stride, work, slots, slot_params, tile_max, limits, sums, drafts, draft_probs, sampled_token_ids,
    accepted, vocabulary, tiles,
    SPAN: tl.constexpr, EDITS: tl.constexpr, WORK: tl.constexpr, PROBABLE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Grid [S]. Writes ``accepted``."""
    sequence = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + sequence)
    if slot < 0:
        tl.store(accepted + sequence, tl.full((), 0, tl.int64))
        return
    stands = tl.full((), 1, tl.int32)
    count = tl.full((), 0, tl.int64)
    for place in range(0, SPAN - 1):
        row = sequence * SPAN + place
        draft = tl.load(drafts + sequence * (SPAN - 1) + place)
        agrees = (tl.load(sampled_token_ids + row) == draft).to(tl.int32)
        if PROBABLE and float_number(slot_params, slot, INVERSE_TEMPERATURE) > 0.0:
            tile = tl.arange(0, TILES)
            total = tl.sum(tl.load(sums + row * tiles + tile, mask=tile < tiles, other=0.0), 0)
            real = (draft >= 0) & (draft < vocabulary)
            peak = row_peak(tile_max, row, tiles, TILES)
            ids = tl.where(real, draft, 0).to(tl.int32) + tl.arange(0, 1)
            weights = load_weights(
                logits, row_stride, work, slot_params, limits, row, slot, place, peak, ids, ids < vocabulary,
                vocabulary, EDITS, WORK,
            )  # fmt: skip
            p = (tl.sum(weights, 0) / total).to(tl.float64)
            q = tl.load(draft_probs + (sequence * (SPAN - 1) + place) * vocabulary + tl.where(real, draft, 0))
            key = row_key(number(slot_params, slot, SEED) ^ ACCEPT_NOISE, number(slot_params, slot, INDEX) + place)
            u = (noise_word(key, tl.full((), 0, tl.int32)).to(tl.float64) + 0.5) * 2.3283064365386963e-10
            agrees = (real & (u * q.to(tl.float64) < p)).to(tl.int32)
        stands = stands & agrees
        count += stands
    tl.store(accepted + sequence, count)


@triton.jit
def gumbel_max_residual(
    logits, row_stride, work, slots, slot_params, tile_max, limits, sums, draft_probs, accepted, tile_value,
    tile_winner, vocabulary, tiles,
    SPAN: tl.constexpr, EDITS: tl.constexpr, WORK: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid [S, tiles]. Finds the tile's leader in a draw from max(p - q, 0), for sequences with a rejected draft."""
    sequence = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    slot = tl.load(slots + sequence)
    if slot < 0:
        return
    place = tl.load(accepted + sequence).to(tl.int32)
    if (place == SPAN - 1) | (float_number(slot_params, slot, INVERSE_TEMPERATURE) == 0.0):
        return
    row = sequence * SPAN + place
    others = tl.arange(0, TILES)
    total = tl.sum(tl.load(sums + row * tiles + others, mask=others < tiles, other=0.0), 0)
    peak = row_peak(tile_max, row, tiles, TILES)
    ids = tile * BLOCK + tl.arange(0, BLOCK)
    live = ids < vocabulary
    weights = load_weights(
        logits, row_stride, work, slot_params, limits, row, slot, place, peak, ids, live, vocabulary, EDITS, WORK
    )
    q = tl.load(draft_probs + (sequence * (SPAN - 1) + place) * vocabulary + ids, mask=live, other=0.0)
    residual = weights / total - q
    left = live & (residual > 0.0)
    key = row_key(number(slot_params, slot, SEED) ^ RESIDUAL_NOISE, number(slot_params, slot, INDEX) + place)
    log_residual = ln(tl.where(left, residual, 1.0).to(tl.float64))
    value = tl.where(left, log_residual + gumbel(noise_word(key, ids)), -float("inf"))
    best = tl.max(value, 0)
    tl.store(tile_value + sequence * tiles + tile, best)
    tl.store(tile_winner + sequence * tiles + tile, tl.min(tl.where(left & (value == best), ids, NO_ID), 0))


@triton.jit
def take_tokens(
    slots, slot_params, seen, drafts, sampled_token_ids, accepted, tile_value, tile_winner, tokens, vocabulary, tiles,
    SPAN: tl.constexpr, SEEN: tl.constexpr, PROBABLE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Grid [S]. Writes ``tokens`` and counts them as output of the slot."""
    sequence = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + sequence)
    count = tl.load(accepted + sequence)
    last = tl.load(sampled_token_ids + sequence * SPAN + count)
    penalised = tl.full((), 0, tl.int64)
    if slot >= 0:
        if PROBABLE and (float_number(slot_params, slot, INVERSE_TEMPERATURE) > 0.0) & (count < SPAN - 1):
            tile = tl.arange(0, TILES)
            at = sequence * tiles + tile
            value = tl.load(tile_value + at, mask=tile < tiles, other=-float("inf"))
            winner = tl.load(tile_winner + at, mask=tile < tiles, other=NO_ID)
            best = tl.max(value, 0)
            corrected = tl.min(tl.where(value == best, winner, NO_ID), 0)
            last = tl.where(best > -float("inf"), corrected.to(tl.int64), last)
        penalised = number(slot_params, slot, FLAGS) & PENALTIES
        tl.debug_barrier()
        tl.store(slot_params + slot * PARAMS + INDEX, number(slot_params, slot, INDEX) + count + 1)
    for place in range(0, SPAN):
        token = last
        if place < count:
            token = tl.load(drafts + sequence * (SPAN - 1) + place)
        if SEEN and (penalised != 0) & (place <= count):
            tl.atomic_add(seen + slot * vocabulary + token, 1)
        token = tl.where(place <= count, token, -1)
        tl.store(tokens + sequence * SPAN + place, tl.where(slot >= 0, token, 0))


def verify_(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    slots: torch.Tensor,
    tables: SamplerTables,
    tokens: torch.Tensor,
    accepted: torch.Tensor,
) -> None:
    """Computes :func:`stentor.kernels.sampling.verify_`."""
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
