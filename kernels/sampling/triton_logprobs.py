# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Log-probabilities on a GPU: each tile of a row finds its best alternatives, and a second pass merges them.

The tiles do not depend on the number of rows, so a row's sum is the same in any batch.
"""

import torch
import triton
import triton.language as tl

from ..launching.launch import launch
from ..tuning import Config, pick
from .triton_noise import NO_ID, below, clean, key_value, order_key

LOGPROBS = "sampling_logprobs"
_NONE = tl.constexpr(-(2**63))


@triton.jit
def packed(x, ids):
    """Packs to int64 in the order of rank: larger logits first, then lower ids."""
    return (order_key(x).to(tl.int64) << 32) | (ids ^ NO_ID).to(tl.int64)


@triton.jit(do_not_specialize=["top"], do_not_specialize_on_alignment=["rows", "tokens"])
def sum_tiles(
    logits, width, rows, tokens, tile_max, tile_sum, tile_rank, tile_best, top, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid [P, tiles]. Writes the tile's largest logit, the sum of exp relative to it, how many tokens in the tile rank
    before the row's token, and the ``top`` best, packed."""
    i = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    row = tl.load(rows + i)
    token = tl.load(tokens + i).to(tl.int32)
    ids = tile * BLOCK + tl.arange(0, BLOCK)
    live = ids < width
    x = clean(tl.load(logits + row * width + ids, mask=live, other=-float("inf")))
    own = clean(tl.load(logits + row * width + token))
    largest = tl.max(x, 0)
    at = i * tl.num_programs(1) + tile
    tl.store(tile_max + at, largest)
    tl.store(tile_sum + at, tl.sum(tl.where(live, tl.exp(below(x, largest)), 0.0), 0))
    before = (x > own) | ((x == own) & (ids < token))
    tl.store(tile_rank + at, tl.sum((before & live).to(tl.int32), 0))
    left = tl.where(live, packed(x, ids), _NONE)
    for place in range(0, top):
        best = tl.max(left, 0)
        tl.store(tile_best + at * top + place, best)
        left = tl.where(left == best, _NONE, left)


@triton.jit(do_not_specialize=["top", "given"], do_not_specialize_on_alignment=["rows", "tokens", "ids"])
def merge_tiles(
    logits, width, rows, tokens, tile_max, tile_sum, tile_rank, tile_best, ids, values, ranks, best_ids, best_values,
    tiles, top, given, TILES: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Grid [P]. Merges the tiles of a row, and reads the ``given`` ids of its line [P, given] behind the best."""
    i = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    live = tile < tiles
    largest = tl.load(tile_max + i * tiles + tile, mask=live, other=-float("inf"))
    sums = tl.load(tile_sum + i * tiles + tile, mask=live, other=0.0).to(tl.float64)
    peak = tl.max(largest, 0)
    total = tl.sum(tl.where(live, sums * tl.exp(below(largest, peak)).to(tl.float64), 0.0), 0)
    log_total = tl.log(total)
    possible = peak > -float("inf")
    own = clean(tl.load(logits + tl.load(rows + i) * width + tl.load(tokens + i)))
    value = (below(own, peak).to(tl.float64) - log_total).to(tl.float32)
    tl.store(values + i, tl.where(possible, value, -float("inf")))
    rank = tl.sum(tl.load(tile_rank + i * tiles + tile, mask=live, other=0), 0)
    tl.store(ranks + i, rank.to(tl.int64) + 1)
    candidate = tl.arange(0, CANDIDATES)
    left = tl.load(tile_best + i * tiles * top + candidate, mask=candidate < tiles * top, other=_NONE)
    for place in range(0, top):
        best = tl.max(left, 0)
        x = key_value((best >> 32).to(tl.int32))
        value = (below(x, peak).to(tl.float64) - log_total).to(tl.float32)
        tl.store(best_ids + i * (top + given) + place, (best & NO_ID) ^ NO_ID)
        tl.store(best_values + i * (top + given) + place, tl.where(possible, value, -float("inf")))
        left = tl.where(left == best, _NONE, left)
    for place in range(0, given):
        token = tl.load(ids + i * given + place)
        x = clean(tl.load(logits + tl.load(rows + i) * width + token))
        value = (below(x, peak).to(tl.float64) - log_total).to(tl.float32)
        tl.store(best_ids + i * (top + given) + top + place, token)
        tl.store(best_values + i * (top + given) + top + place, tl.where(possible, value, -float("inf")))


def logprobs(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, top: int, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes :func:`stentor.kernels.sampling.logprobs`; ``top`` is at most V and 128."""
    (wanted, given), width = ids.shape, logits.shape[1]
    config = logprobs_config()
    tiles = triton.cdiv(width, config["BLOCK"])
    rows, tokens, ids = rows.contiguous(), tokens.contiguous(), ids.contiguous()

    def room(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    tile_max, tile_sum = room(wanted, tiles, dtype=torch.float32), room(wanted, tiles, dtype=torch.float32)
    tile_rank = room(wanted, tiles, dtype=torch.int32)
    tile_best = room(wanted, tiles, max(top, 1), dtype=torch.int64)
    values, ranks = room(wanted, dtype=torch.float32), room(wanted, dtype=torch.int64)
    best = room(wanted, top + given, dtype=torch.int64)
    best_values = room(wanted, top + given, dtype=torch.float32)
    shared = (logits, width, rows, tokens, tile_max, tile_sum, tile_rank, tile_best)
    launch(sum_tiles, (wanted, tiles), *shared, top, config=config)
    launch(
        merge_tiles, (wanted,), *shared, ids, values, ranks, best, best_values, tiles, top, given,
        config=Config.of(num_warps=8), TILES=triton.next_power_of_2(tiles),
        CANDIDATES=triton.next_power_of_2(tiles * max(top, 1)),
    )  # fmt: skip
    return values, ranks, best, best_values


def logprobs_config() -> Config:
    return pick(LOGPROBS, "any", Config.of(BLOCK=4096, num_warps=8))
