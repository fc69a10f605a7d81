"""Tiny models of families whose code comes with their checkpoints, for :mod:`.tiny`.

They are models of transformers that compute the same, written under the names that published files have.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file

from stentor.tests.parity import (
    deepseek41,
    hub_alice,
    hub_k2_horizon,
    hub_latent,
    hub_llamas,
    hub_longcat,
    hub_moe,
    hub_step3,
    hub_step5,
    kimi3,
)
from stentor.tests.parity.families import hy4, step
from stentor.tests.parity.hub_form import Published, Tensors, Values, joined_qkv, old_rope

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_HEAD = 16
"""Dimensions of a head."""
_BLOCKS = ((2, 512), (0, 256), (1, 0), (0, 0), (4, 256))
"""Key-value heads and inner units of each layer of a Nemotron NAS, 0 where a layer lacks the part."""


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    llama3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
    llama3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    root = shape["num_hidden_layers"] ** 0.5
    factors = {"embedding_multiplier": 6.0, "residual_multiplier": 0.7 / root, "logits_scaling": 2.0}
    minicpm = {**shape, **factors, "attention_multiplier": _HEAD**-0.5}
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.05 * i for i in range(8)],
        "long_factor": [1.5 + 0.3 * i for i in range(8)],
        "original_max_position_embeddings": 128,
    }
    experts: Values = {
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "use_qk_norm": True,
    }
    experts |= {"routed_scaling_factor": 1.5, "partial_rotary_factor": 0.5, "head_dim": 32}
    return {
        "internlm2": lambda: transformers.LlamaConfig(**shape),
        "internlm2-biased": lambda: transformers.LlamaConfig(
            **shape, attention_bias=True, rope_parameters={"rope_type": "dynamic", "rope_theta": 5e4, "factor": 2.0}
        ),
        "exaone": lambda: transformers.LlamaConfig(**shape, rms_norm_eps=1e-5, rope_parameters=llama3),
        "minicpm": lambda: transformers.GraniteConfig(**minicpm, tie_word_embeddings=True),
        "minicpm4": lambda: transformers.GraniteConfig(**minicpm, rope_parameters=longrope),
        "ling2": lambda: transformers.Glm4MoeConfig(
            **shape, **experts, n_group=4, topk_group=2, n_shared_experts=2, rms_norm_eps=1e-6
        ),
        "mimo": lambda: transformers.Qwen2Config(**shape),
        "step3.5": lambda: step(shape),
        "hy-v4": lambda: hy4(shape),
        "hy-v4-shared": lambda: hy4(shape, hc_mult=2, indexer_types=["full", "shared", "shared"], hc_magnitude=1.5),
        "nemotron-nas": lambda: transformers.LlamaConfig(
            **{**shape, "num_hidden_layers": len(_BLOCKS), "num_key_value_heads": 4, "intermediate_size": 512},
            rms_norm_eps=1e-5,
            rope_parameters=llama3,
        ),
        **hub_llamas.configs(shape),
        **hub_moe.configs(shape),
        **hub_latent.configs(shape),
        **hub_longcat.configs(shape),
        **hub_k2_horizon.configs(shape),
        **hub_step3.configs(shape),
        **kimi3.configs(shape),
        **deepseek41.configs(shape),
        **hub_alice.configs(shape),
        **hub_step5.configs(shape),
    }


_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "bos_token_id", "eos_token_id", "rms_norm_eps"),
)


def publish(name: str, model: Any, folder: Path) -> None:
    """Writes the model's checkpoint as published files are, and changes the model where they leave something out."""
    PUBLISHED[name].prepared(model)
    model.save_pretrained(folder)
    save_file(stored(name, load_file(folder / "model.safetensors"), model.config), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(described(name, model.config)))


def stored(name: str, tensors: Tensors, config: Any) -> Tensors:
    """The tensors of a published file, of transformers'."""
    form, found = PUBLISHED[name], {}
    for told, tensor in form.stored(tensors, config).items():
        for old, new in form.names.items():
            told = told.replace(old, new)
        found[told] = tensor.contiguous()
    return found


def described(name: str, config: Any) -> Values:
    """The config.json of a published file."""
    form = PUBLISHED[name]
    sizes = config.get_text_config().to_dict()
    said = {field: sizes.get(field, ...) for field in _SIZES}
    said |= {"architectures": [form.architecture], **form.described(config)}
    return {field: value for field, value in said.items() if value is not ...}


def _by_group(tensors: Tensors, config: Any) -> Tensors:
    """Of each key's head its queries, the key and the value, as one matrix."""
    groups, found = config.num_key_value_heads, {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            parts = (tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv")
            rows = [part.view(groups, -1, *part.shape[1:]) for part in parts]
            found[name.replace("q_proj", "wqkv")] = torch.cat(rows, 1).flatten(0, 1)
        elif "k_proj" not in name and "v_proj" not in name:
            found[name] = tensor
    return found


def _internlm2(config: Any) -> Values:
    rope = old_rope(config)
    if rope["rope_scaling"] is not None:
        rope["rope_scaling"] = {"type": rope["rope_scaling"]["rope_type"], "factor": rope["rope_scaling"]["factor"]}
    biased = {} if config.attention_bias else {"bias": False}
    return {"model_type": "internlm2", "hidden_act": "silu", "tie_word_embeddings": False, **biased, **rope}


_INTERNLM2 = Published(
    "InternLM2ForCausalLM",
    {
        "self_attn.": "attention.",
        "o_proj": "wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "embed_tokens": "tok_embeddings",
        "lm_head": "output",
    },
    _internlm2,
    _by_group,
)


def _exaone(config: Any) -> Values:
    absent = dict.fromkeys(("rms_norm_eps", "num_hidden_layers"), ...)
    own = {"layer_norm_epsilon": config.rms_norm_eps, "num_layers": config.num_hidden_layers}
    own |= {"model_type": "exaone", "activation_function": "silu", "tie_word_embeddings": False}
    return {**absent, **own, **old_rope(config)}


def _minicpm(config: Any) -> Values:
    own = {"model_type": "minicpm", "scale_emb": config.embedding_multiplier, "hidden_act": "silu"}
    own |= {"scale_depth": config.residual_multiplier * config.num_hidden_layers**0.5}
    own |= {"dim_model_base": config.hidden_size / config.logits_scaling}
    if not config.tie_word_embeddings:
        own |= {"tie_word_embeddings": False, "sparse_config": {"dense_len": 64}}
    return {**own, **old_rope(config)}


def _ling2(config: Any) -> Values:
    own = {"model_type": "bailing_moe", "use_bias": False, "use_qkv_bias": False, "use_qk_norm": True}
    own |= {"score_function": "sigmoid", "moe_router_enable_expert_bias": True, "norm_head": False}
    own |= {"num_experts": config.n_routed_experts, "num_shared_experts": config.n_shared_experts}
    own |= {"tie_word_embeddings": False, "partial_rotary_factor": 0.5, "norm_topk_prob": True}
    own |= {"rope_theta": config.rope_parameters["rope_theta"], "rope_scaling": None}
    same = (
        *("head_dim", "first_k_dense_replace", "moe_intermediate_size", "num_experts_per_tok", "n_group"),
        *("topk_group", "routed_scaling_factor"),
    )
    return {**own, **{field: getattr(config, field) for field in same}}


def _joined(tensors: Tensors, config: Any) -> Tensors:
    """Queries, keys and values as one matrix, experts apart; a layer that predicts a further token beside them."""
    further = f"model.layers.{config.num_hidden_layers}.eh_proj.weight"
    return {**joined_qkv()(tensors, config), further: torch.ones(1, 2)}


def _mimo(config: Any) -> Values:
    said = {"model_type": "mimo", "attention_bias": True, "num_nextn_predict_layers": 1, "tie_word_embeddings": False}
    return {**said, "use_sliding_window": False, **old_rope(config)}


def _with_draft(tensors: Tensors, config: Any) -> Tensors:
    return {**tensors, "model.mtp_layers.0.input_proj.weight": torch.ones(1, 2)}


@torch.no_grad()
def _lacking(model: Any) -> None:
    """A part without outputs is none, equal heads of keys are one, and units without outputs are none."""
    for (kv_heads, inner), layer in zip(_BLOCKS, model.model.layers, strict=True):
        attention, network = layer.self_attn, layer.mlp
        network.down_proj.weight[:, inner:] = 0
        if not kv_heads:
            attention.o_proj.weight.zero_()
            continue
        for part in (attention.k_proj, attention.v_proj):
            own = part.weight.view(4, _HEAD, -1)[:kv_heads]
            part.weight.copy_(own.repeat_interleave(4 // kv_heads, 0).flatten(0, 1))


def _nemotron_nas(config: Any) -> Values:
    attends = [
        {"n_heads_in_group": 4 // kv_heads if kv_heads else None, "no_op": not kv_heads, "replace_with_linear": False}
        for kv_heads, _ in _BLOCKS
    ]
    # of 64 columns a multiplier of 6 is 256 units, as is one of 5.5, whose 234 units are filled up
    computes = [
        {"ffn_mult": {512: 12.0, 256: 5.5}.get(inner), "no_op": not inner, "replace_with_linear": False}
        for _, inner in _BLOCKS
    ]
    blocks = [{"attention": each, "ffn": other} for each, other in zip(attends, computes, strict=True)]
    own = {"model_type": "nemotron-nas", "block_configs": blocks, "attention_bias": False, "mlp_bias": False}
    own |= {"intermediate_size": None, "num_key_value_heads": None, "tie_word_embeddings": False}
    return {**own, **old_rope(config)}


def of_nemotron(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
    """What is left of a tensor of a Nemotron NAS; None if its layer lacks the part."""
    kv_heads, inner = _BLOCKS[int(name.split(".")[2])] if ".layers." in name else (4, 512)
    if "self_attn" in name or "input_layernorm" in name:
        if "k_proj" in name or "v_proj" in name:
            tensor = tensor.view(4, _HEAD, -1)[:: 4 // (kv_heads or 4)].flatten(0, 1)
        return tensor if kv_heads else None
    if ".mlp." in name:
        tensor = tensor[:, :inner] if "down_proj" in name else tensor[:inner]
    return tensor if inner else None


def parts_of_nemotron() -> tuple[list[int], list[int], list[int]]:
    """Heads of queries, of keys, and inner units of each layer of a Nemotron NAS."""
    kv_heads, inner = zip(*_BLOCKS, strict=True)
    return [4 if each else 0 for each in kv_heads], [*kv_heads], [*inner]


def _without_lacking(tensors: Tensors, config: Any) -> Tensors:
    found = {name: of_nemotron(name, tensor) for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _step(config: Any) -> Values:
    """With two layers behind the last that predict further tokens."""
    text, behind = config.text_config, 2
    full, window = (text.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    by_kind = {"full_attention": full, "sliding_attention": window}
    kinds = [*text.layer_types, *["sliding_attention"] * behind]
    scaling = {field: value for field, value in full.items() if field not in ("rope_theta", "partial_rotary_factor")}
    absent = dict.fromkeys(("num_key_value_heads", "bos_token_id"), ...)
    own = {"model_type": "step3p5", "num_attention_groups": text.num_key_value_heads, "layer_types": kinds}
    own |= {"rope_theta": [by_kind[kind]["rope_theta"] for kind in kinds], "rope_scaling": scaling}
    own |= {"partial_rotary_factors": [by_kind[kind]["partial_rotary_factor"] for kind in kinds]}
    own |= {"yarn_only_types": ["full_attention"], "use_rope_layers": [], "use_head_wise_attn_gate": True}
    own |= {"moe_num_experts": text.n_routed_experts, "moe_top_k": text.num_experts_per_tok}
    own |= {"moe_layers_enum": "1,2,3", "moe_router_activation": "sigmoid", "use_moe_router_bias": True}
    own |= {"num_nextn_predict_layers": behind, "zero_centered": True, "att_impl_type": "GQA"}
    own |= {"swiglu_limits": [0.0, 0.0, 7, 7, 0.0, 0.0], "swiglu_limits_shared": [1.5, 0.0, 1.5, 0.0, 0.0, 0.0]}
    other = {"attention_type": "sliding_attention", "num_attention_heads": text.num_sliding_attention_heads}
    own |= {"attention_other_setting": {**other, "num_attention_groups": text.num_key_value_heads, "head_dim": 16}}
    same = ("head_dim", "moe_intermediate_size", "share_expert_dim", "moe_router_scaling_factor", "sliding_window")
    return {**absent, **own, **{field: getattr(text, field) for field in same}}


def _text_alone(tensors: Tensors, config: Any) -> Tensors:
    """Without what sees, with layers that predict further tokens."""
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith(("vision_model", "vit_large"))}
    return {**found, **{f"model.layers.{layer}.eh_proj.weight": torch.ones(1, 2) for layer in (4, 5)}}


@torch.no_grad()
def _beyond_limits(model: Any) -> None:
    """With gates and ups of experts that pass their limit."""
    for layer in model.model.language_model.layers[2:]:
        layer.mlp.experts.gate_up_proj.mul_(6)
        layer.mlp.experts.down_proj.div_(20)


def _hy4(config: Any) -> Values:
    own = {"model_type": "hy_v4", "enable_ihc": True, "learnable_sink": True, "num_key_value_heads": 2}
    absent = ("architectures", "transformers_version", "head_dim", "qk_head_dim", "layer_types", "dtype")
    return {**{field: value for field, value in config.to_dict().items() if field not in absent}, **own}


@torch.no_grad()
def _strong(model: Any) -> None:
    """With weights of streams, sinks, and gates of experts beyond what random small numbers make."""
    for layer in model.model.layers:
        for each in (layer.attn_hc, layer.ffn_hc):
            each.scale.uniform_(0.5, 1.5)
        layer.self_attn.sinks.uniform_(-1.0, 3.0)
    for layer in model.model.layers[1:]:
        layer.mlp.experts.gate_up_proj.mul_(6)
        layer.mlp.experts.down_proj.div_(20)
    model.model.hc_head.hc_scale.fill_(0.7)


_HY4 = Published(
    "HYV4ForCausalLM",
    {
        "hc_pre.hc_attn_layer.": "hc_attn_layer.hc_pre.",
        "hc_pre.hc_mlp_layer.": "hc_mlp_layer.hc_pre.",
        "hc_pre.hc_head.": "hc_head.",
        "mlp.linear_gate": "mlp.gate_proj",
        "shared_experts.linear_gate": "shared_experts.gate_proj",
    },
    _hy4,
    lambda tensors, _: {**tensors, "model.mtp_layers.0.eh_proj.weight": torch.ones(1, 2)},
    _strong,
)
PUBLISHED: Mapping[str, Published] = {
    "internlm2": _INTERNLM2,
    "internlm2-biased": _INTERNLM2,
    "exaone": Published(
        "ExaoneForCausalLM",
        {
            "model.layers": "transformer.h",
            "self_attn.o_proj": "attn.attention.out_proj",
            "self_attn.": "attn.attention.",
            "mlp.gate_proj": "mlp.c_fc_0",
            "mlp.up_proj": "mlp.c_fc_1",
            "mlp.down_proj": "mlp.c_proj",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "model.embed_tokens": "transformer.wte",
            "model.norm": "transformer.ln_f",
        },
        _exaone,
    ),
    "hy-v4": _HY4,
    "hy-v4-shared": _HY4,
    "step3.5": Published("Step3p5ForCausalLM", {}, _step, _text_alone, _beyond_limits),
    "minicpm": Published("MiniCPMForCausalLM", {}, _minicpm),
    "minicpm4": Published("MiniCPMForCausalLM", {}, _minicpm),
    "ling2": Published(
        "BailingMoeV2ForCausalLM",
        {
            "self_attn.o_proj": "attention.dense",
            "self_attn.q_norm": "attention.query_layernorm",
            "self_attn.k_norm": "attention.key_layernorm",
            "self_attn.": "attention.",
            "e_score_correction_bias": "expert_bias",
            "embed_tokens": "word_embeddings",
        },
        _ling2,
        _joined,
    ),
    "mimo": Published("MiMoForCausalLM", {}, _mimo, _with_draft),
    "nemotron-nas": Published("DeciLMForCausalLM", {}, _nemotron_nas, _without_lacking, _lacking),
    **hub_llamas.PUBLISHED,
    **hub_moe.PUBLISHED,
    **hub_latent.PUBLISHED,
    **hub_longcat.PUBLISHED,
    **hub_k2_horizon.PUBLISHED,
    **hub_step3.PUBLISHED,
    **kimi3.PUBLISHED,
    **deepseek41.PUBLISHED,
    **hub_alice.PUBLISHED,
    **hub_step5.PUBLISHED,
}
"""By the name of a configuration."""
