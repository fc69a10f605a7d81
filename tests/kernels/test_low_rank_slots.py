"""Adapters in slots on a device: every row gets those of its own, and what lies in a slot is found at each launch."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from stentor.kernels.low_rank import LowRank
from stentor.kernels.low_rank.rows import RowGroups, group_rows
from stentor.kernels.low_rank.slots import SlotTable, add_in_slots_, choose_in_slots
from stentor.kernels.low_rank.triton import DOWN, UP
from stentor.kernels.tuning import Config, overridden
from stentor.kernels.variants import Variant
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal

PARTS = (40, 20, 150)
"""Outputs; none is a multiple of a tile."""
INPUTS, SLOTS, RANK = 300, 3, 20
HELD = {0: [(4, 0), (20, 60)], 2: [(16, 40)]}
"""By slot: rank and column of the parts that its adapter changes; slot 1 is empty."""


def parts_of(slot: int, seed: int = 0) -> list[LowRank]:
    outputs = dict(zip((0, 40, 60), PARTS, strict=True))
    return [
        LowRank(
            normal(rank, INPUTS, seed=seed + slot) * 0.1,
            normal(outputs[column], rank, seed=seed + column),
            0.5 + slot,
            column,
        )
        for rank, column in HELD[slot]
    ]


def table_of(dtype: torch.dtype = torch.float32) -> SlotTable:
    table = SlotTable(INPUTS, PARTS, SLOTS, RANK, dtype, torch.device(DEVICE))
    for slot in HELD:
        table.put(slot, table.image(parts_of(slot)))
    return table


def groups_of(slots: Sequence[int]) -> RowGroups:
    return RowGroups.of(torch.from_numpy(group_rows(np.array(slots, dtype=np.int64), SLOTS)).to(DEVICE), len(slots))


def expected(y: Tensor, x: Tensor, slots: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The definition, in float64, of A, B and inputs as they are rounded to ``dtype``."""
    found = y.cpu().double()
    for row, slot in enumerate(slots):
        for part in parts_of(slot) if slot in HELD else ():
            down, up = part.down.to(dtype).double(), part.up.to(dtype).double()
            added = up @ (down @ x[row].cpu().to(dtype).double()) * part.scale
            found[row, part.column : part.column + len(added)] += added
    return found.to(y.dtype).to(y.device)


def check(variant: Variant, slots: Sequence[int], dtype: torch.dtype, *, invariant: bool = False) -> None:
    table, x = table_of(dtype), normal(len(slots), INPUTS, seed=7).to(DEVICE)
    wide = normal(len(slots), sum(PARTS) + 9, seed=8).to(DEVICE)
    y = wide[:, 5:-4]
    assert choose_in_slots(y, variant) == variant
    wanted, before = expected(y, x, slots, dtype), y.clone()
    found = add_in_slots_(y, x, groups_of(slots), table, invariant=invariant, variant=variant)
    assert_close(found, wanted, 1e-5)
    for row, slot in enumerate(slots):
        if slot not in HELD:
            assert_same_bits(found[row], before[row])


MIXED = [2, -1, 0, 1, 0, 0, -1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_gets_what_lies_in_its_slot(dtype: torch.dtype) -> None:
    check("reference", MIXED, dtype)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("slots", [[0], [-1, -1], MIXED, [0] * 17 + [2]])
def test_the_triton_kernels_add_what_the_definition_says(dtype: torch.dtype, slots: list[int]) -> None:
    check("triton", slots, dtype)


@pytest.mark.triton
@pytest.mark.parametrize("shares", [1, 4])
def test_many_rows_and_shared_inputs_are_split_into_tiles_of_any_size(shares: int) -> None:
    slots = [row % 4 - 1 for row in range(41)]
    with (
        overridden(DOWN, Config.of(BLOCK_T=16, BLOCK_R=16, BLOCK_K=64, SHARES=shares)),
        overridden(UP, Config.of(BLOCK_T=32, BLOCK_N=32, BLOCK_R=32)),
    ):
        check("triton", slots, torch.float32)


@pytest.mark.triton
def test_a_row_has_the_same_bits_alone_and_beside_others() -> None:
    table, x = table_of(), normal(len(MIXED), INPUTS, seed=7).to(DEVICE)
    y = normal(len(MIXED), sum(PARTS), seed=8).to(DEVICE)
    whole = add_in_slots_(y.clone(), x, groups_of(MIXED), table, invariant=True, variant="triton")
    for row in (0, 2):
        own = slice(row, row + 1)
        alone = add_in_slots_(y[own].clone(), x[own], groups_of(MIXED[own]), table, invariant=True, variant="triton")
        assert_same_bits(alone, whole[own])


def test_a_slot_holds_what_was_put_there_last_at_the_same_place() -> None:
    table, slots = table_of(), [0, 2]
    x, y = normal(2, INPUTS, seed=7).to(DEVICE), torch.zeros(2, sum(PARTS), device=DEVICE)
    places = [each.data_ptr() for each in (table.down, table.up, table.scales)]
    table.put(0, table.image(parts_of(2)))
    table.put(2, None)
    found = add_in_slots_(y.clone(), x, groups_of(slots), table)
    assert_close(found, expected(y, x, [2, -1], torch.float32), 1e-5)
    assert places == [each.data_ptr() for each in (table.down, table.up, table.scales)]


def test_an_image_gives_back_what_it_was_made_of_and_takes_what_a_slot_does() -> None:
    table = table_of(torch.bfloat16)
    image = table.image(parts_of(0))
    assert image.memory.nbytes == table.nbytes == table.memory.nbytes // SLOTS
    for part, again in zip(parts_of(0), image.parts, strict=True):
        assert torch.equal(again.down, part.down.bfloat16())
        assert torch.equal(again.up, part.up.bfloat16())
        assert (again.scale, again.column) == (part.scale, part.column)


def test_what_does_not_fit_is_refused() -> None:
    table = table_of()
    (part, _) = parts_of(0)
    for wrong in ([part, part], [LowRank(part.down, part.up[:5], 1.0, 0)], [LowRank(part.down, part.up, 1.0, 7)]):
        with pytest.raises(ValueError, match=r"no part of the product|is not in"):
            table.image(wrong)
    x, y = torch.zeros(2, INPUTS, device=DEVICE), torch.zeros(2, sum(PARTS), device=DEVICE)
    for given in ((y, x, groups_of([0])), (y[:, 1:], x, groups_of([0, 0])), (y.T.contiguous().T, x, groups_of([0, 0]))):
        with pytest.raises(ValueError, match="add_in_slots_"):
            add_in_slots_(*given, table)
