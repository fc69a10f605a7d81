"""A prompt that comes again is computed from its last token on, and answered with the very same numbers."""

import random
from pathlib import Path
from typing import Any

import pytest

from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan, TokenLogprobs
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import tiny

ASKED = SamplingParams(max_tokens=5, temperature=0.0, logprobs=4)


@pytest.fixture(scope="module", params=["llama", "gemma2", "gpt-oss", "deepseek-v3-dense"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    """All that is before a token, windows, windows with sinks, latents."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    tiny.make(request.param, folder)
    return LocalEngine(model_config(folder, batch_invariant=True, max_num_seqs=4, kv_cache_memory=8 << 20))


def answer(engine: LocalEngine, prompt: list[int]) -> tuple[list[int], list[TokenLogprobs], int]:
    rid = engine.submit(prompt, ASKED)
    engine.run(check=True)
    found = engine.outcomes[rid, 0]
    return found.tokens, found.logprobs, engine.prompts[rid].cached_tokens


@pytest.mark.parametrize("length", [40, 48, 7])
def test_the_same_prompt_again_gives_the_same_bits(
    engine: LocalEngine, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(length)
    prompt = [rng.randrange(3, tiny.VOCAB) for _ in range(length)]
    engine.restart(engine.ready.num_blocks, prefix_cache=False)
    uncached = answer(engine, prompt)
    engine.restart(engine.ready.num_blocks)
    assert answer(engine, prompt) == uncached
    plans: list[StepPlan] = []
    forward = engine.runner.forward

    def watched(plan: StepPlan) -> Any:
        plans.append(plan)
        return forward(plan)

    monkeypatch.setattr(engine.runner, "forward", watched)
    tokens, logprobs, cached = answer(engine, prompt)
    assert (tokens, logprobs) == uncached[:2]
    assert cached == length - 1
    assert [(row.start, row.count) for row in plans[0].rows] == [(length - 1, 1)]
    assert plans[0].copies, "it has not gone on within a block"
    # and what parts from it within its last block
    other = [*prompt[:-2], 5, 6]
    _, _, cached = parted = answer(engine, other)
    assert cached == length - 2
    engine.restart(engine.ready.num_blocks, prefix_cache=False)
    assert answer(engine, other)[:2] == parted[:2]
