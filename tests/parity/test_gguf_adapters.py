"""Adapters as llama.cpp's converter writes them, over bases in GGUF and in safetensors, against merged weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize

from stentor.engine.loading.errors import CheckpointError
from stentor.tests.engine.loading.gguf_families import write_family
from stentor.tests.engine.loading.test_gguf_experts import made
from stentor.tests.engine.loading.tiny_gguf import as_converted, tiny_model, write_gguf
from stentor.tests.parity.cuts import assert_close, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.test_gguf_families import MODELS as FAMILIES
from stentor.tests.parity.test_gguf_families import made as family
from stentor.tests.parity.tiny_adapters import ALL, merged, save_adapter

RANK, ALPHA = 4, 6.0
DTYPES = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}


def save(
    path: Path,
    model: Any,
    arch: str,
    targets: Sequence[str] = ALL,
    *,
    kind: Kind = Kind.F32,
    alpha: float = ALPHA,
    **fields: str,
) -> dict[str, torch.Tensor]:
    """Writes an adapter of modules, or of all experts; returns what it adds to each weight, by module or parameter."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {"general.type": "adapter", "adapter.type": "lora", **fields}.items():
        writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", alpha)
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    generator = torch.Generator().manual_seed(1)
    added: dict[str, torch.Tensor] = {}

    def matrices(name: str, *shape: int) -> torch.Tensor:
        """Adds both, of which the product is returned."""
        *experts, outputs, inputs = shape
        down = (torch.randn(*experts, RANK, inputs, generator=generator) * 0.3).to(DTYPES[kind]).float()
        up = (torch.randn(*experts, outputs, RANK, generator=generator) * 0.3).to(DTYPES[kind]).float()
        stored = names.get_name(f"{name}.weight", (".weight",))
        if stored == "token_embd.weight":  # A by token, and the product turned
            writer.add_tensor(f"{stored}.lora_a", up.numpy())
            writer.add_tensor(f"{stored}.lora_b", down.T.contiguous().numpy())
            return up @ down * (alpha / RANK if alpha else 1.0)
        converted = as_converted(up.numpy(), f"{name}.weight", model.config, arch)
        for ending, values in (("lora_a", down.numpy()), ("lora_b", converted)):
            if kind == Kind.F32:
                writer.add_tensor(f"{stored}.{ending}", np.ascontiguousarray(values))
            else:
                writer.add_tensor(f"{stored}.{ending}", quantize(values, kind), raw_dtype=kind)
        return up @ down * (alpha / RANK if alpha else 1.0)

    for name, parameter in model.named_parameters():
        stem, _, last = name.rpartition(".")
        module = stem.rpartition(".")[2]
        if last in targets and module == "experts":
            parts = parameter.chunk(2, dim=1) if last == "gate_up_proj" else [parameter]
            own = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
            deltas = [matrices(f"{stem}.{part}", *each.shape) for part, each in zip(own, parts, strict=True)]
            added[name] = torch.cat(deltas, dim=1)
        elif module in targets and last == "weight" and parameter.dim() == 2:
            added[stem] = matrices(stem, *parameter.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert added
    return added


def base(kind: str, model: Any, arch: str, folder: Path) -> Path:
    """The model as a file of GGUF or a folder of safetensors."""
    if kind == "gguf":
        write_gguf(folder / "m.gguf", model, arch)
        return folder / "m.gguf"
    model.save_pretrained(folder / "m")
    return folder / "m"


def check(model: Any, path: Path, adapter: Path, added: dict[str, torch.Tensor]) -> None:
    ours, prompt = PagedDecoder(path, max_lora_rank=RANK), prompt_of(1, 20)
    prompt = [token % model.config.vocab_size for token in prompt]
    ours.load(0, adapter)
    for slot, number in enumerate((0, -1)):
        ours.add(slot, prompt, adapter=number)
    changed, plain = ours.run((0, 0, 20), (1, 0, 20))
    expected = expected_logits(merged(model, added), prompt)
    assert (expected - expected_logits(model, prompt)).abs().max() > 0.1, (
        "an adapter that changes nothing shows nothing"
    )
    assert_close(plain, expected_logits(model, prompt))
    assert_close(changed, expected)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma2"])
def test_queries_and_keys_that_were_permuted_and_all_else_are_added_to_where_they_belong(
    arch: str, kind: str, tmp_path: Path
) -> None:
    model = tiny_model(arch).eval()
    added = save(tmp_path / "a.gguf", model, arch)
    check(model, base(kind, model, arch, tmp_path), tmp_path / "a.gguf", added)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_embeddings_and_the_head_are_added_to(kind: str, tmp_path: Path) -> None:
    model = tiny_model("llama").eval()
    added = save(tmp_path / "a.gguf", model, "llama", ("embed_tokens", "lm_head"))
    assert len(added) == 2
    check(model, base(kind, model, "llama", tmp_path), tmp_path / "a.gguf", added)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
def test_experts_that_are_stored_together_are_added_to_one_by_one(arch: str, kind: str, tmp_path: Path) -> None:
    model = made(arch)
    added = save(tmp_path / "a.gguf", model, arch, ("gate_up_proj", "down_proj", "gate", "o_proj"))
    assert any("experts" in name for name in added)
    check(model, base(kind, model, arch, tmp_path), tmp_path / "a.gguf", added)


def test_matrices_in_half_precision_and_without_a_factor_are_read(tmp_path: Path) -> None:
    model = tiny_model("llama").eval()
    path = base("safetensors", model, "llama", tmp_path)
    for kind in (Kind.F16, Kind.BF16):
        added = save(tmp_path / f"{kind.name}.gguf", model, "llama", kind=kind, alpha=0.0)
        check(model, path, tmp_path / f"{kind.name}.gguf", added)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"general.type": "model"}, "general.type is 'model'"),
        ({"adapter.type": "hypernet"}, "adapter.type 'hypernet'"),
    ],
)
def test_what_is_no_adapter_of_the_model_is_refused_in_a_line(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    model = tiny_model("llama").eval()
    path = base("safetensors", model, "llama", tmp_path)
    save(tmp_path / "a.gguf", model, "llama", ("q_proj",), **changes)
    with pytest.raises(CheckpointError, match=says):
        PagedDecoder(path, max_lora_rank=RANK).load(0, tmp_path / "a.gguf")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"cut short|GGUF"):
        PagedDecoder(path, max_lora_rank=RANK).load(0, tmp_path / "a.gguf")


def test_a_file_of_another_model_and_one_of_too_high_a_rank_are_refused(tmp_path: Path) -> None:
    model = tiny_model("llama").eval()
    path = base("safetensors", model, "llama", tmp_path)
    save(tmp_path / "a.gguf", tiny_model("gemma2"), "gemma2", ("q_proj",))
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q\.weight\.lora_. is .*, expected"):
        PagedDecoder(path, max_lora_rank=RANK).load(0, tmp_path / "a.gguf")
    save(tmp_path / "b.gguf", tiny_model("phi3"), "phi3", ("qkv_proj",))
    with pytest.raises(CheckpointError, match=r"it changes 'blk\.0\.attn_qkv\.weight', which this model has not"):
        PagedDecoder(path, max_lora_rank=RANK).load(0, tmp_path / "b.gguf")
    save(tmp_path / "b.gguf", model, "llama")
    with pytest.raises(CheckpointError, match="--max-lora-rank"):
        PagedDecoder(path, max_lora_rank=RANK - 1).load(0, tmp_path / "b.gguf")


OVER_FILES = {
    "deepseek-v3-dense": ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "down_proj"),
    "qwen3.5": ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj", "q_proj"),
    "nemotron-h": ("in_proj", "out_proj"),
}
"""By a model whose converter moves or splits what an adapter changes: that."""


@pytest.mark.parametrize("name", sorted(OVER_FILES))
def test_adapters_of_peft_are_added_to_what_files_of_gguf_have_in_another_order(name: str, tmp_path: Path) -> None:
    model = family(name, tmp_path)
    write_family(tmp_path / "m.gguf", model, FAMILIES[name])
    added = save_adapter(model, tmp_path / "a", targets=OVER_FILES[name], rank=2, size=0.15)
    check(model, tmp_path / "m.gguf", tmp_path / "a", added)
