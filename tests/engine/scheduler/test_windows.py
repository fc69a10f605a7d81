"""Layers with windows: what is left behind goes, what is seen stays, and a prefix is what all groups know."""

import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stentor.engine.core.cache.blocks import BlockPool
from stentor.engine.core.cache.needs import BlockNeeds
from stentor.engine.core.cache.prefix import PrefixCache
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.scheduler.any_order import SEEDS, AnyOrder, many, random_prompt, run_at_random, sizes
from stentor.tests.engine.scheduler.test_properties import submit_random

WINDOWS = st.lists(st.sampled_from([0, 0, 3, 5, 8, 13, 40]), min_size=1, max_size=3).map(tuple)


class WindowsMachine(AnyOrder):
    @initialize(sizes=sizes(st.integers(60, 150)), seed=SEEDS, windows=WINDOWS)
    def start(self, sizes: dict[str, Any], seed: int, windows: tuple[int, ...]) -> None:
        self.begin(seed, max_model_len=48, windows=windows, **sizes)

    @rule()
    def submit(self) -> None:
        submit_random(self.engine, self.rng)


TestWindowsInAnyOrder = WindowsMachine.TestCase
TestWindowsInAnyOrder.settings = many(60)


@pytest.mark.proof(each="windows")
@pytest.mark.parametrize("max_drafts", [0, 3])
@pytest.mark.parametrize("windows", [(0, 5), (8,), (6, 0, 13), (5, 5, 5)])
def test_many_requests_in_a_pool_too_small_for_them_give_what_each_gives_alone(
    windows: tuple[int, ...], max_drafts: int
) -> None:
    preemptions = hits = 0
    for seed in range(3):
        rng = random.Random(seed)
        engine = Engine(
            num_blocks=rng.randint(8, 12) * len(windows) + 8,
            block_size=4,
            max_num_seqs=rng.randint(4, 12),
            max_num_batched_tokens=rng.choice([8, 32, 256]),
            max_prefill_chunk=rng.choice([4, 8, None]),
            max_model_len=48,
            windows=windows,
            max_drafts=max_drafts,
        )
        run_at_random(engine, rng, submit_random, (0.05, engine.kill_worker), (0.02, engine.kill_engine))
        preemptions += engine.scheduler.stats().preemptions
        hits += engine.scheduler.stats().prefix_hits
    assert preemptions > 0 or 0 not in windows, "the pools were not too small"
    assert hits > 0


def test_a_long_row_holds_no_more_than_its_window() -> None:
    """400 tokens of which the windowed layers keep 8: a pool of 115 blocks holds what would take 200."""
    engine = Engine(num_blocks=115, block_size=4, max_num_batched_tokens=16, max_model_len=400, windows=(0, 8))
    engine.submit([1] * 360, max_tokens=40)
    held = 0
    while engine.scheduler.has_work:
        engine.step()
        stats = engine.scheduler.stats()
        held = max(held, 115 - stats.free_blocks)
    engine.drain()
    engine.check_clients()
    assert 100 < held <= 100 + 12


def test_a_request_that_fits_only_because_of_its_windows_is_taken_and_one_that_does_not_is_told_what_fits() -> None:
    engine = Engine(num_blocks=40, block_size=4, max_num_batched_tokens=8, max_model_len=400, windows=(0, 8))
    rid = engine.submit([1] * 200, max_tokens=4)
    (end,) = engine.clients[rid].finished.values()
    assert end.message is not None
    assert "the KV cache holds 128" in end.message
    engine.submit([1] * 124, max_tokens=4)
    engine.drain()
    engine.check_clients()


def test_a_shared_prompt_is_found_by_its_end_where_windows_have_left_the_rest_behind() -> None:
    engine = Engine(num_blocks=400, block_size=4, max_num_batched_tokens=64, max_model_len=400, windows=(0, 12))
    shared = random_prompt(random.Random(1), 100) * 2
    shared = shared[:100] if len(shared) >= 100 else shared + [1] * (100 - len(shared))
    engine.submit([*shared, 2, 3], max_tokens=2)
    engine.drain()
    before = engine.scheduler.stats().prefix_hits
    for own in range(8):
        engine.submit([*shared, 4, 5, own], max_tokens=2)
        engine.drain()
    engine.check_clients()
    assert engine.scheduler.stats().prefix_hits - before == 8 * 100 + 7 * 2, "in all requests after the first"


def test_a_prompt_shared_up_to_the_middle_of_a_chunk_is_found_too() -> None:
    """Its end has been left behind before anybody asks, but not before it had a name."""
    engine = Engine(num_blocks=400, block_size=4, max_num_batched_tokens=128, max_model_len=400, windows=(0, 12))
    shared = [number % 7 for number in range(40)]
    for own in range(5):
        engine.submit([*shared, *[own + 1] * 70], max_tokens=4)
        engine.drain()
    engine.check_clients()
    assert engine.scheduler.stats().prefix_hits == 4 * 40


def test_a_prefix_is_as_long_as_every_group_knows_what_is_seen_behind_it() -> None:
    pool = BlockPool(40)
    cache = PrefixCache(pool, BlockNeeds(2, (0, 4)), enabled=True)
    full, window = pool.allocate_many(6), pool.allocate_many(6)
    digests = [bytes([number]) for number in range(6)]
    for number in range(6):
        cache.name(0, number, digests[number], full)
    for number in (2, 3, 4):
        cache.name(1, number, digests[number], window)
    assert cache.match(digests)[0] == [full[:5], [0, 0, 0, *window[3:5]]], "the sixth is known to one group only"
    assert cache.match(digests[:4])[0] == [full[:4], [0, 0, *window[2:4]]]
    assert cache.match(digests[:3])[0] == [[], []], "behind the third the second is seen, and gone"
