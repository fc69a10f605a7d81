"""Rows with adapters get the logits of merged weights, whatever shares their batch and however the base is stored."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import assert_close, check_drawn, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.tiny_adapters import ALL, merged, save_adapter

RANK = 8
TARGETS = {
    "gemma2": ALL,
    "llama-biased": ALL,
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "qwen3": ALL,
}
"""By a model whose products are fused, normed or biased in ways of its own: what its adapter changes."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("base")
    return tiny.make("llama", folder), folder


@pytest.mark.parametrize("packed", [None, False], ids=["program", "called"])
def test_several_adapters_and_none_in_one_batch_give_the_logits_of_merged_weights(
    base: tuple[Any, Path], packed: bool | None, tmp_path: Path
) -> None:
    model, folder = base
    ours, plain = (PagedDecoder(folder, max_lora_rank=most, packed=packed, invariant=True) for most in (RANK, 0))
    assert packed is False or not ours.calls, "the pass leaves its program for adapters"
    models = {-1: model}
    for number in range(3):
        targets = (ALL, ("q_proj", "v_proj"), ("down_proj", "o_proj", "up_proj"))[number]
        added = save_adapter(model, tmp_path / str(number), number, rank=(4, 8, 1)[number], targets=targets)
        ours.load(number, tmp_path / str(number))
        models[number] = merged(model, added)
    rows = [0, -1, 1, 2, 0]
    prompts = [prompt_of(seed, 24 + seed) for seed in range(len(rows))]
    for slot, adapter in enumerate(rows):
        ours.add(slot, prompts[slot], adapter=adapter)
        plain.add(slot, prompts[slot])
    pieces: list[list[torch.Tensor]] = [[] for _ in rows]
    for start, count in ((0, 11), (11, 12), (23, 1)):
        spans = [(slot, start, count) for slot in range(len(rows))]
        for slot, logits in enumerate(ours.run(*spans)):
            pieces[slot].append(logits)
        assert torch.equal(pieces[1][-1], plain.run(*spans)[1]), "a row without an adapter is bitwise what it is alone"
    for slot, adapter in enumerate(rows):
        expected = expected_logits(models[adapter], prompts[slot])[:24]
        assert_close(torch.cat(pieces[slot]), expected)
        if adapter >= 0:
            without = expected_logits(model, prompts[slot])[:24]
            assert (expected - without).abs().max() > 0.1, "an adapter that changes nothing would hide a mistake"


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_fused_normed_and_biased_products_are_added_to_where_their_parts_stand(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    added = save_adapter(model, tmp_path / "adapter", targets=TARGETS[name], rank=2, size=0.1)
    ours, prompt = PagedDecoder(tmp_path, max_lora_rank=2), prompt_of(1, 20)
    ours.load(0, tmp_path / "adapter")
    ours.add(0, prompt, adapter=0)
    (logits,) = ours.run((0, 0, 20))
    assert_close(logits, expected_logits(merged(model, added), prompt))


def test_ranks_and_alphas_of_single_modules_and_rank_stabilised_scales_are_read(
    base: tuple[Any, Path], tmp_path: Path
) -> None:
    model, folder = base
    added = save_adapter(
        model,
        tmp_path,
        rank=2,
        rslora=True,
        ranks={"down_proj": 8, "layers.1.self_attn.q_proj": 3},
        alphas={"v_proj": 1.0},
        dtype=torch.bfloat16,
    )
    ours, prompt = PagedDecoder(folder, max_lora_rank=8), prompt_of(1, 20)
    ours.load(0, tmp_path)
    ours.add(0, prompt, adapter=0)
    (logits,) = ours.run((0, 0, 20))
    assert_close(logits, expected_logits(merged(model, added), prompt))


def test_over_a_base_that_is_quantised_an_adapter_changes_what_it_changes_of_a_plain_one(
    base: tuple[Any, Path], tmp_path: Path
) -> None:
    model, folder = base
    added = save_adapter(model, tmp_path, rank=4)
    prompt = prompt_of(1, 24)
    expected = [expected_logits(each, prompt) for each in (model, merged(model, added))]
    ours = PagedDecoder(folder, max_lora_rank=4, quantization="int8", dtype=torch.bfloat16)
    ours.load(0, tmp_path)
    for slot, adapter in ((0, -1), (1, 0)):
        ours.add(slot, prompt, adapter=adapter)
    off = [
        float((logits - want).abs().mean() / want.std())
        for logits, want in zip(ours.run((0, 0, 24), (1, 0, 24)), expected, strict=True)
    ]
    assert max(off) < 0.1, f"logits are off by {off} of their spread, without and with the adapter"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"targets": ("lm_head",)}, "lm_head"),
        ({"rank": 9}, "--max-lora-rank"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["embed_tokens"]}, "modules_to_save"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"init_lora_weights": "pissa_niter_16"}, "pissa"),
        ({"alpha_pattern": {"(a+)+": 1}}, "alpha_pattern"),
        ({"r": 3}, r"expected are floats \[3"),
    ],
)
def test_what_cannot_be_added_is_refused_in_a_line_that_says_why(
    base: tuple[Any, Path], changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    model, folder = base
    save_adapter(model, tmp_path, **changes)
    ours = PagedDecoder(folder, max_lora_rank=RANK)
    with pytest.raises(CheckpointError, match=says):
        ours.load(0, tmp_path)


@pytest.mark.parametrize("drafts", [None, SpeculativeConfig("ngram", 3, prompt_lookup_min=1)])
def test_a_served_model_draws_with_each_adapter_what_merged_weights_draw_also_after_its_worker_was_lost(
    base: tuple[Any, Path], tmp_path: Path, drafts: SpeculativeConfig | None
) -> None:
    model, folder = base
    models = {0: model}
    for number in (1, 2, 3):
        models[number] = merged(model, save_adapter(model, tmp_path / str(number), number))
    refs = {number: AdapterRef(number, str(number), str(tmp_path / str(number))) for number in (1, 2, 3)}
    limits = {"max_loras": 2, "max_lora_rank": 4, "max_cpu_loras": 2, "max_num_seqs": 4}
    engine = LocalEngine(model_config(folder, enable_lora=True, speculative=drafts, **limits))
    prompt = prompt_of(1, 20) * 2
    deaths = iter([False] * 6 + [True] + [False] * 9 + [True])
    asked = {
        engine.submit(prompt, SamplingParams(max_tokens=9, temperature=0.0), adapter=refs.get(n)): n for n in models
    }
    engine.run(check=True, dies=lambda: next(deaths, False))
    assert engine.deaths == 2
    assert (engine.scheduler.stats().num_draft_tokens > 0) == (drafts is not None)
    for rid, number in asked.items():
        check_drawn(models[number], engine, prompt, rid, 9)
    again = engine.submit(prompt, SamplingParams(max_tokens=9, temperature=0.0), adapter=refs[1])
    engine.run(check=True)
    check_drawn(models[1], engine, prompt, again, 9)
    assert engine.adapters is not None
    assert len(engine.adapters.numbers) <= 2


def test_an_adapter_whose_files_have_changed_since_they_were_named_ends_its_requests(
    base: tuple[Any, Path], tmp_path: Path
) -> None:
    model, folder = base
    save_adapter(model, tmp_path)
    engine = LocalEngine(model_config(folder, enable_lora=True, max_num_seqs=4))
    rid = engine.submit(
        prompt_of(1, 9), SamplingParams(max_tokens=2), adapter=AdapterRef(1, "a", str(tmp_path), "", "x")
    )
    engine.run()
    finished = engine.outcomes[rid, 0].finished
    assert finished is not None
    assert (finished.reason, finished.fault) == ("error", "adapter")
    assert "have changed" in (finished.message or "")
