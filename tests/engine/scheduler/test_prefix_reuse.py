import pytest

from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.fake_engine import Engine


def cached(engine: Engine, rid: int) -> int:
    return engine.clients[rid].prompts[0].cached_tokens


def test_a_prompt_seen_before_is_reused_as_far_as_it_was_computed_but_for_its_last_token() -> None:
    engine = Engine(block_size=4)
    lengths: dict[int, list[int]] = {}
    for length in (8, 8, 9, 11, 12, 13):
        rid = engine.submit([1] * length, max_tokens=1)
        engine.drain()
        lengths.setdefault(length, []).append(cached(engine, rid))
    assert lengths == {8: [0, 7], 9: [8], 11: [9], 12: [11], 13: [12]}
    engine.check_clients()


def test_hits_and_queries_are_counted_in_tokens() -> None:
    engine = Engine(block_size=4)
    for _ in range(3):
        engine.submit([1] * 10, max_tokens=1)
        engine.drain()
    stats = engine.scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (30, 18)
    assert engine.worker.computed_tokens == 10 + 1 + 1


def test_generated_tokens_are_reused_by_a_prompt_that_continues_them() -> None:
    engine = Engine(block_size=4)
    first = engine.submit([1] * 6, max_tokens=8)
    engine.drain()
    turn = engine.submit([1] * 6 + engine.clients[first].tokens[0] + [5, 5], max_tokens=1)
    engine.drain()
    assert cached(engine, turn) == 13, "the last token's KV was never written"
    engine.check_clients()


def test_salts_never_share() -> None:
    engine = Engine(block_size=4)
    rids = []
    for salt in ("", "a", "b", "a"):
        rids.append(engine.submit([1] * 9, max_tokens=1, salt=salt))
        engine.drain()
    assert [cached(engine, rid) for rid in rids] == [0, 0, 0, 8]


def test_switched_off_nothing_is_reused_or_counted() -> None:
    engine = Engine(prefix_cache=False)
    rids = []
    for _ in range(2):
        rids.append(engine.submit([1] * 9, max_tokens=1))
        engine.drain()
    assert [cached(engine, rid) for rid in rids] == [0, 0]
    stats = engine.scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (0, 0)


def test_prompt_logprobs_bypass_reads_but_write() -> None:
    engine = Engine(block_size=4)
    wanted = SamplingParams(max_tokens=1, prompt_logprobs=0)
    rids = []
    for params in (wanted, wanted, SamplingParams(max_tokens=1)):
        rids.append(engine.submit([1] * 9, params))
        engine.drain()
    assert [cached(engine, rid) for rid in rids] == [0, 0, 8]
    engine.check_clients()


def test_a_block_is_found_only_after_the_step_that_wrote_it_has_completed() -> None:
    engine = Engine(block_size=4, num_blocks=32)
    engine.submit([1] * 9, max_tokens=2)
    engine.plan()
    early = engine.submit([1] * 9, max_tokens=2)
    engine.plan()
    engine.deliver()
    late = engine.submit([1] * 9, max_tokens=2)
    engine.drain()
    assert cached(engine, early) == 0
    assert cached(engine, late) == 8
    engine.check_clients()


def test_a_chunk_that_is_planned_but_not_completed_is_not_found() -> None:
    engine = Engine(block_size=4, num_blocks=32, max_num_batched_tokens=8)
    engine.submit([1] * 16, max_tokens=1)
    engine.plan()
    engine.plan()
    engine.deliver()
    rid = engine.submit([1] * 16, max_tokens=1)
    engine.plan()
    engine.drain()
    assert cached(engine, rid) == 8, "the second chunk was still in flight"


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    engine = Engine(block_size=4, num_blocks=6)
    for token in (1, 2, 1, 3):
        engine.submit([token] * 9, max_tokens=1)
        engine.drain()
    # Each prompt leaves two hashed blocks; the last one took the room of the unlabelled and of nothing else.
    hits = []
    for token in (1, 3, 2):
        rid = engine.submit([token] * 9, max_tokens=1)
        engine.drain()
        hits.append(cached(engine, rid))
    assert hits[:2] == [8, 8]
    assert hits[2] < 8
    engine.check_clients()


def test_a_preempted_request_that_finds_its_blocks_again_counts_and_reports_its_first_admission_alone() -> None:
    engine = Engine(block_size=2, num_blocks=12, max_num_seqs=2)
    first = engine.submit([1] * 5, max_tokens=18)
    second = engine.submit([2] * 5, max_tokens=18)
    for _ in range(40):
        engine.step()
        if engine.scheduler.stats().preemptions:
            break
    assert engine.scheduler.stats().preemptions == 1
    computed = engine.worker.computed_tokens
    engine.abort(first)
    engine.drain()
    engine.check_clients()
    stats = engine.scheduler.stats()
    assert engine.worker.computed_tokens - computed < 5 + 17, "it did not find its blocks again"
    assert (stats.prefix_queries, stats.prefix_hits) == (2 * 5, 0)
    assert cached(engine, second) == 0


@pytest.mark.parametrize("dies", ["worker", "engine"])
def test_a_request_that_goes_on_after_a_death_is_no_new_query_of_the_prefix_cache(dies: str) -> None:
    engine = Engine(block_size=4)
    engine.submit([1] * 9, max_tokens=8)
    engine.step()
    engine.step()
    before = engine.scheduler.stats()
    if dies == "worker":
        engine.kill_worker()
        assert before.prefix_queries == 9
    else:
        engine.kill_engine()
    engine.drain()
    engine.check_clients()
    after = engine.scheduler.stats()
    assert after.prefix_queries == (9 if dies == "worker" else 0)


def test_after_a_reset_no_prompt_finds_what_was_computed_before_nor_what_is_built_on_it() -> None:
    engine = Engine(block_size=4, num_blocks=64)
    ended = engine.submit([1] * 9, max_tokens=1)
    engine.drain()
    runs = engine.submit([2] * 9, max_tokens=20)
    engine.step()
    engine.scheduler.reset_prefix_cache()
    for _ in range(15):
        engine.step()
    turn = engine.submit([2] * 9 + engine.clients[runs].tokens[0][:8], max_tokens=1)
    same = engine.submit([1] * 9, max_tokens=1)
    engine.drain()
    again = engine.submit([1] * 9, max_tokens=1)
    engine.drain()
    assert [cached(engine, rid) for rid in (ended, runs, turn, same, again)] == [0, 0, 0, 0, 8]
    engine.check_clients()


def test_what_runs_when_the_cache_is_reset_may_be_told_to_compute_its_tokens_anew() -> None:
    engine = Engine(block_size=4, num_blocks=64)
    rid = engine.submit([1] * 9, max_tokens=20, seeds=[1, 2])
    for _ in range(6):
        engine.step()
    before = engine.worker.computed_tokens
    engine.scheduler.reset_prefix_cache()
    engine.scheduler.recompute()
    for _ in range(3):
        engine.step()
    assert engine.worker.computed_tokens - before >= 9, "the prompt at least"
    engine.drain()
    assert {len(tokens) for tokens in engine.clients[rid].tokens.values()} == {20}
    engine.check_clients()
