"""Prompts of which vectors are made: whatever happens, each gives once what it gives alone."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from stentor.protocols.ipc.pooling import Pooled, Pooling, PoolingTask
from stentor.protocols.ipc.steps import RowPooled, StepPlan, StepResult
from stentor.tests.engine.fake_engine import AttentionScope, Engine
from stentor.tests.engine.mortal_engine import MortalEngine
from stentor.tests.engine.scheduler.any_order import SEEDS, AnyOrder, many, random_prompt, sizes
from stentor.tests.examples import examples

TASKS: tuple[PoolingTask, ...] = ("embed", "classify", "token_embed", "sparse")
LONGEST = 48


def some_pooling(rng: random.Random) -> Pooling:
    task = rng.choice(TASKS)
    return Pooling(task, dimensions=rng.choice([0, 4]), last=task in TASKS[:2] and rng.random() < 0.7)


def submit_random(engine: Engine, rng: random.Random) -> int:
    salt, priority = rng.choice(["", "", "other"]), rng.choice([0, 0, 0, -3, 7])
    return engine.submit(random_prompt(rng, 30, 40), pooling=some_pooling(rng), priority=priority, salt=salt)


class PoolingMachine(AnyOrder):
    @initialize(
        sizes=sizes(st.integers(LONGEST, 120), max_prefill_chunk=st.sampled_from([1, 2, 5, 16, 64])),
        reach=st.sampled_from(["all", "before"]),
        room=st.integers(0, 40),
        seed=SEEDS,
    )
    def start(self, sizes: dict[str, Any], reach: AttentionScope, room: int, seed: int) -> None:
        # as set-up sees to it: any prompt fits into a step where it must
        sizes["max_num_batched_tokens"] = LONGEST + room if reach == "all" else max(1, room)
        self.shared_limit = sizes["max_prefill_chunk" if reach == "all" else "max_num_batched_tokens"]
        """Tokens of a step of several rows."""
        self.begin(seed, max_model_len=LONGEST, attention_scope=reach, **sizes)

    @rule()
    def submit(self) -> None:
        submit_random(self.engine, self.rng)

    @rule()
    def submit_what_draws(self) -> None:
        rid = self.engine.submit([1, 2, 3], max_tokens=3)
        assert self.engine.clients.pop(rid).finished[0].reason == "error"

    @invariant()
    def a_step_is_long_for_one_prompt_alone(self) -> None:
        for plan in self.engine.plans:
            assert len(plan.rows) == 1 or sum(row.count for row in plan.rows) <= self.shared_limit
        self.engine.plans.clear()


TestPoolingInAnyOrder = PoolingMachine.TestCase
TestPoolingInAnyOrder.settings = many(48)


@pytest.mark.parametrize("crowded", [False, True])
def test_a_prompt_longer_than_a_step_should_be_has_one_for_itself(crowded: bool) -> None:
    engine = Engine(
        num_blocks=64,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_mixed_prefill_tokens=8,
        max_prefill_chunk=16,
        attention_scope="all",
    )
    engine.crowded = crowded
    for length in (3, 5, 6, 60, 2, 30, 4, 4, 4):
        engine.submit([7] * length, pooling=Pooling("embed"))
    engine.drain()
    engine.check_clients()
    steps = [sorted(row.count for row in plan.rows) for plan in engine.plans]
    assert steps == (
        [[3, 5], [6], [60], [2], [30], [4, 4], [4]] if crowded else [[3, 5, 6], [60], [2], [30], [4, 4, 4]]
    )


def test_a_long_prompt_is_not_overtaken_for_ever_by_short_ones() -> None:
    engine = Engine(
        num_blocks=64,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_prefill_chunk=16,
        max_model_len=64,
        attention_scope="all",
    )
    for _ in range(4):
        engine.submit([7] * 8, pooling=Pooling("embed"))
    long = engine.submit([9] * 60, pooling=Pooling("embed"))
    for _ in range(6):
        for _ in range(4):
            engine.submit([7] * 8, pooling=Pooling("embed"))
        engine.step()
    assert engine.clients[long].finished
    engine.drain()
    engine.check_clients()


def test_a_known_prefix_is_not_computed_again_where_the_last_token_is_all_that_counts() -> None:
    engine = Engine(
        num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64, attention_scope="before"
    )
    for pooling, cached in ((Pooling("embed", last=True), [0, 29]), (Pooling("token_embed"), [0, 0])):
        rids = []
        for _ in range(2):
            rids.append(engine.submit([5] * 30, pooling=pooling, salt=pooling.task))
            engine.drain()
        assert [engine.clients[rid].prompts[0].cached_tokens for rid in rids] == cached
    engine.check_clients()


@pytest.mark.parametrize("reach", ["all", "before"])
@settings(max_examples=examples(30, 300), deadline=None)
@given(seed=st.integers(0, 2**20), others=st.integers(0, 14))
def test_a_prompt_that_kills_its_workers_is_found(reach: AttentionScope, seed: int, others: int) -> None:
    rng = random.Random(seed)
    poison = -1

    def kills(plan: StepPlan, rids: set[int]) -> bool:
        return poison in rids

    engine = MortalEngine(
        kills, rng, num_blocks=rng.randint(16, 40), max_num_seqs=rng.randint(2, 16), max_num_batched_tokens=64,
        attention_scope=reach,
    )  # fmt: skip
    at = rng.randint(0, others)
    for number in range(others + 1):
        rid = submit_random(engine, rng)
        poison = rid if number == at else poison
        for _ in range(rng.randint(0, 3)):
            engine.step()
    engine.drain()
    engine.check_clients()
    assert engine.failed == {poison}


def test_a_vector_that_nobody_asked_for_is_a_mistake_of_the_worker() -> None:
    engine = Engine(num_blocks=64, max_num_batched_tokens=64, attention_scope="all")
    engine.submit([1, 2, 3], pooling=Pooling("embed"))
    plan = engine.scheduler.plan(0.0)
    assert plan is not None
    odd = StepResult(plan.epoch, plan.step, [], None, [], 0.0, pooled=[RowPooled(3, Pooled(1, 1, b"1234"))])
    with pytest.raises(ValueError, match="made a vector of slot 3 in step 0, where nobody asked for one"):
        engine.scheduler.complete(odd, 0.0)
