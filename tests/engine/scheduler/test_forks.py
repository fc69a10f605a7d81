"""Several sequences of one prompt."""

import pytest

from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.fake_engine import Engine


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize(("prompt_len", "tail"), [(9, 1), (10, 2), (12, 4), (3, 3)])
def test_the_prompt_is_prefilled_once_and_each_fork_recomputes_only_its_tail(
    prompt_len: int, tail: int, prefix_cache: bool
) -> None:
    engine = Engine(num_blocks=32, block_size=4, prefix_cache=prefix_cache)
    rid = engine.submit([1] * prompt_len, max_tokens=1, seeds=[1, 2, 3, 4])
    engine.drain()
    engine.check_clients()
    assert engine.worker.computed_tokens == prompt_len + 3 * (1 if prefix_cache else tail)
    assert len(engine.clients[rid].prompts) == 1
    assert engine.clients[rid].prompts[0].cached_tokens == 0


def test_forks_share_the_very_blocks_of_the_leader() -> None:
    engine = Engine(num_blocks=32, block_size=4, prefix_cache=False)
    engine.submit([1] * 10, max_tokens=9, seeds=[1, 2, 3])
    for _ in range(4):
        engine.step()
    tables = [new.blocks for plan in engine.plans for new in plan.new]
    assert len(tables) == 3
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert len({table[2] for table in tables}) == 3
    engine.drain()
    engine.check_clients()


def test_forks_share_the_prompt_also_where_its_logprobs_bypass_the_cache() -> None:
    engine = Engine(num_blocks=32, block_size=4)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    engine.submit([1] * 9, params, seeds=[1, 2, 3])
    engine.drain()
    engine.check_clients()
    assert engine.worker.computed_tokens == 9 + 2
    asked = [new.params.prompt_logprobs for plan in engine.plans for new in plan.new]
    assert asked == [0, None, None], "the worker need not compute them again"


def test_forks_that_find_no_slot_run_later_from_the_held_prompt() -> None:
    engine = Engine(num_blocks=32, block_size=4, max_num_seqs=1, prefix_cache=False)
    engine.submit([1] * 9, max_tokens=2, seeds=[1, 2, 3])
    engine.drain()
    engine.check_clients()
    assert engine.worker.computed_tokens == (9 + 1) + 2 * (1 + 1)


def test_a_held_prompt_gives_way_to_a_more_important_request_that_needs_its_blocks() -> None:
    engine = Engine(num_blocks=4, block_size=4, max_num_seqs=1, prefix_cache=False)
    shared = engine.submit([1] * 12, max_tokens=1, seeds=[1, 2])
    engine.plan()
    urgent = engine.submit([2] * 14, max_tokens=2, priority=-5)
    engine.drain()
    engine.check_clients()
    assert engine.scheduler.stats().preemptions == 0
    order = [new.tokens[0] for plan in engine.plans for new in plan.new]
    assert order == [1, 2, 1]
    assert engine.clients[urgent].finished[0].reason == "length"
    assert engine.clients[shared].finished[1].reason == "length"
    assert engine.worker.computed_tokens == 12 + 15 + 12, "the second sequence had to prefill the prompt again"


def test_aborting_the_forks_gives_the_held_prompt_back() -> None:
    engine = Engine(num_blocks=8, block_size=4, max_num_seqs=1)
    rid = engine.submit([1] * 12, max_tokens=9, seeds=[1, 2, 3])
    engine.plan()
    engine.deliver()
    engine.abort(rid, 0)
    assert engine.scheduler.stats().free_blocks == 6
    engine.abort(rid, 1)
    engine.scheduler.check_integrity()
    assert engine.scheduler.stats().free_blocks == 6
    engine.abort(rid, 2)
    engine.check_empty()
    engine.drain()


def test_more_sequences_than_slots_and_blocks_all_finish() -> None:
    engine = Engine(num_blocks=6, block_size=4, max_num_seqs=3)
    engine.submit([1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=10, seeds=list(range(20)))
    engine.drain()
    engine.check_clients()


def test_a_fork_that_waits_for_memory_keeps_its_held_prompt() -> None:
    engine = Engine(num_blocks=8, block_size=4, max_num_seqs=2, prefix_cache=False)
    other = engine.submit([2] * 12, max_tokens=8)
    engine.now += 1
    engine.submit([1] * 9, max_tokens=1, seeds=[1, 2])
    engine.drain()
    engine.check_clients()
    assert engine.scheduler.stats().preemptions == 0
    assert len(engine.clients[other].tokens[0]) == 8
    starts = [plan.rows[-1].start for plan in engine.plans if plan.new]
    assert starts[-1] == 8, "the fork began after the shared blocks"


def test_a_hold_that_nobody_runs_on_goes_before_a_row_is_preempted() -> None:
    engine = Engine(
        num_blocks=8,
        block_size=4,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        prefix_cache=False,
    )
    engine.submit([2] * 3, max_tokens=13, priority=-9)
    rid = engine.submit([1] * 15, max_tokens=1, seeds=[1, 2])
    engine.plan()
    engine.submit([3], max_tokens=15, priority=-9)
    engine.drain()
    engine.check_clients()
    assert engine.scheduler.stats().preemptions == 0
    assert engine.worker.computed_tokens == 15 + 15 + 2 * 15, "the fork had to prefill the prompt again"
    assert engine.clients[rid].finished[1].reason == "length"


def test_only_a_hold_that_frees_blocks_and_is_not_to_be_kept_is_reclaimed() -> None:
    engine = Engine(num_blocks=16, block_size=4, max_num_seqs=1)
    rid = engine.submit([1] * 9, max_tokens=9, seeds=[1, 2])
    engine.plan()
    engine.deliver()
    kv_cache = engine.scheduler._kv_cache
    request = engine.scheduler._output.requests[rid]
    assert not kv_cache.reclaim_hold(keep=None), "the leader runs on the same blocks"
    engine.abort(rid, 0)
    assert not kv_cache.reclaim_hold(keep=request)
    assert [len(table) for table in request.held_tables] == [2]
    assert kv_cache.reclaim_hold(keep=None)
    assert request.held_tables == []
    engine.scheduler.check_integrity()
    engine.drain()
    engine.check_clients()


def test_the_least_important_hold_is_reclaimed_first() -> None:
    engine = Engine(num_blocks=32, block_size=4, max_num_seqs=1)
    for priority in (5, 0, 7):
        engine.submit([priority] * 9, max_tokens=9, seeds=[1, 2], priority=priority)
    requests = list(engine.scheduler._output.requests.values())
    for rid in (1, 0, 2):
        engine.plan()
        engine.deliver()
        engine.abort(rid, 0)
        # The fork would run next; while it stands aside it stays a fork to come, and its prompt held.
        engine.load(rid)
    assert all(request.held_tables for request in requests)
    engine.scheduler._kv_cache.reclaim_hold(keep=None)
    assert [bool(request.held_tables) for request in requests] == [True, True, False]
    engine.scheduler._kv_cache.reclaim_hold(keep=None)
    assert [bool(request.held_tables) for request in requests] == [False, True, False]


def test_forks_count_as_neither_queries_nor_hits_of_the_prefix_cache() -> None:
    engine = Engine(num_blocks=32, block_size=4)
    engine.submit([1] * 9, max_tokens=1, seeds=[1, 2, 3])
    engine.drain()
    stats = engine.scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (9, 0)
