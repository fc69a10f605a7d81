"""The sampler: what a row asks for reaches its draws, and nothing else does."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.worker.sampling.logprobs import Alternatives
from stentor.engine.worker.sampling.sampler import Sampler
from stentor.kernels import sampling
from stentor.kernels.sampling import native
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.tests.examples import examples

V = 101
CPU = torch.device("cpu")
EOS, STOP = 7, 8


def params(**given: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 64, **given})


def logits_for(rows: int, seed: int, vocabulary: int = V) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def run(
    given: SamplingParams,
    steps: Sequence[torch.Tensor],
    *,
    seed: int = 1,
    prompt: Sequence[int] = (1, 2, 3),
    outputs: Sequence[int] = (),
    vocabulary: int = V,
) -> tuple[list[int], list[TokenLogprobs | None]]:
    """One row alone, a step per logits [1, V]."""
    sampler = Sampler(vocabulary, 4, CPU)
    sampler.add(2, given, seed, [*prompt, *outputs], len(prompt))
    tokens: list[int] = []
    logprobs: list[TokenLogprobs | None] = []
    for step in steps:
        sampled_token_ids, found = sampler.sample(step.clone(), [2])
        tokens += sampled_token_ids
        logprobs += found or [None]
    return tokens, logprobs


MIXES = [
    params(temperature=0.0),
    params(),
    params(temperature=0.7, top_k=5),
    params(temperature=1.3, top_p=0.8, min_p=0.01),
    params(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
    params(temperature=0.0, frequency_penalty=1.0),
    params(logit_bias=((5, 4.0), (6, -100.0)), banned_token_ids=(9, 10)),
    params(allowed_token_ids=(3, 4, 5, 50), top_k=3),
    params(temperature=0.0, min_tokens=3, eos_token_ids=(EOS,), stop_token_ids=(STOP,)),
    params(logprobs=4, repetition_penalty=1.2),
    params(temperature=0.0, logprobs=0),
    params(logprobs=3, logprob_token_ids=(5, 0, 100)),
    params(temperature=0.0, logprobs=2, banned_token_ids=(1,)),
    params(temperature=0.8, logprobs=3, top_k=7, repetition_penalty=1.3, processed_logprobs=True),
]


@pytest.fixture(params=["native", "reference"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "reference":
        monkeypatch.setattr(native, "usable", lambda logits: False)
    elif not native.usable(torch.zeros(1, 1)):
        pytest.skip("no native library")
    return str(request.param)


@pytest.mark.usefixtures("version")
def test_a_batch_equals_its_rows_alone() -> None:
    sampler = Sampler(V, len(MIXES), CPU)
    order = [5, 3, 13, 11, 0, 8, 1, 9, 2, 10, 4, 12, 7, 6]
    for slot in order:
        sampler.add(slot, MIXES[slot], 1000 + slot, [1, 2, 3, slot], 4)
    steps = [logits_for(len(order), step) for step in range(6)]
    batched = [sampler.sample(step.clone(), order) for step in steps]
    for row, slot in enumerate(order):
        alone, logprobs = run(
            MIXES[slot], [step[row : row + 1] for step in steps], seed=1000 + slot, prompt=(1, 2, 3, slot)
        )
        assert [tokens[row] for tokens, _ in batched] == alone
        assert [found[row] if found else None for _, found in batched] == logprobs


@pytest.mark.skipif(not native.usable(torch.zeros(1, 1)), reason="no native library")
def test_the_native_version_and_the_definition_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [logits_for(1, step) for step in range(5)]
    quick = [run(mix, steps)[0] for mix in MIXES]
    monkeypatch.setattr(native, "usable", lambda logits: False)
    assert [run(mix, steps)[0] for mix in MIXES] == quick


@settings(max_examples=examples(40), deadline=None)
@given(
    mix=st.sampled_from(MIXES), cut=st.integers(0, 8), seed=st.integers(0, 2**64 - 1), logits_seed=st.integers(0, 1000)
)
def test_a_resumed_row_draws_what_it_would_have_drawn(
    mix: SamplingParams, cut: int, seed: int, logits_seed: int
) -> None:
    steps = [logits_for(1, logits_seed + step) for step in range(8)]
    tokens, logprobs = run(mix, steps, seed=seed)
    resumed, resumed_logprobs = run(mix, steps[cut:], seed=seed, outputs=tokens[:cut])
    assert resumed == tokens[cut:]
    assert resumed_logprobs == logprobs[cut:]


@pytest.mark.parametrize("later", range(len(MIXES)))
def test_a_slot_keeps_nothing_of_its_former_owner(later: int) -> None:
    steps = [logits_for(1, step) for step in range(4)]
    expected = run(MIXES[later], steps)
    for earlier in MIXES:
        sampler = Sampler(V, 4, CPU)
        sampler.add(2, earlier, 99, [5, 5, 5, 6], 2)
        sampler.sample(logits_for(1, 50), [2])
        sampler.remove(2)
        sampler.add(2, MIXES[later], 1, [1, 2, 3], 3)
        results = [sampler.sample(step.clone(), [2]) for step in steps]
        assert [tokens[0] for tokens, _ in results] == expected[0]
        assert [found[0] if found else None for _, found in results] == expected[1]


def test_rows_of_a_batch_may_come_and_go() -> None:
    steps = [logits_for(3, step) for step in range(6)]
    expected, _ = run(MIXES[4], [step[1:2] for step in steps], seed=9)
    sampler = Sampler(V, 3, CPU)
    sampler.add(0, MIXES[1], 5, [1], 1)
    sampler.add(1, MIXES[4], 9, [1, 2, 3], 3)
    sampled_token_ids = []
    for number, step in enumerate(steps):
        if number == 2:
            sampler.add(2, MIXES[7], 5, [1], 1)
        if number == 4:
            sampler.remove(0)
        slots = [slot for slot, there in ((0, number < 4), (1, True), (2, number >= 2)) if there]
        tokens, _ = sampler.sample(step[slots], slots)
        sampled_token_ids.append(tokens[slots.index(1)])
    assert sampled_token_ids == expected


def test_penalties_count_outputs_and_repetition_also_the_prompt() -> None:
    flat = torch.ones(1, V)
    # Every token counts as seen at most once, so greedy walks up the ids that are still unseen.
    tokens, _ = run(params(temperature=0.0, repetition_penalty=2.0), [flat] * 4, prompt=(0, 1, 1, 3))
    assert tokens == [2, 4, 5, 6]
    tokens, _ = run(params(temperature=0.0, presence_penalty=0.5), [flat] * 3, prompt=(0, 1))
    assert tokens == [0, 1, 2]
    higher = flat.clone()
    higher[0, 40] = 2.25
    tokens, _ = run(params(temperature=0.0, frequency_penalty=0.5), [higher] * 5)
    assert tokens == [40, 40, 40, 0, 1]


def test_penalties_follow_many_distinct_tokens() -> None:
    flat = torch.zeros(1, 400)
    tokens, _ = run(params(temperature=0.0, presence_penalty=1.0), [flat] * 300, vocabulary=400)
    assert tokens == list(range(300))


def test_eos_and_stop_tokens_wait_for_min_tokens() -> None:
    logits = torch.zeros(1, V)
    logits[0, EOS], logits[0, STOP], logits[0, 20] = 9.0, 8.0, 1.0
    rule = params(temperature=0.0, min_tokens=3, eos_token_ids=(EOS,), stop_token_ids=(STOP,))
    assert run(rule, [logits] * 4)[0] == [20, 20, 20, EOS]
    assert run(rule, [logits] * 2, outputs=[20, 20])[0] == [20, EOS]


def test_bias_bans_and_allowed_tokens_shape_the_draw() -> None:
    logits = torch.zeros(1, V)
    logits[0, 30] = 5.0
    steps = [logits] * 50
    assert set(run(params(logit_bias=((44, 100.0),)), steps)[0]) == {44}
    assert 30 not in run(params(banned_token_ids=(30,)), steps)[0]
    assert set(run(params(allowed_token_ids=(1, 2, 30), banned_token_ids=(30,)), steps)[0]) == {1, 2}
    assert set(run(params(allowed_token_ids=(6,)), steps)[0]) == {6}
    assert set(run(params(temperature=0.0, allowed_token_ids=(8, 6)), steps)[0]) == {6}


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    rule = params(
        logit_bias=((V, 100.0), (-1, 100.0), (4, 100.0)),
        banned_token_ids=(V + 5, -2),
        allowed_token_ids=(4, 5, V),
        stop_token_ids=(V + 1,),
        min_tokens=2,
        repetition_penalty=1.1,
    )
    assert run(rule, [torch.zeros(1, V)] * 3, prompt=(V, 5, -1))[0] == [4, 4, 4]


@pytest.mark.parametrize("token", [0, V - 1])
def test_the_first_and_the_last_token_may_be_wanted_and_banned(token: int) -> None:
    assert run(params(temperature=0.0, logit_bias=((token, 5.0),)), [torch.zeros(1, V)])[0] == [token]
    certain = torch.zeros(1, V).index_fill_(1, torch.tensor([token]), 9.0)
    assert run(params(temperature=0.0, banned_token_ids=(token,)), [certain])[0] != [token]


def test_a_row_with_nothing_left_takes_its_lowest_allowed_token() -> None:
    broken = torch.full((1, V), math.nan)
    assert run(params(), [broken])[0] == [0]
    assert run(params(temperature=0.0), [broken])[0] == [0]
    assert run(params(allowed_token_ids=(9, 5, 7), banned_token_ids=(5,)), [broken])[0] == [7]
    rule = params(allowed_token_ids=(EOS,), eos_token_ids=(EOS,), min_tokens=2)
    assert run(rule, [torch.zeros(1, V)] * 3)[0] == [EOS] * 3


def test_a_broken_row_leaves_its_neighbours_alone() -> None:
    logits = logits_for(2, 3)
    expected, _ = run(params(), [logits[1:]], seed=6)
    logits[0] = math.nan
    sampler = Sampler(V, 2, CPU)
    sampler.add(0, params(top_p=0.5, repetition_penalty=1.1), 5, [1], 1)
    sampler.add(1, params(), 6, [1, 2, 3], 3)
    assert sampler.sample(logits, [0, 1])[0] == [0, *expected]


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize(
    "edit", [{}, {"repetition_penalty": 3.0}, {"logit_bias": ((11, 50.0),)}, {"allowed_token_ids": (11, 12)}]
)
def test_logprobs_are_of_the_raw_logits(edit: dict[str, Any]) -> None:
    logits = logits_for(1, 21)
    tokens, found = run(params(temperature=1.7, top_k=10, logprobs=3, **edit), [logits])
    exact = logits.double().log_softmax(-1)[0]
    entry = found[0]
    assert entry is not None
    assert entry.token == tokens[0]
    assert entry.logprob == pytest.approx(exact[tokens[0]].item(), abs=1e-5)
    assert entry.rank == 1 + int((exact > exact[tokens[0]]).sum())
    best = exact.topk(3)
    assert [token for token, _ in entry.top] == best.indices.tolist()
    assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def _distribution(row: torch.Tensor, given: SamplingParams) -> torch.Tensor:
    """What is sampled from: the softmax of logits [V], cut by top-k, min-p and top-p in this order."""
    if not given.temperature:
        return row.double().softmax(-1)
    chances = (row.double() / given.temperature).softmax(-1)
    if given.top_k:
        chances[chances.argsort(descending=True)[given.top_k :]] = 0.0
    chances[chances < given.min_p * chances.max()] = 0.0
    order = chances.argsort(descending=True)
    before = (chances[order] / chances.sum()).cumsum(0) - chances[order] / chances.sum()
    chances[order[before >= given.top_p]] = 0.0
    return chances / chances.sum()


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize(
    "cuts",
    [
        {},
        {"temperature": 1.7, "top_k": 9},
        {"temperature": 0.6, "min_p": 0.05},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 2.0, "top_k": 40, "min_p": 0.01, "top_p": 0.7},
        {"temperature": 0.0, "top_k": 3, "top_p": 0.2},
    ],
)
def test_processed_logprobs_are_of_the_distribution_that_is_sampled_from(cuts: dict[str, Any]) -> None:
    edits = {"logit_bias": ((11, 3.0),), "banned_token_ids": (12,), "frequency_penalty": 0.5}
    given = params(logprobs=V, processed_logprobs=True, **edits, **cuts)
    logits = logits_for(1, 21)
    tokens, (entry,) = run(given, [logits], outputs=[40, 40])
    edited = logits[0].clone()
    edited[11] += 3.0
    edited[12] = -math.inf
    edited[40] -= 1.0
    exact = _distribution(edited, given)
    assert entry is not None
    assert entry.token == tokens[0]
    found = torch.zeros(V, dtype=torch.float64)
    for token, value in entry.top:
        found[token] = math.exp(value)
    assert torch.allclose(found, exact, atol=1e-6)
    assert (found == 0).tolist() == (exact == 0).tolist()
    assert math.exp(entry.logprob) == pytest.approx(exact[tokens[0]].item(), abs=1e-6)
    assert entry.rank == 1 + int((exact > exact[tokens[0]]).sum())


def test_logits_are_told_in_place_of_log_probabilities_beside_rows_that_have_these() -> None:
    sampler = Sampler(V, 4, CPU)
    changed: dict[str, Any] = {"logits": True, "logit_bias": ((7, 100.0),), "temperature": 0.5}
    sampler.add(0, params(logprobs=2, **changed), 1, [1], 1)
    sampler.add(1, params(logprobs=2, processed_logprobs=True, **changed), 1, [1], 1)
    sampler.add(2, params(logprobs=2), 1, [1], 1)
    sampler.add(3, params(logprobs=0, logprob_token_ids=(9, 4), logits=True), 1, [1], 1)
    logits = logits_for(1, 3).repeat(4, 1)
    logits[:, 9] = math.nan
    (*_, last), found = sampler.sample(logits.clone(), [0, 1, 2, 3])
    assert found is not None
    raw, processed, plain, named = found
    assert raw is not None
    assert processed is not None
    assert plain is not None
    assert named is not None
    clean = logits[0].nan_to_num(-math.inf)
    best, ids = clean.topk(2)
    assert (raw.token, raw.logprob) == (7, clean[7].item())
    assert raw.top == list(zip(ids.tolist(), best.tolist(), strict=True))
    assert (processed.token, processed.rank) == (7, 1)
    assert processed.logprob == processed.top[0][1] == pytest.approx((clean[7].item() + 100) / 0.5, rel=1e-5)
    assert plain.top[0][1] == pytest.approx(clean.log_softmax(0)[ids[0]].item(), abs=1e-6)
    assert named.top == [(9, -math.inf), (4, clean[4].item())]
    assert named.logprob == clean[last].item()
    (of_prompt,) = sampler.prompt_logprobs(logits[:1], [7], Alternatives(2, logits=True))
    assert (of_prompt.logprob, of_prompt.top) == (raw.logprob, raw.top)


def test_a_mask_of_the_step_is_part_of_the_processed_distribution() -> None:
    sampler = Sampler(V, 2, CPU)
    sampler.add(0, params(logprobs=2, processed_logprobs=True), 1, [1], 1)
    sampler.add(1, params(logprobs=2), 1, [1], 1)
    allowed = sampling.pack_mask(V, [3, 4]).numpy().view(np.uint8)
    masks = {0: allowed, 1: allowed}
    logits = logits_for(1, 3).repeat(2, 1)
    _, found = sampler.sample(logits.clone(), [0, 1], masks=masks)
    assert found is not None
    processed, raw = found
    assert processed is not None
    assert raw is not None
    assert sorted(token for token, _ in processed.top) == [3, 4]
    assert sum(math.exp(value) for _, value in processed.top) == pytest.approx(1.0)
    assert [token for token, _ in raw.top] == logits[0].topk(2).indices.tolist()


def test_every_row_gets_the_logprobs_it_asked_for() -> None:
    sampler = Sampler(V, 4, CPU)
    for slot, wanted in enumerate([None, 0, 5, 20]):
        sampler.add(slot, params(logprobs=wanted, presence_penalty=0.5 * (slot == 2)), slot, [1], 1)
    _, found = sampler.sample(logits_for(4, 2), [3, 0, 2, 1])
    assert found is not None
    assert [None if entry is None else len(entry.top) for entry in found] == [20, None, 5, 0]


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("edit", [{}, {"logit_bias": ((11, 50.0),)}])
def test_named_tokens_have_their_log_probabilities_in_place_of_the_likeliest(edit: dict[str, Any]) -> None:
    logits = logits_for(1, 21)
    ids = (100, 3, 11)
    tokens, (entry,) = run(params(temperature=1.7, logprobs=3, logprob_token_ids=ids, **edit), [logits])
    exact = logits.double().log_softmax(-1)[0]
    assert entry is not None
    assert entry.logprob == pytest.approx(exact[tokens[0]].item(), abs=1e-5)
    assert [token for token, _ in entry.top] == list(ids)
    assert [value for _, value in entry.top] == pytest.approx(exact[list(ids)].tolist(), abs=1e-5)


def test_rows_with_named_tokens_and_rows_with_the_likeliest_share_a_step() -> None:
    sampler = Sampler(V, 4, CPU)
    asked: list[dict[str, Any]] = [
        {"logprobs": 2, "logprob_token_ids": (9, 4)},
        {"logprobs": 5},
        {"logprobs": 1, "logprob_token_ids": (7,)},
    ]
    for slot, each in enumerate(asked):
        sampler.add(slot, params(**each), slot, [1], 1)
    logits = logits_for(3, 2)
    best = logits[1].topk(5).indices.tolist()
    _, found = sampler.sample(logits, [0, 1, 2])
    assert found is not None
    assert [[token for token, _ in entry.top] if entry else None for entry in found] == [[9, 4], best, [7]]


def test_named_tokens_outside_the_vocabulary_are_ignored() -> None:
    _, (entry,) = run(params(logprobs=2, logprob_token_ids=(V, 4)), [logits_for(1, 2)])
    assert entry is not None
    assert [token for token, _ in entry.top] == [4]


def test_nobody_asking_gives_no_logprobs() -> None:
    for rule in (params(temperature=0.0), params(), params(presence_penalty=1.0)):
        assert run(rule, [logits_for(1, 0)])[1] == [None]


@pytest.mark.usefixtures("version")
def test_prompt_logprobs_do_not_depend_on_how_the_prompt_is_cut() -> None:
    sampler = Sampler(V, 1, CPU)
    logits, tokens = logits_for(12, 8), list(range(40, 52))
    whole = sampler.prompt_logprobs(logits, tokens, Alternatives(3))
    pieces = [sampler.prompt_logprobs(logits[a:b], tokens[a:b], Alternatives(3)) for a, b in ((0, 1), (1, 8), (8, 12))]
    assert whole == [entry for piece in pieces for entry in piece]
    exact = logits.double().log_softmax(-1)
    for position, entry in enumerate(whole):
        assert entry.token == tokens[position]
        assert entry.logprob == pytest.approx(exact[position, tokens[position]].item(), abs=1e-5)
        assert [token for token, _ in entry.top] == exact[position].topk(3).indices.tolist()
    assert sampler.prompt_logprobs(logits[:0], [], Alternatives(3)) == []


def test_a_greedy_batch_needs_the_argmax_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor.kernels.sampling.draw", None)
    monkeypatch.setattr("stentor.kernels.sampling.logprobs", None)
    sampler = Sampler(V, 3, CPU)
    for slot in range(3):
        sampler.add(slot, params(temperature=0.0), slot, [1], 1)
    logits = logits_for(3, 4)
    assert sampler.sample(logits, [0, 1, 2]) == (logits.argmax(-1).tolist(), None)


def test_sequences_of_one_request_differ_by_their_seeds() -> None:
    steps = [torch.zeros(1, V)] * 20
    assert run(params(), steps, seed=3)[0] == run(params(), steps, seed=3)[0]
    assert run(params(), steps, seed=3)[0] != run(params(), steps, seed=4)[0]
    assert run(params(), steps, seed=2**64 - 1)[0] != run(params(), steps, seed=2**63 - 1)[0]


def test_a_taken_slot_and_an_empty_one_are_errors() -> None:
    sampler = Sampler(V, 2, CPU)
    sampler.add(0, params(), 1, [1], 1)
    with pytest.raises(ValueError, match="slot 0 still holds a row"):
        sampler.add(0, params(), 1, [1], 1)
    with pytest.raises(ValueError, match="slot 1 holds no row"):
        sampler.sample(logits_for(2, 0), [0, 1])
    sampler.remove(1)
