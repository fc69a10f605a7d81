"""What the scheduler's properties share: prompts that meet, sizes of engines, and a machine of all that happens."""

import random
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stentor.protocols.ipc.steps import StepPlan
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.fake_worker import takes_no_time
from stentor.tests.examples import examples


def _takes_longer_and_longer(plan: StepPlan) -> float:
    return 0.001 * plan.step


def _takes_a_millisecond_a_token(plan: StepPlan) -> float:
    return 0.001 * sum(row.count for row in plan.rows)


# Few distinct prefixes, so that requests meet in the prefix cache.
_STEMS = [[3] * 40, [4, 5] * 20, [3] * 8 + [6] * 32]


def random_prompt(rng: random.Random, *more_lengths: int) -> list[int]:
    """Of 1 to 16 tokens, or a few more than one of ``more_lengths``."""
    return rng.choice(_STEMS)[: rng.choice([1, 3, 6, 8, 12, *more_lengths])] + [rng.randrange(12)] * rng.randint(0, 4)


def run_at_random(
    engine: Engine,
    rng: random.Random,
    submit: Callable[[Engine, random.Random], int],
    *disturbances: tuple[float, Callable[[], object]],
    requests: int = 40,
) -> None:
    """Submits requests between steps and aborts a tenth of them, until all have ended as their clients expect.
    ``disturbances``, each with its probability, come after a request."""
    for _ in range(requests):
        rid = submit(engine, rng)
        for _ in range(rng.randint(0, 2)):
            engine.step()
        if rng.random() < 0.1:
            engine.abort(rid)
        for probability, disturb in disturbances:
            if rng.random() < probability:
                disturb()
    engine.drain()
    engine.check_clients()


def sizes(positions: st.SearchStrategy[int], **changes: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Of small engines: arguments of :class:`Engine`, with blocks for so many positions."""
    drawn = {
        "num_blocks": positions,
        "block_size": st.integers(1, 4),
        "max_num_seqs": st.integers(1, 8),
        "max_num_batched_tokens": st.sampled_from([1, 2, 3, 7, 16, 64]),
        "max_mixed_prefill_tokens": st.sampled_from([1, 3, 64]),
        "max_prefill_chunk": st.sampled_from([1, 2, 5, 64]),
        "max_admitted_tokens": st.sampled_from([None, 1, 4]),
        "target_itl": st.sampled_from([0.0, 0.01, 1.0]),
        "seconds_of": st.sampled_from([takes_no_time, _takes_longer_and_longer, _takes_a_millisecond_a_token]),
        "prefix_cache": st.booleans(),
        "max_plan_bytes": st.sampled_from([1, 400, 1 << 20]),
        "slow_grammars": st.booleans(),
        "max_drafts": st.sampled_from([0, 1, 4]),
        "host_blocks": st.sampled_from([0, 0, 1, 5, 40]),
    }
    return st.fixed_dictionaries({**drawn, **changes}).map(
        lambda each: {**each, "num_blocks": each["num_blocks"] // each["block_size"]}
    )


SEEDS = st.integers(0, 2**16)


class AnyOrder(RuleBasedStateMachine):
    """Every order of aborts, plans, results and deaths; a subclass begins with an engine, and submits."""

    rng: random.Random
    engine: Engine

    def begin(self, seed: int, **sizes: Any) -> None:
        self.rng = random.Random(seed)
        self.engine = Engine(**sizes)

    def living(self) -> list[int]:
        return [rid for rid, each in self.engine.clients.items() if len(each.finished) < len(each.submit.seeds)]

    @rule()
    def load(self) -> None:
        loading = {rid for rid, epoch in self.engine.loads if epoch == self.engine.scheduler.epoch}
        if rids := [rid for rid in self.living() if rid not in loading]:
            self.engine.load(self.rng.choice(rids))

    @precondition(lambda self: self.engine.loads)
    @rule(fails=st.sampled_from([False, False, True]))
    def loaded(self, fails: bool) -> None:
        self.engine.loaded(self.rng.randrange(len(self.engine.loads)), "it could not be loaded" if fails else None)

    @precondition(lambda self: self.engine.wanted)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def write(self, fails: bool) -> None:
        wanted = self.engine.wanted
        self.engine.write(self.rng.randrange(len(wanted)), "they cannot be written" if fails else "")

    @precondition(lambda self: self.engine.compiling)
    @rule()
    def compiled(self) -> None:
        self.engine.compiled(self.rng.randrange(len(self.engine.compiling)))

    @rule()
    def abort(self) -> None:
        if live := self.living():
            rid = self.rng.choice(live)
            self.engine.abort(rid, self.rng.randrange(-1, len(self.engine.clients[rid].submit.seeds)))

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

    @rule()
    def reset_prefix_cache(self) -> None:
        self.engine.scheduler.reset_prefix_cache()

    @rule()
    def recompute(self) -> None:
        self.engine.scheduler.reset_prefix_cache()
        self.engine.scheduler.recompute()

    @precondition(lambda self: self.engine.lost)
    @rule()
    def deliver_a_result_of_the_dead_worker(self) -> None:
        late = self.engine.scheduler.complete(self.engine.lost.pop(), self.engine.now)
        assert (late.prompts, late.tokens, late.finished) == ([], [], [])

    @invariant()
    def whole(self) -> None:
        self.engine.scheduler.check_integrity()

    def end(self) -> None:
        """Whatever happened, each sequence ends once with the tokens that it gives alone."""
        self.engine.drain()
        self.engine.check_clients()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.end()


def many(few: int) -> settings:
    """For a machine's test case: so many examples, and 25 times as many in the long form."""
    return settings(max_examples=examples(few, 25 * few), stateful_step_count=40, deadline=None)
