"""Verified drafts under a real scheduler and model: what a sequence gets is what it gets without."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.core.grammar.constraint import TokenConstraint
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up
from stentor.engine.worker.speculation import verify
from stentor.kernels import sampling
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan
from stentor.tests.engine.local import LocalEngine, Outcome, model_config
from stentor.tests.engine.scripted_grammar import wide_constraint
from stentor.tests.parity import tiny

CONTEXT = 96
DRAFTS = 4
SMALL = 2 << 20
"""A cache of 256 blocks, all of which are checked after each step."""
NGRAM = SpeculativeConfig("ngram", DRAFTS)


class Oracle:
    """Proposes what rows are going to draw, which a test tells it, with some of it wrong."""

    most = DRAFTS

    def __init__(self, texts: Sequence[list[int]], wrong: float, seed: int = 0) -> None:
        self.texts, self.wrong, self.rng = texts, wrong, random.Random(seed)
        self.rows: dict[int, list[int]] = {}
        self.drafted = self.accepted = 0

    def enter(self, new: NewRow) -> None:
        assert new.slot not in self.rows
        self.rows[new.slot] = list(new.tokens)

    def remove(self, slot: int) -> None:
        self.rows.pop(slot, None)

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        self.rows[slot] += tokens

    def propose(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        return {slot: self._drafts(self.rows[slot], most) for slot, most in wanted.items() if self.rng.random() < 0.9}

    def _drafts(self, known: list[int], most: int) -> list[int]:
        text = next((text for text in self.texts if text[: len(known)] == known), [])
        drafts = [*text[len(known) : len(known) + most], 5][: self.rng.randint(1, most)]
        return [self.rng.randrange(tiny.VOCAB) if self.rng.random() < self.wrong else token for token in drafts]

    def verified(self, slot: int, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder, layers=2)
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> LocalEngine:
    return LocalEngine(model_config(folder, batch_invariant=True, max_model_len=CONTEXT, kv_cache_memory=SMALL))


@pytest.fixture(scope="module")
def drafting(folder: Path) -> LocalEngine:
    sizes = {"max_model_len": CONTEXT, "kv_cache_memory": SMALL}
    return LocalEngine(model_config(folder, batch_invariant=True, speculative=NGRAM, **sizes))


def _prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(length)]


Ask = tuple[list[int], SamplingParams, list[int], int | None]
"""A prompt, how it is continued, seeds, and the seed of a grammar."""


def _run(engine: LocalEngine, asks: Sequence[Ask], *, blocks: int = 0, **run: Any) -> list[Outcome]:
    engine.restart(blocks or engine.ready.num_blocks)
    for prompt, params, seeds, grammar in asks:
        constraints: list[TokenConstraint | None] | None = None
        if grammar is not None:
            constraints = [wide_constraint(tiny.VOCAB, grammar, params) for _ in seeds]
        engine.submit(prompt, params, seeds, constraints=constraints)
    engine.run(check=True, **run)
    return list(engine.outcomes.values())


def _with_oracle(engine: LocalEngine, asks: Sequence[Ask], expected: Sequence[Outcome], wrong: float) -> Oracle:
    prompts = [prompt for prompt, _, seeds, _ in asks for _ in seeds]
    oracle = Oracle([prompt + each.tokens for prompt, each in zip(prompts, expected, strict=True)], wrong)
    compute: Any = engine.runner.compute
    compute._drafting._proposer = oracle
    return oracle


def _same(found: Sequence[Outcome], expected: Sequence[Outcome]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.logprobs == theirs.logprobs
        assert ours.finished is not None
        assert theirs.finished is not None
        assert (ours.finished.reason, ours.finished.stop_token) == (theirs.finished.reason, theirs.finished.stop_token)


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.9},
    "cut": {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "bias": {"temperature": 0.7, "logit_bias": ((5, 3.0), (9, -2.0)), "banned_token_ids": (7, 8)},
    "allowed": {"temperature": 0.8, "allowed_token_ids": tuple(range(20, 60))},
    "logprobs": {"temperature": 0.0, "logprobs": 3},
    "sampled logprobs": {"temperature": 0.6, "logprobs": 2, "repetition_penalty": 1.1},
    "least": {"temperature": 1.0, "min_tokens": 11, "stop_token_ids": tuple(range(40, 120))},
    "stops": {"temperature": 1.0, "stop_token_ids": tuple(range(40, 80)), "eos_token_ids": tuple(range(80, 90))},
}


def _asks(way: str, grammar: int | None = None) -> list[Ask]:
    """Of several lengths, so that some end among drafts; with choices."""
    return [
        (_prompt(5 + 7 * each, each), SamplingParams(max_tokens=17 + 5 * each, **WAYS[way]), seeds, grammar)
        for each, seeds in enumerate(([1], [2, 3, 4], [5]))
    ]


@pytest.mark.proof(each="way")
@pytest.mark.parametrize("way", [*WAYS])
def test_a_text_is_the_same_with_drafts_of_which_some_are_wrong(
    plain: LocalEngine, drafting: LocalEngine, way: str
) -> None:
    asks = _asks(way)
    expected = _run(plain, asks)
    oracle = _with_oracle(drafting, asks, expected, wrong=0.2)
    _same(_run(drafting, asks), expected)
    assert oracle.accepted > (5 if way == "stops" else 30)
    assert drafting.steps < plain.steps or way == "stops"


@pytest.mark.parametrize("way", ["cut", "least", "logprobs"])
def test_a_text_with_a_grammar_is_the_same_with_drafts(plain: LocalEngine, drafting: LocalEngine, way: str) -> None:
    asks = [*_asks(way, 3), *_asks(way)]
    expected = _run(plain, asks)
    oracle = _with_oracle(drafting, asks, expected, wrong=0.2)
    _same(_run(drafting, asks), expected)
    assert oracle.accepted > 30


def test_drafts_that_are_all_wrong_change_nothing(plain: LocalEngine, drafting: LocalEngine) -> None:
    asks = [*_asks("greedy"), *_asks("sampled")]
    expected = _run(plain, asks)
    oracle = _with_oracle(drafting, asks, expected, wrong=1.0)
    _same(_run(drafting, asks), expected)
    assert oracle.drafted > 100


def test_rows_that_lose_their_blocks_with_drafts_in_flight_go_on_as_they_would_have(
    plain: LocalEngine, drafting: LocalEngine
) -> None:
    asks = [*_asks("sampled logprobs"), *_asks("greedy")]
    expected = _run(plain, asks)
    oracle = _with_oracle(drafting, asks, expected, wrong=0.1)
    _same(_run(drafting, asks, blocks=11), expected)
    assert drafting.scheduler.stats().preemptions > 0
    assert oracle.accepted > 30


def test_a_worker_that_dies_among_drafts_loses_and_repeats_nothing(plain: LocalEngine, drafting: LocalEngine) -> None:
    asks = [*_asks("sampled"), *_asks("greedy", 3), *_asks("penalties")]
    expected = _run(plain, asks)
    for seed in (1, 2):
        rng = random.Random(seed)
        oracle = _with_oracle(drafting, asks, expected, wrong=0.1)
        deaths = drafting.deaths
        _same(_run(drafting, asks, dies=lambda rng=rng: rng.random() < 0.15), expected)
        assert drafting.deaths > deaths
        assert oracle.accepted > 30


def test_a_refused_draft_is_in_no_prefix_that_later_prompts_find(plain: LocalEngine, drafting: LocalEngine) -> None:
    (first, *_) = asks = [(_prompt(20), SamplingParams(max_tokens=40, temperature=0.0), [1], None)]
    (expected,) = _run(plain, asks)
    _with_oracle(drafting, asks, [expected], wrong=0.5)
    _run(drafting, asks)
    params = SamplingParams(max_tokens=9, temperature=0.0, logprobs=1)
    whole = first[0] + expected.tokens
    rids = [engine.submit(whole, params) for engine in (plain, drafting)]
    for engine in (plain, drafting):
        engine.run()
    _same([drafting.outcomes[rids[1], 0]], [plain.outcomes[rids[0], 0]])
    assert drafting.prompts[rids[1]].cached_tokens == plain.prompts[rids[0]].cached_tokens > 48


def test_ngrams_of_a_repetitive_text_save_steps(folder: Path) -> None:
    """With three tokens to choose from, a text at temperature 0 falls into a loop."""
    config = model_config(folder, max_model_len=CONTEXT)
    plain = LocalEngine(config)
    drafting = LocalEngine(model_config(folder, max_model_len=CONTEXT, speculative=NGRAM))
    greedy = SamplingParams(max_tokens=40, temperature=0.0, allowed_token_ids=(5, 9, 70))
    asks: list[Ask] = [(_prompt(8, seed), greedy, [1], None) for seed in range(3)]
    counts = []
    found = []
    for engine in (plain, drafting):
        before = engine.steps
        found.append([outcome.tokens for outcome in _run(engine, asks)])
        counts.append(engine.steps - before)
    assert found[0] == found[1]
    assert counts[1] < 0.8 * counts[0]


def test_a_request_may_ask_for_fewer_drafts_or_none(drafting: LocalEngine, plain: LocalEngine) -> None:
    params = SamplingParams(max_tokens=30, temperature=0.0)
    asks: list[Ask] = [(_prompt(9), params, [1], None)]
    expected = _run(plain, asks)
    for most in (0, 1):
        limited = SamplingParams(max_tokens=30, temperature=0.0, num_drafts=most)
        oracle = _with_oracle(drafting, asks, expected, wrong=0.0)
        before = drafting.steps
        _same(_run(drafting, [(_prompt(9), limited, [1], None)]), expected)
        assert (oracle.drafted > 0) == (most > 0)
        assert drafting.steps - before >= 30 // (1 + most)


# ---- exactness


def test_drawing_with_drafts_has_the_distribution_of_drawing_without() -> None:
    """10^5 pairs of tokens, whose second one's logits depend on the first, against their probabilities."""
    rows, vocab = 100_000, 6
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(vocab + 1, vocab, generator=generator)  # by the token before; the last for none
    drafts = torch.randint(vocab, (rows, 1), generator=generator).tolist()
    params = sampling.SlotParams.empty(1, torch.device("cpu"))
    params.set(0, temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, seed=3)

    def draw(behind: int, places: list[int], before: list[int]) -> list[int]:
        """Each position of each row has noise of its own."""
        slots, index = torch.zeros(len(places), dtype=torch.int64), 2 * torch.tensor(places) + behind
        found: list[int] = sampling.draw(table[before].clone(), slots, index, params).tolist()
        return found

    found = verify(
        drafts,
        [2] * rows,
        lambda behind, places: draw(behind, places, [drafts[place][0] if behind else vocab for place in places]),
    )
    accepted = [place for place, tokens in enumerate(found) if len(tokens) == 2]
    assert abs(len(accepted) / rows - 1 / vocab) < 0.01
    rest = [place for place, tokens in enumerate(found) if len(tokens) == 1]
    for place, token in zip(rest, draw(1, rest, [found[place][0] for place in rest]), strict=True):
        found[place].append(token)
    chances = torch.softmax(table / 0.8, dim=1)
    expected = rows * (chances[vocab][:, None] * chances[:vocab])
    counts = torch.bincount(torch.tensor([a * vocab + b for a, b in found]), minlength=vocab * vocab)
    chi_square = float(((counts - expected.flatten()) ** 2 / expected.flatten()).sum())
    assert chi_square < 67.0, "of 35 degrees of freedom, exceeded by chance once in a thousand"
    again = draw(0, list(range(rows)), [vocab] * rows)
    assert [tokens[0] for tokens in found] == again
    assert [tokens[1] for tokens in found] == draw(1, list(range(rows)), again), "a seed gives the same text"


def test_a_row_goes_no_further_than_its_masks() -> None:
    assert verify([[1, 1, 1], [1, 1]], [2, 3], lambda behind, places: [1] * len(places)) == [[1, 1], [1, 1, 1]]


# ---- what cannot draft


def test_drafts_are_refused_by_a_worker_that_was_told_of_none(plain: LocalEngine) -> None:
    plain.restart(plain.ready.num_blocks)
    new = NewRow(0, [3, 4], 2, SamplingParams(max_tokens=9), 0, [0])
    with pytest.raises(ValueError, match="nobody here proposes any"):
        plain.runner.step(StepPlan(0, 0, [], [new], [RowStep(0, 1, 1, [], True, 2)]))
    plain.runner.release([0])


def test_a_model_that_makes_vectors_refuses_drafts(folder: Path) -> None:
    config = model_config(folder, is_pooling=True, speculative=NGRAM)
    with pytest.raises(SetupError, match="draws no text"):
        set_up(config, lambda *_: None)
