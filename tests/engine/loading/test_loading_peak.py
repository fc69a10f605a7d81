"""Memory while a sharded mixture of experts loads: its quantised size, and a tenth of it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from safetensors.torch import save_file

from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.kernels import native
from stentor.tests.engine.loading.tiny_gguf import write_metadata

transformers: Any = untyped_transformers
pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")

SIZES = {
    "vocab_size": 64,
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}
QWEN = {**SIZES, "num_experts": 8, "moe_intermediate_size": 512, "num_hidden_layers": 16}
GPT_OSS = {**SIZES, "num_local_experts": 8, "intermediate_size": 256, "num_hidden_layers": 24}
"""Experts of one product are one tensor, which is in hand while it is packed: with more layers it is a smaller part."""
GROUP = 128

Tensors = Iterator[tuple[str, torch.Tensor]]


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)


def codes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def gptq(part: str, outputs: int, inputs: int) -> Tensors:
    yield f"{part}.qweight", words(inputs // 8, outputs)
    yield f"{part}.qzeros", words(inputs // GROUP, outputs // 8)
    yield f"{part}.scales", torch.full((inputs // GROUP, outputs), 0.01, dtype=torch.float16)


def mxfp4(part: str, experts: int, inputs: int, outputs: int) -> Tensors:
    yield f"{part}_blocks", codes(experts, outputs, inputs // 32, 16)
    yield f"{part}_scales", torch.full((experts, outputs, inputs // 32), 120, dtype=torch.uint8)


FORMATS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "gptq": (gptq, QWEN, {"quant_method": "gptq", "bits": 4, "group_size": GROUP}),
    "mxfp4": (
        mxfp4,
        GPT_OSS,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"]},
    ),
}


def stored(form: Any, described: dict[str, Any]) -> Tensors:
    """Experts in a format, all else plain."""
    for name, shape in model_spec_from_hf(described).shapes().items():
        part = name.removesuffix(".weight")
        if ".experts." in name and name.endswith("_proj" if form is mxfp4 else ".weight"):
            yield from form(part, *shape)
        else:
            yield name, torch.full(shape, 0.01, dtype=torch.bfloat16)


def write(folder: Path, name: str, **fields: Any) -> int:
    """A checkpoint of a shard for each layer, and one for the rest; its bytes."""
    form, sizes, quantization = FORMATS[name]
    family = "GptOss" if form is mxfp4 else "Qwen3Moe"
    config = getattr(transformers, f"{family}Config")(**sizes | fields)
    config.architectures = [f"{family}ForCausalLM"]
    described = config.to_dict()
    shards: dict[str, dict[str, torch.Tensor]] = {}
    for tensor_name, tensor in stored(form, described):
        layer = tensor_name.split(".")[2] if ".layers." in tensor_name else "rest"
        shards.setdefault(f"{layer}.safetensors", {})[tensor_name] = tensor
    folder.mkdir()
    for file, tensors in shards.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
    weight_map = {each: file for file, tensors in shards.items() for each in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(described | {"quantization_config": quantization}))
    return sum(tensor.nbytes for tensors in shards.values() for tensor in tensors.values())


def write_q4_k(folder: Path) -> int:
    """A GGUF file; its bytes."""
    config = transformers.Qwen3MoeConfig(**QWEN)
    config.num_local_experts = config.num_experts
    config.architectures = ["Qwen3MoeForCausalLM"]
    folder.mkdir()
    writer = gguf.GGUFWriter(folder / "m.gguf", "qwen3moe")
    write_metadata(writer, config, "qwen3moe")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3MOE, config.num_hidden_layers)
    for name, shape in model_spec_from_hf(config.to_dict()).shapes().items():
        stored = names.get_name(name.replace(".experts.0.", ".experts."), (".weight",))
        if stored is None:
            continue  # of another expert, whose matrix lies beside that of the first
        if "_proj." in name:
            count = [config.num_experts] if ".experts." in name else []
            blocks = np.zeros((*count, shape[0], shape[1] // 256 * 144), dtype=np.uint8)
            writer.add_tensor(stored, blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_K)
        else:
            writer.add_tensor(stored, np.full(shape, 0.01, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (folder / "m.gguf").stat().st_size


@pytest.mark.proof
def test_a_sharded_mixture_of_experts_loads_in_its_quantised_size_and_a_tenth(tmp_path: Path) -> None:
    """Mapped pages of the files count too."""
    write(tmp_path / "first", "gptq", num_hidden_layers=1)
    sizes = {name: write(tmp_path / name, name) for name in FORMATS} | {"q4_k": write_q4_k(tmp_path / "q4_k")}
    command = [sys.executable, "-P", "-m", "stentor.tests.engine.loading.loading_peak", "first", *sizes]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    peaks = dict(zip(sizes, map(int, ran.stdout.split()), strict=True))
    assert all(0.9 * sizes[name] < peaks[name] <= 1.1 * sizes[name] for name in sizes), (sizes, peaks)
