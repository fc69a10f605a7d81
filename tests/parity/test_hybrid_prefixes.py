"""Models with recurrent states find prefixes of other prompts, and draw transformers' tokens behind them."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import hub_latent, hybrids, tiny

SHARED, OWN, OUTPUTS = 1500, 700, 3


@pytest.fixture(scope="module", params=(*hybrids.EACH_KIND, "ling2.5"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LocalEngine]:
    folder: Path = tmp_path_factory.mktemp("hybrid")
    shape = {**tiny.SHAPE, "max_position_embeddings": 4096}
    config = {**hybrids.configs(shape), **hub_latent.configs(shape)}[request.param]
    model = tiny.make_of(config(), request.param, folder)
    return model, LocalEngine(model_config(folder, max_model_len=4096, max_num_batched_tokens=2048, max_num_seqs=4))


@pytest.mark.proof(each="pair")
@torch.inference_mode()
def test_1500_shared_tokens_are_found_by_every_request_after_the_first(pair: tuple[Any, LocalEngine]) -> None:
    model, engine = pair
    engine.restart(engine.ready.num_blocks)
    rng = random.Random(7)
    tokens = [rng.randrange(3, tiny.VOCAB) for _ in range(SHARED)]
    found: list[int] = []
    prompt: list[int] = []
    drawn: list[int] = []
    for _ in range(4):
        prompt = tokens + [rng.randrange(3, tiny.VOCAB) for _ in range(OWN)]
        rid = engine.submit(prompt, SamplingParams(max_tokens=OUTPUTS, temperature=0.0))
        engine.run(check=True)
        found.append(engine.prompts[rid].cached_tokens)
        drawn = engine.outcomes[rid, 0].tokens
    whole = SHARED // engine.ready.limits.block_size * engine.ready.limits.block_size
    assert found == [0, 1024, whole, whole], "first up to where a state is kept in any case, then to where they part"
    logits = model(torch.tensor([prompt + drawn[:-1]])).logits[0, len(prompt) - 1 :]
    behind = logits.max(dim=1).values - logits.gather(1, torch.tensor(drawn)[:, None])[:, 0]
    assert behind.max() <= 1e-3, "a token that transformers would not have drawn"


@pytest.mark.proof(each="pair")
def test_choices_of_a_request_begin_with_the_state_behind_its_prompt(pair: tuple[Any, LocalEngine]) -> None:
    _, engine = pair
    engine.restart(engine.ready.num_blocks)
    rng = random.Random(8)
    prompt = [rng.randrange(3, tiny.VOCAB) for _ in range(300)]
    alone = [engine.submit(prompt, SamplingParams(max_tokens=8), seeds=[seed], salt=str(seed)) for seed in (1, 2, 3)]
    engine.run(check=True)
    together = engine.submit(prompt, SamplingParams(max_tokens=8), seeds=[1, 2, 3])
    engine.run(check=True)
    expected = [engine.outcomes[rid, 0].tokens for rid in alone]
    assert [engine.outcomes[together, index].tokens for index in range(3)] == expected
