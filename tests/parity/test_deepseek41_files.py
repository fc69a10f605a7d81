"""Published files of DeepSeek V4.1: FP8 in blocks of 32 x 32, experts in FP4, and tables of n-grams in MXFP8; and the
token of pictures among texts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.tests.parity import deepseek41_tower, tiny
from stentor.tests.parity.cuts import assert_close, expected_logits, prompt_of
from stentor.tests.parity.hub_form import Tensors
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.test_deepseek4_files import QUANTISED, fp4

_FP8 = (
    *("attn.wq_a", "attn.wkv", "attn.wq_b", "attn.wo_a", "attn.wo_b", "indexer.wq_b", "engram.wkv", "main_proj"),
    *(f"shared_experts.w{number}" for number in (1, 2, 3)),
)
CONFIG = {**QUANTISED["quantization_config"], "weight_block_size": [32, 32], "expert_dtype": "fp4"}


def fp8(weight: torch.Tensor, rows: int) -> tuple[Tensors, torch.Tensor]:
    """Stored tensors with a scale for so many ``rows`` and 32 columns, and their values."""
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 32, 0, -weight.shape[0] % rows))
    most = padded.unflatten(1, (-1, 32)).unflatten(0, (-1, rows)).abs().amax((1, 3))
    scales = torch.exp2((most.clamp_min(1e-9) / 448).log2().ceil())
    spread = scales.repeat_interleave(rows, 0).repeat_interleave(32, 1)[: weight.shape[0], : weight.shape[1]]
    stored = (weight / spread).to(torch.float8_e4m3fn)
    return {"weight": stored, "scale": scales.to(torch.float8_e8m0fnu)}, stored.float() * spread


def published_of(weights: Tensors) -> tuple[Tensors, Tensors]:
    """Tensors as DeepSeek stores those of a plain checkpoint, and their values."""
    stored, values = {}, {}
    for name, tensor in weights.items():
        part = name.removesuffix(".weight")
        if part.endswith("engram.embed"):
            parts, values[name] = fp8(tensor, 1)
        elif part.endswith(_FP8):
            parts, values[name] = fp8(tensor, 32)
        elif ".experts." in part:
            parts, values[name] = fp4(tensor)
        else:
            stored[name] = values[name] = tensor
            continue
        stored |= {f"{part}.{ending}": each for ending, each in parts.items()}
    return stored, values


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint as published, and one with its values as floats."""
    published, plain = (tmp_path_factory.mktemp(name) for name in ("published", "plain"))
    tiny.make("deepseek-v4.1", plain)
    for file in ("config.json", "tokenizer.json"):
        shutil.copy(plain / file, published)
    stored, values = published_of(load_file(plain / "model.safetensors"))
    save_file(stored, published / "model.safetensors")
    save_file(values, plain / "model.safetensors")
    config: dict[str, Any] = json.loads((published / "config.json").read_text())
    (published / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIG}))
    return published, plain


@pytest.mark.parametrize("packed", [False, None])
def test_fp8_fp4_and_mxfp8_give_the_logits_of_their_values(folders: tuple[Path, Path], packed: bool | None) -> None:
    prompt, found = prompt_of(1, 40), []
    for folder in folders:
        ours = PagedDecoder(folder, packed=packed)
        ours.add(0, prompt)
        found += ours.run((0, 0, 40))
    if packed is None:  # experts in FP4 take inputs of 8 bits
        error = (found[0] - found[1]).abs() / found[1].std()
        assert error.mean() < 0.05
    else:
        assert_close(*found)


def test_no_ngram_reaches_across_the_token_of_pictures(tmp_path: Path) -> None:
    model = deepseek41_tower.make(tmp_path)
    prompt = prompt_of(1, 12)
    prompt[5] = prompt[8] = model.text.config.sees
    ours = PagedDecoder(tmp_path)
    ours.add(0, prompt)
    (logits,) = ours.run((0, 0, 12))
    assert_close(logits, expected_logits(model.text, prompt))
