"""Published files of DeepSeek V4: names without ``model.``, FP8 in blocks, and experts in FP4."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import assert_close, prompt_of
from stentor.tests.parity.paged import PagedDecoder

_FP8 = (
    *("attn.wq_a", "attn.wkv", "attn.wq_b", "attn.wo_a", "attn.wo_b", "indexer.wq_b", "e_proj", "h_proj"),
    *(f"shared_experts.w{number}" for number in (1, 2, 3)),
)
QUANTISED: dict[str, Any] = {
    "expert_dtype": "fp4",
    "quantization_config": {
        **{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        "scale_fmt": "ue8m0",
    },
}
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def fp8(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Stored tensors with one scale for all blocks, and their values."""
    blocks = [-(-side // 128) for side in weight.shape]
    scale = torch.full(blocks, 2.0**-9).to(torch.float8_e8m0fnu)
    stored = (weight / 2.0**-9).to(torch.float8_e4m3fn)
    return {"weight": stored, "scale": scale}, stored.float() * 2.0**-9


def fp4(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Stored tensors with a scale for 32 inputs, and their values."""
    groups = weight.unflatten(1, (-1, 32))
    scale = torch.exp2((groups.abs().amax(2) / 6).log2().ceil())
    near = (groups.abs() / scale.unsqueeze(2)).unsqueeze(3) - _E2M1
    codes = near.abs().argmin(3)
    values = (_E2M1[codes] * groups.sign() * scale.unsqueeze(2)).flatten(1)
    codes = (codes + 8 * (groups < 0)).flatten(1).to(torch.uint8)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.int8)
    return {"weight": packed, "scale": scale.to(torch.float8_e8m0fnu)}, values


def published_of(weights: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Tensors as DeepSeek stores those that transformers has saved, and their values under the names given."""
    stored, values = {}, {}
    for name, tensor in weights.items():
        part = name.removesuffix(".weight")
        kept = name.removeprefix("model.").replace("embed_tokens", "embed").replace("hc_head.hc_", "hc_head_")
        kept = kept.replace("attn.norm.weight", "attn.kv_norm.weight")
        quantise = fp8 if part.endswith(_FP8) else fp4 if ".experts." in part else None
        if quantise is None:
            stored[kept] = values[name] = tensor
            continue
        parts, values[name] = quantise(tensor)
        stored |= {f"{kept.removesuffix('weight')}{ending}": each for ending, each in parts.items()}
    return stored, values


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint as published, and one with its values as floats."""
    published, plain = (tmp_path_factory.mktemp(name) for name in ("published", "plain"))
    tiny.make("deepseek-v4", plain)
    shutil.copy(plain / "config.json", published)
    stored, values = published_of(load_file(plain / "model.safetensors"))
    stored["mtp.0.norm.weight"] = torch.ones(64)
    tower = ("patch_embed.proj.bias", "blocks.0.attn.wqkv.weight", "blocks.0.mlp.w2.weight", "norm.weight")
    seeing = (*(f"vision.{name}" for name in tower), "aligner.w1.weight", "image_start", "layers.0.ffn.gate.bias_vl")
    stored |= {name: torch.ones(2) for name in seeing}
    save_file(stored, published / "model.safetensors")
    save_file(values, plain / "model.safetensors")
    config = json.loads((published / "config.json").read_text())
    config |= {"vision_n_layers": 1, **QUANTISED}
    (published / "config.json").write_text(json.dumps(config))
    return published, plain


@pytest.mark.parametrize("packed", [False, None])
def test_fp8_and_fp4_give_the_logits_of_their_values(folders: tuple[Path, Path], packed: bool | None) -> None:
    prompt = prompt_of(1, 40)
    found = []
    for folder in folders:
        ours = PagedDecoder(folder, packed=packed)
        ours.add(0, prompt)
        found += ours.run((0, 0, 40))
    if packed is None:  # experts in FP4 take inputs of 8 bits
        error = (found[0] - found[1]).abs() / found[1].std()
        assert error.mean() < 0.05
    else:
        assert_close(*found)
