# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Split-KV attention for few new tokens after a long prefix: programs share the keys of a tile, and a second kernel
joins their results.

With s = scale · q·k (softcapped, hidden keys at -∞), a program that took the keys P of one query leaves

    lse = log2 Σ_P 2^(s log2 e)        o = Σ_P 2^(s log2 e - lse) v

(-∞ and nothing if the query sees none of P), and the whole is
Σ_parts 2^(lse - top) o / (Σ_parts 2^(lse - top) + 2^(sink log2 e - top)).
"""

import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import cdiv, next_power_of_2
from ..launching.repeated import Start, prepare
from ..tuning import Config

PART_KEYS = 512
"""The fewest keys that are worth starting a program and joining its result."""
PROGRAMS_PER_SM = 2
"""Programs of small tiles that a multiprocessor holds at once."""
JOINED_AT_ONCE = 16
"""Parts that one iteration of the joining loop reads."""


def count_parts(programs: int, keys: int, multiprocessors: int) -> int:
    """Returns how many programs share the ``keys`` of each tile if ``programs`` tiles would run.

    1 if the tiles occupy most of the device, or if the keys are too few.
    """
    if 2 * programs > multiprocessors:
        return 1
    return max(1, min(keys // PART_KEYS, PROGRAMS_PER_SM * multiprocessors // programs))


def part_tiles(block: int) -> int:
    """Returns the fewest tiles of ``block`` keys that a part has."""
    return cdiv(PART_KEYS, block)


@triton.jit
def part_of_keys(part, parts, begin, end, whole, rest, BLOCK_N: tl.constexpr, PART_TILES: tl.constexpr):
    """Returns what the ``part``-th of ``parts`` programs takes of :func:`.prefill_inner.key_range`, in the same terms.

    A part has PART_TILES tiles or more, so the last parts may be empty: then begin's multiple, ``whole`` and ``rest``
    are not before ``end``.
    """
    before = begin // BLOCK_N
    tiles = tl.maximum(tl.cdiv(end, BLOCK_N) - before, 0)
    each = tl.maximum(tl.cdiv(tiles, parts), PART_TILES)
    start = (before + part * each) * BLOCK_N
    stop = start + each * BLOCK_N
    begin = tl.maximum(begin, start)
    end = tl.minimum(end, stop)
    whole = tl.minimum(tl.maximum(whole, start), stop)
    rest = tl.minimum(tl.maximum(rest, start), stop)
    return begin, end, whole, rest


@triton.jit
def store_part(partial, partial_lse, sums, top, total, factor, stored, fits):
    """Stores the results of rows at ``partial`` [M, D], except of rows that saw no key, and ``partial_lse`` [M]."""
    seen = total > 0.0
    divisor = tl.where(seen, total, 1.0)
    tl.store(partial_lse, tl.where(seen, top + tl.log2(divisor), float("-inf")), mask=fits)
    tl.store(partial, sums * (factor / divisor)[:, None], mask=stored & seen[:, None])


@triton.jit(do_not_specialize=["skipped", "sequences", "parts"], do_not_specialize_on_alignment=["query_start"])
def _join_kernel(
    partial,
    partial_lse,
    query_start,
    sinks,
    out,
    skipped,
    sequences,
    parts,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    """Program (i, j): head j of the i-th token after those of the ``skipped`` sequences."""
    begins = tl.load(query_start + skipped)
    if begins + tl.program_id(0) >= tl.load(query_start + skipped + sequences):
        return
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head
    dim = tl.arange(0, WIDTH)
    peak = tl.full([], -1e30, tl.float32)  # finite: a weight of 2^(-∞ - peak) is 0, not NaN
    total = tl.zeros([], tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head) * 1.4426950408889634
        peak = tl.maximum(peak, sink)
        total += tl.exp2(sink - peak)
    sums = tl.zeros([WIDTH], tl.float32)
    for first in tl.range(0, parts, BLOCK_PARTS):
        part = first + tl.arange(0, BLOCK_PARTS)
        at = row * parts + part
        lse = tl.load(partial_lse + at, mask=part < parts, other=float("-inf"))
        written = (lse > float("-inf"))[:, None] & (dim < DIM)[None, :]
        means = tl.load(partial + at[:, None] * DIM + dim[None, :], mask=written, other=0.0)
        higher = tl.maximum(peak, tl.max(lse, 0))
        shrink = tl.exp2(peak - higher)
        weights = tl.exp2(lse - higher)
        total = total * shrink + tl.sum(weights, 0)
        sums = sums * shrink + tl.sum(weights[:, None] * means, 0)
        peak = higher
    result = sums / tl.where(total > 0.0, total, 1.0)
    to = out + (begins.to(tl.int64) * tl.num_programs(1) + row) * DIM + dim
    tl.store(to, result.to(out.dtype.element_ty), mask=dim < DIM)


def prepare_join(
    partial: Tensor,
    partial_lse: Tensor,
    query_start: Tensor,
    sinks: Tensor | None,
    out: Tensor,
    *,
    skipped: int,
    sequences: int,
) -> Start:
    """Returns the prepared launch that joins the parts, which takes these tensors or others of the same layout.

    It writes ``out`` [T, Hq, D] for the tokens of the ``sequences`` after the first ``skipped``.

    Args:
        partial: [tokens, Hq, parts, D] float32, not read where a part saw no key.
        partial_lse: [tokens, Hq, parts] float32, in units of log 2; -∞ where a part saw no key.
    """
    tokens, heads, parts, dim = partial.shape
    return prepare(
        _join_kernel,
        (tokens, heads),
        (partial, partial_lse, query_start, sinks, out),
        skipped,
        sequences,
        parts,
        config=Config.of(BLOCK_PARTS=JOINED_AT_ONCE, num_warps=4, num_stages=1),
        DIM=dim,
        WIDTH=max(16, next_power_of_2(dim)),
    )
