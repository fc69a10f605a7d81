"""Prefixes that the device has given away, and that come back from host memory."""

import random

import pytest

from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.scheduler.any_order import run_at_random
from stentor.tests.engine.scheduler.test_prefix_reuse import cached
from stentor.tests.engine.scheduler.test_properties import submit_random


def engine_of(**changes: object) -> Engine:
    given = {"num_blocks": 12, "block_size": 4, "max_num_batched_tokens": 64, "host_blocks": 100}
    return Engine(**{**given, **changes})  # type: ignore[arg-type]


def numbers(length: int, first: int) -> list[int]:
    return [(first + number * first) % 11 for number in range(length)]


def ask(engine: Engine, prompt: list[int], *, salt: str = "") -> int:
    """Runs a request alone; tokens of its prompt that were found."""
    before = engine.worker.computed_tokens
    rid = engine.submit(prompt, max_tokens=3, salt=salt)
    engine.drain()
    engine.check_clients()
    found = cached(engine, rid)
    assert engine.worker.computed_tokens - before == len(prompt) - found + 2
    return found


A, B, C = (numbers(30, first) for first in (1, 2, 3))


@pytest.mark.parametrize("windows", [(0,), (0, 8), (8, 0, 6)])
def test_a_prompt_that_others_have_driven_out_comes_back_from_host_memory(windows: tuple[int, ...]) -> None:
    engine = engine_of(windows=windows, num_blocks=12 * len(windows))
    assert [ask(engine, prompt) for prompt in (A, B, C)] == [0, 0, 0]
    assert ask(engine, A) == 29, "all but its last token, that is the tail too"
    stats = engine.scheduler.stats()
    assert (stats.prefix_queries, stats.host_queries) == (120, 120 - stats.prefix_hits)
    assert stats.prefix_hits + stats.host_hits == 29
    assert stats.host_hits >= 20
    assert stats.prompt_computed == 91
    assert stats.host_stored_bytes >= stats.host_loaded_bytes > 0
    assert 0 < stats.host_usage < 1


def test_without_a_tier_it_is_computed_again() -> None:
    engine = engine_of(host_blocks=0)
    assert [ask(engine, prompt) for prompt in (A, B, C, A)] == [0, 0, 0, 0]
    assert not any(plan.copies for plan in engine.plans)
    stats = engine.scheduler.stats()
    assert (stats.host_queries, stats.host_hits, stats.host_usage) == (0, 0, 0.0)


def test_a_prompt_that_shares_a_part_goes_on_from_that_part() -> None:
    engine = engine_of()
    for prompt in (A, B, C):
        ask(engine, prompt)
    assert ask(engine, [*A[:18], *[10] * 9]) == 18, "four whole blocks, and half of one of which a copy is made"


def test_prefixes_of_another_salt_are_not_found_there() -> None:
    engine = engine_of()
    for prompt in (A, B, C):
        ask(engine, prompt, salt="one")
    assert ask(engine, A, salt="other") == 0
    assert ask(engine, A, salt="one") == 29


@pytest.mark.parametrize("loss", ["worker", "engine", "reset"])
def test_what_is_lost_or_forgotten_is_not_found_there(loss: str) -> None:
    engine = engine_of()
    for prompt in (A, B, C):
        ask(engine, prompt)
    match loss:
        case "worker":
            engine.kill_worker()
        case "engine":
            engine.kill_engine()
        case _:
            engine.scheduler.reset_prefix_cache()
    assert engine.scheduler.stats().host_usage == 0.0
    assert ask(engine, A) == 0


def test_a_row_that_was_preempted_finds_its_own_blocks_there() -> None:
    engine = engine_of(num_blocks=14, max_model_len=48)
    for first in range(1, 4):
        engine.submit(numbers(12, first), max_tokens=30)
    engine.drain()
    engine.check_clients()
    stats = engine.scheduler.stats()
    assert stats.preemptions > 0
    assert stats.host_loaded_bytes > 0
    assert stats.host_hits == 0, "what returns is not counted"


def test_forks_of_a_prompt_that_comes_from_host_memory_share_it() -> None:
    engine = engine_of(num_blocks=20)
    for prompt in (A, B, C, numbers(30, 4)):
        ask(engine, prompt)
    rid = engine.submit(A, max_tokens=3, seeds=[1, 2, 3])
    engine.drain()
    engine.check_clients()
    assert cached(engine, rid) == 29


def test_a_prompt_whose_state_others_have_driven_out_goes_on_from_that() -> None:
    engine = engine_of(num_states=8, max_num_seqs=4, max_model_len=128, num_blocks=200, host_states=20)
    prompts = [numbers(62, first) for first in range(1, 11)]
    assert [ask(engine, prompt) for prompt in prompts] == [0] * 10
    assert ask(engine, prompts[0]) == 60
    assert any(plan.state_copies for plan in engine.plans)
    stats = engine.scheduler.stats()
    assert stats.host_hits == 60, "its blocks were there, and of no use without"
    assert stats.host_stored_bytes > 0
    assert stats.host_usage > 0


@pytest.mark.proof(each="states")
@pytest.mark.parametrize(
    ("host_blocks", "windows", "states"),
    [(6, (0,), False), (1, (0, 8), False), (200, (0, 8), False), (6, (0,), True), (200, (0, 8), True)],
)
def test_a_tier_of_any_size_changes_no_token(host_blocks: int, windows: tuple[int, ...], states: bool) -> None:
    loaded = hits = 0
    for seed in range(4):
        rng = random.Random(seed)
        engine = Engine(
            num_blocks=rng.randint(12, 16) * len(windows),
            block_size=4,
            max_num_seqs=8,
            max_num_batched_tokens=rng.choice([8, 32, 256]),
            max_prefill_chunk=rng.choice([4, 8, None]),
            max_model_len=48,
            windows=windows,
            num_states=18 if states else 0,
            host_states=host_blocks if states else 0,
            max_drafts=rng.choice([0, 2]),
            host_blocks=host_blocks,
        )
        reset = engine.scheduler.reset_prefix_cache
        run_at_random(engine, rng, submit_random, (0.03, engine.kill_worker), (0.03, reset))
        stats = engine.scheduler.stats()
        loaded += stats.host_loaded_bytes
        hits += stats.host_hits
    assert loaded > 0
    assert hits > 0 or host_blocks == 1
