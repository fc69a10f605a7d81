"""Masked rows draw what their masks allow, on the host and on a device; rows beside them what they draw without."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.core.grammar.token_sets import MaskWriter, set_of
from stentor.engine.worker.sampling.masks import lowest, mask_bytes, restrict_rows_, slot_masks
from stentor.engine.worker.sampling.sampler import Sampler
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import Masks, NewRow, RowMask, RowStep, StepPlan
from stentor.tests.engine.worker.runners import Pair, WatchedDecoder, prompt
from stentor.tests.engine.worker.test_async_compute import RULES

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = (1, 2, 4, 8)
V = 101


def masks_of(sets: dict[int, set[int]], size: int = V) -> Masks:
    writer = MaskWriter()
    for slot, tokens in sets.items():
        writer.add(slot, set_of(tokens, size))
    return writer.masks(0, 0)


@given(st.dictionaries(st.integers(0, 9), st.sets(st.integers(0, 150), min_size=1, max_size=80)), st.integers(1, 151))
@settings(deadline=None)
def test_masks_reach_the_worker_as_they_were_made_whatever_its_vocabulary(sets: dict[int, set[int]], size: int) -> None:
    found = slot_masks(masks_of(sets, 151), size)
    assert found.keys() == sets.keys()
    for slot, tokens in sets.items():
        assert len(found[slot]) == mask_bytes(size)
        logits = torch.zeros(size)
        restrict_rows_(logits[None], [0], [found[slot]])
        allowed = set(torch.isfinite(logits).nonzero().flatten().tolist())
        assert allowed == {token for token in tokens if token < size}
        assert lowest(found[slot]) == min(allowed, default=lowest(found[slot]))


def test_rows_that_may_draw_the_same_share_one_set() -> None:
    many = set(range(40))
    masks = masks_of({0: many, 1: many, 2: {3}, 3: many - {7}})
    assert [(row.slot, row.ids, row.bits) for row in masks.rows] == [(0, [], 0), (1, [], 0), (2, [3], -1), (3, [], 1)]
    assert [len(bits) % 4 for bits in masks.bits] == [0, 0]


def test_a_mask_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="slot 4 has 1"):
        slot_masks(Masks(0, 7, [RowMask(4, [], 1)], [b"\xff" * 16]), V)


def _sampler(rows: list[dict[str, Any]]) -> Sampler:
    sampler = Sampler(V, len(rows), torch.device("cpu"))
    for slot, fields in enumerate(rows):
        sampler.add(slot, SamplingParams(max_tokens=9, **fields), seed=slot, tokens=[1, 2, 3], prompt_len=3)
    return sampler


@pytest.mark.parametrize("greedy", [False, True])
def test_rows_beside_masked_ones_draw_what_they_draw_without(greedy: bool) -> None:
    rows: list[dict[str, Any]] = [{"temperature": 0.0} if greedy else {"temperature": 1.3, "logprobs": 2}] * 8
    runs = []
    for masked in (False, True):
        sampler = _sampler(rows)
        found = []
        for step in range(6):
            logits = torch.randn((8, V), generator=torch.Generator().manual_seed(step))
            allowed = {slot: {7, 9, 30 + step} for slot in (1, 4)} if masked else {}
            found.append(sampler.sample(logits, range(8), masks=slot_masks(masks_of(allowed), V)))
        runs.append(found)
    for step, ((plain, plain_logprobs), (beside, beside_logprobs)) in enumerate(zip(*runs, strict=True)):
        for slot in range(8):
            if slot in (1, 4):
                assert beside[slot] in {7, 9, 30 + step}
            else:
                assert beside[slot] == plain[slot]
                if plain_logprobs is not None and beside_logprobs is not None:
                    assert beside_logprobs[slot] == plain_logprobs[slot]


def test_log_probabilities_of_a_masked_row_are_those_of_its_raw_logits() -> None:
    logits = torch.randn((1, V), generator=torch.Generator().manual_seed(1))
    raw = logits.log_softmax(-1)
    (token,), found = _sampler([{"temperature": 0.0, "logprobs": 3}]).sample(
        logits.clone(), [0], masks=slot_masks(masks_of({0: {11}}), V)
    )
    assert token == 11
    assert found is not None
    (entry,) = found
    assert entry is not None
    assert entry.logprob == pytest.approx(raw[0, 11].item(), abs=1e-5)
    assert [each for each, _ in entry.top] == raw[0].topk(3).indices.tolist()


def test_a_masked_row_whose_logits_are_broken_still_draws_what_it_may() -> None:
    logits = torch.full((1, V), float("nan"))
    tokens, _ = _sampler([{}]).sample(logits, [0], masks=slot_masks(masks_of({0: {55, 60}}), V))
    assert tokens == [55]


def test_a_mask_holds_for_one_draw_and_takes_the_place_of_allowed_tokens() -> None:
    sampler = _sampler([{"allowed_token_ids": (5, 6)}])
    for step in range(6):
        logits = torch.randn((1, V), generator=torch.Generator().manual_seed(step))
        masks = slot_masks(masks_of({0: {70}} if step % 2 else {}), V)
        (token,), _ = sampler.sample(logits, [0], masks=masks)
        assert token in ({70} if step % 2 else {5, 6})


# ---- on a device


def _submit_all(pair: Pair, *, seed: int, requests: int, tokens: int = 14) -> None:
    rng = random.Random(seed)
    for number in range(requests):
        fields = {name: value for name, value in RULES[number % len(RULES)].items() if name != "allowed_token_ids"}
        params = SamplingParams(max_tokens=rng.randrange(1, tokens), **fields)
        seeds = [rng.getrandbits(64) for _ in range(rng.choice((1, 1, 3)))]
        grammar = number if rng.random() < 0.5 else None
        pair.submit(prompt(rng.randrange(1, 60), seed=number % 5), params, seeds, grammar)


@pytest.mark.parametrize(
    ("sizes", "blocks", "budget"),
    [
        (SIZES, 6, 8),
        pytest.param((), 64, 24, marks=pytest.mark.proof),
        pytest.param(SIZES, 64, 24, marks=pytest.mark.proof),
        pytest.param((), 6, 8, marks=pytest.mark.proof),
    ],
)
def test_masked_rows_draw_the_tokens_of_the_synchronous_runner(
    model: WatchedDecoder, sizes: tuple[int, ...], blocks: int, budget: int
) -> None:
    pair = Pair(model, sizes=sizes, blocks=blocks, budget=budget)
    pair.capture_all()
    _submit_all(pair, seed=3, requests=14, tokens=18)
    pair.run()
    steps = [bool(plan.masked) for plan in pair.plans]
    assert any(steps)
    assert not all(steps)
    assert not [end for end in pair.ended if end.reason == "error"]
    if sizes:
        assert sum(graph.replays for graph in pair.device.graphs) > 20
    if blocks < 64:
        assert pair.scheduler.stats().preemptions > 0


def test_masked_steps_use_pinned_memory_again(model: WatchedDecoder) -> None:
    pair = Pair(model, sizes=SIZES)
    pair.capture_all()
    made = []
    for _ in range(2):
        for seed in range(4):
            pair.submit(prompt(20, seed), SamplingParams(max_tokens=12), grammar=seed)
        pair.run()
        made.append(pair.device.pinned_made)
    assert made[0] == made[1]
    assert pair.device.pinned_freed == 0


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("sizes", [(), (1,)])
def test_a_row_draws_as_it_did_before_once_it_is_not_masked_any_more(
    model: WatchedDecoder, sizes: tuple[int, ...], asked: bool
) -> None:
    """``asked``: its masks are waited for in each step, and do not name it."""
    params = SamplingParams(max_tokens=9, allowed_token_ids=tuple(range(3, 200)), temperature=0.0)
    new = NewRow(0, prompt(5), 5, params, 1, [3], "", True)
    masked = {1, 2, 4}
    pair = Pair(model, sizes=sizes)
    pair.capture_all()
    for number in range(7):
        start, count = (0, 5) if number == 0 else (4 + number, 1)
        row = RowStep(0, start, count, [], True)
        plan = StepPlan(0, number, [], [new] if number == 0 else [], [row], [0] if asked or number in masked else [])
        rows = [RowMask(0, [250], -1)] if number in masked else []
        masks = Masks(0, number, rows, []) if plan.masked else None
        (expected,) = pair.host.draw(pair.host.forward(plan), masks).tokens
        found = pair.runner.finish(pair.runner.draw(pair.runner.forward(plan), masks))
        assert found.tokens == [expected]
        assert (expected == 250) == (number in masked)


def test_a_slot_that_changes_hands_leaves_no_mask_behind(model: WatchedDecoder) -> None:
    pair = Pair(model, sizes=(1,))
    pair.capture_all()
    params = SamplingParams(max_tokens=9, temperature=0.0)
    for number, entering_masked in enumerate((True, False, True, False)):
        new = NewRow(0, prompt(5, number), 5, params, 1, [3], "", entering_masked)
        row = RowStep(0, 0, 5, [], True)
        plan = StepPlan(0, number, [0] if number else [], [new], [row], [0] if entering_masked else [])
        masks = Masks(0, number, [RowMask(0, [250], -1)], []) if entering_masked else None
        expected = pair.host.draw(pair.host.forward(plan), masks).tokens
        found = pair.runner.finish(pair.runner.draw(pair.runner.forward(plan), masks))
        assert found.tokens == expected
        assert (expected == [250]) == entering_masked


def test_rows_that_stay_masked_bring_no_lines_of_their_own(model: WatchedDecoder) -> None:
    """They would fill the buffer that graphs read: each is as long as the vocabulary."""
    pair = Pair(model, sizes=(1,))
    pair.capture_all()
    new = NewRow(0, prompt(5), 5, SamplingParams(max_tokens=9, temperature=0.0), 1, [3], "", True)
    for number in range(4):
        row = RowStep(0, *((0, 5) if number == 0 else (4 + number, 1)), [], True)
        plan = StepPlan(0, number, [], [new] if number == 0 else [], [row], [0])
        launched = pair.runner.forward(plan)
        assert (launched.staged.shape.sampling_data > 0) == (number == 0)
        found = pair.runner.finish(pair.runner.draw(launched, Masks(0, number, [RowMask(0, [250], -1)], [])))
        assert found.tokens == [250]


@pytest.mark.parametrize("size", [1, 7, 8, 33, 100, 49_153])
def test_exactly_what_may_not_be_drawn_loses_its_logit_whatever_the_vocabulary(size: int) -> None:
    draw = np.random.default_rng(size)
    mask = draw.integers(0, 256, mask_bytes(size), dtype=np.uint8)
    logits = torch.from_numpy(draw.standard_normal(size).astype(np.float32))
    logits[0] = float("inf")
    before = logits.clone()
    restrict_rows_(logits[None], [0], [mask])
    allowed = torch.from_numpy(np.unpackbits(mask, bitorder="little")[:size].astype(bool))
    assert torch.equal(logits, torch.where(allowed, before, -float("inf")))
