"""Drafts that a model proposes, under a real scheduler: texts are what they are without, and its keys are all there."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_speculation import CONTEXT, DRAFTS, WAYS, Ask, _asks, _prompt, _run, _same
from stentor.tests.parity import hybrids, tiny


def by_model(folder: Path) -> SpeculativeConfig:
    return SpeculativeConfig("draft_model", DRAFTS, model=str(folder))


def drafting_engine(folder: Path, draft: Path, **changes: Any) -> LocalEngine:
    changes = {"batch_invariant": True, "max_model_len": CONTEXT, **changes}
    return LocalEngine(model_config(folder, speculative=by_model(draft), **changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder, layers=2)
    return folder


@pytest.fixture(scope="module")
def near(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model that is right about as often as not: the same with some noise on its weights."""
    near = tmp_path_factory.mktemp("near")
    (near / "config.json").write_bytes((folder / "config.json").read_bytes())
    generator = torch.Generator().manual_seed(3)
    weights = load_file(folder / "model.safetensors")
    noisy = {
        name: weight + 0.1 * weight.std() * torch.randn(weight.shape, generator=generator)
        if weight.dim() > 1
        else weight
        for name, weight in weights.items()
    }
    save_file(noisy, near / "model.safetensors", {"format": "pt"})
    return near


@pytest.fixture(scope="module")
def plain(folder: Path) -> LocalEngine:
    return LocalEngine(model_config(folder, batch_invariant=True, max_model_len=CONTEXT))


@pytest.fixture(scope="module")
def by_itself(folder: Path) -> LocalEngine:
    return drafting_engine(folder, folder)


@pytest.fixture(scope="module")
def by_another(folder: Path, near: Path) -> LocalEngine:
    return drafting_engine(folder, near)


def accepted(engine: LocalEngine) -> tuple[int, int]:
    """Drafts that were drawn, and all, since the engine was restarted."""
    stats = engine.scheduler.stats()
    return sum(stats.accepted_by_position), stats.num_draft_tokens


@pytest.mark.proof(each="way")
@pytest.mark.parametrize("way", [*WAYS])
def test_drafts_of_the_model_itself_are_all_right_however_tokens_are_drawn(
    plain: LocalEngine, by_itself: LocalEngine, way: str
) -> None:
    asks = _asks(way)
    expected = _run(plain, asks)
    _same(_run(by_itself, asks), expected)
    right, drafted = accepted(by_itself)
    assert right == drafted > 20


def test_a_model_that_drafts_for_itself_gains_all_that_it_may_in_a_step_once_it_is_known_what_drafts_cost(
    folder: Path,
) -> None:
    engine = drafting_engine(folder, folder, batch_invariant=False)
    params = SamplingParams(max_tokens=61, temperature=0.0)
    engine.generate(_prompt(20), params)  # until it is known what drafts cost, there are few
    steps, before = engine.steps, engine.scheduler.stats()
    engine.generate(_prompt(20, 1), params)
    stats = engine.scheduler.stats()
    gained = sum(stats.accepted_by_position) - sum(before.accepted_by_position)
    assert 1 + gained / (stats.num_drafts - before.num_drafts) >= DRAFTS + 0.9
    assert engine.steps - steps <= 2 + 61 / (DRAFTS + 1)


@pytest.mark.parametrize("way", ["cut", "sampled logprobs"])
def test_a_text_is_the_same_with_drafts_of_another_model(plain: LocalEngine, by_another: LocalEngine, way: str) -> None:
    asks = _asks(way)
    expected = _run(plain, asks)
    _same(_run(by_another, asks), expected)
    right, drafted = accepted(by_another)
    assert 10 < right < drafted


def test_rows_with_grammars_are_told_what_a_model_drafts(plain: LocalEngine, by_itself: LocalEngine) -> None:
    asks = [*_asks("cut", 3), *_asks("least")]
    expected = _run(plain, asks)
    _same(_run(by_itself, asks), expected)
    right, drafted = accepted(by_itself)
    assert 30 < right < drafted


def test_rows_that_lose_their_blocks_are_drafted_for_again(plain: LocalEngine, by_itself: LocalEngine) -> None:
    asks = [*_asks("sampled logprobs"), *_asks("greedy")]
    expected = _run(plain, asks)
    _same(_run(by_itself, asks, blocks=11), expected)
    assert by_itself.scheduler.stats().preemptions > 0
    right, drafted = accepted(by_itself)
    assert right == drafted > 30


def test_a_worker_that_dies_among_drafts_of_a_model_loses_nothing(plain: LocalEngine, by_another: LocalEngine) -> None:
    asks = [*_asks("sampled"), *_asks("greedy", 3), *_asks("penalties")]
    expected = _run(plain, asks)
    rng = random.Random(1)
    deaths = by_another.deaths
    _same(_run(by_another, asks, dies=lambda: rng.random() < 0.2), expected)
    assert by_another.deaths > deaths
    assert accepted(by_another)[0] > 30


def test_prompts_in_pieces_are_read_by_the_draft_model_too(folder: Path, plain: LocalEngine) -> None:
    engine = drafting_engine(folder, folder, max_prefill_chunk=16)
    asks: list[Ask] = [
        (_prompt(50, each), SamplingParams(max_tokens=20, temperature=0.0), [1], None) for each in (1, 2)
    ]
    expected = _run(plain, asks)
    _same(_run(engine, asks), expected)
    right, drafted = accepted(engine)
    assert right == drafted > 20


@pytest.mark.parametrize("num_drafts", [0, None])
def test_a_prefix_that_a_later_prompt_finds_holds_the_draft_models_keys(
    plain: LocalEngine, by_itself: LocalEngine, num_drafts: int | None
) -> None:
    """Also of an answer for which nothing was drafted."""
    first = _prompt(20)
    by_itself.restart(by_itself.ready.num_blocks)
    plain.restart(plain.ready.num_blocks)
    answer = by_itself.generate(first, SamplingParams(max_tokens=37, temperature=0.0, num_drafts=num_drafts))
    before = accepted(by_itself)
    params = SamplingParams(max_tokens=20, temperature=0.0)
    assert by_itself.generate([*first, *answer, 7], params) == plain.generate([*first, *answer, 7], params)
    assert by_itself.prompts[1].cached_tokens > 48
    right, drafted = accepted(by_itself)
    assert right - before[0] == drafted - before[1] > 10


def test_windows_of_the_model_and_a_draft_model_of_another_shape_share_blocks(tmp_path: Path) -> None:
    for name in ("gemma3", "llama-wide-heads", "mistral"):
        (tmp_path / name).mkdir()
        tiny.make(name, tmp_path / name)
    asks = [*_asks("greedy"), *_asks("sampled")]
    for target, draft in (("gemma3", "llama-wide-heads"), ("mistral", "llama-wide-heads")):
        plain = LocalEngine(model_config(tmp_path / target, batch_invariant=True, max_model_len=CONTEXT))
        engine = drafting_engine(tmp_path / target, tmp_path / draft)
        _same(_run(engine, asks), _run(plain, asks))
        assert accepted(engine)[1] > 10


def test_a_draft_model_whose_layers_have_a_window_is_right_behind_it_too(tmp_path: Path) -> None:
    tiny.make("gemma3", tmp_path)
    plain = LocalEngine(model_config(tmp_path, batch_invariant=True, max_model_len=CONTEXT))
    engine = drafting_engine(tmp_path, tmp_path)
    params = SamplingParams(max_tokens=30, temperature=0.0)
    prompt = _prompt(50, 2)
    assert engine.generate(prompt, params) == plain.generate(prompt, params)
    right, drafted = accepted(engine)
    assert right == drafted > 5


def test_memory_of_a_draft_model_is_counted(folder: Path, by_itself: LocalEngine, plain: LocalEngine) -> None:
    assert by_itself.ready.num_blocks == plain.ready.num_blocks // 2
    lines = {line.what: line.bytes for line in by_itself.ready.memory}
    assert lines["draft model"] == lines["weights"]


def _refused(folder: Path, draft: Path, why: str, **changes: Any) -> None:
    with pytest.raises(SetupError, match=f"--speculative-config: {why}"):
        set_up(
            model_config(folder, **{"max_model_len": CONTEXT, "speculative": by_model(draft), **changes}),
            lambda *_: None,
        )


def test_a_draft_model_that_cannot_propose_says_why(folder: Path, tmp_path: Path) -> None:
    shapes: Sequence[tuple[str, Any, str]] = (
        ("qwen3.5", hybrids.configs(tiny.SHAPE)["qwen3.5"](), "the draft model .* has recurrent states"),
        (
            "llama",
            tiny.transformers.LlamaConfig(**{**tiny.SHAPE, "vocab_size": 256}),
            "the draft .* of 256 tokens, .* 320",
        ),
        (
            "llama",
            tiny.transformers.LlamaConfig(**{**tiny.SHAPE, "max_position_embeddings": 64}),
            "sequences have up to 96 tokens, and the draft model was made for 64: give --max-model-len 64",
        ),
    )
    for number, (name, config, why) in enumerate(shapes):
        (draft := tmp_path / str(number)).mkdir()
        tiny.make_of(config, name, draft)
        _refused(folder, draft, why)


@pytest.mark.parametrize("kept", ["int8", "fp8"])
def test_a_draft_models_keys_may_be_of_8_bits_too(folder: Path, kept: str) -> None:
    asks = _asks("sampled")
    plain = LocalEngine(model_config(folder, batch_invariant=True, max_model_len=CONTEXT, kv_cache_dtype=kept))
    engine = drafting_engine(folder, folder, kv_cache_dtype=kept)
    _same(_run(engine, asks), _run(plain, asks))
    right, drafted = accepted(engine)
    assert right == drafted > 20
