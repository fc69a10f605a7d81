# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Sorts pairs of a token and an expert by expert, and cuts them into blocks of one expert each, all on the device.

The host never learns how many tokens an expert has. It launches the largest possible number of blocks, and unused ones
have expert -1. So the launches are the same in every step, and a CUDA graph can hold them.
"""

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import cdiv, next_power_of_2
from ..launching.repeated import prepare
from ..tuning import Config

_CHUNK = 1024
"""Pairs that a program reads at a time."""


class Order(NamedTuple):
    """Sorted pairs, where a pair has number token · top_k + place. Those of an expert are in rising order; a pair whose
    expert is out of range is left out."""

    pairs: Tensor
    """int32 [tokens · top_k], by expert."""
    blocks: Tensor
    """int32 [3, most blocks]: the expert of each block, or -1, and where in :attr:`pairs` it begins and ends."""


@triton.jit(do_not_specialize=["pairs"])
def count_kernel(chosen, counts, pairs, CHUNK: tl.constexpr):
    expert = tl.program_id(0)
    total = tl.zeros([CHUNK], tl.int32)
    for start in range(0, pairs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        total += (tl.load(chosen + at, mask=at < pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, 0))


@triton.jit(do_not_specialize=["pairs", "most"])
def place_kernel(
    chosen,
    counts,
    order,
    blocks,
    pairs,
    most,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program per expert, and one more for the unused blocks."""
    expert = tl.program_id(0)
    numbers = tl.arange(0, PADDED)
    every = tl.load(counts + numbers, mask=numbers < EXPERTS, other=0)
    needed = (every + BLOCK_T - 1) // BLOCK_T
    first = tl.sum(tl.where(numbers < expert, every, 0), 0)
    first_block = tl.sum(tl.where(numbers < expert, needed, 0), 0)
    if expert == EXPERTS:
        for start in range(first_block, most, CHUNK):
            at = start + tl.arange(0, CHUNK)
            tl.store(blocks + at, tl.full([CHUNK], -1, tl.int32), mask=at < most)
    else:
        count = tl.sum(tl.where(numbers == expert, every, 0), 0)
        mine = (count + BLOCK_T - 1) // BLOCK_T
        for start in range(0, mine, CHUNK):
            at = start + tl.arange(0, CHUNK)
            begin = first + at * BLOCK_T
            to = blocks + first_block + at
            tl.store(to, tl.zeros([CHUNK], tl.int32) + expert, mask=at < mine)
            tl.store(to + most, begin, mask=at < mine)
            tl.store(to + 2 * most, tl.minimum(begin + BLOCK_T, first + count), mask=at < mine)
        seen = first
        for start in range(0, pairs, CHUNK):
            at = start + tl.arange(0, CHUNK)
            is_mine = (tl.load(chosen + at, mask=at < pairs, other=-1) == expert).to(tl.int32)
            tl.store(order + seen + tl.cumsum(is_mine, 0) - 1, at, mask=is_mine != 0)
            seen += tl.sum(is_mine, 0)


def prepare_order(chosen: Tensor, experts: int, block: int) -> Callable[[Tensor], Order]:
    """Returns a function that sorts pairs like ``chosen``, int32 [tokens, top_k], contiguous. ``block``: the most pairs
    of a block."""
    pairs = chosen.numel()
    most = most_blocks(pairs, experts, block)
    chunk = min(_CHUNK, max(16, next_power_of_2(pairs)))
    config = Config.of(num_warps=4)
    count = prepare(count_kernel, (experts,), (chosen, chosen), pairs, config=config, CHUNK=chunk)
    place = prepare(
        place_kernel,
        (experts + 1,),
        (chosen, chosen, chosen, chosen),
        *(pairs, most),
        config=config,
        EXPERTS=experts,
        PADDED=next_power_of_2(experts),
        BLOCK_T=block,
        CHUNK=chunk,
    )

    def run(chosen: Tensor) -> Order:
        counts, order = chosen.new_empty(experts), Order(chosen.new_empty(pairs), chosen.new_empty((3, most)))
        count(chosen, counts)
        place(chosen, counts, *order)
        return order

    return run


def most_blocks(pairs: int, experts: int, block: int) -> int:
    """Returns the largest possible number of blocks: the last block of each used expert may not be full."""
    used = min(pairs, experts)
    return used + cdiv(pairs - used, block)
