"""Random workloads: whatever happens, each sequence ends once with the tokens that it gives alone."""

import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.scheduler.any_order import SEEDS, AnyOrder, many, random_prompt, run_at_random, sizes
from stentor.tests.engine.scripted_grammar import ScriptedGrammar


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        max_tokens=rng.choice([0, 1, 2, 5, 9, 20, 30]),
        min_tokens=rng.choice([0, 0, 0, 3]),
        eos_token_ids=rng.choice([(), (0,), (0, 1)]),
        stop_token_ids=rng.choice([(), (), (1, 2)]),
        logprobs=rng.choice([None, None, 0]),
        prompt_logprobs=rng.choice([None, None, None, 0]),
    )


def submit_random(engine: Engine, rng: random.Random) -> int:
    return engine.submit(
        random_prompt(rng, 30),
        random_params(rng),
        seeds=[rng.getrandbits(64) for _ in range(rng.choice([1, 1, 1, 2, 3, 5]))],
        priority=rng.choice([0, 0, 0, -3, 7]),
        salt=rng.choice(["", "", "other"]),
        grammar=ScriptedGrammar(rng.randrange(100)) if rng.random() < 0.4 else None,
    )


class SchedulerMachine(AnyOrder):
    @initialize(sizes=sizes(st.integers(8, 60)), seed=SEEDS)
    def start(self, sizes: dict[str, Any], seed: int) -> None:
        self.begin(seed, max_model_len=48, **sizes)

    @rule()
    def submit(self) -> None:
        submit_random(self.engine, self.rng)


TestSchedulerInAnyOrder = SchedulerMachine.TestCase
TestSchedulerInAnyOrder.settings = many(60)


@pytest.mark.proof(each="max_drafts")
@pytest.mark.parametrize(("prefix_cache", "max_drafts"), [(True, 0), (False, 0), (True, 1), (True, 4), (False, 4)])
def test_many_requests_in_a_pool_too_small_for_them_give_what_each_gives_alone(
    prefix_cache: bool, max_drafts: int
) -> None:
    preemptions = hits = accepted = 0
    for seed in range(8):
        rng = random.Random(seed)
        engine = Engine(
            num_blocks=rng.randint(12, 16),
            block_size=4,
            max_num_seqs=rng.randint(4, 12),
            max_num_batched_tokens=rng.choice([8, 32, 256]),
            max_model_len=48,
            prefix_cache=prefix_cache,
            max_drafts=max_drafts,
        )
        run_at_random(engine, rng, submit_random, (0.05, engine.kill_worker), (0.02, engine.kill_engine))
        preemptions += engine.scheduler.stats().preemptions
        hits += engine.scheduler.stats().prefix_hits
        accepted += engine.worker.accepted_tokens
    assert (accepted > 0) == (max_drafts > 0)
    assert preemptions > 10, "the pools were not too small"
    assert (hits > 0) == prefix_cache


@pytest.mark.parametrize("seed", range(4))
def test_a_request_alone_in_an_empty_engine_gives_what_the_model_defines(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        engine = Engine(max_model_len=48, num_blocks=16, max_num_batched_tokens=5)
        submit_random(engine, rng)
        engine.drain()
        engine.check_clients()
