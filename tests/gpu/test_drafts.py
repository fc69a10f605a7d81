"""Tiny models with drafts on the GPU draw the tokens that they draw on the CPU, with graphs and without."""

import random
from pathlib import Path

import pytest

from stentor.engine.worker.compute.sync_compute import SyncCompute
from stentor.engine.worker.passes.pass_graphs import advance_all
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_draft_heads import Made
from stentor.tests.parity import hybrids, tiny

pytestmark = pytest.mark.gpu

FEW = tuple(range(20, 26))
"""So few tokens that their order repeats, and n-grams are right."""
WAYS = (
    SamplingParams(max_tokens=40, temperature=0.0, allowed_token_ids=FEW),
    SamplingParams(max_tokens=30, temperature=0.0),
    SamplingParams(max_tokens=30, temperature=0.7, top_k=4),
    SamplingParams(max_tokens=24, temperature=0.0, repetition_penalty=1.2, logprobs=2),
)


def _serve(engine: LocalEngine, *, blocks: int = 0) -> list[list[int]]:
    """Requests that overlap, whose prompts repeat themselves, one or several at a time."""
    engine.restart(blocks or engine.ready.num_blocks)
    rng = random.Random(7)
    rids = []
    for number in range(16):
        part = [rng.randrange(3, tiny.VOCAB) for _ in range(rng.randrange(3, 8))]
        rids.append(engine.submit(part * 4, WAYS[number % len(WAYS)], [number]))
    engine.run(check=True)
    assert engine.scheduler.stats().num_draft_tokens > 0
    return [engine.outcomes[rid, 0].tokens for rid in rids]


def _on_the_gpu(folder: Path, speculative: SpeculativeConfig, *, graphs: bool) -> LocalEngine:
    config = model_config(folder, device="cuda", max_num_seqs=6, speculative=speculative, cuda_graphs=graphs)
    engine = LocalEngine(config)
    compute = engine.runner.compute
    assert isinstance(compute, SyncCompute)
    assert bool(compute.graphs) == graphs
    while advance_all(compute.graphs, busy=False) is not None:
        pass
    return engine


def _check(folder: Path, speculative: SpeculativeConfig, *, graphs: bool, few_blocks: bool = True) -> None:
    expected = _serve(LocalEngine(model_config(folder, max_num_seqs=6, speculative=speculative)))
    engine = _on_the_gpu(folder, speculative, graphs=graphs)
    assert _serve(engine) == expected
    assert engine.scheduler.stats().num_accepted_tokens > 0
    if few_blocks:
        assert _serve(engine, blocks=10) == expected
        assert engine.scheduler.stats().preemptions > 0


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "qwen3-moe", "deepseek-v3-dense"])
def test_rows_with_drafts_draw_what_they_draw_on_the_cpu(architecture: str, graphs: bool, tmp_path: Path) -> None:
    tiny.make(architecture, tmp_path)
    windows = architecture == "gemma2"  # whose groups need more blocks
    _check(tmp_path, SpeculativeConfig("ngram", 3), graphs=graphs, few_blocks=not windows)


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("name", ["qwen3.5", "granite4-hybrid", "lfm2", "jamba"])
def test_rows_with_recurrent_states_and_drafts_draw_what_they_draw_on_the_cpu(
    name: str, graphs: bool, tmp_path: Path
) -> None:
    tiny.make_of(hybrids.configs(tiny.SHAPE)[name](), name, tmp_path)
    _check(tmp_path, SpeculativeConfig("ngram", 3), graphs=graphs)


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_a_draft_models_rows_draw_what_they_draw_on_the_cpu(graphs: bool, tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    _check(tmp_path, SpeculativeConfig("draft_model", 3, model=str(tmp_path)), graphs=graphs)


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("method", ["eagle3", "glm4-moe"])
def test_rows_with_a_heads_drafts_draw_what_they_draw_on_the_cpu(method: str, graphs: bool, tmp_path: Path) -> None:
    made = Made(method, tmp_path)
    _check(made.target, made.speculative, graphs=graphs)
