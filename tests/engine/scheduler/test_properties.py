"""Random workloads: whatever happens, each choice ends once with the tokens that it gives alone."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stentor.protocols.sampling import SamplingParams
from stentor.tests.engine.fake_worker import Engine
from stentor.tests.engine.scripted_grammar import ScriptedGrammar

# Few distinct prefixes, so that requests meet in the prefix cache.
STEMS = [[3] * 40, [4, 5] * 20, [3] * 8 + [6] * 32]


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
    prompt = rng.choice(STEMS)[: rng.choice([1, 3, 6, 8, 12, 30])] + [rng.randrange(12)] * rng.randint(0, 4)
    return engine.submit(
        prompt,
        random_params(rng),
        seeds=[rng.getrandbits(64) for _ in range(rng.choice([1, 1, 1, 2, 3, 5]))],
        priority=rng.choice([0, 0, 0, -3, 7]),
        salt=rng.choice(["", "", "other"]),
        grammar=ScriptedGrammar(rng.randrange(100)) if rng.random() < 0.4 else None,
    )


class SchedulerMachine(RuleBasedStateMachine):
    """Every order of submissions, aborts, plans, results and deaths."""

    @initialize(
        capacity=st.integers(8, 60),
        block_size=st.sampled_from([1, 2, 3, 4]),
        max_num_seqs=st.integers(1, 8),
        budget=st.sampled_from([1, 2, 3, 7, 16, 64]),
        mixed=st.sampled_from([1, 3, 64]),
        chunk=st.sampled_from([1, 2, 5, 64]),
        prefix_cache=st.booleans(),
        seed=st.integers(0, 2**16),
    )
    def start(
        self,
        capacity: int,
        block_size: int,
        max_num_seqs: int,
        budget: int,
        mixed: int,
        chunk: int,
        prefix_cache: bool,
        seed: int,
    ) -> None:
        self.rng = random.Random(seed)
        self.engine = Engine(
            num_blocks=capacity // block_size,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_mixed_prefill_tokens=mixed,
            max_prefill_chunk=chunk,
            max_model_len=48,
            prefix_cache=prefix_cache,
        )

    @rule()
    def submit(self) -> None:
        submit_random(self.engine, self.rng)

    @rule()
    def abort(self) -> None:
        live = [rid for rid, c in self.engine.clients.items() if len(c.finished) < len(c.submit.seeds)]
        if live:
            rid = self.rng.choice(live)
            count = len(self.engine.clients[rid].submit.seeds)
            self.engine.abort(rid, self.rng.randrange(-1, count))

    @rule(turns=st.integers(1, 8))
    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.engine.step()

    @rule(crowded=st.booleans())
    def share_the_device(self, crowded: bool) -> None:
        self.engine.crowded = crowded

    @rule()
    def plan(self) -> None:
        self.engine.plan()

    @precondition(lambda self: self.engine.results)
    @rule()
    def deliver(self) -> None:
        self.engine.deliver()

    @rule()
    def kill_worker(self) -> None:
        self.engine.kill_worker()

    @rule()
    def kill_engine(self) -> None:
        self.engine.kill_engine()

    @precondition(lambda self: self.engine.lost)
    @rule()
    def deliver_a_result_of_the_dead_worker(self) -> None:
        late = self.engine.scheduler.complete(self.engine.lost.pop(), self.engine.now)
        assert (late.prompts, late.tokens, late.finished) == ([], [], [])

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.drain()
            self.engine.check_clients()


TestSchedulerInAnyOrder = SchedulerMachine.TestCase
TestSchedulerInAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_many_requests_in_a_pool_too_small_for_them_give_what_each_gives_alone(prefix_cache: bool) -> None:
    preemptions = hits = 0
    for seed in range(8):
        rng = random.Random(seed)
        engine = Engine(
            num_blocks=rng.randint(12, 16),
            block_size=4,
            max_num_seqs=rng.randint(4, 12),
            max_num_batched_tokens=rng.choice([8, 32, 256]),
            max_model_len=48,
            prefix_cache=prefix_cache,
        )
        for _ in range(40):
            rid = submit_random(engine, rng)
            for _ in range(rng.randint(0, 2)):
                engine.step()
            if rng.random() < 0.1:
                engine.abort(rid)
            if rng.random() < 0.05:
                engine.kill_worker()
            if rng.random() < 0.02:
                engine.kill_engine()
        engine.drain()
        engine.check_clients()
        preemptions += engine.scheduler.stats().preemptions
        hits += engine.scheduler.stats().prefix_hits
    assert preemptions > 20, "the pools were not too small"
    assert (hits > 0) == prefix_cache


@pytest.mark.parametrize("seed", range(4))
def test_a_request_alone_in_an_empty_engine_gives_what_the_model_defines(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        engine = Engine(max_model_len=48, num_blocks=16, max_num_batched_tokens=5)
        submit_random(engine, rng)
        engine.drain()
        engine.check_clients()
