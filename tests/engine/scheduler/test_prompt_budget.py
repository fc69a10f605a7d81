import pytest

from stentor.tests.engine.fake_engine import Engine


def test_prompts_beside_rows_that_decode_come_in_smaller_chunks() -> None:
    engine = Engine(max_num_batched_tokens=16, max_mixed_prefill_tokens=3, num_blocks=32)
    engine.submit([1, 2, 3, 4, 5, 6], max_tokens=3)
    engine.submit(list(range(20)), max_tokens=1)
    engine.drain()
    counts = [[row.count for row in plan.rows] for plan in engine.plans]
    assert counts[0] == [6, 10], "nobody decodes yet"
    assert counts[1:3] == [[1, 3], [1, 3]]
    assert counts[3] == [4], "nobody decodes any more"


def test_prompts_come_in_smaller_chunks_while_others_wait_for_the_device() -> None:
    engine = Engine(max_num_batched_tokens=16, max_mixed_prefill_tokens=3, num_blocks=32)
    engine.crowded = True
    engine.submit(list(range(20)), max_tokens=1)
    engine.plan()
    engine.plan()
    engine.crowded = False
    engine.drain()
    assert [[row.count for row in plan.rows] for plan in engine.plans] == [[3], [3], [14]]


def test_a_burst_of_prompts_is_not_held_back_for_the_few_who_decode() -> None:
    engine = Engine(max_num_batched_tokens=64, max_mixed_prefill_tokens=3, num_blocks=64, max_num_seqs=8)
    engine.submit([1, 2, 3, 4], max_tokens=30)
    engine.plan()
    for token in range(4):
        engine.submit([50 + token] * 9, max_tokens=30)
    engine.plan()
    assert [row.count for row in engine.plans[1].rows] == [1, 9, 9, 9, 9]


def test_as_many_prompts_of_a_burst_begin_in_one_step_as_fill_a_piece() -> None:
    engine = Engine(
        max_num_batched_tokens=64, max_mixed_prefill_tokens=3, max_admitted_tokens=16, num_blocks=99, max_num_seqs=10
    )
    for token in range(10):
        engine.submit([token] * 8, max_tokens=30)
    for _ in range(6):
        engine.step()
    counts = [[row.count for row in plan.rows] for plan in engine.plans]
    assert counts[:5] == [[8, 8]] * 5, "to the last of them"
    assert counts[5] == [1] * 10


def test_who_decoded_before_a_burst_came_decodes_beside_it() -> None:
    engine = Engine(max_num_batched_tokens=64, max_admitted_tokens=16, num_blocks=99, max_num_seqs=16)
    engine.submit([9] * 8, max_tokens=30)
    engine.step()
    for token in range(6):
        engine.submit([token] * 8, max_tokens=30)
    for _ in range(4):
        engine.step()
    counts = [[row.count for row in plan.rows] for plan in engine.plans]
    assert counts[1:] == [[1, 8, 8], [1, 8, 8], [1, 8, 8], [1] * 7]


def test_rows_of_a_burst_wait_for_the_rest_of_it_for_a_second_at_most() -> None:
    engine = Engine(max_num_batched_tokens=64, max_admitted_tokens=16, num_blocks=99, max_num_seqs=16)
    for token in range(12):
        engine.submit([token] * 8, max_tokens=30)
    engine.step()
    engine.step()
    engine.now += 1.0
    engine.step()
    counts = [[row.count for row in plan.rows] for plan in engine.plans]
    assert counts == [[8, 8], [8, 8], [1, 1, 1, 1, 8, 8]]


def test_rows_of_a_burst_decode_where_the_rest_lacks_the_blocks_that_they_hold() -> None:
    engine = Engine(max_num_batched_tokens=64, max_admitted_tokens=16, num_blocks=7, max_num_seqs=16)
    for token in range(8):
        engine.submit([token] * 8, max_tokens=3)
    engine.drain()
    assert [[row.count for row in plan.rows] for plan in engine.plans[:3]] == [[8, 8], [8], [1, 1]]


def test_a_long_prompt_and_those_that_begin_beside_it_share_a_step() -> None:
    engine = Engine(max_num_batched_tokens=64, max_prefill_chunk=8, max_admitted_tokens=8, num_blocks=99)
    for token in range(2):
        engine.submit([token] * 16, max_tokens=1)
    engine.drain()
    assert [[row.count for row in plan.rows] for plan in engine.plans] == [[8], [8, 8], [8]]


def test_who_comes_after_a_burst_does_not_make_it_last() -> None:
    engine = Engine(
        max_num_batched_tokens=64, max_mixed_prefill_tokens=3, max_admitted_tokens=8, num_blocks=99, max_num_seqs=16
    )
    for token in range(8):
        engine.submit([token] * 8, max_tokens=30)
    for _ in range(8):
        engine.step()
    for token in range(3):
        engine.submit([50 + token] * 8, max_tokens=30)
    engine.step()
    assert [row.count for row in engine.plans[-1].rows] == [*[1] * 8, 3]


@pytest.mark.parametrize(("decoding", "slots"), [(9, 13), (2, 5)])
def test_it_is_no_burst_where_many_decode_or_few_have_a_slot_to_wait_for(decoding: int, slots: int) -> None:
    engine = Engine(max_num_batched_tokens=64, max_mixed_prefill_tokens=3, num_blocks=64, max_num_seqs=slots)
    for token in range(decoding):
        engine.submit([token], max_tokens=30)
    engine.plan()
    for token in range(4):
        engine.submit([50 + token] * 9, max_tokens=30)
    engine.plan()
    assert [row.count for row in engine.plans[1].rows] == [*[1] * decoding, 3]


def test_a_step_takes_a_piece_of_each_long_prompt() -> None:
    engine = Engine(max_num_batched_tokens=16, max_prefill_chunk=5, num_blocks=32)
    for token in range(4):
        engine.submit([token] * 12, max_tokens=1)
    engine.drain()
    counts = [[row.count for row in plan.rows] for plan in engine.plans]
    assert counts[:2] == [[5, 5, 5, 1], [5, 5, 5, 1]]
    assert sum(map(sum, counts)) == 4 * 12
