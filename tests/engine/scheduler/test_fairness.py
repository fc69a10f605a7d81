"""Order of admission and preemption, and that every request completes."""

from stentor.engine.core.sequence import Sequence, SequenceState
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.fake_engine import Engine


def admitted(engine: Engine) -> list[int]:
    """First prompt token of each admission, in order."""
    return [new.tokens[0] for plan in engine.plans for new in plan.new]


def test_first_come_is_first_served() -> None:
    engine = Engine(max_num_seqs=1)
    for token in (5, 3, 9):
        engine.submit([token], max_tokens=1)
        engine.now += 0.001
    engine.drain()
    assert admitted(engine) == [5, 3, 9]


def test_requests_that_arrive_at_once_keep_the_order_of_submission() -> None:
    engine = Engine(max_num_seqs=1)
    for token in (5, 3, 9):
        engine.submit([token], max_tokens=1)
    engine.drain()
    assert admitted(engine) == [5, 3, 9]


def test_a_lower_priority_number_goes_first() -> None:
    engine = Engine(max_num_seqs=1)
    for token, priority in ((5, 1), (3, 0), (9, -1)):
        engine.submit([token], max_tokens=1, priority=priority)
    engine.drain()
    assert admitted(engine) == [9, 3, 5]


def test_waiting_makes_up_for_one_level_each_aging_span() -> None:
    engine = Engine(max_num_seqs=1, aging_seconds=10)
    engine.submit([5], max_tokens=1, priority=1)
    engine.now = 9.0
    engine.submit([3], max_tokens=1, priority=0)
    engine.now = 11.0
    engine.submit([9], max_tokens=1, priority=0)
    engine.drain()
    assert admitted(engine) == [3, 5, 9]


def test_a_stream_of_important_arrivals_cannot_starve_an_old_request() -> None:
    engine = Engine(max_num_seqs=1, aging_seconds=1)
    old = engine.submit([1, 2, 3], max_tokens=3, priority=5)
    served = 0
    while not engine.clients[old].finished:
        engine.submit([9], max_tokens=3, priority=0)
        for _ in range(2):
            engine.step()
        served += 1
        assert served < 500, "starved"
    assert served > 50, "it should have waited for some of the others"
    engine.drain()
    engine.check_clients()


def test_a_stream_of_small_requests_cannot_starve_a_large_one() -> None:
    engine = Engine(num_blocks=8, block_size=4, max_num_seqs=4)
    for _ in range(3):
        engine.submit([9] * 6, max_tokens=6)
    engine.step()
    large = engine.submit([1] * 26, max_tokens=6)
    for _ in range(60):
        engine.submit([8] * 6, max_tokens=6)
        engine.step()
        if engine.clients[large].finished:
            break
    assert engine.clients[large].finished, "overtaken for ever"
    engine.drain()
    engine.check_clients()


def test_the_least_important_row_is_preempted_and_the_most_important_never() -> None:
    engine = Engine(num_blocks=8, block_size=2, max_num_seqs=3, prefix_cache=False)
    for token, priority in ((1, 5), (2, 0), (3, -5)):
        engine.submit([token], max_tokens=13, priority=priority)
    engine.drain()
    engine.check_clients()
    assert engine.scheduler.stats().preemptions > 0
    order = admitted(engine)
    assert order[:3] == [3, 2, 1]
    assert order.count(3) == 1
    assert order.count(1) > 1


def test_preempted_rows_do_not_thrash() -> None:
    engine = Engine(num_blocks=40, block_size=4, max_num_seqs=16, max_num_batched_tokens=64)
    for token in range(32):
        engine.submit([token % 12, token], max_tokens=30)
    engine.drain()
    engine.check_clients()
    assert 0 < engine.scheduler.stats().preemptions < 32


def preempted_in_flight(
    params: SamplingParams, *, prompt_len: int = 3, num_blocks: int = 6, budget: int = 16
) -> tuple[Engine, Sequence]:
    """An engine whose second request has just lost its row while a token of it is in flight."""
    engine = Engine(
        num_blocks=num_blocks,
        block_size=2,
        max_num_seqs=2,
        max_num_batched_tokens=budget,
        prefix_cache=False,
    )
    engine.submit([1, 1, 1], max_tokens=7)
    engine.submit([2] * prompt_len, params)
    for _ in range(20):
        engine.plan()
        if engine.scheduler.stats().preemptions:
            break
        if len(engine.results) == 2:
            engine.deliver()
    (victim,) = engine.scheduler._output.requests[1].sequences
    assert victim.state is SequenceState.PREEMPTED
    assert victim.num_in_flight == 1
    engine.scheduler.check_integrity()
    return engine, victim


def test_a_preempted_row_waits_for_its_token_in_flight_and_begins_with_it() -> None:
    engine, victim = preempted_in_flight(SamplingParams(max_tokens=7))
    known = len(victim.outputs)
    engine.deliver()
    assert victim.state is SequenceState.WAITING
    engine.drain()
    again = next(plan for plan in reversed(engine.plans) if plan.new)
    assert len(again.new[0].tokens) == 3 + known + 1
    engine.check_clients()


def test_no_row_computes_its_prompt_and_what_is_behind_it_in_one_step() -> None:
    """A worker may compute these otherwise, and does it again as it has done it."""
    engine, victim = preempted_in_flight(SamplingParams(max_tokens=7))
    engine.deliver()
    before, known = len(engine.plans), len(victim.outputs)
    engine.drain()
    again = [(row.start, row.count) for plan in engine.plans[before:] for row in plan.rows if row.count > 1]
    assert again == [(0, 3), (3, known)]
    engine.check_clients()


def test_a_preempted_row_that_ends_with_its_token_in_flight_ends_without_running_again() -> None:
    _, probe = preempted_in_flight(SamplingParams(max_tokens=7))
    engine, victim = preempted_in_flight(SamplingParams(max_tokens=len(probe.outputs) + 1))
    engine.deliver()
    assert victim.state is SequenceState.FINISHED
    engine.drain()
    assert [new.tokens[0] for plan in engine.plans for new in plan.new] == [1, 2]
    engine.check_clients()


def test_prompt_logprobs_that_come_with_the_first_token_of_a_preempted_row_are_kept() -> None:
    params = SamplingParams(max_tokens=4, prompt_logprobs=0)
    engine, victim = preempted_in_flight(params, prompt_len=10, num_blocks=9, budget=3)
    assert not victim.request.prompt_done
    assert engine.results[0].prompt_logprobs, "some of them are in flight"
    engine.deliver()
    assert victim.request.prompt_done
    engine.drain()
    engine.check_clients()


def test_a_row_preempted_in_its_prefill_starts_over_with_its_prompts_logprobs() -> None:
    engine = Engine(num_blocks=9, block_size=2, max_num_seqs=2, max_num_batched_tokens=2, prefix_cache=False)
    engine.submit([1, 1, 1], max_tokens=7)
    rid = engine.submit([2] * 10, SamplingParams(max_tokens=4, prompt_logprobs=0))
    request = engine.scheduler._output.requests[rid]
    while not engine.scheduler.stats().preemptions:
        engine.step()
        assert not request.prompt_done
    assert request.sequences[0].state is SequenceState.WAITING
    assert request.num_logprobs_sent == 1
    engine.drain()
    engine.check_clients()


def test_a_worker_that_dies_while_a_preempted_row_awaits_its_token_loses_nothing() -> None:
    engine, victim = preempted_in_flight(SamplingParams(max_tokens=7))
    engine.kill_worker()
    assert victim.state is SequenceState.WAITING
    engine.scheduler.check_integrity()
    engine.drain()
    engine.check_clients()


def test_a_preempted_row_that_is_aborted_while_its_token_is_in_flight_ends_once() -> None:
    engine, victim = preempted_in_flight(SamplingParams(max_tokens=7))
    engine.abort(1)
    assert victim.state is SequenceState.FINISHED
    engine.drain()
    engine.check_clients()


def test_a_request_as_large_as_the_pool_finishes_among_others() -> None:
    engine = Engine(num_blocks=8, block_size=4, max_num_seqs=4, max_model_len=32)
    for token in range(6):
        engine.submit([token] * (3 + 4 * token), max_tokens=32)
    engine.drain()
    engine.check_clients()


def test_a_budget_of_one_token_still_finishes_everything() -> None:
    engine = Engine(num_blocks=8, block_size=2, max_num_seqs=4, max_num_batched_tokens=1)
    for token in range(4):
        engine.submit([token] * 5, max_tokens=4, seeds=[1, 2])
    engine.drain()
    engine.check_clients()
