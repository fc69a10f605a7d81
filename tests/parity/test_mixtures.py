"""What checkpoints of mixtures of experts may look like, beyond the files that :mod:`.test_architectures` reads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from stentor.engine.layers.linear.weights import WeightError
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.server.options.model_facts import describe_model
from stentor.tests.engine.plain_shapes import plain_shapes
from stentor.tests.engine.quantization.checkpoints import fp4
from stentor.tests.parity import families, tiny
from stentor.tests.parity.cuts import check_whole
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.tiny_moe import mixtures

_OTHERS = ["ernie-moe", "exaone-moe", "hunyuan-moe", "afmoe", "mimo-v2-flash"]
PROMPT = [7, 250, 31, 99, 4, 180, 66, 12, 305, 41, 88, 150]


def logits(folder: Path, **options: Any) -> torch.Tensor:
    ours = PagedDecoder(folder, **options)
    ours.add(0, PROMPT)
    (found,) = ours.run((0, 0, len(PROMPT)))
    return found


@torch.inference_mode()
def expected(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(torch.tensor([PROMPT])).logits[0]
    return found


@pytest.mark.parametrize("name", sorted(mixtures(tiny.SHAPE)))
def test_the_shapes_of_weights_are_those_of_the_stored_tensors(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    spec = open_checkpoint(tmp_path).decoder
    assert spec.shapes() == stored
    assert list(plain_shapes(spec).items()) == list(spec.shapes().items()), "and so the model registers them"


@pytest.mark.parametrize("name", [name for name in families.configs(tiny.SHAPE) if not name.endswith("seeing")])
def test_the_shapes_of_further_families_are_those_of_the_stored_tensors(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    assert open_checkpoint(tmp_path).decoder.shapes() == stored


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe", "granite-moe", "minimax-m2", "glm4-moe", *_OTHERS])
@pytest.mark.parametrize("packed", [None, False])
def test_experts_that_are_stored_as_transformers_holds_them_are_read(
    name: str, packed: bool | None, tmp_path: Path
) -> None:
    model = tiny.make(name, tmp_path)
    model.save_pretrained(tmp_path, save_original_format=False)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        together = [key for key in file.keys() if key.endswith("experts.gate_up_proj")]  # noqa: SIM118
    assert together, "they are stored otherwise"
    torch.testing.assert_close(logits(tmp_path, packed=packed), expected(model), rtol=1e-4, atol=2e-4)


def test_a_hy4_that_transformers_has_saved_is_read(tmp_path: Path) -> None:
    """Whose rules for names, turned round, also rename the gates of networks."""
    model = tiny.make("hy-v4", tmp_path)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        renamed = [key for key in file.keys() if key.endswith("mlp.linear_gate.weight")]  # noqa: SIM118
    assert renamed
    torch.testing.assert_close(logits(tmp_path), expected(model), rtol=1e-4, atol=2e-4)


def test_the_parameters_that_a_token_uses_are_told_beside_all(tmp_path: Path) -> None:
    model = tiny.make("qwen3-moe", tmp_path)
    spec = open_checkpoint(tmp_path).decoder
    total = sum(parameter.numel() for parameter in model.parameters())
    idle = 2 * (6 - 2) * 3 * 64 * 32  # of two sparse layers, which take 2 of 6 experts
    assert (spec.parameters, spec.active_parameters) == (total, total - idle)
    reported = describe_model(tmp_path, ())
    assert f"{total / 1e6:.1f} M, {(total - idle) / 1e6:.1f} M of them active for a token" in reported
    assert "2 of 6 experts, silu of 32" in reported


def test_a_token_is_multiplied_with_the_experts_that_it_takes(tmp_path: Path) -> None:
    tiny.make("qwen3-moe", tmp_path)
    spec = open_checkpoint(tmp_path).decoder
    sparse, dense = (spec.products(layer) - attention(spec.layers[layer].mixer) for layer in (0, 1))
    assert dense == 3 * 64 * 96
    assert sparse == 2 * 3 * 64 * 32 + 6 * 64


def attention(mixer: Any) -> int:
    return sum(projection.elements for projection in mixer.projections(64))


def calls(folder: Path) -> list[str]:
    """What a pass leaves its program for."""
    ours = PagedDecoder(folder)
    ours.add(0, PROMPT)
    ours.run((0, 0, len(PROMPT)))
    return ours.calls


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3-moe", []),
        ("gpt-oss", []),
        ("glm4-moe-groups", []),
        ("granite-moe-shared", []),
        ("qwen2-moe", ["a shared expert's gate"] * 3),
    ],
)
def test_packed_experts_are_instructions_of_the_pass(name: str, expected: list[str], tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    assert calls(tmp_path) == expected


def test_layers_that_predict_further_tokens_are_passed_over(tmp_path: Path) -> None:
    model = tiny.make("glm4-moe", tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    save_file(stored | {"model.layers.3.eh_proj.weight": torch.ones(64, 128)}, file, metadata={"format": "pt"})
    torch.testing.assert_close(logits(tmp_path), expected(model), rtol=1e-4, atol=2e-4)
    save_file(stored | {"model.layers.4.eh_proj.weight": torch.ones(64, 128)}, file, metadata={"format": "pt"})
    with pytest.raises(WeightError, match=r"holds model\.layers\.4\.eh_proj\.weight, which this architecture has no"):
        PagedDecoder(tmp_path)


def test_published_files_of_ax_k1_have_a_norm_too_many_and_no_correction(tmp_path: Path) -> None:
    model = tiny.make("axk1", tmp_path)
    file = tmp_path / "model.safetensors"
    stored = {name: tensor for name, tensor in load_file(file).items() if "e_score_correction" not in name}
    stored["model.layers.0.post_mlp_layernorm.weight"] = torch.full((64,), 3.0)
    save_file(stored, file, metadata={"format": "pt"})
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.zero_()
    torch.testing.assert_close(logits(tmp_path), expected(model), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["glm4-moe", "minimax-m2", "granite-moe-shared", "gpt-oss"])
def test_a_checkpoint_without_an_expert_is_refused(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    last = [key for key in stored if key.startswith("model.layers.2.")]
    gone = max(key for key in last if ".experts." in key or "output_linear" in key)
    del stored[gone]
    save_file(stored, file, metadata={"format": "pt"})
    with pytest.raises(WeightError, match=f"lacks {gone}"):
        PagedDecoder(tmp_path)


def test_dense_networks_of_kimi_linear_may_lie_under_the_name_of_experts(tmp_path: Path) -> None:
    """transformers 5.23 writes them so."""
    tiny.make("kimi-linear", tmp_path)
    published = logits(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    dense = [name for name in tensors if ".mlp." in name]
    assert dense
    save_file(
        {name.replace(".mlp.", ".block_sparse_moe."): tensor for name, tensor in tensors.items()},
        tmp_path / "model.safetensors",
    )
    assert torch.equal(logits(tmp_path), published)


def test_experts_in_mxfp4_are_read_as_kimi_k3_has_them(tmp_path: Path) -> None:
    model = tiny.make("kimi-k3", tmp_path)
    pack, tensors = fp4("mxfp4"), {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        stem, _, ending = name.rpartition(".")
        if ".experts." not in stem or "shared" in stem:
            tensors[name] = tensor
            continue
        stored, value = pack(tensor)
        tensors |= {f"{stem}.{each}": part.contiguous() for each, part in stored.items()}
        model.get_parameter(name.removeprefix("language_model.")).data.copy_(value)
        assert ending == "weight"
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    config["text_config"]["quantization_config"] = {
        **{"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
        "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*(gate|up|down)_proj$", "re:.*gate$", "lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_whole(model, PagedDecoder(tmp_path))
