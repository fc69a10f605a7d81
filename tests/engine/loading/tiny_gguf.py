"""Tiny GGUF files, written with the gguf package as llama.cpp's converter would write them."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from stentor.tests.engine.loading.k_quants import quantize

ARCHITECTURES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM"),
    "granite": ("GraniteConfig", "GraniteForCausalLM"),
    "gemma": ("GemmaConfig", "GemmaForCausalLM"),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM"),
    "exaone4": ("Exaone4Config", "Exaone4ForCausalLM"),
    "seed_oss": ("SeedOssConfig", "SeedOssForCausalLM"),
    "glm4": ("Glm4Config", "Glm4ForCausalLM"),
    "ernie4_5": ("Ernie4_5Config", "Ernie4_5ForCausalLM"),
    "command-r": ("CohereConfig", "CohereForCausalLM"),
    "cohere2": ("Cohere2Config", "Cohere2ForCausalLM"),
    "hunyuan-dense": ("HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM"),
    "arcee": ("ArceeConfig", "ArceeForCausalLM"),
    "nemotron": ("NemotronConfig", "NemotronForCausalLM"),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM"),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM"),
    "phi2": ("PhiConfig", "PhiForCausalLM"),
}
"""GGUF's name → transformers' classes."""

EPS = 2.0**-20
"""Exact in the file's float32."""

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": EPS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

OPTIONS: dict[str, dict[str, Any]] = {
    "smollm3": {"num_hidden_layers": 5},
    "gemma": {"head_dim": 16},
    "exaone4": {
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "tie_word_embeddings": True,
    },
    "seed_oss": {"head_dim": 16},
    "glm4": {"head_dim": 16},
    "ernie4_5": {"head_dim": 16},
    "command-r": {"layer_norm_eps": EPS, "logit_scale": 0.25},
    "cohere2": {"layer_norm_eps": EPS, "logit_scale": 0.25, "sliding_window": 16, "num_hidden_layers": 5},
    "hunyuan-dense": {"head_dim": 16},
    "nemotron": {"norm_eps": EPS},
    "starcoder2": {"norm_epsilon": EPS},
    "stablelm": {"layer_norm_eps": EPS, "use_parallel_residual": True, "use_qkv_bias": True},
    "phi2": {"layer_norm_eps": EPS},
    "llama": {"attention_bias": True},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "phi3": {
        "original_max_position_embeddings": 32,
        "sliding_window": 16,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "short_factor": [1.0, 1.5],
            "long_factor": [2.0, 4.0],
        },
    },
    "gemma2": {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16},
    "gemma3": {"head_dim": 16, "sliding_window": 16, "num_hidden_layers": 7, "query_pre_attn_scalar": 16},
    "granite": {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.25,
        "attention_multiplier": 0.0625,
        "logits_scaling": 8.0,
    },
}


def tiny_model(arch: str) -> PreTrainedModel:
    """A random model whose every weight differs from its initial value, norms and biases included."""
    config_class, model_class = ARCHITECTURES[arch]
    config = getattr(transformers, config_class)(**{**SIZES, **OPTIONS.get(arch, {})})
    config.architectures = [model_class]
    model: PreTrainedModel = getattr(transformers, model_class)(config)
    generator = torch.Generator().manual_seed(len(arch))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    arch: str,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: dict[str, Any] | None = None,
    others: dict[str, gguf.GGMLQuantizationType] | None = None,
    split: int = 0,
) -> None:
    """Matrices are stored as ``quantization``, those that ``others`` lists by a part of their name otherwise;
    ``extra`` are further tensors by name, or uint32 metadata. ``split``: tensors of a file, if there are several."""
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    write_metadata(writer, model.config, arch)
    for name, value in (extra or {}).items():
        if isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_tensor(name, np.asarray(value, np.float32))
    names = gguf.get_tensor_name_map(
        next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), model.config.num_hidden_layers
    )
    tied = model.config.tie_word_embeddings
    for name, tensor in experts_apart(model.state_dict()):
        if tied and name == "lm_head.weight":
            continue
        values = as_converted(tensor.float().numpy(), name, model.config, arch)
        stored = names.get_name(name, (".weight", ".bias"))
        assert stored is not None, name
        kind = next((kind for part, kind in (others or {}).items() if part in name), quantization)
        if values.ndim > 1 and kind != gguf.GGMLQuantizationType.F32 and not stored.endswith("gate_inp.weight"):
            rows = quantize(values.reshape(-1, values.shape[-1]), kind)
            writer.add_tensor(stored, rows.reshape(*values.shape[:-1], -1), raw_dtype=kind)
        else:
            writer.add_tensor(stored, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def experts_apart(weights: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Gate and up of experts as two tensors, under names of weights."""
    for name, tensor in weights.items():
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            gate, up = tensor.chunk(2, dim=1)
            yield from ((f"{stem}.gate_proj.weight", gate), (f"{stem}.up_proj.weight", up))
        else:
            yield f"{name}.weight" if stem.endswith(".experts") else name, tensor


def as_converted(values: np.ndarray, name: str, config: PreTrainedConfig, arch: str) -> np.ndarray:
    """What the converter makes of a tensor of transformers' name."""
    if arch in ("llama", "granite", "smollm3", "arcee"):
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if f".{part}." in name:
                halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
                return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    if (arch.startswith("gemma") or arch == "nemotron") and name.endswith("norm.weight"):
        return values + 1
    return values


def write_metadata(writer: gguf.GGUFWriter, config: PreTrainedConfig, arch: str, *, vocabulary: bool = True) -> None:
    """What a file says beside its tensors; ``vocabulary``: with made-up tokens."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if arch in ("command-r", "cohere2", "nemotron", "starcoder2", "stablelm", "phi2"):
        writer.add_layer_norm_eps(EPS)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if vocabulary:
        writer.add_token_list([f"token{n}" for n in range(config.vocab_size)])
        writer.add_bos_token_id(config.bos_token_id)
        writer.add_eos_token_id(config.eos_token_id)
    if (experts := getattr(config, "num_local_experts", None)) is not None:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if arch == "llama":
        writer.add_rope_dimension_count(head_dim)
    if arch in ("glm4", "nemotron", "stablelm", "phi2"):
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    if head_dim != config.hidden_size // heads:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch in ("gemma2", "gemma3", "phi3", "cohere2", "exaone4"):
        writer.add_sliding_window(config.sliding_window)
    if arch == "exaone4":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if arch in ("command-r", "cohere2"):
        writer.add_logit_scale(config.logit_scale)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch == "phi3":
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
    if arch == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def text(value: str | bytes) -> bytes:
    """A GGUF string."""
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def header(
    keys: list[bytes], tensors: list[bytes], *, magic: bytes = b"GGUF", version: int = 3, count: int | None = None
) -> bytes:
    """A header out of raw entries; ``count`` lies about the number of tensors."""
    return b"".join(
        (
            magic,
            struct.pack("<IQQ", version, len(tensors) if count is None else count, len(keys)),
            *keys,
            *tensors,
        )
    )


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
