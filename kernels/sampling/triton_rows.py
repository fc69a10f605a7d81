# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Shared by every pass over the logits: a row's parameters, its logits, and their edits."""

import triton
import triton.language as tl

from . import tables
from .triton_noise import clean

PARAMS = tl.constexpr(tables.PARAMS)
SEED = tl.constexpr(tables.SEED)
INDEX = tl.constexpr(tables.INDEX)
INVERSE_TEMPERATURE = tl.constexpr(tables.INVERSE_TEMPERATURE)
MIN_P_THRESHOLD = tl.constexpr(tables.MIN_P_THRESHOLD)
TOP_P = tl.constexpr(tables.TOP_P)
TOP_K = tl.constexpr(tables.TOP_K)
MIN_TOKENS = tl.constexpr(tables.MIN_TOKENS)
REPETITION = tl.constexpr(tables.REPETITION)
FREQUENCY = tl.constexpr(tables.FREQUENCY)
PRESENCE = tl.constexpr(tables.PRESENCE)
FLAGS = tl.constexpr(tables.FLAGS)
FALLBACK = tl.constexpr(tables.FALLBACK)
BIAS_COUNT = tl.constexpr(tables.BIAS_COUNT)
PENALTIES = tl.constexpr(tables.PENALTIES)
BIAS = tl.constexpr(tables.BIAS)
MASK = tl.constexpr(tables.MASK)
EARLY_MASK = tl.constexpr(tables.EARLY_MASK)
COUNT = tl.constexpr(tables.IN_PROMPT - 1)
MAX_BIAS = tl.constexpr(tables.MAX_BIAS)
WORD = tl.constexpr(tables.WORD)
BIAS_CHUNK = tl.constexpr(512)


@triton.jit
def number(slot_params, slot, COLUMN: tl.constexpr):
    """Loads an int64 entry."""
    return tl.load(slot_params + slot * PARAMS + COLUMN)


@triton.jit
def float_number(slot_params, slot, COLUMN: tl.constexpr):
    """Loads a float32 entry."""
    return number(slot_params, slot, COLUMN).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def top_p_of(slot_params, slot):
    return number(slot_params, slot, TOP_P).to(tl.float64, bitcast=True)


@triton.jit
def top_k_of(slot_params, slot, vocabulary):
    """Returns top-k; 0 if all are kept."""
    top_k = number(slot_params, slot, TOP_K)
    return tl.where(top_k < vocabulary, top_k, 0)


@triton.jit
def needs_filter(slot_params, slot, vocabulary):
    """Whether top-k or top-p apply; min-p only needs the largest logit."""
    limited = (top_k_of(slot_params, slot, vocabulary) > 0) | (top_p_of(slot_params, slot) < 1.0)
    return limited & (float_number(slot_params, slot, INVERSE_TEMPERATURE) > 0.0)


@triton.jit
def edits_of(slot_params, slot, place):
    """Returns which edits the row has at this output index, as flags; at most one of the two masks."""
    flags = number(slot_params, slot, FLAGS)
    early = number(slot_params, slot, INDEX) + place < number(slot_params, slot, MIN_TOKENS)
    return tl.where(early & ((flags & EARLY_MASK) != 0), flags & ~MASK, flags & ~EARLY_MASK)


@triton.jit
def load_logits(logits, work, row, row_stride, vocabulary, ids, live, edited, WORK: tl.constexpr):
    """Loads a row's logits as float32 without NaN, from ``work`` if the row is edited and the logits are not
    float32."""
    if WORK:
        raw = tl.load(logits + row * row_stride + ids, mask=live & (edited == 0), other=-float("inf")).to(tl.float32)
        ours = tl.load(work + row * vocabulary + ids, mask=live & (edited != 0), other=-float("inf"))
        x = tl.where(edited != 0, ours, raw)
    else:
        x = tl.load(logits + row * row_stride + ids, mask=live, other=-float("inf"))
    return clean(x)


@triton.jit
def penalised(x, ids, live, seen, slot, place, slot_params, drafts, sequence, vocabulary, SPAN: tl.constexpr):
    """Returns x after penalties. Drafts before ``place`` count as output."""
    times = tl.load(seen + slot * vocabulary + ids, mask=live, other=0)
    for earlier in range(0, place):
        times += (ids == tl.load(drafts + sequence * (SPAN - 1) + earlier)).to(tl.int32)
    count = (times & COUNT).to(tl.float32)
    repetition = float_number(slot_params, slot, REPETITION)
    lowered = tl.where(x > 0.0, tl.div_rn(x, tl.broadcast_to(repetition, x.shape)), x * repetition)
    lowered = lowered - float_number(slot_params, slot, FREQUENCY) * count
    lowered = lowered - float_number(slot_params, slot, PRESENCE) * tl.where(count > 0.0, 1.0, 0.0)
    return tl.where(times != 0, lowered, x)


@triton.jit
def add_bias(x, ids, live, target, first, slot, slot_params, bias_ids, bias_values, BLOCK: tl.constexpr):
    """Returns x with the bias of the tokens from ``first`` on, through memory: ``target`` + ids belongs to this
    program."""
    tl.store(target + ids, x, mask=live)
    tl.debug_barrier()
    count = number(slot_params, slot, BIAS_COUNT)
    for start in range(0, count, BIAS_CHUNK):
        entries = start + tl.arange(0, BIAS_CHUNK)
        tokens = tl.load(bias_ids + slot * MAX_BIAS + entries, mask=entries < count, other=-1)
        ours = (entries < count) & (tokens >= first) & (tokens < first + BLOCK)
        values = tl.load(bias_values + slot * MAX_BIAS + entries, mask=ours, other=0.0)
        tl.store(target + tokens, tl.load(target + tokens, mask=ours, other=0.0) + values, mask=ours)
    tl.debug_barrier()
    return tl.load(target + ids, mask=live, other=-float("inf"))


@triton.jit
def allowed(ids, live, mask, slot, words):
    """Whether a mask [slots, words] allows the tokens."""
    bits = tl.load(mask + slot * words + ids // WORD, mask=live, other=0)
    return ((bits >> (ids % WORD)) & 1) != 0


@triton.jit
def write_rows(rows, packed, table, stride, WIDTH: tl.constexpr):
    """Grid [n]: row i of ``packed`` is copied to row ``rows[i]`` of the table, unless that is below 0."""
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + i)
    if row >= 0:
        column = tl.arange(0, WIDTH)
        tl.store(table + row * WIDTH + column, tl.load(packed + i * stride + column))
