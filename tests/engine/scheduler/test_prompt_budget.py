import random

import pytest

from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.steps import StepPlan
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


def test_as_many_prompts_begin_in_one_step_as_fill_a_piece() -> None:
    engine = Engine(max_num_batched_tokens=64, max_admitted_tokens=16, num_blocks=99, max_num_seqs=10)
    for token in range(6):
        engine.submit([token] * 8, max_tokens=30)
    for _ in range(4):
        engine.step()
    counts = [[row.count for row in plan.rows] for plan in engine.plans]
    assert counts == [[8, 8], [1, 1, 8, 8], [1, 1, 1, 1, 8, 8], [1] * 6]


def test_rows_decode_in_every_step_of_a_burst_of_prompts() -> None:
    engine = Engine(max_num_batched_tokens=64, max_mixed_prefill_tokens=8, num_blocks=199, max_num_seqs=16)
    engine.submit([9] * 8, max_tokens=60)
    engine.step()
    for token in range(12):
        engine.submit([token] * 12, max_tokens=60)
    for _ in range(24):
        engine.step()
    begun: set[int] = set()
    for plan in engine.plans:
        assert begun <= {row.slot for row in plan.rows}
        begun |= {row.slot for row in plan.rows if row.sample}
    assert len(begun) == 13


def test_a_long_prompt_and_those_that_begin_beside_it_share_a_step() -> None:
    engine = Engine(max_num_batched_tokens=64, max_prefill_chunk=8, max_admitted_tokens=8, num_blocks=99)
    for token in range(2):
        engine.submit([token] * 16, max_tokens=1)
    engine.drain()
    assert [[row.count for row in plan.rows] for plan in engine.plans] == [[8], [8, 8], [8]]


class Timed:
    """Steps of 2 ms for each decoding row and 1 ms for each prompt token."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        """Decoding rows and prompt tokens."""

    def __call__(self, plan: StepPlan) -> float:
        decoding = sum(row.count == 1 and row.start > 0 for row in plan.rows)
        self.steps.append((decoding, sum(row.count for row in plan.rows) - decoding))
        return self.seconds(*self.steps[-1])

    def seconds(self, decoding: int, tokens: int) -> float:
        return 0.002 * decoding + 0.001 * tokens


def test_prompts_beside_rows_that_decode_get_the_time_that_these_leave_of_the_target() -> None:
    timed = Timed()
    engine = Engine(
        max_num_batched_tokens=512, num_blocks=999, max_num_seqs=8, max_model_len=900, target_itl=0.1, seconds_of=timed
    )
    for _ in range(4):
        engine.submit([7] * 20, max_tokens=99)
    for _ in range(12):
        engine.step()
    engine.submit([8] * 400, max_tokens=1)
    for _ in range(8):
        engine.step()
    assert timed.steps[12:17] == [(4, 80)] * 5, "a multiple of 16 that takes at most 92 ms"


def test_prompts_get_half_of_that_while_others_wait_for_the_device() -> None:
    timed = Timed()
    engine = Engine(
        max_num_batched_tokens=512, num_blocks=999, max_num_seqs=8, max_model_len=900, target_itl=0.1, seconds_of=timed
    )
    engine.submit([7] * 20, max_tokens=1)
    engine.drain()
    engine.crowded = True
    engine.submit([8] * 100, max_tokens=1)
    engine.drain()
    assert timed.steps[-3:] == [(0, 48), (0, 48), (0, 4)]


def test_texts_to_embed_come_by_their_number_of_tokens_while_others_wait_for_the_device() -> None:
    engine = Engine(
        max_num_batched_tokens=64,
        max_mixed_prefill_tokens=40,
        num_blocks=99,
        attention_scope="all",
        target_itl=0.1,
        seconds_of=lambda plan: 9.0,
    )
    engine.crowded = True
    for _ in range(4):
        engine.submit([7] * 20, pooling=Pooling("embed"))
    engine.drain()
    assert [[row.count for row in plan.rows] for plan in engine.plans] == [[20, 20], [20, 20]]


def test_without_a_target_the_number_of_tokens_alone_bounds_prompts() -> None:
    engine = Engine(max_num_batched_tokens=64, max_mixed_prefill_tokens=40, num_blocks=99, seconds_of=lambda plan: 9.0)
    engine.submit([7] * 20, max_tokens=30)
    for _ in range(3):
        engine.step()
    engine.submit([8] * 40, max_tokens=1)
    engine.step()
    assert [row.count for row in engine.plans[-1].rows] == [1, 40]


@pytest.mark.parametrize("seed", range(3))
def test_no_step_with_decoding_rows_takes_longer_than_the_target_or_twice_its_decoding(seed: int) -> None:
    draw, timed = random.Random(seed), Timed()
    engine = Engine(
        max_num_batched_tokens=512,
        max_prefill_chunk=128,
        max_admitted_tokens=128,
        num_blocks=2000,
        max_num_seqs=64,
        max_model_len=900,
        target_itl=0.1,
        seconds_of=timed,
    )
    for count in (1, 2, 4, 8, 16, 24):  # the worker has run a while
        for _ in range(count):
            engine.submit([1, 2, 3], max_tokens=8)
        engine.drain()
    begun = len(timed.steps)
    for _ in range(draw.randint(10, 25)):
        engine.submit([draw.randrange(99)] * draw.randint(1, 400), max_tokens=draw.randint(1, 40))
        for _ in range(draw.choice([0, 0, 0, 1, 9])):
            engine.step()
    engine.drain()
    engine.check_clients()
    for decoding, tokens in timed.steps[begun:]:
        assert decoding + tokens <= 512
        if decoding:
            # not all numbers of rows have been measured, and 16 tokens are always allowed
            assert timed.seconds(decoding, tokens) <= max(0.1, timed.seconds(2 * decoding, 16)) * 1.15


def long_beside() -> Engine:
    """A prompt of 400 tokens that is computed in chunks of 40, beside a row that decodes."""
    engine = Engine(
        max_num_batched_tokens=512, max_mixed_prefill_tokens=40, num_blocks=999, max_num_seqs=12, max_model_len=900
    )
    engine.submit([7] * 4, max_tokens=200)
    engine.step()
    engine.submit([8] * 400, max_tokens=1)
    engine.step()
    engine.step()
    return engine


def test_a_long_prompt_has_all_prompt_tokens_of_a_step_while_no_other_waits() -> None:
    assert [row.count for row in long_beside().plans[-1].rows] == [1, 40]


def test_a_long_prompt_leaves_half_of_a_step_to_those_behind_it() -> None:
    engine = long_beside()
    chat = engine.submit([9] * 16, max_tokens=1)
    engine.step()
    assert [row.count for row in engine.plans[-1].rows] == [1, 16, 24], "the chat, and the rest for the long prompt"
    engine.step()
    engine.step()
    assert engine.clients[chat].finished


def test_two_long_prompts_leave_a_quarter_of_a_step_to_those_behind_them() -> None:
    engine = long_beside()
    engine.submit([5] * 400, max_tokens=1)
    engine.submit([9] * 8, max_tokens=1)
    engine.step()
    assert [row.count for row in engine.plans[-1].rows] == [1, 10, 8, 22]


def test_a_stream_of_chats_takes_at_most_half_of_a_long_prompts_steps() -> None:
    engine = long_beside()
    for token in range(30):
        engine.submit([20 + token] * 40, max_tokens=1)
        engine.step()
    shares = [sum(row.count for row in plan.rows if row.slot == 1) for plan in engine.plans[4:20]]
    assert min(shares[:14]) >= 20
    engine.drain()
    engine.check_clients()


def test_a_prompt_that_a_step_completes_is_not_held_up_by_those_behind_it() -> None:
    engine = Engine(max_num_batched_tokens=64, max_mixed_prefill_tokens=20, num_blocks=99)
    engine.submit([7] * 4, max_tokens=30)
    engine.step()
    for token in (1, 2):
        engine.submit([token] * 16, max_tokens=1)
    engine.step()
    assert [row.count for row in engine.plans[-1].rows] == [1, 16, 4]


def test_a_step_takes_a_piece_of_each_long_prompt() -> None:
    engine = Engine(max_num_batched_tokens=16, max_prefill_chunk=5, num_blocks=32)
    for token in range(4):
        engine.submit([token] * 12, max_tokens=1)
    engine.drain()
    counts = [[row.count for row in plan.rows] for plan in engine.plans]
    assert counts[:2] == [[5, 5, 5, 1], [5, 5, 5, 1]]
    assert sum(map(sum, counts)) == 4 * 12
