"""Texts that cannot be guessed cost next to nothing, though their last tokens have often stood in them before."""

import random

import msgspec
import pytest

from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan, StepResult
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import tiny

PRICES = {1: 0.17, 8: 0.063}
"""Of a draft, as a part of a step of so many rows: SmolLM2-135M in Q4_0 on one core of a Zen 3."""
METHODS = {"ngram": SpeculativeConfig("ngram", 5), "suffix": SpeculativeConfig("suffix")}
LETTERS = {3: 0.03, 30: 0.02, 300: 0.01}
"""So many tokens a text is drawn of, and what drafts may cost at most, as a part of the time without."""
TOKENS = 100


class Priced(LocalEngine):
    """A step takes 1 and ``price`` for each draft."""

    price = 0.0
    spent = 0.0

    def _computed(self, plan: StepPlan) -> StepResult:
        result = super()._computed(plan)
        seconds = 1.0 + self.price * sum(result.drafted or ())
        self.spent += seconds
        return msgspec.structs.replace(result, seconds=seconds)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Priced]:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder, layers=2)
    sizes = {"max_model_len": 128, "kv_cache_memory": 2 << 20}
    return {name: Priced(model_config(folder, speculative=asked, **sizes)) for name, asked in METHODS.items()}


@pytest.mark.parametrize("letters", [*LETTERS])
@pytest.mark.parametrize("rows", [*PRICES])
@pytest.mark.parametrize("method", [*METHODS])
def test_a_text_that_nobody_can_guess_takes_as_long_as_without_drafts(
    engines: dict[str, Priced], method: str, rows: int, letters: int
) -> None:
    engine = engines[method]
    engine.restart(engine.ready.num_blocks)
    engine.price, engine.spent = PRICES[rows], 0.0
    rng = random.Random(f"{rows} {letters}")
    few = tuple(range(10, 10 + letters))
    params = SamplingParams(max_tokens=TOKENS, temperature=100.0, allowed_token_ids=few)
    for _ in range(4):
        for _ in range(rows):
            engine.submit(rng.choices(few, k=20), params, [rng.randrange(1 << 60)])
        engine.run()
    assert engine.spent < 4 * TOKENS * (1 + LETTERS[letters]), engine.scheduler.stats()
