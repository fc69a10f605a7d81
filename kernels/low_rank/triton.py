# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Low-rank products of adapters, rows of one slot per program: first x Aᵀ of all parts, then s · (x Aᵀ) Bᵀ, added to y.

The device finds which program has which rows: the grid has room for any split of the rows among the slots.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import cdiv, launch, next_power_of_2
from ..tuning import Config, pick
from .rows import RowGroups
from .slots import SlotTable

DOWN, UP = "low_rank_down", "low_rank_up"
_FEW = 512
"""Up to this many rows leave most of a GPU idle, unless several programs share the inputs of each row."""


@triton.jit
def _piece(starts, number, RUNS: tl.constexpr, PADDED: tl.constexpr, LENGTH: tl.constexpr):
    """Returns the piece of a number among runs that follow one another, each cut into pieces of LENGTH: its run, where
    it begins, and where the run ends. After the last piece it is empty."""
    run = tl.arange(0, PADDED)
    begins = tl.load(starts + run, mask=run < RUNS, other=0)
    ends = tl.load(starts + run + 1, mask=run < RUNS, other=0)
    pieces = (ends - begins + LENGTH - 1) // LENGTH
    upto = tl.cumsum(pieces, 0)
    which = tl.sum((upto <= number).to(tl.int32), 0)
    first = tl.sum(tl.where(run == which, begins + (number - upto + pieces) * LENGTH, 0), 0)
    end = tl.sum(tl.where(run == which, ends, 0), 0)
    return which, first, end


@triton.jit(do_not_specialize=["tokens"])
def low_rank_down_kernel(
    x,
    down,
    scales,
    low,
    order,
    starts,
    tokens,
    x_stride,
    down_stride,
    scales_stride,
    SLOTS: tl.constexpr,
    PADDED: tl.constexpr,
    INPUTS: tl.constexpr,
    RANKS: tl.constexpr,
    ALL_RANKS: tl.constexpr,
    SHARES: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """low[share, row] = a share of the inputs of x times that of A's, float32 [SHARES, tokens, ALL_RANKS]."""
    SPAN: tl.constexpr = (INPUTS + SHARES * BLOCK_K - 1) // (SHARES * BLOCK_K) * BLOCK_K
    slot, first, end = _piece(starts, tl.program_id(0), SLOTS, PADDED, BLOCK_T)
    ranks = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    share = tl.program_id(2)
    part = tl.program_id(1) * BLOCK_R // RANKS
    scale = tl.load(scales + slot.to(tl.int64) * scales_stride + part, mask=first < end, other=0.0)
    if scale != 0.0:
        at = first + tl.arange(0, BLOCK_T)
        own = at < end
        rows = tl.load(order + at, mask=own, other=0).to(tl.int64)
        within = share * SPAN + tl.arange(0, BLOCK_K)
        given = x + rows[:, None] * x_stride + within[None, :]
        matrix = down + slot.to(tl.int64) * down_stride + ranks[None, :].to(tl.int64) * INPUTS + within[:, None]
        total = tl.zeros([BLOCK_T, BLOCK_R], tl.float32)
        for start in range(0, SPAN, BLOCK_K):
            inside = within + start < INPUTS
            left = tl.load(given + start, mask=own[:, None] & inside[None, :], other=0.0)
            right = tl.load(matrix + start, mask=inside[:, None], other=0.0)
            total = tl.dot(left.to(right.dtype), right, total, input_precision=PRECISION)
        to = low + (share * tokens + rows[:, None]) * ALL_RANKS + ranks[None, :]
        tl.store(to, total, mask=own[:, None])


@triton.jit(do_not_specialize=["tokens"])
def low_rank_up_kernel(
    y,
    up,
    scales,
    low,
    order,
    starts,
    columns,
    tokens,
    y_stride,
    up_stride,
    scales_stride,
    SLOTS: tl.constexpr,
    PADDED: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    RANKS: tl.constexpr,
    SHARES: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """y[row, columns of a part] += scale · (the sum of the shares of low[row]) Bᵀ."""
    slot, first, end = _piece(starts, tl.program_id(0), SLOTS, PADDED, BLOCK_T)
    part, column, last = _piece(columns, tl.program_id(1), PARTS, PADDED_PARTS, BLOCK_N)
    scale = tl.load(scales + slot.to(tl.int64) * scales_stride + part, mask=(first < end) & (column < last), other=0.0)
    if scale != 0.0:
        at = first + tl.arange(0, BLOCK_T)
        own = at < end
        rows = tl.load(order + at, mask=own, other=0).to(tl.int64)
        outputs = column + tl.arange(0, BLOCK_N)
        there = outputs < last
        matrix = up + slot.to(tl.int64) * up_stride + outputs[None, :].to(tl.int64) * RANKS
        total = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
        for start in tl.static_range(0, RANKS, BLOCK_R):
            ranks = start + tl.arange(0, BLOCK_R)
            taken = low + rows[:, None] * (PARTS * RANKS) + part * RANKS + ranks[None, :]
            left = tl.load(taken, mask=own[:, None], other=0.0)
            for share in tl.static_range(1, SHARES):
                beyond = share * tokens.to(tl.int64) * (PARTS * RANKS)
                left += tl.load(taken + beyond, mask=own[:, None], other=0.0)
            right = tl.load(matrix + ranks[:, None], mask=there[None, :], other=0.0)
            total = tl.dot(left, right.to(tl.float32), total, input_precision=PRECISION)
        to = y + rows[:, None] * y_stride + outputs[None, :]
        mask = own[:, None] & there[None, :]
        sums = tl.load(to, mask=mask, other=0.0).to(tl.float32) + total * scale
        tl.store(to, sums.to(y.dtype.element_ty), mask=mask)


def add_(y: Tensor, x: Tensor, rows: RowGroups, table: SlotTable, *, invariant: bool) -> None:
    """Runs :func:`.slots.add_in_slots_` on checked arguments."""
    tokens, slots, parts, dtype = len(x), table.slots, len(table.parts), table.down.dtype
    few = invariant or are_few(tokens)
    down = pick(DOWN, key(DOWN, table, few=few), down_default(table, few=few))
    up = pick(UP, key(UP, table, few=few), up_default(table, few=few))
    low = torch.empty((down["SHARES"], tokens, parts * table.ranks), dtype=torch.float32, device=x.device)
    padded = next_power_of_2(slots)

    def pieces(length: int) -> int:
        """Returns the most pieces of rows, however they are split."""
        return min(tokens, cdiv(tokens, length) + slots)

    launch(
        low_rank_down_kernel,
        (pieces(down["BLOCK_T"]), parts * table.ranks // down["BLOCK_R"], down["SHARES"]),
        *(x, table.down, table.scales, low, rows.order, rows.starts),
        *(tokens, x.stride(0), table.down.stride(0), table.scales.stride(0)),
        config=down,
        SLOTS=slots,
        PADDED=padded,
        INPUTS=table.inputs,
        RANKS=table.ranks,
        ALL_RANKS=parts * table.ranks,
        PRECISION="ieee" if dtype == torch.float32 else "tf32",
    )
    launch(
        low_rank_up_kernel,
        (pieces(up["BLOCK_T"]), sum(cdiv(each, up["BLOCK_N"]) for each in table.parts)),
        *(y, table.up, table.scales, low, rows.order, rows.starts, table.columns),
        *(tokens, y.stride(0), table.up.stride(0), table.scales.stride(0)),
        config=up,
        SLOTS=slots,
        PADDED=padded,
        PARTS=parts,
        PADDED_PARTS=next_power_of_2(parts),
        RANKS=table.ranks,
        SHARES=down["SHARES"],
        PRECISION="ieee" if dtype == torch.float32 else "tf32x3",
    )


def are_few(rows: int) -> bool:
    return rows <= _FEW


def key(operation: str, table: SlotTable, *, few: bool) -> str:
    parts = len(table.parts)
    size = f"{table.inputs}x{parts * table.ranks}" if operation == DOWN else f"{table.outputs}x{table.ranks}"
    return f"{size} {'few' if few else 'many'} {str(table.down.dtype).removeprefix('torch.')}"


def down_default(table: SlotTable, *, few: bool) -> Config:
    shares = max(1, min(8, table.inputs // 256)) if few else 1
    return Config.of(
        num_warps=4, num_stages=3, BLOCK_T=16 if few else 64, BLOCK_R=_ranks(table), BLOCK_K=128, SHARES=shares
    )


def up_default(table: SlotTable, *, few: bool) -> Config:
    return Config.of(
        num_warps=4, num_stages=2, BLOCK_T=16 if few else 32, BLOCK_N=128 if few else 64, BLOCK_R=_ranks(table)
    )


def _ranks(table: SlotTable) -> int:
    """Returns the largest tile, up to 64, that divides the ranks of a part."""
    return min(64, table.ranks & -table.ranks)
