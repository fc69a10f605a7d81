"""A tiny Step 3, for :mod:`.hub`: a Qwen2-MoE whose queries are made of a latent."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers as untyped_transformers

from stentor.tests.parity.hub_form import Published, Tensors, Values, same, theta
from stentor.tests.parity.hub_moe import half_shared, ungated

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
_LATENT = 24
_NAMES = {"q_proj.0": "q_proj", "q_proj.1": "inter_norm", "q_proj.2": "wq"}


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    return {
        name: lambda: transformers.Qwen2MoeConfig(
            **{**shape, "num_key_value_heads": 1},
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=64,
            mlp_only_layers=[0],
            norm_topk_prob=True,
            qkv_bias=False,
            rms_norm_eps=1e-5,
        )
        for name in ("step3", "step3-whole")
    }


@torch.no_grad()
def _with_latent_queries(model: Any) -> None:
    """Queries are made of a normed product."""
    half_shared(model)
    for layer in model.model.layers:
        asked, attention = layer.self_attn.q_proj, layer.self_attn
        norm = type(layer.input_layernorm)(_LATENT, eps=model.config.rms_norm_eps)
        into = torch.nn.Linear(asked.in_features, _LATENT, bias=False)
        out = torch.nn.Linear(_LATENT, asked.out_features, bias=False)
        norm.weight.uniform_(0.6, 1.4)
        into.weight.normal_(0, 0.15)
        out.weight.normal_(0, 0.15)
        attention.q_proj = torch.nn.Sequential(into, norm, out)


def _stored(tensors: Tensors, config: Any) -> Tensors:
    """All experts of a layer as one tensor, beside the shared one."""
    found: Tensors = {}
    for name, tensor in ungated(tensors, config).items():
        layer, _, rest = name.partition(".mlp.")
        if rest.startswith("experts."):
            own = [f"{layer}.mlp.experts.{expert}.{rest.split('.', 2)[2]}" for expert in range(config.num_experts)]
            found[f"{layer}.moe.{rest.split('.', 2)[2]}"] = torch.stack([tensors[each] for each in own])
        elif rest.startswith("shared_experts."):
            found[f"{layer}.share_expert.{rest.partition('.')[2]}"] = tensor
        else:
            found[f"{layer}.moe.gate.weight" if rest == "gate.weight" else name] = tensor
    return found


def _described(config: Any) -> Values:
    own: Values = {"model_type": "step3_text", "num_attention_groups": 1, "share_q_dim": _LATENT}
    own |= {"moe_num_experts": config.num_experts, "moe_top_k": config.num_experts_per_tok, "moe_layers_enum": "1,2"}
    own |= {"share_expert_dim": config.shared_expert_intermediate_size, "norm_expert_weight": config.norm_topk_prob}
    own |= {"max_position_embedding": config.max_position_embeddings, "max_seq_len": config.max_position_embeddings}
    own |= {"head_dim": config.hidden_size // config.num_attention_heads, "rope_theta": theta(config)}
    absent = dict.fromkeys(("num_key_value_heads", "max_position_embeddings"), ...)
    return {**absent, **own, "rope_scaling": None, **same(config, "moe_intermediate_size")}


def _whole(config: Any) -> Values:
    """With the fields of texts in a table."""
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    text = {**same(config, *sizes, "rms_norm_eps"), **_described(config), "architectures": ["Step3TextForCausalLM"]}
    text = {field: value for field, value in text.items() if value is not ...}
    absent = dict.fromkeys((*sizes, "num_key_value_heads", "max_position_embeddings", "rms_norm_eps"), ...)
    return {**absent, "model_type": "step3_vl", "vision_config": {"hidden_size": 2}, "text_config": text}


def _seeing(tensors: Tensors, config: Any) -> Tensors:
    """Beside what sees."""
    beside = ("vision_model.conv1.weight", "vit_downsampler.weight", "vit_large_projector.weight")
    return {**_stored(tensors, config), **{name: torch.ones(2, 2) for name in beside}}


PUBLISHED: Mapping[str, Published] = {
    "step3": Published("Step3TextForCausalLM", _NAMES, _described, _stored, _with_latent_queries),
    "step3-whole": Published("Step3VLForConditionalGeneration", _NAMES, _whole, _seeing, _with_latent_queries),
}
"""By the name of a configuration."""
