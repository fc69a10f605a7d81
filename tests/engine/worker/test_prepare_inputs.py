"""The numbers of a step, against what is counted by hand, and their padding."""

import random

import numpy as np
import pytest

from stentor.engine.worker.device.graphs import GraphSize
from stentor.engine.worker.passes.prepare_inputs import no_rows, number_step, pad_step
from stentor.engine.worker.rows.rows import RowTable
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep

BLOCK = 16


@pytest.fixture
def table() -> RowTable:
    table = RowTable(4, 48, BLOCK)
    table.add(NewRow(2, list(range(100, 140)), 40, SamplingParams(max_tokens=9), 0, [7, 3, 5]))
    table.add(NewRow(0, list(range(200, 203)), 3, SamplingParams(max_tokens=9), 0, [9]))
    table.add(NewRow(1, [50], 1, SamplingParams(max_tokens=9), 0, [4]))
    return table


def test_decode_rows_come_first_and_each_token_knows_its_place(table: RowTable) -> None:
    table.num_sampled[0] = 2
    rows = [RowStep(2, 14, 4, [], False), RowStep(0, 4, 1, [], True), RowStep(1, 0, 1, [], True)]
    numbers = number_step(rows, table)
    sections = {name: section.tolist() for name, section in numbers.sections.items()}
    assert sections == {
        "tokens": [-1, 50, 114, 115, 116, 117],
        "positions": [4, 0, 14, 15, 16, 17],
        "kv_slots": [9 * 16 + 4, 4 * 16, 7 * 16 + 14, 7 * 16 + 15, 3 * 16, 3 * 16 + 1],
        "row_slots": [0, 1, 2],
        "logits_indices": [0, 1],
        "draw_slots": [0, 1],
        "query_start": [0, 1, 2, 6],
        "seq_lens": [5, 1, 18],
    }
    assert (numbers.decode_rows, numbers.max_query_len, numbers.max_seq_len) == (2, 4, 18)
    assert numbers.starts == {0: 0, 1: 1, 2: 2}


def test_draws_are_found_again_in_the_order_of_the_plan(table: RowTable) -> None:
    rows = [RowStep(2, 0, 40, [], True), RowStep(0, 0, 1, [], False), RowStep(1, 0, 1, [], True)]
    numbers = number_step(rows, table)
    assert numbers.sections["draw_slots"].tolist() == [1, 2]
    assert numbers.places == [1, 0]


def test_padding_belongs_to_nobody(table: RowTable) -> None:
    rows = [RowStep(0, 2, 1, [], True), RowStep(1, 0, 1, [], False)]
    padded = pad_step(number_step(rows, table), GraphSize(4), null_slot=4, null_block=30, block_size=BLOCK)
    sections = {name: section.tolist() for name, section in padded.sections.items()}
    assert sections == {
        "tokens": [202, 50, 0, 0],
        "positions": [2, 0, 0, 0],
        "kv_slots": [9 * 16 + 2, 4 * 16, 482, 483],
        "row_slots": [0, 1, 4, 4],
        "logits_indices": [0, 1, 2, 3],
        "draw_slots": [0, -1, -1, -1],
        "query_start": [0, 1, 2, 3, 4],
        "seq_lens": [3, 1, 0, 0],
    }
    assert padded.places == [0]
    assert (padded.decode_rows, padded.shape.rows, padded.shape.draws) == (4, 4, 4)
    for name, section in padded.sections.items():
        assert section.dtype == number_step(rows, table).sections[name].dtype


def test_prompts_keep_their_splits_behind_the_rows_that_decode(table: RowTable) -> None:
    table.num_sampled[0] = 2
    rows = [RowStep(2, 14, 20, [], True), RowStep(1, 0, 1, [], False), RowStep(0, 1, 2, [], True)]
    numbers = number_step(rows, table)
    assert numbers.draw_rows.tolist() == [1, 2]
    size = GraphSize(2, 48)
    padded = pad_step(numbers, size, null_slot=4, null_block=30, block_size=BLOCK)
    sections = {name: section.tolist() for name, section in padded.sections.items()}
    nobody = 48 - 22
    assert size.prompts == 3
    assert sections == {
        "tokens": [50, 0, *range(114, 134), 201, 202, *[0] * nobody],
        "positions": [0, 0, *range(14, 34), 1, 2, *[0] * nobody],
        "kv_slots": [
            *(4 * 16, 480 + 1),
            *(7 * 16 + 14, 7 * 16 + 15, *range(3 * 16, 4 * 16), 5 * 16, 5 * 16 + 1),
            *(9 * 16 + 1, 9 * 16 + 2),
            *(480 + at % 16 for at in range(24, 50)),
        ],
        "row_slots": [1, 4, 2, 0, 4, 4],
        "logits_indices": [0, 1, 21, 23, 23],
        "draw_slots": [-1, -1, 2, 0, -1],
        "query_start": [0, 1, 2, 22, 24, 24, 50],
        "seq_lens": [1, 0, 34, 3, 0, 0],
    }
    assert padded.places == [2, 3]
    assert (padded.decode_rows, padded.shape.rows, padded.shape.tokens, padded.shape.draws) == (2, 6, 50, 5)
    for name, section in padded.sections.items():
        assert section.dtype == numbers.sections[name].dtype


@pytest.mark.parametrize("size", [GraphSize(40), GraphSize(0, 16), GraphSize(3, 64)], ids=str)
def test_a_step_of_nobody_writes_to_the_null_block_and_draws_for_nobody(size: GraphSize) -> None:
    padded = pad_step(no_rows(), size, null_slot=4, null_block=3, block_size=BLOCK)
    assert len(padded.sections["kv_slots"]) == size.tokens
    assert all(3 * BLOCK <= slot < 4 * BLOCK for slot in padded.sections["kv_slots"].tolist())
    assert padded.sections["draw_slots"].tolist() == [-1] * size.draws
    assert padded.sections["row_slots"].tolist() == [4] * size.rows
    assert not padded.sections["seq_lens"].any()
    assert padded.sections["query_start"][-1] == size.tokens
    assert all(0 <= at < size.tokens for at in padded.sections["logits_indices"].tolist())


def test_only_the_last_drawn_token_is_at_hand(table: RowTable) -> None:
    table.num_sampled[0] = 2
    for wrong in (RowStep(0, 3, 1, [], True), RowStep(0, 5, 1, [], True), RowStep(0, 2, 2, [], True)):
        with pytest.raises(ValueError, match="slot 0 runs to position"):
            number_step([wrong], table)
    with pytest.raises(ValueError, match="slot 3 holds no row"):
        number_step([RowStep(3, 0, 1, [], True)], table)


@pytest.mark.parametrize("seed", range(12))
def test_any_step_is_found_again_in_its_padding(seed: int) -> None:
    rng = random.Random(seed)
    slots, groups, null_block = 8, rng.choice((1, 2)), 99
    table = RowTable(slots, 64, BLOCK, groups)
    chosen = rng.sample(range(slots), rng.randrange(1, slots + 1))
    plan = []
    for slot in chosen:
        length = rng.randrange(1, 60)
        blocks = [rng.randrange(null_block) for _ in range(4 * groups)]
        table.add(
            NewRow(slot, [rng.randrange(500) for _ in range(length)], length, SamplingParams(max_tokens=9), 0, blocks)
        )
        start = rng.randrange(length)
        plan.append(RowStep(slot, start, rng.randrange(1, length - start + 1), [], rng.random() < 0.7))
    numbers = number_step(plan, table)
    decodes = numbers.decode_rows
    prompt_tokens = numbers.shape.tokens - decodes
    most = 16 * (len(plan) - decodes) + rng.randrange(40)
    size = GraphSize(decodes + rng.randrange(3), max(prompt_tokens, most) if prompt_tokens else 0)
    padded = pad_step(numbers, size, null_slot=slots, null_block=null_block, block_size=BLOCK, groups=groups)
    old, new = numbers.sections, padded.sections
    per_group = [each.reshape(groups, -1) for each in (old["kv_slots"], new["kv_slots"])]
    real = np.zeros(size.tokens, dtype=bool)
    for row in range(len(plan)):
        at = row if row < decodes else row + size.decodes - decodes
        assert new["row_slots"][at] == old["row_slots"][row]
        assert new["seq_lens"][at] == old["seq_lens"][row]
        span, where = (
            slice(*each[first : first + 2]) for each, first in ((old["query_start"], row), (new["query_start"], at))
        )
        real[where] = True
        for name in ("tokens", "positions"):
            assert new[name][where].tolist() == old[name][span].tolist()
        assert per_group[1][:, where].tolist() == per_group[0][:, span].tolist()
    assert real.sum() == numbers.shape.tokens
    assert (per_group[1][:, ~real] // BLOCK == null_block).all()
    assert (np.diff(new["query_start"]) >= 0).all()
    assert (new["query_start"][0], new["query_start"][-1]) == (0, size.tokens)
    drawn = [row for row in plan if row.sample]
    assert [new["draw_slots"][place] for place in padded.places] == [row.slot for row in drawn]
    assert sum(new["draw_slots"] >= 0) == len(drawn)
    for place, step in zip(padded.places, drawn, strict=True):
        assert new["positions"][new["logits_indices"][place]] == step.start + step.count - 1
