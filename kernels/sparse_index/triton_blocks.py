# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Scores blocks of tokens, with a grid from host numbers alone, so that a captured launch is right for any lengths."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention import AttentionBatch
from ..attention.decode_kernels import block_of
from ..attention.triton_decode import MIN_DOT
from ..launching.launch import launch, next_power_of_2
from ..tuning import Config
from .blocks import VisibleTokens

_TILE = 16
"""Keys of a product: what any size of a cache's blocks is a multiple of."""


def score_blocks(
    q: Tensor, cache: Tensor, batch: AttentionBatch, seen: VisibleTokens, size: int, blocks: int, tokens: slice
) -> Tensor:
    """Returns float32 [tokens, heads, blocks]; -inf where a token sees none of a block.

    Nothing waits for the device, and nothing on it is checked.
    """
    _, heads, dim = q.shape
    count = tokens.stop - tokens.start
    scores = torch.full((count, heads, blocks), -torch.inf, device=q.device)
    launch(
        score_blocks_kernel,
        (count, blocks),
        q,
        cache,
        seen.rows,
        seen.counts,
        batch.block_tables,
        scores,
        tokens.start,
        batch.block_tables.stride(0),
        blocks,
        config=Config.of(
            TILE=_TILE if q.dtype == torch.float32 else min(size, cache.shape[1], 64),
            BLOCK_H=max(MIN_DOT, next_power_of_2(heads)),
            BLOCK_D=max(MIN_DOT, next_power_of_2(dim)),
            num_warps=4,
            num_stages=2,
        ),
        HEADS=heads,
        DIM=dim,
        CACHE_BLOCK=cache.shape[1],
        SIZE=size,
    )
    return scores


@triton.jit(do_not_specialize=["first", "table_stride", "blocks"])
def score_blocks_kernel(
    q,
    cache,
    rows,
    counts,
    block_tables,
    scores,
    first,
    table_stride,
    blocks,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    CACHE_BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (i, j): scores block j for token ``first + i``, if it sees any of it, in ``scores`` float32 [tokens,
    HEADS, blocks]."""
    at = tl.program_id(0).to(tl.int64)
    token = first + at
    block = tl.program_id(1)
    seen = tl.load(counts + token).to(tl.int32)
    if block * SIZE >= seen:
        return
    h, d, in_tile = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D), tl.arange(0, TILE)
    heads = tl.load(
        q + (token * HEADS + h)[:, None] * DIM + d[None, :], mask=(h < HEADS)[:, None] & (d < DIM)[None, :], other=0.0
    )
    table = block_tables + tl.load(rows + token) * table_stride
    best = tl.full([BLOCK_H], float("-inf"), tl.float32)
    for tile in tl.range(block * (SIZE // TILE), (block + 1) * (SIZE // TILE)):
        cache_block = block_of(table, tile, in_tile, seen, CACHE_BLOCK, TILE).to(tl.int64)
        position = tile * TILE + in_tile
        held = position < seen
        keys = cache + (cache_block * CACHE_BLOCK + position % CACHE_BLOCK) * DIM
        k = tl.load(keys[:, None] + d[None, :], mask=held[:, None] & (d < DIM)[None, :], other=0.0)
        products = tl.dot(heads, tl.trans(k), input_precision="ieee")
        best = tl.maximum(best, tl.max(tl.where(held[None, :], products, float("-inf")), 1))
    tl.store(scores + (at * HEADS + h) * blocks + block, best, mask=h < HEADS)
