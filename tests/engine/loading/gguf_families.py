"""GGUF files of families whose metadata is read as a config.json, written as llama.cpp's converter writes them.

Names of tensors are those that the gguf package maps transformers' names to; what the converter changes of them is
written here a second time, in its direction.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from stentor.tests.engine.loading.k_quants import quantize

Named = Iterator[tuple[str, torch.Tensor]]
Kinds = Mapping[str, gguf.GGMLQuantizationType]
"""By a part of the name of tensors."""

COMMON: Mapping[str, str] = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
"""Keys of all files, and the fields that they hold."""

_DELTA: Mapping[str, Any] = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": lambda config: config.linear_value_head_dim * config.linear_num_value_heads,
    "full_attention_interval": lambda config: 4,
    "rope.dimension_count": lambda config: config.head_dim // 4,
}
_QWEN_EXPERTS: Mapping[str, Any] = {
    "expert_count": "num_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
METADATA: Mapping[str, Mapping[str, Any]] = {
    "gpt-oss": {"attention.sliding_window": "sliding_window", "expert_feed_forward_length": "intermediate_size"},
    "qwen3next": {**_DELTA, **_QWEN_EXPERTS},
    "qwen35": {**_DELTA, "rope.dimension_sections": lambda config: [11, 11, 10, 0]},
    "qwen35moe": {**_DELTA, **_QWEN_EXPERTS, "rope.dimension_sections": lambda config: [11, 11, 10, 0]},
    "deepseek2": {
        "attention.head_count_kv": lambda config: 1,
        "leading_dense_block_count": "first_k_dense_replace",
        "attention.q_lora_rank": "q_lora_rank",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.key_length": lambda config: config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": "kv_lora_rank",
        "attention.key_length_mla": lambda config: config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": "v_head_dim",
        "rope.dimension_count": "qk_rope_head_dim",
        "expert_count": "n_routed_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "n_shared_experts",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": "norm_topk_prob",
    },
}
"""Keys of an architecture besides: of a field, or of what follows from several."""


def write_family(path: Path, model: Any, arch: str, kinds: Kinds | None = None, **more: Any) -> None:
    """Matrices are float32 but for those that ``kinds`` names; ``more`` is metadata, dots written as double
    underscores."""
    writer, config = gguf.GGUFWriter(path, arch), model.config
    writer.add_block_count(config.num_hidden_layers)
    for key, field in {**COMMON, **METADATA[arch]}.items():
        value = field(config) if callable(field) else getattr(config, field, None)
        if value is not None:
            _add(writer, f"{arch}.{key}", value)
    for key, value in {**_rope(config), **more}.items():
        _add(writer, f"{arch}.{key.replace('__', '.')}", value)
    writer.add_token_list([f"token{n}" for n in range(config.vocab_size)])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, tensor in _converted(model, arch):
        stored = names.get_name(name, (".weight", ".bias"))
        stored = stored or name  # what the converter names itself
        values = tensor.detach().float().contiguous().numpy()
        kind = next((kind for part, kind in (kinds or {}).items() if part in stored), None)
        if kind is None or values.ndim < 2:
            writer.add_tensor(stored, values)
        else:
            rows = quantize(values.reshape(-1, values.shape[-1]), kind)
            writer.add_tensor(stored, rows.reshape(*values.shape[:-1], -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


def _rope(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    found: dict[str, Any] = {"rope.freq_base": float(rope["rope_theta"])}
    if rope.get("rope_type") == "yarn":
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(rope.get("beta_fast", 32.0)),
            "rope.scaling.yarn_beta_slow": float(rope.get("beta_slow", 1.0)),
        }
        if "mscale_all_dim" in rope:
            found["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    return found


Convert = Callable[[str, torch.Tensor, Any], Named]


def _converted(model: Any, arch: str) -> Named:
    """Under transformers' names, gate and up of experts apart."""
    convert = CONVERT.get(arch, as_it_is)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        stem, _, last = name.rpartition(".")
        if name.endswith(".e_score_correction_bias"):
            yield f"{stem}.e_score_correction.bias", tensor
        elif last == "gate_up_proj" and arch != "gpt-oss":
            gate, up = tensor.chunk(2, dim=1)
            yield from ((f"{stem}.gate_proj.weight", gate), (f"{stem}.up_proj.weight", up))
        elif last == "down_proj" and arch != "gpt-oss":
            yield f"{name}.weight", tensor
        else:
            yield from convert(name, tensor, model.config)


def as_it_is(name: str, tensor: torch.Tensor, config: Any) -> Named:
    yield name, tensor


def gpt_oss(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Gate and up take turns, and matrices of experts are [inputs, outputs]."""
    stem, _, last = name.rpartition(".")
    ending = ".bias" if last.endswith("_bias") else ".weight"
    if last == "sinks":
        yield f"{name}.weight", tensor
    elif last.startswith("gate_up_proj"):
        rows = tensor if ending == ".bias" else tensor.transpose(1, 2)
        yield f"{stem}.gate_proj{ending}", rows[:, ::2]
        yield f"{stem}.up_proj{ending}", rows[:, 1::2]
    elif last.startswith("down_proj"):
        yield f"{stem}.down_proj{ending}", tensor if ending == ".bias" else tensor.transpose(1, 2)
    else:
        yield name, tensor


def qwen_next(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Projections of the delta rule by part, but for the two numbers of a head."""
    if not name.endswith("in_proj_qkvz.weight"):
        yield from _delta(name, tensor)
        return
    keys, each = config.linear_key_head_dim, config.linear_num_value_heads // config.linear_num_key_heads
    values = each * config.linear_value_head_dim
    by_head = tensor.view(config.linear_num_key_heads, -1, tensor.shape[1])
    *qkv, z = by_head.split([keys, keys, values, values], dim=1)
    block = f"blk.{name.split('.')[2]}"
    yield f"{block}.attn_qkv.weight", torch.cat([part.flatten(0, 1) for part in qkv])
    yield f"{block}.attn_gate.weight", z.flatten(0, 1)


def qwen35(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """The first value head of every key head, then the second of each."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads

    def tiled(rows: torch.Tensor) -> torch.Tensor:
        return rows.view(keys, values // keys, -1, *rows.shape[1:]).transpose(0, 1).flatten(0, 2)

    first = 2 * keys * config.linear_key_head_dim
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        tensor = torch.cat((tensor[:first], tiled(tensor[first:])))
    elif name.endswith(("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
        tensor = tiled(tensor)
    elif name.endswith("linear_attn.out_proj.weight"):
        tensor = tiled(tensor.T).T
    yield from _delta(name, tensor)


def _delta(name: str, tensor: torch.Tensor) -> Named:
    if name.endswith(".A_log"):
        tensor = -tensor.exp()
    elif name.endswith(".dt_bias"):
        name = name.replace(".dt_bias", ".dt_proj.bias")
    elif name.endswith("conv1d.weight"):
        tensor = tensor.squeeze(1)
    elif name.endswith("shared_expert_gate.weight"):
        tensor = tensor.flatten()
    elif name.endswith("norm.weight") and "linear_attn" not in name:
        tensor = tensor + 1
    yield name, tensor


def deepseek(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """What makes keys and what makes values apart, the first turned."""
    if not name.endswith("kv_b_proj.weight"):
        yield name, tensor
        return
    by_head = tensor.view(config.num_attention_heads, -1, tensor.shape[1])
    keys, values = by_head.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
    yield name.replace("kv_b", "k_b"), keys.transpose(1, 2)
    yield name.replace("kv_b", "v_b"), values


CONVERT: Mapping[str, Convert] = {
    "gpt-oss": gpt_oss,
    "qwen3next": qwen_next,
    "qwen35": qwen35,
    "qwen35moe": qwen35,
    "deepseek2": deepseek,
}
