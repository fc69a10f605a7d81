"""Models with recurrent states: a row goes on from what it has seen, and a prefix is found with the state behind it."""

import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stentor.engine.core.scheduler.states import SLOTS_A_ROW, StateCache
from stentor.protocols.ipc.steps import StepPlan
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.scheduler.any_order import SEEDS, AnyOrder, many, run_at_random, sizes
from stentor.tests.engine.scheduler.test_properties import submit_random


class StatesMachine(AnyOrder):
    @initialize(
        sizes=sizes(st.integers(60, 150)),
        seed=SEEDS,
        more=st.integers(0, 6),
        windows=st.sampled_from([(0,), (0, 5)]),
        host_states=st.sampled_from([0, 0, 1, 20]),
    )
    def start(self, sizes: dict[str, Any], seed: int, more: int, windows: tuple[int, ...], host_states: int) -> None:
        num_states = SLOTS_A_ROW * sizes["max_num_seqs"] + more
        self.begin(seed, max_model_len=48, windows=windows, num_states=num_states, host_states=host_states, **sizes)

    @rule()
    def submit(self) -> None:
        submit_random(self.engine, self.rng)


TestStatesInAnyOrder = StatesMachine.TestCase
TestStatesInAnyOrder.settings = many(50)


def engine_of(**changes: Any) -> Engine:
    given = {"num_blocks": 800, "block_size": 4, "max_num_batched_tokens": 64, "max_model_len": 1000, "num_states": 40}
    return Engine(**{**given, **changes})


def left_behind(plans: list[StepPlan]) -> list[int]:
    """Where rows went on in another slot: the tokens that the state left behind has seen."""
    entered = {(plan.step, new.slot) for plan in plans for new in plan.new}
    return [row.start for plan in plans for row in plan.rows if row.state >= 0 and (plan.step, row.slot) not in entered]


@pytest.mark.parametrize("max_drafts", [0, 3])
def test_many_requests_in_a_pool_too_small_for_them_give_what_each_gives_alone(max_drafts: int) -> None:
    preemptions = hits = accepted = 0
    for seed in range(8):
        rng = random.Random(seed)
        rows = rng.randint(4, 12)
        engine = Engine(
            num_blocks=rng.randint(8, 12) + 8,
            block_size=4,
            max_num_seqs=rows,
            max_num_batched_tokens=rng.choice([8, 32, 256]),
            max_prefill_chunk=rng.choice([4, 8, None]),
            max_model_len=48,
            num_states=SLOTS_A_ROW * rows + rng.randint(0, 8),
            max_drafts=max_drafts,
        )
        run_at_random(engine, rng, submit_random, (0.05, engine.kill_worker), (0.02, engine.kill_engine))
        preemptions += engine.scheduler.stats().preemptions
        hits += engine.scheduler.stats().prefix_hits
        accepted += engine.worker.accepted_tokens
    assert preemptions > 0, "the pools were not too small"
    assert hits > 0
    assert (accepted > 0) == (max_drafts > 0)


def test_a_prompt_shared_up_to_its_middle_is_found_by_all_requests_after_the_first() -> None:
    """1,500 shared and 700 own tokens in small: the second parts where no state was kept, and keeps one there."""
    engine = engine_of()
    shared = [number % 7 for number in range(300)]
    found = []
    for own in range(12):
        before = engine.scheduler.stats().prefix_hits
        rid = engine.submit([*shared, *[10 + own] * 120], max_tokens=2)
        engine.drain()
        found.append(engine.scheduler.stats().prefix_hits - before)
        assert engine.clients[rid].prompts[0].cached_tokens == found[-1]
    engine.check_clients()
    assert found == [0, 256, *[300] * 10], "first what an interval left behind, then where the prompts part"


def test_a_prompt_that_comes_again_starts_behind_its_last_whole_block() -> None:
    engine = engine_of()
    prompt = [number % 7 for number in range(101)]
    for found in (0, 100):
        rid = engine.submit(prompt, max_tokens=4)
        engine.drain()
        assert engine.clients[rid].prompts[0].cached_tokens == found


def test_a_conversation_that_goes_on_starts_where_its_last_turn_was_asked() -> None:
    engine = engine_of()
    turn = [number % 7 for number in range(90)]
    rid = engine.submit(turn, max_tokens=30)
    engine.drain()
    answer = engine.clients[rid].tokens[0]
    rid = engine.submit([*turn, *answer, 1, 2, 3], max_tokens=2)
    engine.drain()
    assert engine.clients[rid].prompts[0].cached_tokens == 88


@pytest.mark.parametrize("max_drafts", [0, 3])
def test_a_long_answer_leaves_states_behind_too(max_drafts: int) -> None:
    """With drafts, a row comes to a multiple of the interval without any."""
    engine = engine_of(max_prefill_chunk=32, max_drafts=max_drafts)
    turn = [number % 7 for number in range(10)]
    rid = engine.submit(turn, max_tokens=100)
    engine.drain()
    answer = engine.clients[rid].tokens[0]
    rid = engine.submit([*turn, *answer, 1, 2, 3], max_tokens=2)
    engine.drain()
    assert engine.clients[rid].prompts[0].cached_tokens == 96


def test_sequences_of_a_request_start_behind_its_prompt_with_one_state() -> None:
    engine = engine_of(max_num_seqs=8, num_states=32)
    engine.submit([number % 7 for number in range(41)], seeds=range(6), max_tokens=5)
    engine.drain()
    engine.check_clients()
    counts = [row.count for plan in engine.plans for row in plan.rows if row.start == 40]
    assert counts == [1] * 6, "none but the first computed the prompt"
    assert left_behind(engine.plans) == [40]


def test_without_a_prefix_cache_states_are_left_behind_for_forks_alone() -> None:
    engine = engine_of(prefix_cache=False, max_num_seqs=8, num_states=32)
    engine.submit([number % 7 for number in range(200)], max_tokens=80)
    engine.drain()
    assert left_behind(engine.plans) == []
    engine.submit([number % 7 for number in range(41)], seeds=range(3), max_tokens=5)
    engine.drain()
    assert left_behind(engine.plans) == [40]
    engine.check_clients()


def test_where_there_is_no_room_for_it_forks_compute_their_prompt_again() -> None:
    engine = engine_of(prefix_cache=False, max_num_seqs=4, num_states=SLOTS_A_ROW * 4)
    engine.submit([number % 7 for number in range(41)], seeds=range(3), max_tokens=5)
    engine.drain()
    engine.check_clients()
    assert sum(row.start == 0 for plan in engine.plans for row in plan.rows) == 3


def test_what_was_used_longest_ago_is_given_up_first() -> None:
    engine = engine_of(max_num_seqs=1, num_states=SLOTS_A_ROW + 1)
    found = []
    for number in (0, 1, 0, 2, 0, 1):
        rid = engine.submit([number] * 40 + [1], max_tokens=2)
        engine.drain()
        found.append(engine.clients[rid].prompts[0].cached_tokens)
    assert found == [0, 0, 40, 0, 40, 0]


def test_no_prompt_finds_a_state_from_before_the_cache_was_reset() -> None:
    engine = engine_of()
    prompt = [number % 7 for number in range(101)]
    engine.submit(prompt, max_tokens=4)
    engine.drain()
    engine.scheduler.reset_prefix_cache()
    rid = engine.submit(prompt, max_tokens=4)
    engine.drain()
    assert engine.clients[rid].prompts[0].cached_tokens == 0
    engine.check_clients()


def test_too_few_slots_for_the_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="7 slots of recurrent states for 4 rows"):
        StateCache(7, 4, 16, 512, enabled=True)
