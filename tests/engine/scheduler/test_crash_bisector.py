"""Finding the request that crashes workers: the search alone, and in a scheduler over a fake worker that dies."""

import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stentor.engine.core.crash_bisector import (
    DEATHS_TO_CONVICT,
    DEATHS_TO_SUSPECT,
    FRESH_ALONE,
    PROOF_TOKENS,
    CrashBisector,
    InFlightSequence,
)
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.mortal_engine import MortalEngine
from stentor.tests.examples import examples


def records(*rids: int, fresh: tuple[int, ...] = ()) -> list[InFlightSequence]:
    return [InFlightSequence(rid, 0, rid in fresh) for rid in rids]


def members(bisector: CrashBisector) -> set[int]:
    return set(bisector.group or ())


def prove(bisector: CrashBisector, *rids: int) -> None:
    for rid in rids:
        bisector.gained(rid, 0, PROOF_TOKENS)


def test_after_one_death_everybody_runs() -> None:
    bisector = CrashBisector()
    assert bisector.died(records(1, 2, 3)) is None
    assert bisector.group is None


def test_after_two_deaths_with_the_same_in_flight_what_was_new_runs_alone_and_then_the_halves_of_the_rest() -> None:
    bisector = CrashBisector()
    bisector.died(records(1, 2, 3, 4, 5, 6, fresh=(5, 6)))
    bisector.died(records(1, 2, 3, 4, 5, 6, fresh=(1, 2, 3, 4, 5, 6)))
    groups = []
    while (group := bisector.group) is not None:
        groups.append(set(group))
        prove(bisector, *group)
    assert groups == [{5}, {6}, {3, 4}, {1, 2}]
    assert bisector.idle


def test_where_many_were_new_their_halves_run_before_those_of_the_rest() -> None:
    bisector = CrashBisector()
    new = tuple(range(100, 100 + FRESH_ALONE + 1))
    for _ in range(DEATHS_TO_SUSPECT):
        bisector.died(records(1, 2, *new, fresh=new))
    groups = []
    while (group := bisector.group) is not None:
        groups.append(set(group))
        prove(bisector, *group)
    assert groups == [{*new[4:]}, {*new[:4]}, {2}, {1}]


def test_a_group_of_which_nothing_comes_makes_way_for_the_next() -> None:
    bisector = CrashBisector()
    for _ in range(DEATHS_TO_SUSPECT):
        bisector.died(records(1, 2, 3, 4))
    assert members(bisector) == {3, 4}
    bisector.acquit_group()
    assert members(bisector) == {1, 2}
    bisector.acquit_group()
    assert bisector.idle
    bisector.acquit_group()


def test_a_death_of_those_who_have_made_way_divides_no_group_that_has_not_run() -> None:
    bisector = CrashBisector()
    for _ in range(DEATHS_TO_SUSPECT):
        bisector.died(records(1, 2, 3, 4))
    assert members(bisector) == {3, 4}
    prove(bisector, 3, 4)
    assert members(bisector) == {1, 2}
    assert bisector.died(records(3, 4)) is None, "steps of theirs were still in flight"
    assert members(bisector) == {1, 2}


def test_who_was_in_flight_at_one_of_two_deaths_is_not_searched() -> None:
    bisector = CrashBisector()
    bisector.died(records(1, 2))
    bisector.died(records(2, 3))
    assert members(bisector) == {2}
    prove(bisector, 2)
    assert bisector.group is None
    # but whoever was there once is remembered
    bisector.died(records(3, 4))
    assert members(bisector) == {3}


def test_tokens_between_two_deaths_clear_a_request_and_fewer_do_not() -> None:
    bisector = CrashBisector()
    bisector.died(records(1, 2))
    bisector.gained(1, 0, PROOF_TOKENS)
    bisector.gained(2, 0, PROOF_TOKENS - 1)
    bisector.died(records(1, 2))
    assert members(bisector) == {2}
    # what it gained from the worker before does not count
    bisector.gained(2, 0, PROOF_TOKENS - 1)
    assert members(bisector) == {2}


def test_every_sequence_that_was_in_flight_must_prove_itself_or_end() -> None:
    bisector = CrashBisector()
    for _ in range(DEATHS_TO_SUSPECT):
        bisector.died(
            [
                InFlightSequence(1, 0, False),
                InFlightSequence(1, 1, False),
                InFlightSequence(1, 2, False),
                InFlightSequence(2, 0, False),
            ]
        )
    assert members(bisector) == {2}
    prove(bisector, 2)
    bisector.gained(1, 0, PROOF_TOKENS)
    bisector.ended(1, 1)
    bisector.gained(1, 5, 100)
    assert members(bisector) == {1}
    bisector.gained(1, 2, PROOF_TOKENS)
    assert bisector.group is None


def test_a_death_with_nothing_in_flight_says_nothing_of_anybody() -> None:
    bisector = CrashBisector()
    for _ in range(10):
        assert bisector.died([]) is None
    assert bisector.idle
    bisector.died(records(1, 2))
    bisector.died(records(1, 2))
    group = bisector.group
    assert bisector.died([]) is None
    assert bisector.group == group


def test_who_ends_leaves_the_search() -> None:
    bisector = CrashBisector()
    for _ in range(DEATHS_TO_SUSPECT):
        bisector.died(records(1, 2, 3, 4))
    bisector.ended(3, 0)
    assert members(bisector) == {4}
    bisector.ended(4, 0)
    assert members(bisector) == {1, 2}


@settings(max_examples=examples(75, 1500), deadline=None)
@given(st.integers(1, 70), st.data())
def test_the_culprit_is_found_in_a_logarithmic_number_of_deaths(count: int, data: st.DataObject) -> None:
    poison = data.draw(st.integers(0, count - 1))
    fresh = set(data.draw(st.lists(st.integers(0, count - 1), max_size=5)))
    bisector = CrashBisector()
    deaths = 0
    while True:
        group = bisector.group if bisector.group is not None else frozenset(range(count))
        if poison not in group:
            prove(bisector, *group)
            continue
        deaths += 1
        culprit = bisector.died([InFlightSequence(rid, 0, rid in fresh) for rid in sorted(group)])
        if culprit is not None:
            break
    assert culprit == poison
    assert deaths <= DEATHS_TO_SUSPECT + math.ceil(math.log2(count)) + DEATHS_TO_CONVICT
    assert bisector.idle
    assert bisector.group is None


@settings(max_examples=examples(75, 1500), deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(0, 9), max_size=60))
def test_random_deaths_fail_nobody_and_every_search_ends(count: int, kills: list[int]) -> None:
    """Workers die at random, but none of one request alone before it has drawn some tokens three times in a row."""
    bisector = CrashBisector()
    alone: dict[int, int] = {}
    for kill in kills:
        group = sorted(bisector.group if bisector.group is not None else range(count))
        if kill < 6 and (len(group) > 1 or alone.get(group[0], 0) < DEATHS_TO_CONVICT - 1):
            if len(group) == 1:
                alone[group[0]] = alone.get(group[0], 0) + 1
            assert bisector.died(records(*group)) is None
        else:
            prove(bisector, *group)
            for rid in group:
                alone.pop(rid, None)
    turns = 0
    while bisector.group is not None:
        prove(bisector, *bisector.group)
        turns += 1
        assert turns <= 2 * count
    prove(bisector, *range(count))
    assert bisector.idle


# ---- in a scheduler


def _submit(engine: Engine, rng: random.Random) -> int:
    params = SamplingParams(max_tokens=rng.choice([0, 1, 3, 9, 20]), prompt_logprobs=rng.choice([None, None, 0]))
    prompt = [rng.randrange(12)] * rng.randint(1, 20)
    return engine.submit(prompt, params, seeds=[rng.getrandbits(64) for _ in range(rng.choice([1, 1, 2]))])


@pytest.mark.parametrize("when", ["always", "decoding", "prefilling"])
@settings(max_examples=examples(30, 400), deadline=None)
@given(seed=st.integers(0, 2**20), others=st.integers(0, 14))
def test_poison_is_failed_alone_and_the_others_get_what_each_gives_alone(when: str, seed: int, others: int) -> None:
    rng = random.Random(seed)
    poison = -1

    def kills(plan: StepPlan, rids: set[int]) -> bool:
        if poison not in rids or when == "always":
            return poison in rids
        slots = {c.slot for c in engine.scheduler._rows.running if c.request.rid == poison}
        first = {row.slot for row in plan.new}
        return any(row.slot in slots and (row.slot in first) == (when == "prefilling") for row in plan.rows)

    engine = MortalEngine(
        kills, rng, num_blocks=rng.randint(16, 40), max_num_seqs=rng.randint(2, 16), max_num_batched_tokens=20
    )
    at = rng.randint(0, others)
    for number in range(others + 1):
        if number == at:
            poison = engine.submit([1] * rng.randint(1, 20), max_tokens=20)
        else:
            _submit(engine, rng)
        for _ in range(rng.randint(0, 3)):
            engine.step()
    engine.drain()
    engine.check_clients()
    assert engine.failed == {poison}
    assert engine.scheduler.stats().poisoned == 1
    # twice as many: until it is suspected, others may leave and arrive between its deaths
    assert len(engine.deaths) <= 2 * (DEATHS_TO_SUSPECT + math.log2(17) + DEATHS_TO_CONVICT)


@settings(max_examples=examples(50, 750), deadline=None)
@given(seed=st.integers(0, 2**20))
@example(seed=364039)  # a death right after its group was acquitted
def test_workers_that_die_at_random_cost_nobody_a_token(seed: int) -> None:
    rng = random.Random(seed)
    survived = 0
    longest = 8  # steps that a prompt of these and four tokens need

    def kills(plan: StepPlan, rids: set[int]) -> bool:
        nonlocal survived
        survived += 1
        if survived > longest and rng.random() < 0.3:
            survived = 0
            return True
        return False

    engine = MortalEngine(kills, rng, num_blocks=20, max_num_seqs=6, max_num_batched_tokens=20)
    for _ in range(12):
        _submit(engine, rng)
        for _ in range(rng.randint(0, 4)):
            engine.step()
    engine.drain()
    engine.check_clients()
    assert not engine.failed
    assert engine.scheduler.stats().poisoned == 0


def test_who_arrives_during_a_search_waits_for_its_end() -> None:
    engine = Engine(num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64)
    early = [engine.submit([1, 2, 3], max_tokens=20, seeds=[rid]) for rid in range(4)]
    for _ in range(DEATHS_TO_SUSPECT):
        engine.plan()
        engine.kill_worker()
    assert engine.scheduler._recovery._bisector.group is not None
    late = engine.submit([1, 2, 3], max_tokens=2)
    while engine.scheduler._recovery._bisector.group is not None:
        engine.step()
        assert not engine.clients[late].tokens
    engine.drain()
    engine.check_clients()
    assert all(engine.clients[rid].finished[0].reason == "length" for rid in [*early, late])


def test_rows_that_make_way_in_a_search_are_no_preemptions() -> None:
    engine = Engine(num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64)
    for rid in range(4):
        engine.submit([1, 2, 3], max_tokens=20, seeds=[rid])
    for _ in range(DEATHS_TO_SUSPECT):
        engine.plan()
        engine.kill_worker()
    made_way = set()
    while engine.scheduler._recovery._bisector.group is not None:
        running = {sequence.request.rid for sequence in engine.scheduler._rows.running}
        engine.step()
        made_way |= running - {sequence.request.rid for sequence in engine.scheduler._rows.running}
    assert made_way, "every group ran to its end"
    engine.drain()
    engine.check_clients()
    assert engine.scheduler.stats().preemptions == 0


def test_an_abort_during_a_search_is_answered_at_once_and_the_search_goes_on() -> None:
    engine = Engine(num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64)
    rids = [engine.submit([1, 2, 3], max_tokens=20, seeds=[rid]) for rid in range(4)]
    for _ in range(DEATHS_TO_SUSPECT):
        engine.plan()
        engine.kill_worker()
    engine.plan()
    running = min(members(engine.scheduler._recovery._bisector))
    for rid in (running, next(rid for rid in rids if rid != running)):
        engine.abort(rid)
        assert engine.clients[rid].finished[0].reason == "abort"
    engine.drain()
    engine.check_clients()
