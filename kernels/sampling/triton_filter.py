# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Top-k and top-p without a sort: guesses where the limit is, gathers the few tokens near it, and sums the rest
exactly.

``bracket_limits`` guesses, for each row with such a filter, an interval of z that holds the filter's limit. z is (logit
- largest logit) / temperature.

- With top-k, it reaches from the k-th largest of the blocks' maxima up: at least k tokens are as large.
- With top-p alone, it follows from the mass of the blocks' maxima, each counted as itself, and of a sample of all other
  tokens, one in each stretch of V / SAMPLES, counted as many times. The interval is four standard errors wide to either
  side.

``gather_members`` lists the tokens in the interval, and sums the masses of all tokens and of those above it. These sums
are exact, so ``choose_tokens`` knows whether the guess was right; if not, it reads the row.
"""

import triton
import triton.language as tl

from .triton_noise import LIGHTEST, below, key_value, mass, mix32, order_key
from .triton_rows import (
    INVERSE_TEMPERATURE,
    MIN_P_THRESHOLD,
    edits_of,
    float_number,
    load_logits,
    needs_filter,
    top_k_of,
    top_p_of,
)

_STEPS = tl.constexpr(18)
"""Bisection steps in the search for a threshold, which narrow the interval to 1e-4."""
_STANDARD_ERRORS = tl.constexpr(4.0)


@triton.jit
def row_peak(tile_max, row, tiles, TILES: tl.constexpr):
    """Returns the row's largest logit."""
    at = tl.arange(0, TILES)
    return tl.max(tl.load(tile_max + row * tiles + at, mask=at < tiles, other=-float("inf")), 0)


@triton.jit
def bracket_limits(
    logits,
    row_stride,
    work,
    slots,
    slot_params,
    tile_max,
    block_max,
    brackets,
    counts,
    vocabulary,
    tiles,
    SPAN: tl.constexpr,
    EDITS: tl.constexpr,
    WORK: tl.constexpr,
    TILES: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    SAMPLES: tl.constexpr,
):
    """Grid [R]. Writes ``brackets`` [R, 2] float32, the bounds from and below which z is gathered, and zeroes
    ``counts`` [R]."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row // SPAN)
    if slot < 0:
        return
    if needs_filter(slot_params, slot, vocabulary) == 0:
        return
    place = (row % SPAN).to(tl.int32)
    inverse = float_number(slot_params, slot, INVERSE_TEMPERATURE)
    min_p_threshold = float_number(slot_params, slot, MIN_P_THRESHOLD)
    top_k = top_k_of(slot_params, slot, vocabulary)
    peak = row_peak(tile_max, row, tiles, TILES)
    tl.store(counts + row, 0)

    stored = tiles * (BLOCK // GROUP)
    at = tl.arange(0, BLOCKS)
    maxima = tl.load(block_max + row * stored + at, mask=at < stored, other=-float("inf"))
    low = LIGHTEST
    high = 1.0
    if top_k > 0:
        if top_k <= BLOCKS:
            keys = order_key(maxima)
            least = order_key(tl.full((), -float("inf"), tl.float32)).to(tl.int64)
            beyond = order_key(peak).to(tl.int64) + 1
            while beyond - least > 1:
                middle = (least + beyond) >> 1
                enough = tl.sum((keys >= middle.to(tl.int32)).to(tl.int32), 0) >= top_k
                least = tl.where(enough, middle, least)
                beyond = tl.where(enough, beyond, middle)
            low = tl.maximum(low, below(key_value(least.to(tl.int32)), peak) * inverse)
    else:
        top_p = top_p_of(slot_params, slot).to(tl.float32)
        z_maxima = below(maxima, peak) * inverse
        known = (maxima > -float("inf")) & (below(maxima, peak) >= min_p_threshold)
        weights = tl.where(known, tl.exp(z_maxima), 0.0)

        stretch = (vocabulary + SAMPLES - 1) // SAMPLES
        sample = tl.arange(0, SAMPLES)
        ids = sample * stretch + (mix32(sample.to(tl.uint32) + 1) % stretch.to(tl.uint32)).to(tl.int32)
        live = ids < vocabulary
        edited = tl.full((), 0, tl.int64)
        if EDITS:
            edited = edits_of(slot_params, slot, place)
        x = load_logits(logits, work, row, row_stride, vocabulary, ids, live, edited, WORK)
        own = tl.load(block_max + row * stored + ids // GROUP, mask=live, other=-float("inf"))
        z = below(x, peak) * inverse
        counted = live & (x > -float("inf")) & (x < own) & (below(x, peak) >= min_p_threshold)
        sampled = tl.where(counted, tl.exp(z), 0.0)
        times = stretch.to(tl.float32)

        total = tl.sum(weights, 0) + times * tl.sum(sampled, 0)
        need = top_p * total
        least = LIGHTEST
        beyond = 1.0
        for _ in range(_STEPS):
            middle = 0.5 * (least + beyond)
            above = tl.sum(tl.where(z_maxima >= middle, weights, 0.0), 0)
            above += times * tl.sum(tl.where(z >= middle, sampled, 0.0), 0)
            least = tl.where(above >= need, middle, least)
            beyond = tl.where(above >= need, beyond, middle)
        squares = sampled * sampled
        inside = tl.sum(tl.where(z >= least, squares, 0.0), 0)
        outside = tl.sum(squares, 0) - inside
        variance = (1.0 - top_p) * (1.0 - top_p) * inside + top_p * top_p * outside
        margin = _STANDARD_ERRORS * times * tl.sqrt(tl.maximum(variance, 0.0)) + 1e-5 * total
        over = need + margin
        under = need - margin
        low_beyond = beyond
        high_least = least
        high = 1.0
        for _ in range(_STEPS):
            middle = 0.5 * (low + low_beyond)
            above = tl.sum(tl.where(z_maxima >= middle, weights, 0.0), 0)
            above += times * tl.sum(tl.where(z >= middle, sampled, 0.0), 0)
            low = tl.where(above >= over, middle, low)
            low_beyond = tl.where(above >= over, low_beyond, middle)
            middle = 0.5 * (high_least + high)
            above = tl.sum(tl.where(z_maxima >= middle, weights, 0.0), 0)
            above += times * tl.sum(tl.where(z >= middle, sampled, 0.0), 0)
            high = tl.where(above <= under, middle, high)
            high_least = tl.where(above <= under, high_least, middle)
    tl.store(brackets + row * 2, low)
    tl.store(brackets + row * 2 + 1, high)


@triton.jit
def gather_members(
    logits,
    row_stride,
    work,
    slots,
    slot_params,
    tile_max,
    block_max,
    brackets,
    counts,
    masses,
    member_ids,
    member_logits,
    vocabulary,
    tiles,
    SPAN: tl.constexpr,
    EDITS: tl.constexpr,
    WORK: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Grid [R, tiles]. Adds the tile's tokens inside the bracket to the row's list, in no particular order.

    ``counts`` [R] int32 grows by all of them, also those beyond ROOM. ``masses`` [R, tiles, 2] int64, for rows without
    top-k only: the mass of the tokens that min-p keeps, and of those among them above the bracket.
    """
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    slot = tl.load(slots + row // SPAN)
    if slot < 0:
        return
    if needs_filter(slot_params, slot, vocabulary) == 0:
        return
    inverse = float_number(slot_params, slot, INVERSE_TEMPERATURE)
    min_p_threshold = float_number(slot_params, slot, MIN_P_THRESHOLD)
    with_masses = top_k_of(slot_params, slot, vocabulary) == 0
    peak = row_peak(tile_max, row, tiles, TILES)
    low = tl.load(brackets + row * 2)
    high = tl.load(brackets + row * 2 + 1)
    floor = tl.where(with_masses, LIGHTEST, low)

    blocks: tl.constexpr = BLOCK // GROUP
    block = tl.arange(0, blocks)
    largest = tl.load(block_max + (row * tiles + tile) * blocks + block)
    wanted = below(largest, peak) * inverse >= floor
    ids = tile * BLOCK + block[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    edited = tl.full((), 0, tl.int64)
    if EDITS:
        edited = edits_of(slot_params, slot, (row % SPAN).to(tl.int32))
    live = (ids < vocabulary) & wanted[:, None]
    x = load_logits(logits, work, row, row_stride, vocabulary, ids, live, edited, WORK)
    x, ids = tl.reshape(x, (BLOCK,)), tl.reshape(ids, (BLOCK,))
    z = below(x, peak) * inverse
    kept = (x > -float("inf")) & (below(x, peak) >= min_p_threshold)
    if with_masses:
        weights = tl.where(kept, mass(z), 0)
        at = masses + (row * tiles + tile) * 2
        tl.store(at, tl.sum(weights, 0))
        tl.store(at + 1, tl.sum(tl.where(z >= high, weights, 0), 0))
    member = kept & (z >= low) & (z < high)
    ones = member.to(tl.int32)
    found = tl.sum(ones, 0)
    if found > 0:
        begin = tl.atomic_add(counts + row, found)
        to = begin + tl.cumsum(ones, 0) - ones
        fits = member & (to < ROOM)
        tl.store(member_ids + row * ROOM + to, ids, mask=fits)
        tl.store(member_logits + row * ROOM + to, x, mask=fits)
