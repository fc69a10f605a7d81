"""The layout of a step's batch, against positions counted by hand."""

import torch

from stentor.engine.layers.forward_batch import LayerCache
from stentor.engine.worker.rows.batch import Batch, build_batch
from stentor.engine.worker.rows.rows import RowTable
from stentor.kernels import AttentionBatch
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep

BLOCK = 16
CPU = torch.device("cpu")
CACHES = [LayerCache((torch.empty(0), torch.empty(0)))]


def _table() -> RowTable:
    table = RowTable(4, 48, BLOCK)
    table.add(NewRow(2, list(range(100, 140)), 40, SamplingParams(max_tokens=1), 0, [7, 3, 5]))
    table.add(NewRow(0, list(range(200, 203)), 3, SamplingParams(max_tokens=1), 0, [9]))
    return table


def _laid_out(batch: Batch) -> tuple[torch.Tensor, AttentionBatch]:
    tokens, (attention,) = batch.forward.tokens, batch.forward.attention
    assert isinstance(tokens, torch.Tensor)
    return tokens, attention


def test_rows_lie_end_to_end_and_each_token_knows_its_place_in_the_cache() -> None:
    batch = build_batch([RowStep(2, 14, 4, [], False), RowStep(0, 2, 1, [], True)], _table(), CACHES, CPU)
    tokens, attention = _laid_out(batch)
    assert tokens.tolist() == [114, 115, 116, 117, 202]
    assert batch.forward.positions.tolist() == [14, 15, 16, 17, 2]
    assert attention.slots.tolist() == [7 * BLOCK + 14, 7 * BLOCK + 15, 3 * BLOCK, 3 * BLOCK + 1, 9 * BLOCK + 2]
    assert attention.query_start.tolist() == [0, 4, 5]
    assert attention.seq_lens.tolist() == [18, 3]
    assert attention.block_tables.tolist() == [[7, 3], [9, 0]]
    assert (attention.max_query_len, attention.max_seq_len) == (4, 18)
    assert batch.starts == [0, 4]
    assert batch.last.tolist() == [4]


def test_leading_rows_of_few_tokens_are_decode_rows_and_may_have_different_numbers_of_drafts() -> None:
    table = _table()
    table.add(NewRow(1, list(range(300, 320)), 20, SamplingParams(max_tokens=1), 0, [1, 2]))

    def decodes(*rows: RowStep) -> tuple[int, int, int | None]:
        _, attention = _laid_out(build_batch(rows, table, CACHES, CPU))
        return attention.decode_rows, attention.decode_query_len, attention.ragged_tokens

    prompt, one = RowStep(2, 0, 40, [], True), RowStep(0, 2, 1, [], True)
    two, five = RowStep(0, 1, 2, [], True, 1), RowStep(1, 10, 5, [], True, 4)
    assert decodes(one) == (1, 1, None)
    assert decodes(two) == (1, 2, 2)
    assert decodes(two, five, prompt) == (2, 8, 7)
    assert decodes(one, prompt, five) == (1, 1, None)
    assert decodes(prompt, two) == (0, 1, None)


def test_a_step_that_draws_nothing_has_no_last_tokens() -> None:
    batch = build_batch([RowStep(2, 0, 40, [], False)], _table(), CACHES, CPU)
    assert batch.last.tolist() == []
    assert batch.last.dtype == torch.int64
    _, attention = _laid_out(batch)
    assert attention.block_tables.tolist() == [[7, 3, 5]]


def test_a_batch_does_not_change_with_the_table_that_it_was_built_from() -> None:
    table = _table()
    batch = build_batch([RowStep(2, 0, 40, [], True), RowStep(0, 0, 3, [], True)], table, CACHES, CPU)
    tokens, attention = _laid_out(batch)
    before = [tensor.clone() for tensor in (tokens, attention.block_tables, attention.slots)]
    table.tokens[:] = -1
    table.blocks[:] = -1
    for tensor, expected in zip((tokens, attention.block_tables, attention.slots), before, strict=True):
        assert torch.equal(tensor, expected)


def test_blocks_are_appended_where_a_rows_table_ends() -> None:
    table = _table()
    table.extend(0, [4])
    table.extend(0, [6])
    assert table.blocks[0, 0].tolist() == [9, 4, 6]
    table.remove(0)
    table.add(NewRow(0, [1], 1, SamplingParams(max_tokens=1), 0, [8]))
    table.extend(0, [2])
    assert table.blocks[0, 0, :2].tolist() == [8, 2]
