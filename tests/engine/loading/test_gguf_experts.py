"""GGUF files of mixtures of experts: each kind of matrix of all experts is one tensor."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers as untyped_transformers

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.mlp import MoESpec
from stentor.tests.engine.loading.tiny_gguf import write_gguf
from stentor.tests.engine.quantization import checkpoints as make
from stentor.tests.parity.paged import PagedDecoder

transformers: Any = untyped_transformers
SIZES = {
    "vocab_size": make.VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 2.0**-20,
    "num_experts_per_tok": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Mixtral", {"num_local_experts": 4}),
    "qwen3moe": ("Qwen3Moe", {"num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16, "norm_topk_prob": True}),
    "olmoe": ("Olmoe", {"num_experts": 4}),
}


def made(arch: str, **more: Any) -> Any:
    """A random model; its configuration names the number of its experts as most do."""
    torch.manual_seed(3)
    family, options = MODELS[arch]
    config = getattr(transformers, f"{family}Config")(**SIZES | options | more)
    config.architectures = [f"{family}ForCausalLM"]
    config.num_local_experts = 4
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.1)
    return model


def logits_of(ours: PagedDecoder) -> torch.Tensor:
    ours.add(0, make.TOKENS)
    (found,) = ours.run((0, 0, len(make.TOKENS)))
    return found


@pytest.mark.parametrize("packed", [None, False])
@pytest.mark.parametrize("arch", MODELS)
def test_experts_of_a_gguf_file_give_the_logits_of_the_model(arch: str, packed: bool | None, tmp_path: Path) -> None:
    model = made(arch)
    path = tmp_path / "m.gguf"
    write_gguf(path, model, arch)
    found, wanted = open_checkpoint(path).decoder, model_spec_from_hf(model.config.to_dict())
    ours, theirs = found.layers[0].mlp, wanted.layers[0].mlp
    assert isinstance(ours, MoESpec)
    assert isinstance(theirs, MoESpec)
    assert (found.architecture, ours.router, ours.inner) == (wanted.architecture, theirs.router, theirs.inner)
    expected = make.logits_of(model)
    torch.testing.assert_close(logits_of(PagedDecoder(path, packed=packed)), expected, rtol=1e-4, atol=2e-4)


@pytest.mark.proof(each="kind")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q5_K", "IQ4_NL", "MXFP4"])
def test_quantised_experts_are_packed_in_bfloat16_and_expanded_in_float32(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    model = made("qwen3moe", hidden_size=256, moe_intermediate_size=256, head_dim=64)
    write_gguf(path, model, "qwen3moe", gguf.GGMLQuantizationType[kind])
    plain = PagedDecoder(path, packed=False)
    why = "since the kernels for it run on CUDA, not on cpu; there are no CPU kernels (6 projections)"
    assert experts_note(plain) == f"weights of experts in {kind}: expanded to float32, {why}"
    expected = logits_of(plain)
    packed = PagedDecoder(path, dtype=torch.bfloat16)
    assert experts_note(packed).startswith(f"weights of experts in {kind}: packed for this CPU")
    error = (logits_of(packed) - expected).abs() / expected.std()
    assert error.mean() < 0.05


@pytest.mark.proof(each="kind")
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q5_0", "Q5_1", "Q5_K", "IQ4_NL", "MXFP4"])
def test_experts_that_stay_in_their_blocks_give_what_expanded_ones_give(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    model = made("qwen3moe", hidden_size=256, moe_intermediate_size=256, head_dim=64)
    write_gguf(path, model, "qwen3moe", gguf.GGMLQuantizationType[kind])
    coded = PagedDecoder(path, packed=False, backend="kernels")
    assert experts_note(coded) == f"weights of experts in {kind}: multiplied as they are stored (6 projections)"
    expanded = PagedDecoder(path, packed=False, backend="expanded")
    torch.testing.assert_close(logits_of(coded), logits_of(expanded), rtol=1e-4, atol=2e-4)
    assert coded.model.weights.total_bytes < expanded.model.weights.total_bytes / 2


def experts_note(ours: PagedDecoder) -> str:
    (note,) = (line for line in ours.model.weights.note_lines() if "experts" in line)
    return note
