"""Warming up: which steps run, and that nothing of them is left."""

from typing import Any

import pytest

from stentor.engine.worker.device.graphs import GraphSize
from stentor.engine.worker.setup.warmup import counts, warm_up, warm_up_drafts
from stentor.kernels import force_variant
from stentor.protocols.ipc.sampling import MAX_LOGPROBS, SamplingParams
from stentor.protocols.ipc.steps import StepPlan, StepResult
from stentor.tests.engine.worker.runners import BUDGET, CONTEXT, SLOTS, Pair, WatchedDecoder, prompt
from stentor.tests.parity import tiny

pytestmark = pytest.mark.usefixtures("one_thread")


def _warm_up(pair: Pair, *, slots: int = SLOTS, tokens: int = BUDGET, context: int = CONTEXT) -> list[tuple[int, int]]:
    reported: list[tuple[int, int]] = []
    with force_variant("reference"):
        warm_up(
            pair.runner,
            pair.compute,
            slots,
            tokens,
            context,
            tiny.VOCAB,
            lambda _, done, total: reported.append((done, total)),
        )
    return reported


@pytest.mark.parametrize("most", [1, 2, 3, 16, 24, 100, 256, 2048])
def test_counts_have_every_kind_up_to_each_power_of_two(most: int) -> None:
    found = counts(most)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (1, most)

    def kind(number: int) -> tuple[int, bool]:
        return (number - 1).bit_length(), number % 16 == 0

    assert {kind(number) for number in found} == {kind(number) for number in range(1, most + 1)}


def test_prefills_decodes_mixed_steps_and_log_probabilities_all_run(
    model: WatchedDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(model)
    plans: list[StepPlan] = []
    decodes: list[int] = []
    step, warm = pair.runner.step, pair.compute.warm

    def watched_step(plan: StepPlan) -> StepResult:
        plans.append(plan)
        return step(plan)

    def watched_warm(size: GraphSize) -> None:
        assert not size.prompt_tokens
        decodes.append(size.decodes)
        warm(size)

    monkeypatch.setattr(pair.runner, "step", watched_step)
    monkeypatch.setattr(pair.compute, "warm", watched_warm)
    reported = _warm_up(pair)
    assert reported == [(done, len(plans) + len(decodes)) for done in range(len(reported))]
    assert decodes == counts(SLOTS)[::-1]
    sums = {sum(row.count for row in plan.rows) for plan in plans}
    assert sums >= set(counts(BUDGET))
    assert any({row.count == 1 for row in plan.rows} == {True, False} for plan in plans), "a mixed one"
    params = [new.params for plan in plans for new in plan.new]
    assert {each.logprobs for each in params} >= {None, 0, 1, MAX_LOGPROBS}
    assert {each.prompt_logprobs for each in params} >= {None, 0, 1, MAX_LOGPROBS}
    assert any(each.needs_penalties and each.logit_bias and each.banned_token_ids for each in params)
    pair.device.settle()


@pytest.mark.parametrize(("drafts", "lengths"), [(1, {1, 2}), (3, {1, 2, 4}), (4, {1, 2, 4, 5}), (20, {1, 2, 4, 8})])
def test_steps_with_drafts_run_for_every_number_of_tokens_that_attention_is_compiled_for(
    model: WatchedDecoder, monkeypatch: pytest.MonkeyPatch, drafts: int, lengths: set[int]
) -> None:
    pair = Pair(model)
    seen: set[tuple[int, int]] = set()
    step = pair.host.step

    def watched_step(plan: StepPlan) -> StepResult:
        seen.add((len(plan.rows), plan.rows[0].count))
        assert {row.count for row in plan.rows} == {plan.rows[0].count}
        return step(plan)

    monkeypatch.setattr(pair.host, "step", watched_step)
    with force_variant("reference"):
        warm_up_drafts(pair.host, SLOTS, drafts, 24, CONTEXT, lambda *_: None)
    every = {(rows, length) for rows in counts(SLOTS) for length in lengths}
    assert seen == {(rows, length) for rows, length in every if rows * length <= 24}
    pair.submit(prompt(30), SamplingParams(max_tokens=4))
    pair.run()  # nothing of them is left


@pytest.mark.proof(each="slots")
@pytest.mark.parametrize(
    ("slots", "tokens", "context"), [(SLOTS, BUDGET, CONTEXT), (1, 1, 1), (1, 24, 2), (2, 8, CONTEXT), (SLOTS, 24, 5)]
)
def test_what_comes_after_draws_as_if_nothing_had_been_before(
    model: WatchedDecoder, slots: int, tokens: int, context: int
) -> None:
    pair = Pair(model, sizes=(2, 4))
    _warm_up(pair, slots=slots, tokens=tokens, context=context)
    pair.capture_all()
    extra: list[dict[str, Any]] = [{}, {"logprobs": 2}, {"repetition_penalty": 1.3}, {"min_tokens": 3}]
    for number, fields in enumerate(extra):
        pair.submit(prompt(30, number), SamplingParams(max_tokens=6, **fields), [number])
    pair.run()
    assert pair.results
