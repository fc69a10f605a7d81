import gc
from typing import Any

import pytest

from stentor.engine.core.scheduler import Scheduler
from stentor.engine.core.sequence import Sequence
from stentor.protocols.ipc.actors import PromptPart, Submit, TokensBatch
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import PromptLogprobs, StepResult, TokenLogprobs
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.fake_model import alone
from stentor.tests.engine.schedulers import CONFIG, ready_of


def reason(engine: Engine, rid: int, index: int = 0) -> str:
    return engine.clients[rid].finished[index].reason


def refusal(engine: Engine, rid: int, index: int = 0) -> str:
    finished = engine.clients[rid].finished[index]
    assert finished.reason == "error"
    return finished.message or ""


# ---- what is refused at once


def test_an_empty_prompt_is_refused_for_each_of_its_sequences() -> None:
    engine = Engine()
    rid = engine.submit([], seeds=[1, 2, 3])
    assert [refusal(engine, rid, i) for i in range(3)] == ["the prompt is empty; at least one token is needed"] * 3
    assert not engine.scheduler.has_work


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused() -> None:
    engine = Engine(max_model_len=8)
    assert "context is 8" in refusal(engine, engine.submit([1] * 8))
    fits = engine.submit([1] * 7)
    engine.drain()
    assert reason(engine, fits) == "length"
    assert len(engine.clients[fits].tokens[0]) == 1


def test_a_prompt_that_fills_the_context_is_accepted_where_no_token_is_wanted() -> None:
    engine = Engine(max_model_len=8)
    rid = engine.submit([1] * 8, max_tokens=0)
    engine.drain()
    assert reason(engine, rid) == "length"
    assert "context is 8" in refusal(engine, engine.submit([1] * 9, max_tokens=0))


def test_a_request_that_could_never_fit_in_the_pool_is_refused_and_one_that_just_fits_runs() -> None:
    engine = Engine(num_blocks=4, block_size=4, max_model_len=64)
    assert "holds 16" in refusal(engine, engine.submit([1] * 10, max_tokens=7))
    rid = engine.submit([1] * 10, max_tokens=6)
    engine.drain()
    assert len(engine.clients[rid].tokens[0]) == 6


def test_a_second_request_under_a_living_id_is_refused_and_the_first_goes_on() -> None:
    engine = Engine()
    rid = engine.submit([1, 2])
    again = Submit(rid, [1], SamplingParams(max_tokens=1), [5], 0, "", 0.0)
    refused = engine.scheduler.submit(again)
    assert refused is not None
    assert "must not be reused" in (refused.finished[0].message or "")
    engine.drain()
    engine.check_clients()


@pytest.mark.parametrize("token", [-1, 2**31])
def test_a_token_id_that_cannot_be_hashed_is_refused(token: int) -> None:
    engine = Engine()
    assert "outside" in refusal(engine, engine.submit([1, token, 2]))


def test_a_negative_max_tokens_and_missing_seeds_are_refused() -> None:
    engine = Engine()
    assert "max_tokens is -1" in refusal(engine, engine.submit([1], max_tokens=-1))
    refused = engine.scheduler.submit(Submit(99, [1], SamplingParams(max_tokens=1), [], 0, "", 0.0))
    assert refused is not None
    assert "no seeds" in (refused.finished[0].message or "")


@pytest.mark.parametrize(
    ("name", "value"),
    [("block_size", 0), ("max_num_seqs", 0), ("max_num_batched_tokens", 0), ("max_model_len", 0), ("num_blocks", 0)],
)
def test_a_size_below_one_is_refused_at_construction(name: str, value: int) -> None:
    sizes: dict[str, Any] = {
        "num_blocks": 1,
        "block_size": 1,
        "max_num_seqs": 1,
        "max_num_batched_tokens": 1,
        "max_model_len": 1,
    }
    with pytest.raises(ValueError, match="at least 1"):
        Scheduler(ready_of(**{**sizes, name: value}), CONFIG)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_an_aging_span_that_is_no_length_of_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="priority_aging_seconds"):
        Engine(aging_seconds=seconds)


# ---- steps


def test_a_long_prompt_is_prefilled_in_chunks_and_draws_only_after_the_last() -> None:
    engine = Engine(max_num_batched_tokens=4)
    engine.submit(list(range(10)), max_tokens=1)
    engine.drain()
    rows = [row for plan in engine.plans for row in plan.rows]
    assert [(row.start, row.count, row.sample) for row in rows] == [(0, 4, False), (4, 4, False), (8, 2, True)]


def test_the_next_step_is_planned_before_the_token_it_decodes_is_known() -> None:
    engine = Engine()
    engine.submit([1, 2, 3], max_tokens=3)
    assert engine.plan()
    assert engine.plan()
    assert engine.plans[1].rows[0].start == 3
    assert engine.scheduler.in_flight == 2
    assert engine.scheduler.plan(engine.now) is None, "two steps in flight are the most"


def test_a_plan_once_made_does_not_change() -> None:
    engine = Engine(block_size=4)
    engine.submit([1, 2, 3], max_tokens=9)
    engine.plan()
    sent = engine.plans[0].new[0]
    engine.drain()
    assert sent.tokens == [1, 2, 3]
    assert len(sent.blocks) == 1


def test_a_row_that_ends_by_length_is_not_planned_once_more() -> None:
    engine = Engine()
    engine.submit([1, 2, 3], max_tokens=2)
    assert engine.plan()
    assert engine.plan()
    engine.deliver()
    assert not engine.plan()
    engine.drain()
    assert engine.worker.computed_tokens == 4


def test_the_step_planned_past_an_eos_is_neither_delivered_nor_counted() -> None:
    engine = Engine()
    first = alone(Submit(0, [1, 2, 3], SamplingParams(max_tokens=9), [1], 0, "", 0.0), 0, 64).tokens[0]
    rid = engine.submit([1, 2, 3], SamplingParams(max_tokens=9, eos_token_ids=(first,)))
    engine.plan()
    engine.plan()
    engine.deliver()
    assert reason(engine, rid) == "stop"
    assert engine.clients[rid].finished[0].stop_token is None
    assert not engine.scheduler.has_work
    assert engine.scheduler.in_flight == 1
    engine.deliver()
    assert engine.clients[rid].tokens == {0: [first]}
    engine.check_empty()


def test_a_slot_and_blocks_freed_under_a_running_step_serve_the_next_request() -> None:
    engine = Engine(num_blocks=2, max_num_seqs=1)
    first = alone(Submit(0, [1, 2, 3], SamplingParams(max_tokens=5), [1], 0, "", 0.0), 0, 64).tokens[0]
    engine.submit([1, 2, 3], SamplingParams(max_tokens=5, eos_token_ids=(first,)))
    engine.submit([4, 5, 6, 7], max_tokens=4)
    engine.plan()
    engine.plan()
    engine.deliver()
    engine.plan()
    assert engine.plans[-1].freed == [0]
    assert engine.plans[-1].new[0].slot == 0
    engine.drain()
    engine.check_clients()


def test_decodes_come_before_prefills_and_prefills_before_admissions() -> None:
    engine = Engine(max_num_batched_tokens=8, num_blocks=32)
    engine.submit([1, 2], max_tokens=9)
    engine.plan()
    engine.submit([3] * 12, max_tokens=9)
    engine.plan()
    engine.deliver()
    engine.submit([4] * 12, max_tokens=9)
    engine.plan()
    assert [(row.slot, row.start, row.count) for row in engine.plans[-1].rows] == [(0, 3, 1), (1, 7, 5), (2, 0, 2)]


def test_a_stop_token_ends_with_its_name_and_is_delivered() -> None:
    engine = Engine()
    tokens = alone(Submit(0, [1, 2, 3], SamplingParams(max_tokens=9), [1], 0, "", 0.0), 0, 64).tokens
    rid = engine.submit([1, 2, 3], SamplingParams(max_tokens=9, stop_token_ids=(tokens[2],)))
    engine.drain()
    finished = engine.clients[rid].finished[0]
    assert (finished.reason, finished.stop_token) == ("stop", tokens[2])
    assert engine.clients[rid].tokens[0][-1] == tokens[2]


def test_a_stop_below_min_tokens_is_ignored_even_if_the_worker_draws_one() -> None:
    scheduler = Engine().scheduler
    params = SamplingParams(max_tokens=5, min_tokens=2, eos_token_ids=(7,))
    scheduler.submit(Submit(0, [1], params, [1], 0, "", 0.0))
    ends = []
    for _ in range(3):
        plan = scheduler.plan(0.0)
        assert plan is not None
        batch = scheduler.complete(StepResult(plan.epoch, plan.step, [7], None, [], 0.0), 0.0)
        ends.append(bool(batch.finished))
    assert ends == [False, False, True]


def test_no_tokens_wanted_still_prefills_and_gives_the_prompts_logprobs() -> None:
    engine = Engine(max_num_batched_tokens=4)
    rid = engine.submit([1, 2, 3, 4, 5, 6, 7], SamplingParams(max_tokens=0, prompt_logprobs=0), seeds=[1, 2])
    engine.drain()
    engine.check_clients()
    assert engine.clients[rid].tokens == {}
    assert [reason(engine, rid, i) for i in range(2)] == ["length", "length"]


def test_queue_and_prefill_times_are_measured_from_arrival_and_from_the_first_step() -> None:
    engine = Engine(max_num_batched_tokens=4)
    rid = engine.submit([1] * 8, max_tokens=1)
    engine.now = 2.0
    engine.plan()
    engine.plan()
    engine.now = 5.0
    engine.deliver()
    engine.deliver()
    (prompt,) = engine.clients[rid].prompts
    assert prompt.queue_seconds == pytest.approx(2.01)
    assert prompt.prefill_seconds == pytest.approx(5.02 - 2.01)


# ---- what the worker may send


def test_a_result_of_another_step_is_an_error_and_changes_nothing() -> None:
    engine = Engine()
    engine.submit([1])
    with pytest.raises(ValueError, match="expected was none"):
        engine.scheduler.complete(StepResult(0, 0, [1], None, [], 0.0), 0.0)
    engine.plan()
    with pytest.raises(ValueError, match="expected was step 0"):
        engine.scheduler.complete(StepResult(0, 1, [1], None, [], 0.0), 0.0)
    with pytest.raises(ValueError, match="2 tokens for step 0, which draws 1"):
        engine.scheduler.complete(StepResult(0, 0, [1, 2], None, [], 0.0), 0.0)
    engine.drain()
    engine.check_clients()


def test_prompt_logprobs_that_do_not_come_end_the_request_with_an_error() -> None:
    scheduler = Engine().scheduler
    params = SamplingParams(max_tokens=5, prompt_logprobs=0)
    scheduler.submit(Submit(0, [1, 2, 3], params, [1, 2], 0, "", 0.0))
    plan = scheduler.plan(0.0)
    assert plan is not None
    batch = scheduler.complete(StepResult(0, 0, [7], None, [], 0.0), 0.0)
    assert [(each.index, each.reason) for each in batch.finished] == [(0, "error"), (1, "error")]
    assert "end at 1 of 3 tokens" in (batch.finished[0].message or "")
    assert batch.tokens == []
    assert not scheduler.has_work
    scheduler.check_integrity()


def chunk_logprobs(scheduler: Scheduler, *, send: bool) -> TokensBatch:
    """Plan and complete one step of a single row, with the log-probabilities of its positions or without."""
    plan = scheduler.plan(0.0)
    assert plan is not None
    (row,) = plan.rows
    count = row.count - 1 if row.sample else row.count
    pieces = [PromptLogprobs(row.slot, row.start + 1, [TokenLogprobs(1, -1.0, 1, [])] * count)] if send else []
    return scheduler.complete(StepResult(plan.epoch, plan.step, [7] if row.sample else [], None, pieces, 0.0), 0.0)


@pytest.mark.parametrize("loss", ["recover", "abort"])
def test_prompt_logprobs_of_a_row_that_was_lost_are_not_taken_for_those_of_the_next(loss: str) -> None:
    scheduler = Engine(max_num_batched_tokens=4).scheduler
    params = SamplingParams(max_tokens=5, prompt_logprobs=0)
    scheduler.submit(Submit(0, [1] * 6, params, [1, 2], 0, "", 0.0))
    chunk_logprobs(scheduler, send=True)
    if loss == "recover":
        scheduler.recover()
    else:
        scheduler.abort(0, 0)
    chunk_logprobs(scheduler, send=False)
    batch = chunk_logprobs(scheduler, send=True)
    assert batch.finished
    assert "end at 1 of 6 tokens" in (batch.finished[0].message or "")


def test_prompt_logprobs_outside_the_step_or_the_prompt_are_an_error() -> None:
    scheduler = Engine().scheduler
    scheduler.submit(Submit(0, [1, 2, 3], SamplingParams(max_tokens=5, prompt_logprobs=0), [1], 0, "", 0.0))
    plan = scheduler.plan(0.0)
    assert plan is not None
    entry = TokenLogprobs(1, -1.0, 1, [])
    for piece, message in (
        (PromptLogprobs(3, 1, [entry]), "slot 3, not in step 0"),
        (PromptLogprobs(0, 1, [entry] * 3), "tokens 1 to 4"),
        (PromptLogprobs(0, 0, [entry]), "tokens 0 to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            scheduler.complete(StepResult(0, 0, [7], None, [piece], 0.0), 0.0)
    batch = scheduler.complete(StepResult(0, 0, [7], None, [PromptLogprobs(0, 1, [entry] * 2)], 0.0), 0.0)
    assert batch.parts == [PromptPart(0, 1, [entry] * 2)]
    assert batch.prompts[0].logprobs == []


# ---- aborts and ends


def test_aborting_an_unknown_or_ended_request_says_nothing() -> None:
    engine = Engine()
    assert engine.scheduler.abort(7, -1) is None
    rid = engine.submit([1], seeds=[1, 2])
    assert engine.scheduler.abort(rid, 5) is None
    engine.abort(rid, 0)
    assert engine.scheduler.abort(rid, 0) is None
    engine.abort(rid)
    assert engine.scheduler.abort(rid, -1) is None
    assert sorted(engine.clients[rid].finished) == [0, 1]


def test_an_aborted_request_frees_its_blocks_at_once_though_a_step_of_it_is_in_flight() -> None:
    engine = Engine(num_blocks=4)
    rid = engine.submit([1] * 12)
    engine.plan()
    engine.abort(rid)
    engine.check_empty()
    other = engine.submit([2] * 12)
    engine.plan()
    assert engine.plans[-1].freed == [0]
    engine.drain()
    assert engine.clients[rid].tokens == {}
    assert reason(engine, other) == "length"
    engine.check_clients()


def test_when_the_leading_sequence_is_aborted_another_prefills_the_prompt() -> None:
    engine = Engine(max_num_batched_tokens=4)
    rid = engine.submit([1] * 10, SamplingParams(max_tokens=3, prompt_logprobs=0), seeds=[1, 2, 3])
    engine.step()
    engine.step()
    engine.abort(rid, 0)
    engine.drain()
    engine.check_clients()
    assert [reason(engine, rid, i) for i in range(3)] == ["abort", "length", "length"]


def test_ending_everything_gives_each_living_sequence_its_terminal_message() -> None:
    engine = Engine(max_num_seqs=1)
    rids = [engine.submit([1, 2], seeds=[1, 2]) for _ in range(3)]
    engine.plan()
    batch = engine.scheduler.end_all("the worker is gone")
    assert sorted((each.rid, each.index) for each in batch.finished) == [(rid, i) for rid in rids for i in range(2)]
    assert {(each.message, each.fault) for each in batch.finished} == {("the worker is gone", "engine")}
    assert not engine.scheduler.has_work
    engine.deliver()
    engine.check_empty()


# ---- recovery


def test_after_a_workers_death_everything_is_computed_again_and_tokens_go_on_where_they_were() -> None:
    engine = Engine()
    rid = engine.submit([1] * 9, max_tokens=8, seeds=[1, 2])
    for _ in range(4):
        engine.step()
    before = len(engine.clients[rid].tokens[0])
    assert before > 0
    engine.kill_worker()
    engine.scheduler.check_integrity()
    assert engine.scheduler.epoch == 1
    assert engine.scheduler.in_flight == 0
    engine.step()
    plan = engine.plans[-1]
    assert plan.epoch == 1
    assert plan.freed == []
    assert len(plan.new[0].tokens) == 9 + before
    assert plan.rows[0].start == 0, "no prefix of the dead worker is reused"
    engine.drain()
    engine.check_clients()


def test_times_and_cached_tokens_are_those_of_the_first_admission() -> None:
    engine = Engine(block_size=4, max_num_batched_tokens=4)
    engine.submit([1] * 12, max_tokens=1)
    engine.drain()
    rid = engine.submit([1] * 16, max_tokens=1)
    arrival = engine.now
    engine.now += 2
    engine.plan()
    engine.kill_worker()
    engine.now += 5
    engine.drain()
    (prompt,) = engine.clients[rid].prompts
    assert prompt.cached_tokens == 12
    assert prompt.queue_seconds == pytest.approx(2.01)
    assert prompt.prefill_seconds == pytest.approx(engine.now - arrival - 2.01, abs=0.05)


def test_stats_count_rows_waiting_sequences_and_blocks() -> None:
    engine = Engine(max_num_seqs=1, num_blocks=16)
    engine.submit([1] * 8, max_tokens=4)
    engine.submit([2] * 8, seeds=[1, 2])
    engine.plan()
    stats = engine.scheduler.stats()
    assert (stats.running, stats.waiting, stats.steps, stats.free_blocks) == (1, 2, 1, 14)
    assert stats.kv_usage == pytest.approx(2 / 16)


def test_what_has_ended_is_freed_without_the_garbage_collector() -> None:
    def sequences() -> int:
        return sum(type(each) is Sequence for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = sequences()
        engine = Engine()
        engine.submit([1] * 6, seeds=[1, 2])
        assert sequences() == before + 2
        engine.drain()
        assert sequences() == before
    finally:
        gc.enable()


# ---- what is counted


@pytest.mark.parametrize("max_drafts", [0, 2])
def test_the_tokens_of_every_step_and_the_preemptions_of_every_request_are_counted(max_drafts: int) -> None:
    engine = Engine(num_blocks=8, block_size=2, max_num_seqs=4, max_num_batched_tokens=16, max_drafts=max_drafts)
    for number in range(4):
        engine.submit([number] * 3, max_tokens=8)
    engine.drain()
    stats = engine.scheduler.stats()
    tokens = [sum(row.count + row.num_drafts for row in plan.rows) for plan in engine.plans]
    assert (sum(stats.step_tokens.counts), stats.step_tokens.total) == (stats.steps, sum(tokens))
    assert stats.step_tokens.counts[0] == sum(each <= 1 for each in tokens)
    assert stats.preemptions > 0
    assert (sum(stats.request_preemptions.counts), stats.request_preemptions.total) == (4, stats.preemptions)
