"""Low-rank products of adapters: every row gets those of its own, whatever shares its batch."""

import numpy as np
import pytest
import torch

from stentor.kernels import native
from stentor.kernels.low_rank import (
    AdapterRows,
    AdapterSlots,
    LowRank,
    LowRankSum,
    PackedSum,
    add_low_rank_,
    choose,
    packed_bytes,
)
from stentor.kernels.low_rank.rows import RowGroups, group_rows
from stentor.kernels.native.memory import HugeArena
from stentor.kernels.variants import Variant
from stentor.tests.kernels.helpers import assert_same_bits, thread_count

CPU = torch.device("cpu")
VARIANTS = pytest.mark.parametrize("variant", ["reference", "native"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
SHAPES = ([(4, 40, 0), (7, 20, 40)], [(1, 71, 0)], [(16, 11, 60)], [(33, 35, 3)])
"""Of each adapter: rank, outputs and column of each part."""


def parts_of(
    seed: int, inputs: int, shapes: list[tuple[int, int, int]], dtype: torch.dtype = torch.float32
) -> list[LowRank]:
    generator = torch.Generator().manual_seed(seed)
    return [
        LowRank(
            torch.randn(rank, inputs, generator=generator).to(dtype),
            torch.randn(outputs, rank, generator=generator).to(dtype),
            0.5 + rank,
            column,
        )
        for rank, outputs, column in shapes
    ]


def slots_of(sums: dict[int, list[LowRank]], inputs: int, outputs: int, dtype: torch.dtype | None) -> AdapterSlots:
    """``dtype``: what adapters are packed in; None: they are not."""
    slots = AdapterSlots(inputs, outputs)
    for slot, parts in sums.items():
        slots.put(slot, LowRankSum(parts) if dtype is None else PackedSum(parts, dtype))
    return slots


def expected(y: torch.Tensor, x: torch.Tensor, of_row: list[int], sums: dict[int, list[LowRank]]) -> torch.Tensor:
    """The definition, in float64."""
    found = y.double()
    for row, number in enumerate(of_row):
        for part in sums.get(number, ()):
            added = part.up.double() @ (part.down.double() @ x[row].double()) * part.scale
            found[row, part.column : part.column + len(added)] += added
    return found


@DTYPES
@VARIANTS
@pytest.mark.parametrize("threads", [1, 3])
def test_each_row_gets_what_its_own_adapter_adds(variant: Variant, dtype: torch.dtype, threads: int) -> None:
    torch.manual_seed(0)
    inputs, outputs = 37, 71
    sums = {number: parts_of(number, inputs, shapes, dtype) for number, shapes in enumerate(SHAPES)}
    slots = slots_of(sums, inputs, outputs, dtype)
    of_row = [0, -1, 2, 1, 0, 9, *[1] * 40, 2, 3]
    x, y = torch.randn(len(of_row), inputs), torch.randn(len(of_row), outputs)
    rows = AdapterRows.of(of_row, [1] * len(of_row), CPU)
    assert rows is not None
    assert choose(y, slots, rows, variant) == variant
    wanted = expected(y, x, of_row, sums)
    with thread_count(threads):
        found = add_low_rank_(y.clone(), x, rows, slots, variant=variant)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-3)
    for row in (1, 5):
        assert torch.equal(found[row], y[row]), "a row whose adapter adds nothing has changed"


@VARIANTS
def test_a_row_has_the_same_bits_alone_and_beside_others(variant: Variant) -> None:
    torch.manual_seed(1)
    dtype = torch.bfloat16 if variant == "native" else None
    slots = slots_of({5: parts_of(1, 64, [(9, 96, 0)])}, 64, 96, dtype)
    x, y = torch.randn(23, 64), torch.zeros(23, 96)
    every = AdapterRows.of([5], [23], CPU)
    alone = AdapterRows.of([5], [1], CPU)
    assert every is not None
    assert alone is not None
    whole = add_low_rank_(y.clone(), x, every, slots, invariant=True, variant=variant)
    for row in (0, 7, 22):
        own = slice(row, row + 1)
        one = add_low_rank_(y[own].clone(), x[own], alone, slots, invariant=True, variant=variant)
        assert_same_bits(whole[own], one)


@pytest.mark.skipif(native.library() is None, reason="no native library")
def test_products_in_bfloat16_and_columns_of_wider_ones_are_added_to() -> None:
    torch.manual_seed(2)
    slots = slots_of({0: parts_of(3, 48, [(4, 32, 0)])}, 48, 32, torch.float32)
    rows = AdapterRows.of([0], [5], CPU)
    assert rows is not None
    x, wide = torch.randn(5, 48), torch.randn(5, 40)
    wanted = expected(wide[:, 8:], x, [0] * 5, {0: parts_of(3, 48, [(4, 32, 0)])})
    brain = wide[:, 8:].bfloat16()
    add_low_rank_(brain, x, rows, slots, variant="native")
    torch.testing.assert_close(brain.double(), wanted, rtol=1e-2, atol=0.3)
    add_low_rank_(wide[:, 8:], x, rows, slots, variant="native")
    torch.testing.assert_close(wide[:, 8:].double(), wanted, rtol=1e-4, atol=1e-3)


@DTYPES
def test_packed_adapters_take_what_they_say_and_give_back_what_they_were_made_of(dtype: torch.dtype) -> None:
    room = HugeArena()
    for seed, shapes in enumerate(SHAPES):
        parts = parts_of(seed, 37, shapes, dtype)
        taken: list[int] = []

        def take(nbytes: int) -> torch.Tensor:
            taken.append(nbytes)  # noqa: B023  # called at once
            return room.take(nbytes)

        packed = PackedSum(parts, dtype, take)
        assert sum(taken) == packed_bytes(
            [rank for rank, _, _ in shapes], [outputs for _, outputs, _ in shapes], 37, dtype
        )
        for part, again in zip(parts, packed.parts, strict=True):
            assert torch.equal(again.down, part.down.float())
            assert torch.equal(again.up, part.up.float())
            assert (again.scale, again.column) == (part.scale, part.column)


@pytest.mark.parametrize("slots", [[], [-1], [2, -1, 0, 2, -1]])
def test_groups_lead_to_the_rows_of_each_slot_in_their_order(slots: list[int]) -> None:
    groups = RowGroups.of(torch.from_numpy(group_rows(np.array(slots, dtype=np.int64), 4)), len(slots))
    assert groups.slots.tolist() == slots
    assert groups.count == 4
    starts = groups.starts.tolist()
    for slot in range(4):
        own = groups.order[starts[slot] : starts[slot + 1]].tolist()
        assert own == [row for row, held in enumerate(slots) if held == slot]


def test_rows_are_sorted_by_adapter_and_keep_their_order_within_one() -> None:
    rows = AdapterRows.of([3, -1, 0, 3], [2, 1, 1, 2], CPU)
    assert rows is not None
    assert [(adapter, own.tolist()) for adapter, own in rows] == [(0, [3]), (3, [0, 1, 4, 5])]
    assert AdapterRows.of([-1, -1], [1, 2], CPU) is None


def test_matrices_that_do_not_fit_are_refused() -> None:
    slots = AdapterSlots(6, 8)
    for shape in ([(2, 9, 0)], [(2, 4, 5)]):
        with pytest.raises(ValueError, match="does not fit"):
            slots.put(0, LowRankSum(parts_of(0, 6, shape)))
    with pytest.raises(ValueError, match="does not fit"):
        slots.put(0, LowRankSum(parts_of(0, 5, [(2, 8, 0)])))
    rows = AdapterRows.of([0], [2], CPU)
    assert rows is not None
    with pytest.raises(ValueError, match="do not fit"):
        add_low_rank_(torch.zeros(2, 8), torch.zeros(2, 5), rows, slots)
