"""Which slots rows read and write their recurrent states in, from one step to the next."""

import numpy as np
import pytest
import torch

from stentor.engine.model_config.spec.recurrent import StateTensor
from stentor.engine.worker.device.graphs import GraphSize
from stentor.engine.worker.passes.prepare_inputs import no_rows, number_step, pad_step
from stentor.engine.worker.passes.staged_step import no_changes, stage
from stentor.engine.worker.rows.rows import RowTable
from stentor.engine.worker.rows.states import RowStates, StateDTypes
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan

ROWS = 4
PADDING = {"null_slot": ROWS, "null_block": 9, "block_size": 16}
"""A padding row, and its block."""


@pytest.fixture
def states() -> RowStates:
    part = StateTensor((2,), recurrent=True)
    return RowStates({0: (part,)}, 9, ROWS, StateDTypes(torch.float32, torch.float32), torch.device("cpu"))


def row(slot: int, state: int = -1) -> NewRow:
    return NewRow(slot, [5, 6, 7], 3, SamplingParams(max_tokens=9), 0, [slot], state=state)


def pairs(states: RowStates, *rows: int) -> list[tuple[int, int]]:
    reads, writes = states.slots(list(rows))
    return list(zip(reads.tolist(), writes.tolist(), strict=True))


def test_a_row_writes_where_it_is_told_and_reads_there_from_then_on(states: RowStates) -> None:
    states.enter(StepPlan(0, 0, [], [row(0, state=7), row(2)], []))
    states.move([RowStep(2, 0, 2, [], False, state=3), RowStep(0, 2, 1, [], True, state=1)])
    assert pairs(states, 0, 2) == [(7, 1), (-1, 3)], "one begins from a state of others, one with none"
    states.move([RowStep(2, 2, 1, [], True)])
    assert pairs(states, 2) == [(3, 3)]
    states.move([RowStep(2, 3, 1, [], True, state=8), RowStep(0, 3, 1, [], True)])
    assert pairs(states, 2, 0) == [(3, 8), (1, 1)]


def test_a_row_without_a_place_for_its_state_is_refused(states: RowStates) -> None:
    states.enter(StepPlan(0, 0, [], [row(1)], []))
    states.move([RowStep(1, 0, 2, [], False, state=3)])
    states.release([1])
    states.enter(StepPlan(0, 0, [1], [row(1)], []))
    with pytest.raises(ValueError, match="slot 1 runs and was given no place for its state"):
        states.move([RowStep(1, 0, 3, [], True)])


def test_rows_that_fill_up_a_graph_read_and_write_no_state(states: RowStates) -> None:
    table = RowTable(ROWS, 64, 16)
    plan = StepPlan(0, 0, [], [row(slot) for slot in range(ROWS)], [])
    table.enter(plan)
    states.enter(plan)
    steps = [RowStep(slot, 2, 1, [], True, state=slot + 4) for slot in (3, 1)]
    numbers = number_step(steps, table)
    states.move(steps)
    staged = stage(pad_step(numbers, GraphSize(4), **PADDING), no_changes(), [None, None], states)
    assert staged.sections["state_reads"].tolist() == [-1] * 4
    assert staged.sections["state_writes"].tolist() == [7, 5, -1, -1]
    assert staged.shape.state_rows == staged.shape.rows == 4
    nobody = stage(pad_step(no_rows(), GraphSize(2), **PADDING), no_changes(), [], states)
    assert nobody.sections["state_writes"].tolist() == [-1, -1]
    without = stage(numbers, no_changes(), [None, None])
    assert without.shape.state_rows == 0
    assert not np.size(without.sections["state_writes"])
