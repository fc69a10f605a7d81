"""GGUF files of families whose metadata is read as a config.json, written as llama.cpp's converter writes them.

Names of tensors are those that the gguf package maps transformers' names to; what the converter changes of them is
written here a second time, in its direction.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from stentor.tests.engine.loading.gguf_metadata import COMMON, METADATA, of_full
from stentor.tests.engine.loading.k_quants import quantize
from stentor.tests.parity import hub, hub_loops
from stentor.tests.parity.hub_loops import LOOPS

from .gguf_writing import add_value, finish, rope_values

Named = Iterator[tuple[str, torch.Tensor]]
Kinds = Mapping[str, gguf.GGMLQuantizationType]
"""By a part of the name of tensors."""
_NAMED_AS = {"nanbeige": "llama", "ouro": "llama"}
"""Architectures that the gguf package does not know, and others with their names of tensors."""
_SANDWICH = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_family(
    path: Path,
    model: Any,
    arch: str,
    kinds: Kinds | None = None,
    metadata: Mapping[str, Any] | None = None,
    convert: "Convert | None" = None,
    beside: Mapping[str, torch.Tensor] | None = None,
    vocabulary: Callable[[gguf.GGUFWriter], None] | None = None,
    behind: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Matrices are float32 but for those that ``kinds`` names. ``metadata`` is what is said otherwise, None for what is
    not said, ``convert`` another converter's way, ``beside`` further tensors, ``vocabulary`` writes one that is no
    made-up one, ``behind`` is a head for multi-token prediction behind the layers."""
    writer, config = gguf.GGUFWriter(path, arch), model.config.get_text_config()
    loops = LOOPS if arch in _NAMED_AS else 1
    writer.add_block_count(config.num_hidden_layers // loops + (metadata or {}).get("nextn_predict_layers", 0))
    said = {
        key: field(config) if callable(field) else getattr(config, field, None)
        for key, field in {**COMMON, **METADATA[arch]}.items()
    }
    for key, value in {**said, **rope_values(config), **(metadata or {})}.items():
        add_value(writer, f"{arch}.{key}", value)
    if vocabulary is not None:
        vocabulary(writer)
    else:
        writer.add_token_list([f"token{n}" for n in range(config.vocab_size)])
        writer.add_bos_token_id(config.bos_token_id)
        writer.add_eos_token_id(config.eos_token_id)
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == _NAMED_AS.get(arch, arch))
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers + bool(behind))
    converted = _converted(model, arch, convert or CONVERT.get(arch, as_it_is), behind or {})
    for name, tensor in chain(converted, (beside or {}).items()):
        stored = name if name.startswith(("blk.", "rope_f")) else names.get_name(name, (".weight", ".bias"))
        if (of_head := _NEXTN.get(name.removeprefix(f"model.layers.{config.num_hidden_layers}."))) is not None:
            stored = f"blk.{config.num_hidden_layers}.nextn.{of_head}.weight"
        assert stored is not None, name
        values = tensor.detach().float().contiguous().numpy()
        kind = next((kind for part, kind in (kinds or {}).items() if part in stored), None)
        if kind is None or values.ndim < 2:
            writer.add_tensor(stored, values)
        else:
            rows = quantize(values.reshape(-1, values.shape[-1]), kind)
            writer.add_tensor(stored, rows.reshape(*values.shape[:-1], -1), raw_dtype=kind)
    finish(writer)


Convert = Callable[[str, torch.Tensor, Any], Named]


_NEXTN: Mapping[str, str] = {
    "enorm.weight": "enorm",
    "hnorm.weight": "hnorm",
    "eh_proj.weight": "eh_proj",
    "shared_head.norm.weight": "shared_head_norm",
    "embed_tokens.weight": "embed_tokens",
}


_JOINED = ("bailingmoe2", "chatglm", "qwen")
"""Families whose queries, keys and values are stored as one."""


def _joined(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in weights.items():
        if ".q_proj." in name:
            parts = [weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            found[f"blk.{name.split('.')[2]}.attn_qkv.{name.rpartition('.')[2]}"] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            found[name] = tensor
    return found


_STREAMS = ("altup_projections", "altup_unembed_projections")
"""Gemma 3n's."""


def _converted(model: Any, arch: str, convert: Convert, behind: Mapping[str, torch.Tensor]) -> Named:
    """Under transformers' names, or under GGUF's where the converter names it itself."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        slow = model.model.rotary_emb.inv_freq
        yield "rope_freqs.weight", rope["rope_theta"] ** (-torch.arange(len(slow)) / len(slow)) / slow
    for stem in _STREAMS:
        if (matrices := getattr(getattr(model, "model", None), stem, None)) is not None:
            yield f"model.{stem}.weight", torch.stack([each.weight for each in matrices])
    weights = {name.replace("model.language_model.", "model."): each for name, each in model.state_dict().items()}
    for name, tensor in chain((_joined(weights) if arch in _JOINED else weights).items(), behind.items()):
        if name == "lm_head.weight" and model.config.get_text_config().tie_word_embeddings:
            continue
        stem, _, last = name.rpartition(".")
        experts = stem.endswith(".experts") and last in ("gate_up_proj", "up_proj", "down_proj")
        if experts and arch not in ("gpt-oss", "llama4", "gemma4", "mistral4"):
            block = f"blk.{stem.split('.')[2]}"
            if last == "gate_up_proj":
                gate, up = tensor.chunk(2, dim=1)
                yield from ((f"{block}.ffn_gate_exps.weight", gate), (f"{block}.ffn_up_exps.weight", up))
            else:
                yield f"{block}.ffn_{last.removesuffix('_proj')}_exps.weight", tensor
        elif last in ("e_score_correction_bias", "expert_bias"):
            yield f"blk.{stem.split('.')[2]}.exp_probs_b.bias", tensor
        else:
            yield from convert(name, tensor, model.config.get_text_config())


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
        yield from delta(name, tensor, config)
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
    yield from delta(name, tensor, config)


def delta(name: str, tensor: torch.Tensor, config: Any) -> Named:
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


def mistral4(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Gate and up of experts are one tensor."""
    stem, _, last = name.rpartition(".")
    if stem.endswith(".experts"):
        yield f"blk.{name.split('.')[2]}.ffn_{last.removesuffix('_proj')}_exps.weight", tensor
    else:
        yield from deepseek(name, tensor, config)


def kimi_linear(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Under the names that its makers publish, of which there are no others for its three convolutions."""
    block, last = f"blk.{name.split('.')[2]}" if ".layers." in name else "", name.rpartition(".")[2]
    if name.endswith(".conv1d.weight"):
        for part, rows in zip("qkv", tensor.chunk(3), strict=True):
            yield f"{block}.ssm_conv1d_{part}.weight", rows.view(1, -1, 1, rows.shape[-1])
    elif last == "A_log":
        yield f"{block}.ssm_a", -tensor.exp()
    elif last == "dt_bias":
        yield f"{block}.ssm_dt.bias", tensor
    else:
        yield from deepseek(name.replace(".forget_gate", ""), tensor, config)


def _permuted(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Rows of queries and keys as interleaved pairs."""
    for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
        if f"self_attn.{part}." in name:
            return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    return tensor


def granite(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """The network beside experts, or in their place, in halves."""
    block, experts = f"blk.{name.split('.')[2]}" if ".layers." in name else "", getattr(config, "num_local_experts", 0)
    ending = "_shexp" if experts else ""
    if name.endswith("shared_mlp.input_linear.weight"):
        gate, up = tensor.chunk(2)
        yield from ((f"{block}.ffn_gate{ending}.weight", gate), (f"{block}.ffn_up{ending}.weight", up))
    elif name.endswith("shared_mlp.output_linear.weight"):
        yield f"{block}.ffn_down{ending}.weight", tensor
    elif name.endswith("block_sparse_moe.router.weight"):
        yield f"{block}.ffn_gate_inp.weight", tensor
    else:
        yield from mamba(name, _permuted(name, tensor, config), config)


def mamba(name: str, tensor: torch.Tensor, config: Any) -> Named:
    groups: Any = getattr(config, "mamba_n_groups", None) or getattr(config, "n_groups", 1)
    if name.endswith(".A_log"):
        tensor = -tensor.exp()[:, None]
    elif name.endswith((".mamba.D", ".mixer.D")):
        tensor = tensor[:, None]
    elif name.endswith(".dt_bias"):
        yield f"blk.{name.split('.')[2]}.ssm_dt.bias", tensor
        return
    elif name.endswith("conv1d.weight"):
        tensor = tensor.squeeze(1)
    elif name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
        tensor = tensor.view(groups, -1)
    yield name, tensor


def selective(name: str, tensor: torch.Tensor, config: Any) -> Named:
    if name.endswith(".A_log"):
        tensor = -tensor.exp()
    elif name.endswith("conv1d.weight"):
        tensor = tensor.squeeze(1)
    yield name, tensor


def nemotron(name: str, tensor: torch.Tensor, config: Any) -> Named:
    yield from mamba(name.replace("model.", "backbone.", 1), tensor, config)


def falcon(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Every factor is multiplied into a matrix."""
    taken = config.attention_in_multiplier
    factors = {
        "gate_proj.weight": config.mlp_multipliers[0],
        "mlp.down_proj.weight": config.mlp_multipliers[1],
        "feed_forward.down_proj.weight": config.mlp_multipliers[1],
        "q_proj.weight": taken,
        "k_proj.weight": taken * config.key_multiplier,
        "v_proj.weight": taken,
        "o_proj.weight": config.attention_out_multiplier,
        "mamba.out_proj.weight": config.ssm_out_multiplier,
        "lm_head.weight": config.lm_head_multiplier,
        "embed_tokens.weight": config.embedding_multiplier,
    }
    tensor = tensor * next((factor for part, factor in factors.items() if name.endswith(part)), 1.0)
    if name.endswith("mamba.in_proj.weight"):
        inner, shared = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
        counts = torch.tensor([inner, inner, shared, shared, config.mamba_n_heads])
        rows = torch.tensor(config.ssm_multipliers).repeat_interleave(counts)
        tensor = tensor * (config.ssm_in_multiplier * rows)[:, None]
    yield from mamba(name, tensor, config)


def lfm2(name: str, tensor: torch.Tensor, config: Any) -> Named:
    if name.endswith("conv.conv.weight"):
        tensor = tensor.squeeze(1)
    yield name, tensor


def llama4(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Matrices of experts are [inputs, outputs]."""
    stem, _, last = name.rpartition(".")
    block = f"blk.{name.split('.')[2]}" if ".layers." in name else ""
    if stem.endswith(".experts") and last == "gate_up_proj":
        gate, up = tensor.transpose(1, 2).chunk(2, dim=1)
        yield from ((f"{block}.ffn_gate_exps.weight", gate), (f"{block}.ffn_up_exps.weight", up))
    elif stem.endswith(".experts"):
        yield f"{block}.ffn_down_exps.weight", tensor.transpose(1, 2)
    else:
        yield name, tensor


def gemma3n(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """A vector has the ending of a weight; matrices that make streams stand together."""
    if not name.startswith(tuple(f"model.{stem}." for stem in _STREAMS)):
        yield f"{name}.weight" if name.endswith("_scale") else name, tensor


def gemma4(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Divisors stop what does not rotate of layers that see all; gate and up of experts are one tensor."""
    block, last = f"blk.{name.split('.')[2]}" if ".layers." in name else "", name.rpartition(".")[2]
    named = {
        "layer_scalar": "layer_output_scale.weight",
        "scale": "ffn_gate_inp.scale",
        "per_expert_scale": "ffn_down_exps.scale",
        "gate_up_proj": "ffn_gate_up_exps.weight",
        "down_proj": "ffn_down_exps.weight",
    }
    if name == "model.norm.weight":
        pairs = of_full(config, "head_dim") // 2
        turning = int(pairs * config.rope_parameters["full_attention"]["partial_rotary_factor"])
        yield "rope_freqs.weight", torch.tensor([1.0] * turning + [1e30] * (pairs - turning))
    yield (f"{block}.{named[last]}" if block and last in named else name), tensor


def llama(name: str, tensor: torch.Tensor, config: Any) -> Named:
    yield name, _permuted(name, tensor, config)


def nemotron_nas(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Without what its layers lack."""
    left = hub.of_nemotron(name, tensor)
    if left is not None and ".k_proj." in name:
        heads = len(left) * config.num_attention_heads // config.hidden_size
        yield name, left.view(heads, 2, -1, left.shape[1]).transpose(1, 2).reshape(left.shape)
    elif left is not None:
        yield name, _permuted(name, left, config)


def looped(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Without the layers of later loops."""
    if hub_loops.once({name: tensor}, config):
        yield name, _permuted(name, tensor, config)


def ouro(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Norms multiply by their weight, not by one more."""
    for full, stored in looped(name, tensor, config):
        of_layer = f"blk.{full.split('.')[2]}" if ".layers." in full else ""
        stem = full.removesuffix(".weight").rpartition(".")[2]
        yield (
            f"{of_layer}.{_SANDWICH[stem]}.weight" if of_layer and stem in _SANDWICH else full,
            stored + 1 if "norm" in full else stored,
        )


def minicpm(name: str, tensor: torch.Tensor, config: Any) -> Named:
    yield from phimoe(name, _permuted(name, tensor, config), config)


def half_shared(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Shared experts without their gate, which is a half."""
    if "shared_expert_gate" not in name:
        half = tensor / 2 if "shared_expert.down_proj" in name else tensor
        yield name.replace("shared_expert.", "shared_experts."), _permuted(name, half, config)


def shared_gate(name: str, tensor: torch.Tensor, config: Any) -> Named:
    yield name, tensor.flatten() if name.endswith("shared_expert_gate.weight") else tensor


def gpt2(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Matrices of layers are [inputs, outputs] in transformers' files, and [outputs, inputs] here."""
    turned = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
    yield name, tensor.T if turned else tensor


def mimo2(name: str, tensor: torch.Tensor, config: Any) -> Named:
    yield name.replace("sinks", "attention_sink_bias.weight"), tensor


def step(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Without what sees. What stretches the rotation of full layers is filled up to that of others."""
    if name == "model.norm.weight":
        rope = config.rope_parameters["full_attention"]
        slow, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"), layer_type="full_attention")
        divisors = rope["rope_theta"] ** (-torch.arange(len(slow)) / len(slow)) / slow
        yield "rope_freqs.weight", torch.cat([divisors, torch.ones(config.head_dim // 2 - len(slow))])
    if not name.startswith(("model.vision_model.", "model.multi_modal_projector.")):
        yield name, tensor + 1 if name.endswith("norm.weight") else tensor


def phimoe(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """What stretches rotation lies beside the weights."""
    if name == "model.norm.weight" and config.rope_parameters["rope_type"] == "longrope":
        for each in ("short", "long"):
            yield f"rope_factors_{each}.weight", torch.tensor(config.rope_parameters[f"{each}_factor"])
    yield name, tensor


def by_group(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """All queries, all keys, all values, where transformers' files have those of a key's head side by side."""
    if ".query_key_value." in name:
        heads = config.num_attention_heads
        groups = heads
        if config.model_type == "falcon":
            groups = config.num_kv_heads if config.new_decoder_architecture else 1
        rows = tensor.view(groups, heads // groups + 2, config.hidden_size // heads, *tensor.shape[1:])
        parts = rows.split([heads // groups, 1, 1], dim=1)
        tensor = torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])
    yield name.removeprefix("transformer.") if config.model_type == "bloom" else name, tensor


def dbrx(name: str, tensor: torch.Tensor, config: Any) -> Named:
    """Rows of all experts follow one another, and the second product's matrices are [inputs, outputs]."""
    stem, _, last = name.rpartition(".")
    if not stem.endswith(".experts.mlp"):
        yield name, tensor
        return
    rows = tensor.view(config.ffn_config.moe_num_experts, -1, tensor.shape[1])
    stored = {"w1": "ffn_gate_exps", "v1": "ffn_up_exps", "w2": "ffn_down_exps"}[last]
    yield f"blk.{name.split('.')[2]}.{stored}.weight", rows.transpose(1, 2) if last == "w2" else rows


CONVERT: Mapping[str, Convert] = {
    "dbrx": dbrx,
    "gpt-oss": gpt_oss,
    "qwen3next": qwen_next,
    "qwen35": qwen35,
    "qwen35moe": qwen35,
    "deepseek2": deepseek,
    "kimi-linear": kimi_linear,
    "granitemoe": granite,
    "granitehybrid": granite,
    "falcon-h1": falcon,
    "mamba2": mamba,
    "mamba": selective,
    "jamba": selective,
    "nemotron_h": nemotron,
    "nemotron_h_moe": nemotron,
    "lfm2": lfm2,
    "lfm2moe": lfm2,
    "llama4": llama4,
    "qwen2moe": shared_gate,
    "deepseek": half_shared,
    "bailingmoe": half_shared,
    "gemma4": gemma4,
    "gemma3n": gemma3n,
    "mistral3": llama,
    "mistral4": mistral4,
    "internlm2": llama,
    "minicpm": minicpm,
    "deci": nemotron_nas,
    "baichuan": llama,
    "xverse": llama,
    "nanbeige": looped,
    "ouro": ouro,
    "olmo": llama,
    "mimo2": mimo2,
    "step35": step,
    "phimoe": phimoe,
    "gpt2": gpt2,
    "gptneox": by_group,
    "falcon": by_group,
    "bloom": by_group,
}
