"""The runner under a real scheduler: ends of the context, prompt log-probabilities, dtypes."""

import math
import random
from pathlib import Path

import pytest

from stentor.engine.worker.rows.rows import RowTable
from stentor.protocols.ipc.actors import PromptDone
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import tiny

CONTEXT = 48
BLOCK = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> LocalEngine:
    return LocalEngine(model_config(folder, batch_invariant=True, max_model_len=CONTEXT))


def _prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(length)]


def _fresh(engine: LocalEngine, *, budget: int = 256, blocks: int = 0) -> None:
    engine.restart(blocks or engine.ready.num_blocks, max_num_batched_tokens=budget)


@pytest.mark.proof(each="prompt_len")
@pytest.mark.parametrize("prompt_len", [1, 15, 16, 17, 32, 46, 47])
def test_a_sequence_fills_the_context_to_its_last_place_and_no_further(engine: LocalEngine, prompt_len: int) -> None:
    _fresh(engine)
    rid = engine.submit(_prompt(prompt_len), SamplingParams(max_tokens=1000, temperature=0.0))
    neighbour = engine.submit(_prompt(3, 1), SamplingParams(max_tokens=1000, temperature=0.0))
    engine.run(check=True)
    for request, length in ((rid, prompt_len), (neighbour, 3)):
        outcome = engine.outcomes[request, 0]
        assert len(outcome.tokens) == CONTEXT - length
        assert outcome.finished is not None
        assert outcome.finished.reason == "length"


def test_a_prompt_as_long_as_the_context_is_read_where_no_token_is_wanted(engine: LocalEngine) -> None:
    _fresh(engine)
    rid = engine.submit(_prompt(CONTEXT), SamplingParams(max_tokens=0, prompt_logprobs=0))
    engine.run(check=True)
    outcome = engine.outcomes[rid, 0]
    assert outcome.tokens == []
    assert outcome.finished is not None
    assert outcome.finished.reason == "length"
    logprobs = engine.prompts[rid].logprobs
    assert logprobs is not None
    assert len(logprobs) == CONTEXT


def _prompt_logprobs(engine: LocalEngine, prompt: list[int], top: int = 3, tokens: int = 1) -> PromptDone:
    rid = engine.submit(prompt, SamplingParams(max_tokens=tokens, temperature=0.0, prompt_logprobs=top))
    engine.run(check=True)
    return engine.prompts[rid]


@pytest.mark.proof(each="length")
@pytest.mark.parametrize("budget", [1, 7, 16, 39])
@pytest.mark.parametrize("length", [1, 2, 40])
def test_log_probabilities_of_a_prompt_are_the_same_however_it_is_cut(
    engine: LocalEngine, budget: int, length: int
) -> None:
    prompt = _prompt(length, 2)
    _fresh(engine)
    whole = _prompt_logprobs(engine, prompt)
    _fresh(engine, budget=budget)
    cut = _prompt_logprobs(engine, prompt)
    assert cut.logprobs == whole.logprobs
    assert cut.logprobs is not None
    assert cut.logprobs[0] is None
    entries = [entry for entry in cut.logprobs if entry is not None]
    assert [entry.token for entry in entries] == prompt[1:]
    assert all(len(entry.top) == 3 and entry.logprob <= entry.top[0][1] for entry in entries)


def test_log_probabilities_of_a_prompt_are_those_of_drawing_it(engine: LocalEngine) -> None:
    _fresh(engine)
    rid = engine.submit(_prompt(9, 3), SamplingParams(max_tokens=20, temperature=0.0, logprobs=2))
    engine.run()
    outcome = engine.outcomes[rid, 0]
    done = _prompt_logprobs(engine, _prompt(9, 3) + outcome.tokens, top=2)
    assert done.cached_tokens == 0, "the prompt must be computed whole"
    assert done.logprobs is not None
    assert done.logprobs[9:] == outcome.logprobs


def test_log_probabilities_survive_preemptions_and_prefix_hits(engine: LocalEngine) -> None:
    prompts = [_prompt(30 + number, 4) for number in range(6)]
    alone = []
    for prompt in prompts:
        _fresh(engine)
        alone.append(_prompt_logprobs(engine, prompt, tokens=8).logprobs)
    _fresh(engine, budget=20, blocks=5)
    params = SamplingParams(max_tokens=8, temperature=0.0, prompt_logprobs=3)
    rids = [engine.submit(prompt, params) for prompt in prompts]
    engine.run(check=True)
    assert [engine.prompts[rid].logprobs for rid in rids] == alone


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.35), ("float16", 0.05)])
def test_smaller_dtypes_give_nearly_the_log_probabilities_of_float32(
    engine: LocalEngine, folder: Path, dtype: str, tolerance: float
) -> None:
    _fresh(engine)
    prompt = _prompt(40, 5)
    expected = _prompt_logprobs(engine, prompt).logprobs
    found = _prompt_logprobs(LocalEngine(model_config(folder, dtype=dtype, max_model_len=CONTEXT)), prompt).logprobs
    assert expected is not None
    assert found is not None
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert ours is not None
        assert theirs is not None
        assert math.isclose(ours.logprob, theirs.logprob, abs_tol=tolerance)


def test_a_slot_forgets_the_row_that_had_it(engine: LocalEngine) -> None:
    runner = engine.runner
    runner.release(list(range(engine.config.max_num_seqs)))
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    loud = SamplingParams(max_tokens=1, logprobs=2, prompt_logprobs=2, repetition_penalty=1.5)
    step = RowStep(5, 0, 4, [], True)
    alone = runner.step(StepPlan(0, 0, [], [NewRow(5, [4, 5, 6, 7], 4, greedy, 0, [1])], [step]))
    runner.step(StepPlan(0, 1, [5], [NewRow(5, _prompt(40), 40, loud, 9, [1, 2, 3])], [RowStep(5, 0, 40, [], True)]))
    again = runner.step(StepPlan(0, 2, [5], [NewRow(5, [4, 5, 6, 7], 4, greedy, 0, [1])], [step]))
    runner.release([5])
    assert (again.tokens, again.logprobs, again.prompt_logprobs) == (alone.tokens, None, [])


def test_the_row_table_holds_every_block_of_the_longest_sequence() -> None:
    for context in (1, 16, 17, 31, 32):
        table = RowTable(1, context, BLOCK)
        assert table.blocks.shape[2] * BLOCK >= context
        assert (table.blocks.shape[2] - 1) * BLOCK < context
