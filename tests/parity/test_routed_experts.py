"""Which experts computed each token (``routed_experts``), compared with the top-k of transformers' router logits."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.cache_groups import group_of
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import ExpertShape
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import tiny

LENGTH, OUTPUTS = 70, 12


@pytest.fixture(scope="module", params=["qwen3-moe", "olmoe", "nemotron-h-moe"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LocalEngine]:
    folder = tmp_path_factory.mktemp("tiny")
    model = tiny.make(request.param, folder)
    config = model_config(
        folder, return_routed_experts=True, batch_invariant=True, max_num_batched_tokens=96, kv_cache_memory=8 << 20
    )
    return model, LocalEngine(config)


def tokens_of(seed: int, length: int = LENGTH) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(length)]


def experts(data: bytes, shape: ExpertShape) -> npt.NDArray[np.uint8]:
    """[positions, layers, top_k]"""
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, shape.layers, shape.top_k)


def shape_of(engine: LocalEngine) -> ExpertShape:
    assert engine.ready.experts is not None
    return engine.ready.experts


def asking(first: int = 0, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": OUTPUTS, "temperature": 0.0, "routed_experts": first, **fields})


@torch.inference_mode()
def chosen(model: Any, tokens: list[int], top_k: int) -> npt.NDArray[np.uint8]:
    """By transformers' routers, in the order of experts: how near scores are ordered is nobody's business."""
    reported = model(torch.tensor([tokens]), output_router_logits=True).router_logits
    logits = [layer for layer in reported if layer is not None]
    best = [layer.view(len(tokens), -1).topk(top_k, dim=-1).indices for layer in logits]
    return np.sort(torch.stack(best, dim=1).numpy().astype(np.uint8), axis=2)


@pytest.mark.parametrize("pair", ["qwen3-moe", "olmoe"], indirect=True)
def test_they_are_the_top_k_of_transformers_router_logits(pair: tuple[Any, LocalEngine]) -> None:
    model, engine = pair
    engine.restart(engine.ready.num_blocks)
    prompt = tokens_of(1)
    rid = engine.submit(prompt, asking())
    engine.run(check=True)
    outcome, shape = engine.outcomes[rid, 0], shape_of(engine)
    found = experts(outcome.experts, shape)
    assert len(found) == LENGTH + OUTPUTS - 1, "the last token has not been computed"
    expected = chosen(model, [*prompt, *outcome.tokens[:-1]], shape.top_k)
    assert (np.sort(found, axis=2) == expected).all()


def test_prefix_hits_hide_no_experts_and_are_used_up_to_where_they_are_asked_for(pair: tuple[Any, LocalEngine]) -> None:
    _, engine = pair
    engine.restart(engine.ready.num_blocks)
    prompt, shape = tokens_of(2), shape_of(engine)
    whole = engine.submit(prompt, asking())
    engine.run(check=True)
    again = engine.submit(prompt, asking())
    engine.run(check=True)
    rest = engine.submit(prompt, asking(40))
    engine.run(check=True)
    plain = engine.submit(prompt, SamplingParams(max_tokens=OUTPUTS, temperature=0.0))
    engine.run(check=True)
    assert [engine.prompts[rid].cached_tokens for rid in (whole, again)] == [0, 0]
    if group_of(engine.ready.groups, "state") is None:  # states are kept at some places only
        assert engine.prompts[rest].cached_tokens == 40
        assert engine.prompts[plain].cached_tokens == LENGTH - 1
    found = engine.outcomes[whole, 0].experts
    assert engine.outcomes[again, 0].experts == found
    assert engine.outcomes[rest, 0].experts == found[40 * shape.token_bytes :]
    assert engine.outcomes[plain, 0].experts == b""


def test_preemptions_chunks_and_lost_workers_change_none_of_them(pair: tuple[Any, LocalEngine]) -> None:
    _, engine = pair
    rng = random.Random(3)
    jobs = []
    for number in range(16):
        params = asking(max_tokens=rng.randrange(1, 40))
        jobs.append((tokens_of(number % 4, rng.randrange(1, 75)), params, [number, number + 100][: 1 + number % 2]))

    def outcomes(num_blocks: int, **sizes: Any) -> dict[tuple[int, int], bytes]:
        engine.restart(num_blocks, **sizes)
        for prompt, params, seeds in jobs:
            engine.submit(prompt, params, seeds)
        engine.run(check=True, dies=dies)
        return {sequence: outcome.experts for sequence, outcome in engine.outcomes.items()}

    countdown = 0

    def dies() -> bool:
        nonlocal countdown
        countdown -= 1
        return countdown % 17 == 0 and countdown > -400

    countdown = -1000
    undisturbed = outcomes(engine.ready.num_blocks)
    assert all(undisturbed.values())
    countdown, before = 5, engine.deaths
    assert outcomes(14, max_num_batched_tokens=40) == undisturbed
    assert engine.deaths > before
    assert engine.scheduler.stats().preemptions > 0


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    with pytest.raises(SetupError, match="--enable-return-routed-experts: the model has no experts that are known"):
        set_up(model_config(tmp_path, return_routed_experts=True), lambda *_: None)
