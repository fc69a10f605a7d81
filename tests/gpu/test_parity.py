"""Tiny models on the GPU draw the tokens that they draw on the CPU, with graphs and without."""

import random
import statistics
from pathlib import Path

import pytest

from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.latent_attention import LatentAttentionSpec
from stentor.engine.model_config.spec.mlp import MoESpec
from stentor.engine.worker.errors import SetupError
from stentor.protocols.ipc.cache_groups import windows_of
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.gpu.ahead import AheadEngine
from stentor.tests.parity import hybrids, tiny

pytestmark = pytest.mark.gpu

RULES = (
    SamplingParams(max_tokens=24, temperature=0.0),
    SamplingParams(max_tokens=20, temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.2),
    SamplingParams(max_tokens=16, temperature=0.0, min_tokens=8, eos_token_ids=tuple(range(3, 100)), logprobs=3),
    SamplingParams(max_tokens=12, temperature=0.0, banned_token_ids=(5, 6, 7), logit_bias=((9, 1.5),)),
    SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=2),
)


@pytest.fixture(scope="module", params=sorted(tiny.ARCHITECTURES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make(request.param, folder)
    return folder


def _prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(length)]


def _serve(engine: LocalEngine, *, blocks: int = 0) -> list[list[int]]:
    """Thirty requests that overlap, preempt each other and share prefixes."""
    engine.restart(blocks or engine.ready.num_blocks, max_num_batched_tokens=64)
    rids = [
        engine.submit(_prompt(number % 7, 4 + 5 * (number % 13)), RULES[number % len(RULES)]) for number in range(30)
    ]
    engine.run(check=True)
    return [engine.outcomes[rid, 0].tokens for rid in rids]


@pytest.mark.parametrize("architecture", ["lfm2", "granite4-hybrid", "qwen3-next", "falcon-h1", "jamba"])
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_models_with_recurrent_states_draw_what_they_draw_on_the_cpu(
    architecture: str, graphs: bool, tmp_path: Path
) -> None:
    tiny.make_of(hybrids.configs(tiny.SHAPE)[architecture](), architecture, tmp_path)
    _check_tokens(tmp_path, graphs)


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_greedy_tokens_are_those_of_the_cpu(folder: Path, graphs: bool) -> None:
    _check_tokens(folder, graphs)


def _check_tokens(folder: Path, graphs: bool) -> None:
    expected = _serve(LocalEngine(model_config(folder, max_num_seqs=12)))
    engine = AheadEngine(folder, dtype="float32", cuda_graphs=graphs, max_num_seqs=12)
    assert bool(engine.compute.captured) == graphs
    assert _serve(engine) == expected
    assert _serve(engine, blocks=10 * len(windows_of(engine.ready.groups))) == expected
    assert engine.scheduler.stats().preemptions > 0


@pytest.mark.parametrize("architecture", ["llama", "olmo3", "deepseek-v3-dense", "granite4-hybrid"])
def test_blocks_and_states_that_were_driven_out_come_back_from_host_memory(architecture: str, tmp_path: Path) -> None:
    if (hybrid := hybrids.configs(tiny.SHAPE).get(architecture)) is not None:
        tiny.make_of(hybrid(), architecture, tmp_path)
    else:
        tiny.make(architecture, tmp_path)
    expected = _serve(LocalEngine(model_config(tmp_path, max_num_seqs=12)))
    engine = AheadEngine(tmp_path, dtype="float32", max_num_seqs=12, kv_offloading_size=64 << 20)
    assert _serve(engine, blocks=10 * len(windows_of(engine.ready.groups))) == expected
    assert engine.scheduler.stats().host_loaded_bytes > 0


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.35), ("float16", 0.05)])
@pytest.mark.parametrize("cache", ["auto", "fp8"])
def test_smaller_dtypes_give_nearly_the_log_probabilities_of_float32(
    folder: Path, dtype: str, tolerance: float, cache: str
) -> None:
    """Where a router may choose another expert for a last place, most of them."""
    spec = model_spec_from_hf(read_json(folder / "config.json"))
    if cache == "fp8" and any(isinstance(layer.mixer, LatentAttentionSpec) for layer in spec.layers):
        with pytest.raises(SetupError, match="latents"):
            AheadEngine(folder, dtype=dtype, kv_cache_dtype=cache, max_num_seqs=4)
        return
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    tolerance += 0.6 if cache == "fp8" else 0.0
    found = []
    for engine in (
        LocalEngine(model_config(folder)),
        AheadEngine(folder, dtype=dtype, kv_cache_dtype=cache, max_num_seqs=4),
    ):
        rid = engine.submit(_prompt(1, 60), params)
        engine.run()
        found.append(engine.prompts[rid].logprobs)
    expected, ours = found
    assert expected is not None
    assert ours is not None
    gaps = [
        abs(one.logprob - other.logprob)
        for one, other in zip(expected[1:], ours[1:], strict=True)
        if one is not None and other is not None
    ]
    assert len(gaps) == len(expected) - 1
    routed = any(isinstance(layer.mlp, MoESpec) for layer in spec.layers)
    assert (statistics.median(gaps) if routed else max(gaps)) <= tolerance


@pytest.mark.alone
@pytest.mark.parametrize("folder", ["llama", "qwen3-moe", "deepseek-v3"], indirect=True)
def test_what_is_told_of_memory_is_all_there_is(folder: Path) -> None:
    ready = AheadEngine(folder, kv_cache_memory=None, gpu_memory_fraction=0.3, dtype="bfloat16").ready
    lines = {line.what: line.bytes for line in ready.memory}
    assert lines["activations"] > 0
    assert lines["CUDA graphs"] > 0
    assert lines["CUDA context and libraries"] > 0
    total = sum(lines.values())
    assert 0.25 * total < total - lines["free"] < 0.35 * total
