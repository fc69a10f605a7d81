# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The first pass: edits the logits of rows with edits, and reduces each tile of each row to a few numbers."""

import triton
import triton.language as tl

from .triton_noise import NO_ID, below, clean, gumbel_bound, noise_word, row_key
from .triton_rows import (
    BIAS,
    EARLY_MASK,
    INDEX,
    INVERSE_TEMPERATURE,
    MASK,
    PENALTIES,
    SEED,
    WORD,
    add_bias,
    allowed,
    edits_of,
    float_number,
    needs_filter,
    number,
    penalised,
    top_k_of,
)


@triton.jit
def scan_tiles(
    logits,
    row_stride,
    work,
    slots,
    drafts,
    slot_params,
    seen,
    mask,
    early_mask,
    bias_ids,
    bias_values,
    tile_max,
    tile_best,
    block_max,
    vocabulary,
    SPAN: tl.constexpr,
    EDITS: tl.constexpr,
    SEEN: tl.constexpr,
    WORK: tl.constexpr,
    FILTERS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Grid [R, tiles].

    Writes by row and tile ``tile_max``, the largest logit, and ``tile_best``. For a greedy row the latter is the lowest
    id with that logit (int32). For a row that draws it is a bound (the bits of a float32) of ``z + gumbel`` over the
    tile, with z relative to the tile's largest logit. For rows with top-k or top-p also writes ``block_max``, the
    largest of each GROUP logits.
    """
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    sequence = row // SPAN
    place = (row % SPAN).to(tl.int32)
    slot = tl.load(slots + sequence)
    if slot < 0:
        return
    first = tile * BLOCK
    ids = first + tl.arange(0, BLOCK)
    live = ids < vocabulary
    x = tl.load(logits + row * row_stride + ids, mask=live, other=-float("inf")).to(tl.float32)
    if EDITS:
        edits = edits_of(slot_params, slot, place)
        if edits != 0:
            target = work + row * vocabulary if WORK else logits + row * row_stride
            if SEEN and (edits & PENALTIES) != 0:
                x = penalised(x, ids, live, seen, slot, place, slot_params, drafts, sequence, vocabulary, SPAN)
            if (edits & BIAS) != 0:
                x = add_bias(x, ids, live, target, first, slot, slot_params, bias_ids, bias_values, BLOCK)
            words = (vocabulary + WORD - 1) // WORD
            if (edits & MASK) != 0:
                x = tl.where(allowed(ids, live, mask, slot, words), x, -float("inf"))
            if (edits & EARLY_MASK) != 0:
                x = tl.where(allowed(ids, live, early_mask, slot, words), x, -float("inf"))
            tl.store(target + ids, x, mask=live)
    x = clean(x)
    at = row * tl.num_programs(1) + tile
    largest = tl.max(x, 0)
    tl.store(tile_max + at, largest)
    inverse = float_number(slot_params, slot, INVERSE_TEMPERATURE)
    if inverse == 0.0:
        tl.store(tile_best + at, tl.min(tl.where((x == largest) & live, ids, NO_ID), 0))
    elif top_k_of(slot_params, slot, vocabulary) == 0:
        key = row_key(number(slot_params, slot, SEED), number(slot_params, slot, INDEX) + place)
        bound = below(x, largest) * inverse + gumbel_bound(noise_word(key, ids))
        best = tl.max(tl.where(x > -float("inf"), bound, -float("inf")), 0)
        tl.store(tile_best + at, best.to(tl.int32, bitcast=True))
    if FILTERS and needs_filter(slot_params, slot, vocabulary):
        blocks: tl.constexpr = BLOCK // GROUP
        largest_of = tl.max(tl.reshape(x, (blocks, GROUP)), 1)
        tl.store(block_max + at * blocks + tl.arange(0, blocks), largest_of)
