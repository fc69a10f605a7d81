# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Building blocks of the attention kernels that take many queries of a sequence (FlashAttention-2, arXiv:2307.08691).

A program takes a tile of queries of one sequence, with all the heads that share a kv head, so that keys and values are
read once for the group. Row r of the tile is token ``r // PACK`` and head ``r % PACK``. The program walks over tiles of
keys at absolute positions, and keeps the softmax's maximum and total of each row. A hidden key adds an exact zero, so a
row does not depend on where its chunk began or on what shares its tile.

Scores are in units of log 2 from the multiplication on, because the hardware has exp2.
"""

import triton
import triton.language as tl

from ..quantize.fp8 import round_to_fp8, widen


@triton.jit
def find_tile(query_start, sequences, tile, BLOCK_Q: tl.constexpr):
    """Returns the sequence of the ``tile``-th tile, and the tile's number within it, which may lie past the sequence's
    end.

    The tiles of sequence s begin at ``(query_start[s] - query_start[0]) // BLOCK_Q + s``. That leaves at least as many
    as it needs, and can be computed without reading the sequences before it.
    """
    first = tl.load(query_start)
    low = 0
    high = sequences
    while high - low > 1:
        middle = (low + high) // 2
        begins = (tl.load(query_start + middle) - first) // BLOCK_Q + middle
        if begins <= tile:
            low = middle
        else:
            high = middle
    return low, tile - ((tl.load(query_start + low) - first) // BLOCK_Q + low)


@triton.jit
def first_seen(position, window):
    """Returns the first key that a query at ``position`` sees.

    A positive ``window`` is that many tokens up to the query itself. A negative one is a chunk: the tokens from the
    last multiple of ``-window`` on.
    """
    held = tl.maximum(position, 0)
    chunk = tl.maximum(-window, 1)
    return tl.where(window > 0, tl.maximum(position - window + 1, 0), held - held % chunk)


@triton.jit
def key_range(first, last, keys, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK_N: tl.constexpr):
    """Returns which of ``keys`` keys a tile of queries at positions [first, last] sees.

    With ``LEFT`` a query at p sees no key before p - left; if left + 1 is negative, none before its chunk
    (:func:`first_seen`). With ``RIGHT`` it sees none after p + right.

    Returns:
        begin, end: the keys that some query may see.
        whole, rest: tiles in [whole, rest) are seen in full by every query; ``begin // BLOCK_N * BLOCK_N`` and
            ``whole`` to ``rest`` are multiples of BLOCK_N, and begin's multiple <= whole <= rest.
    """
    begin = 0
    end = keys
    whole = 0
    rest = keys
    if LEFT:
        begin = first_seen(first, left + 1)
        whole = tl.cdiv(first_seen(last, left + 1), BLOCK_N) * BLOCK_N
    if RIGHT:
        end = tl.maximum(tl.minimum(keys, last + right + 1), 0)
        rest = tl.maximum(tl.minimum(keys, first + right + 1), 0)
    rest = tl.maximum(rest // BLOCK_N * BLOCK_N, whole)
    return begin, end, whole, rest


@triton.jit
def visible_keys(position, key, end, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Returns [queries, keys]: which keys before ``end`` each query at ``position`` sees."""
    visible = (key < end)[None, :]
    if RIGHT:
        visible = visible & (key[None, :] <= (position + right)[:, None])
    if LEFT:
        visible = visible & (key[None, :] >= first_seen(position, left + 1)[:, None])
    return visible


@triton.jit
def load_rows(base, rows, columns, inside, DIM: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Loads ``base + rows + columns`` [rows, columns]; zeros for columns from ``DIM`` to ``WIDTH``, and for rows not
    ``inside``."""
    at = base + (rows[:, None] + columns[None, :])
    if MASKED:
        return tl.load(at, mask=inside[:, None] & (columns < DIM)[None, :], other=0.0)
    elif DIM != WIDTH:
        return tl.load(at, mask=(columns < DIM)[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def start_softmax(sinks, head, ROWS: tl.constexpr):
    """Returns the maximum and total of rows that have seen no key yet; a sink counts as a score without a value."""
    if sinks is None:
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    else:
        top = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        total = tl.full([ROWS], 1.0, tl.float32)
    return top, total


@triton.jit
def load_slopes(slopes, head):
    """Loads the slopes of rows in units of log 2. Without ``slopes`` do not call it: Triton 3.6 returns no None."""
    return tl.load(slopes + head) * 1.4426950408889634


@triton.jit
def load_near(distances, at, key, position, fits, EXTENT: tl.constexpr):
    """Loads [M, N] what rows add to the scores of ``key`` [N], in units of log 2: the EXTENT numbers of a row begin at
    ``at`` [M] times EXTENT, and stand for the keys from ``position`` [M] backwards, the last for all farther ones.
    Without ``distances`` do not call it."""
    back = tl.minimum(tl.maximum(position[:, None] - key[None, :], 0), EXTENT - 1)
    return tl.load(distances + at[:, None] * EXTENT + back, mask=fits[:, None], other=0.0) * 1.4426950408889634


@triton.jit
def quantize_rows(x, STORED: tl.constexpr):
    """Returns rows [M, D] rounded to float8, and their factors [M] float32: a row's largest value is 448.

    ``STORED`` is the dtype in which kernels read a float8 cache. If that is its bytes, rows are float16 of the same
    values.
    """
    wide = x.to(tl.float32)
    factor = tl.maximum(tl.max(tl.abs(wide), 1), 1e-30) * (1.0 / 448.0)
    codes = round_to_fp8(wide * (1.0 / factor)[:, None], STORED)
    if tl.uint8 == STORED:
        return widen(codes, tl.float16), factor
    else:
        return codes, factor


@triton.jit
def attend(
    q,
    k,
    v,
    sums,
    top,
    total,
    visible,
    slope,
    near,
    key,
    position,
    scale,
    softcap,
    MASKED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Adds a tile of keys to the running softmax.

    Args:
        q: [M, D]. k: [D, N], of one dtype. v: [N, D].
        sums: [M, D] float32, the weighted sum of values so far. top, total: [M] float32.
        visible: [M, N] or broadcast to it; read if MASKED.
        slope: [M] float32 in units of log 2, times ``key`` [N] less ``position`` [M] added to scores; None: nothing is.
        near: [M, N] float32 in units of log 2, added to scores; None: nothing is.
        scale: positive, one or [M]; q·k times it is the score, in units of log 2 unless SOFTCAP.
        softcap: read if SOFTCAP; after its tanh the scores are brought to units of log 2.
    """
    scale = tl.zeros_like(top) + scale
    scores = tl.dot(q, k, input_precision=PRECISION)
    if SOFTCAP:
        # tanh(x) = 1 - 2 / (1 + exp(2x)), and the exponent saturates as tanh does
        tanh = 1.0 - 2.0 / (1.0 + tl.exp2(scores * (scale / softcap * 2.8853900817779268)[:, None]))
        scores = tanh * (softcap * 1.4426950408889634)
        scale = tl.full(top.shape, 1.0, tl.float32)
    if slope is not None:
        scores = scores * scale[:, None] + slope[:, None] * (key[None, :] - position[:, None]).to(tl.float32)
        scale = tl.full(top.shape, 1.0, tl.float32)
    if near is not None:
        scores = scores * scale[:, None] + near
        scale = tl.full(top.shape, 1.0, tl.float32)
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1) * scale)
    pivot = higher
    if MASKED:
        pivot = tl.where(higher == float("-inf"), 0.0, higher)  # -inf: the row has seen no key yet
    weights = tl.exp2(scores * scale[:, None] - pivot[:, None])
    shrink = tl.exp2(top - pivot)
    total = total * shrink + tl.sum(weights, 1)
    sums = tl.dot(weights.to(v.dtype), v, sums * shrink[:, None], input_precision=PRECISION)
    return sums, higher, total


@triton.jit
def store_mean(out, sums, total, scale, mask):
    """Stores ``sums / total · scale``, and zeros for rows that saw no key."""
    mean = sums * (scale / tl.where(total > 0.0, total, 1.0))[:, None]
    tl.store(out, mean.to(out.dtype.element_ty), mask=mask)
