"""Rows with adapters get the logits of merged weights, whatever shares their batch and however the base is stored."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import assert_close, check_drawn, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.tiny_adapters import (
    ALL,
    merged,
    save_adapter,
    save_experts_apart,
    save_experts_together,
)

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


def check_beside_base(
    model: Any,
    folder: Path,
    added: dict[str, torch.Tensor],
    *,
    packed: bool | None = None,
    rank: int = 2,
    invariant: bool = True,
    tables: bool = False,
) -> None:
    """A row with the adapter in ``folder/adapter`` gets the logits of merged weights, and one without the same bits as
    in a model without adapters."""
    ours, plain = (
        PagedDecoder(folder, max_lora_rank=most, packed=packed, invariant=invariant, tables=tables)
        for most in (rank, 0)
    )
    ours.load(0, folder / "adapter")
    prompt = prompt_of(1, 32)
    for slot, adapter in enumerate((0, -1)):
        ours.add(slot, prompt, adapter=adapter)
        plain.add(slot, prompt)
    expected = expected_logits(merged(model, added), prompt)
    assert (expected - expected_logits(model, prompt)).abs().max() > 0.1, (
        "an adapter that changes nothing shows nothing"
    )
    for start, count in ((0, 13), (13, 18), (31, 1)):
        spans = [(slot, start, count) for slot in (0, 1)]
        changed, same = ours.run(*spans)
        assert_close(changed, expected[start : start + count])
        assert torch.equal(same, plain.run(*spans)[1])


@pytest.mark.parametrize("name", ["iquest-loop", "nanbeige"])
def test_an_adapter_of_layers_that_run_several_times_changes_each_run(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    save_adapter(model, tmp_path / "adapter", rank=2)
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    first = {part: tensor for part, tensor in stored.items() if ".layers.0." in part or ".layers.1." in part}
    save_file(first, tmp_path / "adapter" / "adapter_model.safetensors")
    added = {
        part.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): 4.0
        * first[part.replace("lora_A", "lora_B")]
        @ down
        for part, down in first.items()
        if "lora_A" in part
    }
    again = {
        part.replace(f".layers.{at}.", f".layers.{at + 2}."): each for part, each in added.items() for at in (0, 1)
    }
    check_beside_base(model, tmp_path, {**added, **again})


EXPERTS = {
    "mixtral": ("block_sparse_moe.experts", ("w1", "w3", "w2")),
    "olmoe": ("mlp.experts", ("gate_proj", "up_proj", "down_proj")),
    "glm4-moe": ("mlp.experts", ("gate_proj", "up_proj", "down_proj")),
}
"""By a mixture: where adapters have its experts, and what they call gate, up and down."""


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("packed", [None, False], ids=["program", "called"])
@pytest.mark.parametrize("name", sorted(EXPERTS))
def test_experts_are_added_to_one_by_one(name: str, packed: bool | None, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    check_beside_base(model, tmp_path, save_experts_apart(model, tmp_path / "adapter", *EXPERTS[name]), packed=packed)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize(
    ("name", "turned"), [("qwen3-moe", False), ("olmoe", True), ("gpt-oss", False), ("gemma4-moe", False)]
)
def test_all_experts_and_routers_are_added_to_as_parameters(name: str, turned: bool, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    check_beside_base(model, tmp_path, save_experts_together(model, tmp_path / "adapter", turned=turned))


def test_experts_of_an_older_peft_that_are_as_wide_as_long_are_refused(tmp_path: Path) -> None:
    save_experts_together(tiny.make("qwen3-moe", tmp_path), tmp_path / "adapter", turned=True)
    with pytest.raises(CheckpointError, match=r"gate_up_proj may be stored in two ways"):
        PagedDecoder(tmp_path, max_lora_rank=2).load(0, tmp_path / "adapter")


@pytest.mark.parametrize("packed", [None, False], ids=["program", "called"])
def test_shared_experts_and_their_gate_are_added_to(packed: bool | None, tmp_path: Path) -> None:
    model = tiny.make("qwen2-moe", tmp_path)
    targets = ("gate_proj", "up_proj", "down_proj", "shared_expert_gate")
    added = save_adapter(model, tmp_path / "adapter", targets=targets, rank=2, size=0.5)
    assert any("shared_expert_gate" in name for name in added)
    check_beside_base(model, tmp_path, added, packed=packed)


MIXERS = {
    "axk2": ("wq_b", "weights_proj", "q_a_proj", "kv_b_proj", "o_proj"),
    "deepseek-v2": ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
    "deepseek-v3": ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
    "deepseek-v3.2": ("wq_b", "wk", "weights_proj", "q_a_proj", "kv_b_proj", "o_proj"),
    "falcon-h1": ("in_proj", "out_proj", "q_proj", "gate_proj"),
    "gemma3n": ("q_proj", "gate_proj", "linear_left", "linear_right", "per_layer_input_gate"),
    "gemma4-small": ("q_proj", "o_proj", "per_layer_input_gate", "per_layer_projection"),
    "jamba": ("in_proj", "x_proj", "dt_proj", "out_proj", "q_proj"),
    "lfm2": ("in_proj", "out_proj"),
    "longcat": ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "down_proj"),
    "nemotron-h": ("in_proj", "out_proj", "up_proj"),
    "qwen3-next": ("in_proj_qkvz", "in_proj_ba", "out_proj"),
    "zamba2": ("in_proj", "out_proj"),
}
"""By a model with other mixers than attention to keys and values of its own: what its adapter changes of them."""


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("invariant", [True, False], ids=["absorbed", "expanded"])
@pytest.mark.parametrize("name", sorted(MIXERS))
def test_recurrent_latent_and_shared_mixers_are_added_to(name: str, invariant: bool, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    added = save_adapter(model, tmp_path / "adapter", targets=MIXERS[name], rank=2, size=0.15)
    assert {module.rpartition(".")[2] for module in added} == set(MIXERS[name])
    check_beside_base(model, tmp_path, added, invariant=invariant)


@pytest.mark.parametrize("name", ["gemma2", "phi3", "qwen3-next", "deepseek-v3"])
def test_products_whose_adapters_lie_in_tables_are_added_to_as_well(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    targets = TARGETS.get(name) or MIXERS[name]
    added = save_adapter(model, tmp_path / "adapter", targets=(*targets, "lm_head"), rank=2, size=0.2)
    check_beside_base(model, tmp_path, added, packed=False, tables=True)


@pytest.mark.parametrize("packed", [None, False], ids=["program", "called"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "llama-wide-heads"])
def test_embeddings_and_heads_are_added_to_also_where_they_are_one(
    name: str, packed: bool | None, tmp_path: Path
) -> None:
    """By themselves: what is added to embeddings is not added to the head, as in PEFT before weights are merged."""
    model = tiny.make(name, tmp_path)
    for targets in (("embed_tokens",), ("lm_head", "v_proj")):
        added = save_adapter(model, tmp_path / "adapter", targets=targets, rank=2, size=0.5)
        check_beside_base(model, tmp_path, added, packed=packed)


def test_the_models_own_tables_that_peft_stores_beside_an_adapter_of_one_are_ignored_unless_of_another_shape(
    base: tuple[Any, Path], tmp_path: Path
) -> None:
    model, folder = base
    added = save_adapter(model, tmp_path, targets=("embed_tokens", "lm_head"), rank=2, size=0.5)
    file = tmp_path / "adapter_model.safetensors"
    tables = {"model.embed_tokens.base_layer": model.model.embed_tokens, "lm_head": model.lm_head}
    copies = {f"base_model.model.{name}.weight": table.weight.detach().clone() for name, table in tables.items()}
    save_file(load_file(file) | copies, file)
    ours, prompt = PagedDecoder(folder, max_lora_rank=2), prompt_of(1, 20)
    ours.load(0, tmp_path)
    ours.add(0, prompt, adapter=0)
    assert_close(ours.run((0, 0, 20))[0], expected_logits(merged(model, added), prompt))
    grown = {name: torch.nn.functional.pad(table, (0, 0, 0, 1)) for name, table in copies.items()}
    save_file(load_file(file) | grown, file)
    with pytest.raises(CheckpointError, match="the vocabulary was changed for the adapter"):
        ours.load(1, tmp_path)


def test_all_linear_modules_and_parameters_are_read_as_peft_names_them(tmp_path: Path) -> None:
    """Parameters by their last name alone, beside modules, and the alpha of one by a pattern."""
    model = tiny.make("qwen3-moe", tmp_path)
    added = save_experts_together(model, tmp_path / "adapter")
    file, config = (tmp_path / "adapter" / name for name in ("adapter_model.safetensors", "adapter_config.json"))
    stored = load_file(file)
    save_adapter(model, tmp_path / "adapter", targets=("q_proj",), rank=2, alpha=2.0)
    modules = {name: tensor for name, tensor in load_file(file).items() if "q_proj" in name}
    for name in [name for name in modules if name.endswith("lora_A.weight")]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        added[module] = modules[name.replace("lora_A", "lora_B")] @ modules[name]
    save_file(stored | modules, file)
    fields: dict[str, Any] = {"target_parameters": ["down_proj", "gate_up_proj", "gate.weight"]}
    fields |= {"alpha_pattern": {r".*\.gate_up_proj": 4}, "r": 2, "lora_alpha": 2, "peft_version": "0.21.2"}
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    twice = {name: delta * (2 if name.endswith("gate_up_proj") else 1) for name, delta in added.items()}
    check_beside_base(model, tmp_path, twice)


def test_log_probabilities_of_prompts_are_those_of_the_adapted_head(base: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = base
    other = merged(model, save_adapter(model, tmp_path, targets=("lm_head",), size=0.5))
    engine, prompt = LocalEngine(model_config(folder, enable_lora=True, max_num_seqs=4)), prompt_of(1, 20)
    params, ref = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0), AdapterRef(1, "a", str(tmp_path))
    asked = {engine.submit(prompt, params): model, engine.submit(prompt, params, adapter=ref): other}
    engine.run()
    for rid, theirs in asked.items():
        told = [each for each in engine.prompts[rid].logprobs or () if each is not None]
        wanted = expected_logits(theirs, prompt)[:-1].log_softmax(1).gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        assert_close(torch.tensor([each.logprob for each in told]), wanted)


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
        ({"rank": 9}, "--max-lora-rank"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["embed_tokens"]}, "modules_to_save"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"init_lora_weights": "pissa_niter_16"}, "pissa"),
        ({"init_lora_weights": "lora_ga"}, "lora_ga"),
        ({"use_bdlora": {"nblocks": 2}}, "BD-LoRA"),
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
    for number, more in ((1, ()), (2, ("embed_tokens",)), (3, ("embed_tokens", "lm_head"))):
        added = save_adapter(model, tmp_path / str(number), number, targets=(*ALL, *more))
        models[number] = merged(model, added)
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


def test_an_adapter_that_changes_steps_of_a_state_counts_where_drafts_are_refused(tmp_path: Path) -> None:
    model = tiny.make("jamba-dense", tmp_path)
    added = save_adapter(model, tmp_path / "adapter", targets=("x_proj", "dt_proj"), size=0.5)
    ref = AdapterRef(1, "1", str(tmp_path / "adapter"))
    drafts = SpeculativeConfig("ngram", 3, prompt_lookup_min=1)
    engine = LocalEngine(model_config(tmp_path, enable_lora=True, max_lora_rank=4, speculative=drafts, max_num_seqs=4))
    prompt, params = prompt_of(1, 20) * 2, SamplingParams(max_tokens=12, temperature=0.0)
    plain, adapted = engine.submit(prompt, params), engine.submit(prompt, params, adapter=ref)
    engine.run(check=True)
    stats = engine.scheduler.stats()
    assert stats.num_draft_tokens > stats.num_accepted_tokens
    check_drawn(model, engine, prompt, plain, 12)
    check_drawn(merged(model, added), engine, prompt, adapted, 12)


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
