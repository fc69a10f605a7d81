"""Models with recurrent states draft: behind a refused draft each state is that of the tokens that a row has gained."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from stentor.engine.layers.forward_batch import ForwardBatch
from stentor.engine.model_config.spec.recurrent import StateTensor
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.families.family import fit_states, state_places, with_rows
from stentor.engine.worker.rows.rows import EXPANDED_FROM
from stentor.engine.worker.rows.states import RowStates, StateDTypes
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan, StepResult
from stentor.tests.engine.local import LocalEngine, Outcome, model_config
from stentor.tests.engine.worker.test_draft_models import accepted
from stentor.tests.engine.worker.test_speculation import (
    CONTEXT,
    DRAFTS,
    NGRAM,
    Ask,
    _asks,
    _prompt,
    _run,
    _same,
    _with_oracle,
)
from stentor.tests.parity import hybrids, tiny

SIZES: dict[str, Any] = {"max_model_len": CONTEXT, "max_prefill_chunk": 16, "max_num_seqs": 6}
MODELS = (
    *("qwen3.5", "qwen3-next-moe", "granite4-hybrid", "falcon-h1", "nemotron-h", "lfm2", "olmo-hybrid"),
    *("mamba2", "falcon-mamba", "jamba", "kimi-linear", "deepseek-v4", "qwen4"),
)


class Pair:
    """A model with recurrent states, without drafts and with."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        tiny.make_of(hybrids.configs(tiny.SHAPE)[name](), name, folder)
        self.plain = LocalEngine(model_config(folder, batch_invariant=True, **SIZES))
        self.drafting = LocalEngine(model_config(folder, batch_invariant=True, speculative=NGRAM, **SIZES))


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair("qwen3.5", tmp_path_factory.mktemp("qwen"))


@pytest.mark.proof(each="pair")
def test_texts_of_a_model_with_recurrent_states_are_the_same_with_drafts_of_which_some_are_wrong(pair: Pair) -> None:
    """Also where rows are preempted."""
    asks = [*_asks("sampled logprobs"), *_asks("greedy", 3)]
    expected = _run(pair.plain, asks)
    oracle = _with_oracle(pair.drafting, asks, expected, wrong=0.3)
    _same(_run(pair.drafting, asks, blocks=9), expected)
    assert pair.drafting.scheduler.stats().preemptions > 0
    assert 30 < oracle.accepted < oracle.drafted - 30
    _same(_run(pair.plain, asks, blocks=9), expected)
    assert pair.drafting.steps < pair.plain.steps


def test_states_that_later_prompts_find_are_those_of_a_run_without_drafts(qwen: Pair) -> None:
    """One is left behind every 16 tokens of the answers."""
    params = SamplingParams(max_tokens=60, temperature=0.0)
    again = SamplingParams(max_tokens=9, temperature=0.0, logprobs=1)
    plain = _asked_twice(qwen.plain, params, again)
    oracle = _with_oracle(qwen.drafting, [(_prompt(20), params, [1], None)], plain[:1], wrong=0.4)
    _same(_asked_twice(qwen.drafting, params, again), plain)
    assert oracle.accepted > 5


def _asked_twice(engine: LocalEngine, params: SamplingParams, again: SamplingParams) -> list[Outcome]:
    """An answer, and how it goes on as a prompt of its own."""
    engine.restart(engine.ready.num_blocks, max_num_batched_tokens=16)
    first = engine.submit(_prompt(20), params)
    engine.run(check=True)
    answer = engine.outcomes[first, 0]
    second = engine.submit(_prompt(20) + answer.tokens, again)
    engine.run(check=True)
    assert engine.prompts[second].cached_tokens == 64
    return [answer, engine.outcomes[second, 0]]


def test_a_worker_that_dies_among_drafts_of_a_model_with_states_loses_and_repeats_nothing(qwen: Pair) -> None:
    asks = [*_asks("sampled"), *_asks("penalties")]
    expected = _run(qwen.plain, asks)
    rng = random.Random(3)
    oracle = _with_oracle(qwen.drafting, asks, expected, wrong=0.2)
    _same(_run(qwen.drafting, asks, dies=lambda: rng.random() < 0.2), expected)
    assert qwen.drafting.deaths > 0
    assert oracle.accepted > 20


def test_states_are_those_of_the_tokens_also_where_the_rows_of_a_step_are_computed_in_another_order(
    qwen: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on tiles with coded weights: the last token of a long prompt, alone in its step, comes behind a row that
    decodes with drafts."""
    params = SamplingParams(max_tokens=40, temperature=0.0)
    asks: list[Ask] = [(_prompt(EXPANDED_FROM + 1), params, [1], None), (_prompt(5, 1), params, [1], None)]
    expected = _run(qwen.plain, asks)
    oracle = _with_oracle(qwen.drafting, asks, expected, wrong=0.0)
    compute: Any = qwen.drafting.runner.compute
    monkeypatch.setattr(compute._pass, "_expands", True)
    qwen.drafting.restart(qwen.drafting.ready.num_blocks, limits={"max_prefill_chunk": 16})
    for prompt, asked, seeds, _ in asks:
        qwen.drafting.submit(prompt, asked, seeds)
    qwen.drafting.run(check=True)
    _same(list(qwen.drafting.outcomes.values()), expected)
    assert oracle.accepted > 30


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_what_proposes_for_a_model_with_states_is_right_now_and_then(qwen: Pair, method: str, tmp_path: Path) -> None:
    """With few tokens to choose from."""
    asked = SpeculativeConfig("ngram", DRAFTS)
    if method == "draft_model":
        tiny.make("llama", tmp_path, layers=1)
        asked = SpeculativeConfig("draft_model", DRAFTS, model=str(tmp_path))
    drafting = LocalEngine(model_config(qwen.folder, batch_invariant=True, speculative=asked, **SIZES))
    greedy = SamplingParams(max_tokens=40, temperature=0.0, allowed_token_ids=(5, 9, 70))
    asks: list[Ask] = [(_prompt(8 + seed, seed), greedy, [1], None) for seed in range(3)]
    _same(_run(drafting, asks), _run(qwen.plain, asks))
    right, drafted = accepted(drafting)
    assert 0 < right < drafted


def test_a_draft_model_with_recurrent_states_is_refused(qwen: Pair) -> None:
    speculative = SpeculativeConfig("draft_model", 2, model=str(qwen.folder))
    with pytest.raises(SetupError, match="has recurrent states, which cannot take drafts back"):
        set_up(model_config(qwen.folder, speculative=speculative, **SIZES), lambda *_: None)


def test_rows_with_drafts_have_a_place_for_their_state_beside_the_slots(qwen: Pair) -> None:
    config = model_config(qwen.folder, speculative=NGRAM, **SIZES)
    for budget in range(3, 40):
        slots = fit_states(config, 10, 20 * budget)
        rows = with_rows(config, slots).max_num_seqs
        assert 2 * rows <= slots
        assert slots + rows == state_places(config, slots) <= budget
    with pytest.raises(SetupError, match="no room for the recurrent state of a sequence"):
        fit_states(config, 10, 59)
    plain = msgspec.structs.replace(config, speculative=None)
    assert fit_states(plain, 10, 59) == state_places(plain, 2) == 2


def test_a_draft_that_was_refused_is_not_in_the_state_and_its_slot_changes_place() -> None:
    """A mixer whose state is the sum of its inputs; two rows have drafts, and of one all are right."""
    config = model_config(Path())
    states = RowStates(
        {0: (StateTensor((), recurrent=True),)},
        6,
        3,
        StateDTypes.of(config, torch.float32),
        torch.device("cpu"),
        drafts=True,
    )

    def mix(parts: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        assert batch.states is not None
        (kept,) = batch.states.of_layer[0]
        rows = batch.states.rows
        for row in range(len(rows)):
            first, end = rows.cu_seqlens[row : row + 2].tolist()
            before = kept[rows.reads[row]] if rows.reads[row] >= 0 else 0
            kept[rows.writes[row]] = before + parts[first:end].sum()
        batch.states.note(mix, parts)
        return parts

    def step(
        rows: list[RowStep], inputs: list[float], counts: list[int] | None, plan: list[RowStep] | None = None
    ) -> None:
        """``plan``: the rows in the plan's order, which is that of ``counts``, if they run in another."""
        states.enter(StepPlan(0, 0, [], [], plan or rows))
        batch = ForwardBatch(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        mix(torch.tensor(inputs)[:, None], states.extend(batch, rows))
        states.ended(StepResult(0, 0, [], None, [], 0.0, counts=counts))

    def sums(slots: list[int]) -> list[float]:
        """Read by a step that adds nothing."""
        found = states.extend(ForwardBatch(torch.zeros(0), torch.zeros(0)), [RowStep(s, 0, 1, [], True) for s in slots])
        assert found.states is not None
        return [float(found.states.of_layer[0][0][place]) for place in found.states.rows.reads]

    params = SamplingParams(max_tokens=9)
    states.enter(StepPlan(0, 0, [], [NewRow(slot, [1], 1, params, 0, []) for slot in range(3)], []))
    step([RowStep(slot, 0, 1, [], True, 0, state) for slot, state in enumerate((0, 2, 4))], [1, 2, 3], None)
    step(
        [RowStep(0, 1, 3, [], True, 2), RowStep(1, 1, 1, [], True), RowStep(2, 1, 4, [], True, 3)],
        [10, 100, 1000, 20, 30, 300, 3000, 30000],
        [3, 1, 2],
    )
    assert sums([0, 1, 2]) == [1111, 22, 333]
    step([RowStep(2, 3, 3, [], True, 2, 5), RowStep(0, 4, 2, [], True, 1)], [5, 50, 500, 7, 70], [1, 1])
    assert sums([2, 0]) == [338, 1118]
    first, second = RowStep(1, 2, 1, [], True), RowStep(0, 5, 3, [], True, 2)
    step([second, first], [4, 40, 400, 6], [1, 3], [first, second])
    assert sums([0, 1]) == [1562, 28]
