"""Steps that gain a row several tokens: what clients get is what one token a step gives."""

from typing import Any

import pytest

from stentor.engine.core.scheduler import Scheduler
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import RowDrafts, StepPlan, StepResult
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.fake_model import alone
from stentor.tests.engine.schedulers import CONFIG, ready_of
from stentor.tests.engine.scripted_grammar import ScriptedGrammar


def drained(**sizes: Any) -> Engine:
    """An engine with room for everything."""
    return Engine(**{"num_blocks": 200, "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_drafts": 4, **sizes})


class Rows:
    """A scheduler whose results a test writes; it has one request over a prompt of three tokens."""

    def __init__(self, params: SamplingParams | None = None, **sizes: Any) -> None:
        params = params or SamplingParams(max_tokens=20)
        self.engine = Engine(max_drafts=4, **sizes)
        self.scheduler: Scheduler = self.engine.scheduler
        self.rid = self.engine.submit([1, 2, 3], params)
        self.plan()
        self.take([7])

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan(0.0)
        assert plan is not None
        return plan

    def take(self, *rows: list[int]) -> None:
        """The oldest step in flight has gained its rows these tokens."""
        flight = self.scheduler._in_flight[0]
        tokens = [token for row in rows for token in row]
        counts = [len(row) for row in rows]
        self.engine.receive(
            self.scheduler.complete(StepResult(0, flight.step, tokens, None, [], 0.0, counts=counts), 0.0)
        )
        self.scheduler.check_integrity()

    @property
    def tokens(self) -> list[int]:
        return self.engine.clients[self.rid].tokens[0]


# ---- what clients get


@pytest.mark.parametrize("max_drafts", [1, 2, 4])
def test_drafts_change_how_many_steps_there_are_and_nothing_else(max_drafts: int) -> None:
    engine = drained(max_drafts=max_drafts, max_num_seqs=12)
    for seed in range(6):
        engine.submit([3] * (5 + seed), SamplingParams(max_tokens=40, logprobs=0), seeds=[seed, seed + 100])
    engine.drain()
    engine.check_clients()
    gained = sum(len(tokens) for client in engine.clients.values() for tokens in client.tokens.values())
    assert gained == 12 * 40
    assert engine.worker.accepted_tokens > 40 * max_drafts
    assert len(engine.plans) < 42, "one token a step takes 40 after the prompts"


@pytest.mark.parametrize("ends", [{"eos_token_ids": (0,)}, {"stop_token_ids": (0, 5)}])
def test_tokens_behind_a_stop_in_one_step_are_dropped(ends: dict[str, Any]) -> None:
    engine = drained()
    for seed in range(40):
        engine.submit([3, 4, seed % 12], SamplingParams(max_tokens=30, logprobs=0, **ends), seeds=[seed])
    drawn = delivered = 0
    while engine.scheduler.has_work or engine.scheduler.in_flight:
        engine.step()
        drawn += sum(len(result.tokens) for result in engine.results)
    engine.drain()
    engine.check_clients()
    delivered = sum(len(tokens) for client in engine.clients.values() for tokens in client.tokens.values())
    assert any(end.reason == "stop" for client in engine.clients.values() for end in client.finished.values())
    assert drawn > delivered


def test_a_stop_inside_a_burst_ends_the_sequence_in_that_message() -> None:
    rows = Rows(SamplingParams(max_tokens=20, stop_token_ids=(9,)))
    rows.plan()
    rows.take([5, 9, 6, 6, 6])
    assert rows.tokens == [7, 5, 9]
    (end,) = rows.engine.clients[rows.rid].finished.values()
    assert (end.reason, end.stop_token) == ("stop", 9)


def test_a_stop_below_min_tokens_does_not_end_a_burst() -> None:
    """The worker does not draw one there; the engine only guards."""
    rows = Rows(SamplingParams(max_tokens=20, min_tokens=3, stop_token_ids=(9,)))
    rows.plan()
    rows.take([9, 9, 9, 6])
    assert rows.tokens == [7, 9, 9, 9], "the fourth token is the first that may"


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_no_row_may_draw_beyond_its_limit(max_tokens: int) -> None:
    """The fake worker raises for a row that might; every count of drafts comes up at the end."""
    for seed in range(12):
        engine = drained(max_model_len=16 if max_tokens == 8 else 64)
        rid = engine.submit([1] * 8, max_tokens=max_tokens, seeds=[seed])
        engine.drain()
        engine.check_clients()
        assert len(engine.clients[rid].tokens[0]) == max_tokens


def test_drafts_are_not_asked_for_beyond_the_last_token() -> None:
    rows = Rows(SamplingParams(max_tokens=5))
    assert rows.plan().rows[0].num_drafts == 3, "the fifth is the one token more"
    assert rows.scheduler.plan(0.0) is None, "the row may have all that it gets"
    rows.take([5, 6])
    assert rows.plan().rows[0].num_drafts == 1
    rows.take([8, 8])
    assert rows.tokens == [7, 5, 6, 8, 8]
    assert rows.engine.clients[rows.rid].finished[0].reason == "length"


# ---- what the worker is asked for


def test_a_step_planned_ahead_starts_at_the_least_and_has_blocks_for_the_most() -> None:
    rows = Rows(block_size=2, num_blocks=40)
    first, second = rows.plan().rows[0], rows.plan().rows[0]
    assert (first.start, first.count, first.num_drafts) == (3, 1, 4)
    assert (second.start, second.count, second.num_drafts) == (4, 1, 4)
    (sequence,) = rows.scheduler._rows.running
    assert sequence.num_blocks * 2 >= 3 + 5 + 5
    rows.take([5, 5, 5])
    rows.take([6])
    third = rows.plan().rows[0]
    assert third.start == 3 + 3 + 1, "with nothing in flight the start is exact"
    assert rows.tokens == [7, 5, 5, 5, 6]


def test_blocks_that_drafts_did_not_need_are_used_by_the_tokens_that_follow() -> None:
    rows = Rows(block_size=2, num_blocks=40)
    rows.plan()
    rows.take([5])
    (sequence,) = rows.scheduler._rows.running
    before = sequence.num_blocks
    assert rows.plan().rows[0].new_blocks == [] or sequence.num_blocks == before + 1
    rows.take([6])
    rows.engine.abort(rows.rid)
    rows.engine.check_empty()


def test_drafts_take_no_blocks_from_others() -> None:
    """Three rows that fit exactly are never preempted, though their drafts would not fit."""
    engine = Engine(num_blocks=12, block_size=4, max_num_seqs=3, max_num_batched_tokens=64, max_drafts=4)
    for seed in range(3):
        engine.submit([seed] * 8, max_tokens=8, seeds=[seed])
    engine.drain()
    engine.check_clients()
    assert engine.scheduler.stats().preemptions == 0
    assert engine.worker.accepted_tokens > 0


def test_prompts_come_before_drafts() -> None:
    engine = Engine(num_blocks=64, max_num_batched_tokens=8, max_drafts=4)
    engine.submit([1] * 3, max_tokens=40)
    engine.step()
    engine.step()
    engine.submit([2] * 30, max_tokens=2)
    engine.plan()
    assert [(row.count, row.num_drafts) for row in engine.plans[-1].rows] == [(1, 0), (7, 0)]
    engine.drain()
    engine.check_clients()


def test_the_first_token_of_a_prompt_has_no_drafts() -> None:
    engine = drained()
    engine.submit([1] * 9, max_tokens=20, seeds=[1, 2])
    engine.submit([1], max_tokens=20)
    engine.drain()
    engine.check_clients()
    for plan in engine.plans:
        first = {row.slot for row in plan.new if len(row.tokens) == row.prompt_len}
        assert not any(row.num_drafts for row in plan.rows if row.slot in first)


def test_without_drafts_no_row_asks_for_any() -> None:
    engine = drained(max_drafts=0)
    engine.submit([1] * 9, max_tokens=20, seeds=[1, 2])
    engine.drain()
    assert not any(row.num_drafts for plan in engine.plans for row in plan.rows)
    assert engine.worker.accepted_tokens == 0


# ---- prefixes, windows, losses


def test_a_conversation_finds_the_blocks_that_bursts_have_filled() -> None:
    hits = []
    for max_drafts in (0, 4):
        engine = drained(max_drafts=max_drafts, block_size=4)
        first = engine.submit([3] * 9, max_tokens=23)
        engine.drain()
        answer = engine.clients[first].tokens[0]
        second = engine.submit([3] * 9 + answer + [1, 2], max_tokens=3)
        engine.drain()
        engine.check_clients()
        hits.append(engine.clients[second].prompts[0].cached_tokens)
    assert hits == [31, 31], "all of 9 + 23 tokens but the last"


def test_blocks_behind_a_stop_inside_a_burst_have_no_name() -> None:
    rows = Rows(SamplingParams(max_tokens=20, stop_token_ids=(9,)), block_size=2, num_blocks=40)
    rows.plan()
    rows.take([5, 9, 6, 6, 6])
    found = rows.engine.submit([1, 2, 3, 7, 5, 9, 6, 6, 6], max_tokens=1)
    rows.scheduler.plan(0.0)
    request = rows.scheduler._output.requests[found]
    assert request.cached_len == 5, "the positions before the stop that were computed with known tokens"


@pytest.mark.parametrize("windows", [(0, 4), (3,), (5, 0, 9)])
def test_a_window_leaves_nothing_behind_that_the_least_acceptance_sees(windows: tuple[int, ...]) -> None:
    """The fake worker reads every position that a window sees, whatever was accepted."""
    for seed in range(10):
        engine = drained(windows=windows, block_size=2, num_blocks=400)
        for index in range(4):
            engine.submit([index] * 5, max_tokens=50, seeds=[seed * 10 + index])
        engine.drain()
        engine.check_clients()
        assert engine.worker.accepted_tokens > 50


def test_a_row_that_is_preempted_with_a_burst_in_flight_keeps_it() -> None:
    rows = Rows()
    rows.plan()
    rows.plan()
    rows.scheduler.recompute()
    rows.scheduler.check_integrity()
    rows.take([5, 6, 7])
    rows.take([8, 9])
    assert rows.tokens == [7, 5, 6, 7, 8, 9]
    (again,) = rows.plan().new
    assert again.tokens == [1, 2, 3, 7, 5, 6, 7, 8, 9]


def test_an_abort_between_a_burst_and_its_result_drops_it() -> None:
    rows = Rows()
    rows.plan()
    rows.engine.abort(rows.rid)
    rows.take([5, 6, 7])
    assert rows.tokens == [7]
    rows.engine.check_empty()


# ---- masks


@pytest.mark.parametrize("ends", [{}, {"eos_token_ids": (0,)}, {"stop_token_ids": (3,), "min_tokens": 4}])
def test_a_grammar_restricts_each_position_of_a_burst(ends: dict[str, Any]) -> None:
    engine = drained()
    for seed in range(60):
        params = SamplingParams(max_tokens=20, logprobs=0, **ends)
        engine.submit([3, 4, seed % 12], params, seeds=[seed], grammar=ScriptedGrammar(seed))
    engine.drain()
    engine.check_clients()
    assert engine.worker.accepted_tokens > 30, "masks at further positions were used"


def test_a_grammar_that_breaks_at_a_draft_fails_only_who_draws_it() -> None:
    """What the worker proposes and does not draw costs the sequence nothing."""
    for seed in range(30):
        params = SamplingParams(max_tokens=12, stop_token_ids=(1,))
        engine = drained()
        rid = engine.submit([3, 4], params, seeds=[seed], grammar=ScriptedGrammar(seed))
        engine.drain()
        engine.check_clients()
        expected = alone(engine.clients[rid].submit, 0, 64, ScriptedGrammar(seed))
        assert engine.clients[rid].tokens[0] == expected.tokens


def test_a_draft_that_is_not_allowed_has_no_masks_behind_it() -> None:
    engine = drained()
    grammar = ScriptedGrammar(3)
    engine.submit([3, 4], SamplingParams(max_tokens=12), grammar=grammar)
    engine.plan()
    (result,) = engine.results
    allowed = sorted(grammar.allowed(result.tokens))
    behind = sorted(grammar.allowed([*result.tokens, allowed[0]]))
    refused = next(token for token in range(1, 12) if token not in behind)
    engine.results.clear()
    drafted = [RowDrafts(0, [allowed[0], refused, 1])]
    engine.plan()
    engine.receive(engine.scheduler.complete(StepResult(0, 0, result.tokens, None, [], 0.0, drafts=drafted), 0.0))
    masks, _ = engine.scheduler.masks()
    assert [row.slot for row in masks.rows] == [0, 0]
    assert [row.ids for row in masks.rows] == [allowed, behind]


# ---- what the worker may send


def test_counts_that_a_step_cannot_have_are_an_error() -> None:
    rows = Rows(SamplingParams(max_tokens=3))
    rows.plan()
    for counts, tokens in (([0], []), ([3], [1, 1, 1]), ([1, 1], [1, 1]), ([], [])):
        with pytest.raises(ValueError, match="whose rows gain 1 to \\[2\\]"):
            rows.scheduler.complete(StepResult(0, 1, tokens, None, [], 0.0, counts=counts), 0.0)
    with pytest.raises(ValueError, match="1 tokens for step 1, which draws 2"):
        rows.scheduler.complete(StepResult(0, 1, [1], None, [], 0.0, counts=[2]), 0.0)
    rows.take([5, 5])
    assert rows.engine.clients[rows.rid].finished[0].reason == "length"


@pytest.mark.parametrize("drafted", [RowDrafts(0, [1]), RowDrafts(3, [1])])
def test_drafts_of_a_row_that_needs_none_are_an_error(drafted: RowDrafts) -> None:
    rows = Rows()
    rows.plan()
    with pytest.raises(ValueError, match="which needs none"):
        rows.scheduler.complete(StepResult(0, 1, [1], None, [], 0.0, drafts=[drafted]), 0.0)


def test_a_negative_number_of_drafts_is_refused() -> None:
    with pytest.raises(ValueError, match="max_drafts"):
        Scheduler(
            ready_of(
                num_blocks=4,
                block_size=4,
                max_num_seqs=1,
                max_num_batched_tokens=4,
                max_model_len=8,
                max_drafts=-1,
            ),
            CONFIG,
        )
