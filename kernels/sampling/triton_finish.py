# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The last pass, one program per row: finds where the filters end, takes the Gumbel-max of the tokens that could win,
and records the choice."""

import triton
import triton.language as tl

from .triton_filter import row_peak
from .triton_noise import (
    BOUND_SLACK,
    NO_ID,
    below,
    gumbel,
    gumbel_bound,
    mass,
    noise_word,
    order_key,
    row_key,
)
from .triton_rows import (
    FALLBACK,
    FLAGS,
    INDEX,
    INVERSE_TEMPERATURE,
    MASK,
    MIN_P_THRESHOLD,
    PARAMS,
    PENALTIES,
    SEED,
    WORD,
    edits_of,
    float_number,
    load_logits,
    needs_filter,
    number,
    top_k_of,
    top_p_of,
)

_WORDS = tl.constexpr(1024)


@triton.jit
def load_members(
    start, n, listed, member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
    WORK: tl.constexpr, ROOM: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Loads CHUNK ids and logits, from the row's list if it is ``listed``, else from the row; -inf past the
    ``n``-th."""
    at = start + tl.arange(0, CHUNK)
    live = at < n
    from_list = live & (listed != 0)
    ids = tl.load(member_ids + row * ROOM + at, mask=from_list, other=0)
    x = tl.load(member_logits + row * ROOM + at, mask=from_list, other=-float("inf"))
    read = load_logits(logits, work, row, row_stride, vocabulary, at, live & (listed == 0), edited, WORK)
    return tl.where(listed != 0, ids, at), tl.where(listed != 0, x, read)


@triton.jit
def weigh(x, peak, inverse, min_p_threshold, keys, least, WEIGHTED: tl.constexpr):
    """Returns the masses, or ones, of the tokens that min-p and a least key keep; int64."""
    left = (x > -float("inf")) & (below(x, peak) >= min_p_threshold) & (keys >= least)
    if WEIGHTED:
        return tl.where(left, mass(below(x, peak) * inverse), 0)
    else:
        return left.to(tl.int64)


@triton.jit
def find_limit(
    need, n, listed, peak, inverse, min_p_threshold, least,
    member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
    WEIGHTED: tl.constexpr, WORK: tl.constexpr, ROOM: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Returns the largest order key (int32) such that the members with at least that key weigh ``need``, else
    ``least``.

    Each round sums above seven keys that divide the interval into eight. Every thread sums for itself until the round's
    end: with a sum over the program for each chunk, a row of 128,256 logits that were all read took an H200 3 ms.
    """
    low = least.to(tl.int64)
    high = order_key(peak).to(tl.int64) + 1
    while high - low > 1:
        step = tl.maximum((high - low) >> 3, 1)
        w1 = tl.zeros((CHUNK,), tl.int64)
        w2 = w1
        w3 = w1
        w4 = w1
        w5 = w1
        w6 = w1
        w7 = w1
        for start in range(0, n, CHUNK):
            _, x = load_members(
                start, n, listed, member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
                WORK, ROOM, CHUNK,
            )  # fmt: skip
            keys = order_key(x)
            weights = weigh(x, peak, inverse, min_p_threshold, keys, least, WEIGHTED)
            wide = keys.to(tl.int64)
            w1 += tl.where(wide >= low + step, weights, 0)
            w2 += tl.where(wide >= low + 2 * step, weights, 0)
            w3 += tl.where(wide >= low + 3 * step, weights, 0)
            w4 += tl.where(wide >= low + 4 * step, weights, 0)
            w5 += tl.where(wide >= low + 5 * step, weights, 0)
            w6 += tl.where(wide >= low + 6 * step, weights, 0)
            w7 += tl.where(wide >= low + 7 * step, weights, 0)
        reached = (
            (tl.sum(w1, 0) >= need).to(tl.int64) + (tl.sum(w2, 0) >= need).to(tl.int64)
            + (tl.sum(w3, 0) >= need).to(tl.int64) + (tl.sum(w4, 0) >= need).to(tl.int64)
            + (tl.sum(w5, 0) >= need).to(tl.int64) + (tl.sum(w6, 0) >= need).to(tl.int64)
            + (tl.sum(w7, 0) >= need).to(tl.int64)
        )  # fmt: skip
        high = tl.where(reached < 7, tl.minimum(low + (reached + 1) * step, high), high)
        low = low + reached * step
    return low.to(tl.int32)


@triton.jit
def needed_mass(top_p, total):
    need = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)
    return tl.minimum(tl.maximum(need, 1), total)


@triton.jit
def members_mass(
    n, listed, peak, inverse, min_p_threshold, least,
    member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
    WORK: tl.constexpr, ROOM: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Returns the mass of the members with at least the key ``least``."""
    total = tl.zeros((CHUNK,), tl.int64)
    for start in range(0, n, CHUNK):
        _, x = load_members(
            start, n, listed, member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
            WORK, ROOM, CHUNK,
        )  # fmt: skip
        total += weigh(x, peak, inverse, min_p_threshold, order_key(x), least, True)
    return tl.sum(total, 0)


@triton.jit
def nucleus_end(
    need, n, listed, peak, inverse, min_p_threshold, least,
    member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
    WORK: tl.constexpr, ROOM: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Returns the key and id of the last token that is needed for the members to weigh ``need``. All together must
    weigh that."""
    limit = find_limit(
        need, n, listed, peak, inverse, min_p_threshold, least,
        member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
        True, WORK, ROOM, CHUNK,
    )  # fmt: skip
    above_of = tl.zeros((CHUNK,), tl.int64)
    single_of = tl.full((CHUNK,), 1, tl.int64)
    ties_of = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, n, CHUNK):
        _, x = load_members(
            start, n, listed, member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
            WORK, ROOM, CHUNK,
        )  # fmt: skip
        keys = order_key(x)
        weights = weigh(x, peak, inverse, min_p_threshold, keys, limit, True)
        above_of += tl.where(keys > limit, weights, 0)
        single_of = tl.maximum(single_of, tl.where(keys == limit, weights, 0))
        ties_of += ((keys == limit) & (x > -float("inf"))).to(tl.int32)
    above, single, ties = tl.sum(above_of, 0), tl.max(single_of, 0), tl.sum(ties_of, 0)
    wanted = (need - above + single - 1) // single
    low = tl.full((), -1, tl.int32)  # fewer than `wanted` of the equals have an id up to `low`
    high = tl.full((), NO_ID, tl.int32)
    if wanted < ties:
        high = low * 0 + vocabulary
        while high - low > 1:
            middle = (low + high) >> 1
            reached = tl.full((), 0, tl.int32)
            for start in range(0, n, CHUNK):
                ids, x = load_members(
                    start, n, listed, member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
                    WORK, ROOM, CHUNK,
                )  # fmt: skip
                reached += tl.sum(((order_key(x) == limit) & (x > -float("inf")) & (ids <= middle)).to(tl.int32), 0)
            high = tl.where(reached >= wanted, middle, high)
            low = tl.where(reached >= wanted, low, middle)
    return limit, high


@triton.jit
def passes(x, ids, limit, limit_id, peak, min_p_threshold):
    """Whether the filters keep the tokens."""
    order = order_key(x)
    before_end = (order > limit) | ((order == limit) & (ids <= limit_id))
    return (x > -float("inf")) & (below(x, peak) >= min_p_threshold) & before_end


@triton.jit
def offer(x, ids, limit, limit_id, peak, inverse, min_p_threshold, key, best, winner):
    """Returns the Gumbel-max leader after these candidates; computes noise exactly only if a bound says that it could
    win."""
    kept = passes(x, ids, limit, limit_id, peak, min_p_threshold)
    z = below(x, peak) * inverse
    word = noise_word(key, ids)
    bound = tl.max(tl.where(kept, z + gumbel_bound(word), -float("inf")), 0)
    if bound.to(tl.float64) + BOUND_SLACK > best:
        value = tl.where(kept, z.to(tl.float64) + gumbel(word), -float("inf"))
        largest = tl.max(value, 0)
        at = tl.min(tl.where(kept & (value == largest), ids, NO_ID), 0)
        better = (largest > best) | ((largest == best) & (at < winner))
        best = tl.where(better, largest, best)
        winner = tl.where(better, at, winner)
    return best, winner


@triton.jit
def lowest_allowed(mask, slot, vocabulary):
    """Returns the lowest id that a mask allows; 0 if it allows none."""
    words = (vocabulary + WORD - 1) // WORD
    lowest = tl.full((), NO_ID, tl.int32)
    for start in range(0, words, _WORDS):
        at = start + tl.arange(0, _WORDS)
        bits = tl.load(mask + slot * words + at, mask=at < words, other=0)
        single = (bits & -bits).to(tl.uint32).to(tl.float32)  # a power of two: its exponent is the position
        places = (single.to(tl.int32, bitcast=True) >> 23) - 127
        lowest = tl.minimum(lowest, tl.min(tl.where(bits != 0, at * WORD + places, NO_ID), 0))
    return tl.where(lowest < vocabulary, lowest, 0)


@triton.jit
def choose_tokens(
    logits,
    row_stride,
    work,
    slots,
    slot_params,
    seen,
    mask,
    tile_max,
    tile_best,
    counts,
    masses,
    member_ids,
    member_logits,
    limits,
    out,
    vocabulary,
    tiles,
    SPAN: tl.constexpr,
    EDITS: tl.constexpr,
    SEEN: tl.constexpr,
    WORK: tl.constexpr,
    FILTERS: tl.constexpr,
    LISTS: tl.constexpr,
    LIMITS: tl.constexpr,
    ACCEPT: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    PART: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Grid [R]. Writes ``out`` [R] int64 and, with ACCEPT, counts the token as output of its slot.

    LISTS: ``gather_members`` has run. LIMITS: also writes ``limits`` [R, 2] int32, the order key and the id at which
    the row's filters end.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row // SPAN)
    if slot < 0:
        tl.store(out + row, tl.full((), 0, tl.int64))
        return
    place = (row % SPAN).to(tl.int32)
    inverse = float_number(slot_params, slot, INVERSE_TEMPERATURE)
    min_p_threshold = float_number(slot_params, slot, MIN_P_THRESHOLD)
    peak = row_peak(tile_max, row, tiles, TILES)
    edited = tl.full((), 0, tl.int64)
    if EDITS:
        edited = edits_of(slot_params, slot, place)
    tile = tl.arange(0, TILES)
    maxima = tl.load(tile_max + row * tiles + tile, mask=tile < tiles, other=-float("inf"))
    bests = tl.load(tile_best + row * tiles + tile, mask=tile < tiles, other=NO_ID)
    token = tl.full((), -1, tl.int32)
    limit = order_key(tl.full((), -float("inf"), tl.float32))
    limit_id = tl.full((), NO_ID, tl.int32)
    if peak > -float("inf"):
        if inverse == 0.0:
            token = tl.min(tl.where(maxima == peak, bests, NO_ID), 0)
        else:
            key = row_key(number(slot_params, slot, SEED), number(slot_params, slot, INDEX) + place)
            best = tl.full((), -float("inf"), tl.float64)
            winner = tl.full((), NO_ID, tl.int32)
            top_k = tl.full((), 0, tl.int64)
            n = tl.full((), 0, tl.int32) + vocabulary
            listed = tl.full((), 0, tl.int32)
            if FILTERS:
                top_k = top_k_of(slot_params, slot, vocabulary)
                top_p = top_p_of(slot_params, slot)
                if needs_filter(slot_params, slot, vocabulary):
                    total = tl.full((), 0, tl.int64)
                    above = tl.full((), 0, tl.int64)
                    if LISTS:
                        found = tl.load(counts + row)
                        listed = (found <= ROOM).to(tl.int32)
                        if top_k == 0:
                            at = masses + (row * tiles + tile) * 2
                            total = tl.sum(tl.load(at, mask=tile < tiles, other=0), 0)
                            above = tl.sum(tl.load(at + 1, mask=tile < tiles, other=0), 0)
                            listed = listed & (above < needed_mass(top_p, total)).to(tl.int32)
                        n = tl.where(listed != 0, found, vocabulary)
                    if top_k > 0:
                        limit = find_limit(
                            top_k, n, listed, peak, inverse, min_p_threshold, limit,
                            member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
                            False, WORK, ROOM, CHUNK,
                        )  # fmt: skip
                    if top_p < 1.0:
                        weight = members_mass(
                            n, listed, peak, inverse, min_p_threshold, limit,
                            member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
                            WORK, ROOM, CHUNK,
                        )  # fmt: skip
                        if (top_k > 0) | (total == 0):
                            total = weight
                            above = above * 0
                        need = needed_mass(top_p, total)
                        if (top_k == 0) & ((listed == 0) | (above + weight < need)):  # the guess was wrong
                            listed = listed * 0
                            n = n * 0 + vocabulary
                            above = above * 0
                        limit, limit_id = nucleus_end(
                            need - above, n, listed, peak, inverse, min_p_threshold, limit,
                            member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
                            WORK, ROOM, CHUNK,
                        )  # fmt: skip
            if top_k > 0:
                for start in range(0, n, PART):
                    ids, x = load_members(
                        start, n, listed, member_ids, member_logits, logits, row_stride, work, row, vocabulary, edited,
                        WORK, ROOM, PART,
                    )  # fmt: skip
                    best, winner = offer(x, ids, limit, limit_id, peak, inverse, min_p_threshold, key, best, winner)
            else:
                # Visits the tiles in the order of the best values they could reach, until none could win.
                bounds = below(maxima, peak) * inverse + bests.to(tl.float32, bitcast=True) + BOUND_SLACK
                bounds = tl.where(maxima > -float("inf"), bounds, -float("inf"))
                largest = tl.max(bounds, 0)
                while largest.to(tl.float64) > best:
                    chosen = tl.min(tl.where(bounds == largest, tile, TILES), 0)
                    for start in range(0, BLOCK, PART):
                        ids = chosen * BLOCK + start + tl.arange(0, PART)
                        x = load_logits(logits, work, row, row_stride, vocabulary, ids, ids < vocabulary, edited, WORK)
                        best, winner = offer(x, ids, limit, limit_id, peak, inverse, min_p_threshold, key, best, winner)
                    bounds = tl.where(tile == chosen, -float("inf"), bounds)
                    largest = tl.max(bounds, 0)
            token = winner
    if LIMITS:
        tl.store(limits + row * 2, limit)
        tl.store(limits + row * 2 + 1, limit_id)
    if EDITS and token < 0:
        fallback = number(slot_params, slot, FALLBACK).to(tl.int32)
        if fallback >= 0:
            token = fallback
        elif (number(slot_params, slot, FLAGS) & MASK) != 0:
            token = lowest_allowed(mask, slot, vocabulary)
        else:
            token = token * 0
    tl.store(out + row, token.to(tl.int64))
    if ACCEPT:
        tl.debug_barrier()  # all threads have read the index
        tl.store(slot_params + slot * PARAMS + INDEX, number(slot_params, slot, INDEX) + 1)
        if SEEN and (number(slot_params, slot, FLAGS) & PENALTIES) != 0:
            counted = seen + slot * vocabulary + token
            tl.store(counted, tl.load(counted) + 1)
