"""What llama.cpp's converter says of each family, of transformers' configurations."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from stentor.tests.parity import hub
from stentor.tests.parity.hub_loops import LOOPS

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
    "attention.recurrent_layers": lambda config: [kind == "linear_attention" for kind in config.layer_types],
    "rope.dimension_count": lambda config: config.head_dim // 4,
}
_LATENT: Mapping[str, Any] = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.key_length": lambda config: config.kv_lora_rank + config.qk_rope_head_dim,
    "attention.value_length": "kv_lora_rank",
    "attention.key_length_mla": lambda config: config.qk_nope_head_dim + config.qk_rope_head_dim,
    "attention.value_length_mla": "v_head_dim",
    "rope.dimension_count": "qk_rope_head_dim",
}
_SSM: Mapping[str, Any] = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.inner_size": lambda config: getattr(config, "mamba_d_ssm", None) or config.mamba_expand * config.hidden_size,
}
_GRANITE: Mapping[str, Any] = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "expert_shared_feed_forward_length": "shared_intermediate_size",
}


def _attending(*kinds: str) -> Callable[[Any], list[int]]:
    """Heads of keys, or 0 where a layer is of none of the kinds."""
    return lambda config: [config.num_key_value_heads if kind in kinds else 0 for kind in config.layer_types]


def _networks(config: Any) -> list[int]:
    sizes = {"mlp": config.intermediate_size, "moe": config.moe_intermediate_size}
    return [sizes.get(kind, 0) for kind in config.layer_types]


def _lfm2_inner(config: Any) -> int:
    inner = config.intermediate_size
    if getattr(config, "block_auto_adjust_ff_dim", False):
        inner = int(config.block_ffn_dim_multiplier * int(2 * inner / 3))
        inner = -(-inner // config.block_multiple_of) * config.block_multiple_of
    return int(inner)


_OF_EXPERTS = ("expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count")


def of_full(config: Any, field: str) -> int:
    """A number of Gemma 4's layers that see all."""
    said = config.to_dict()
    own = (said.get("per_layer_config") or {}).get(str(config.layer_types.index("full_attention")), {})
    return int(own.get(field, said[field]))


def _of_nemotron(which: int, config: Any) -> list[int]:
    return hub.parts_of_nemotron()[which]


def _first_shared(config: Any) -> int:
    return int(config.num_hidden_layers - config.num_kv_shared_layers)


_NEMOTRON: Mapping[str, Any] = {
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.head_count_kv": _attending("full_attention"),
    "feed_forward_length": _networks,
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "mamba_num_heads",
    "ssm.inner_size": lambda config: config.mamba_num_heads * config.mamba_head_dim,
}
_LFM2: Mapping[str, Any] = {
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "attention.head_count_kv": _attending("full_attention"),
    "feed_forward_length": _lfm2_inner,
    "shortconv.l_cache": "conv_L_cache",
}
_ROUTED: Mapping[str, Any] = {
    "expert_count": "n_routed_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
}
_QWEN_EXPERTS: Mapping[str, Any] = {
    "expert_count": "num_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_SHARED_ALIKE: Mapping[str, Any] = {
    "expert_count": "num_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": lambda config: 2,
    "expert_weights_scale": lambda config: 1.0,
    "leading_dense_block_count": lambda config: len(config.mlp_only_layers),
    "rope.dimension_count": lambda config: config.hidden_size // config.num_attention_heads,
}
"""Of Qwen2-MoE's that stand for models whose shared experts have no gate."""
_CLASSIC: Mapping[str, Any] = {
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "feed_forward_length": lambda config: config.n_inner or 4 * config.hidden_size,
}
METADATA: Mapping[str, Mapping[str, Any]] = {
    "gpt-oss": {"attention.sliding_window": "sliding_window", "expert_feed_forward_length": "intermediate_size"},
    "qwen3next": {**_DELTA, **_QWEN_EXPERTS},
    "qwen35": {**_DELTA, "rope.dimension_sections": lambda config: [11, 11, 10, 0]},
    "qwen35moe": {**_DELTA, **_QWEN_EXPERTS, "rope.dimension_sections": lambda config: [11, 11, 10, 0]},
    "deepseek2": {
        "attention.head_count_kv": lambda config: 1,
        "leading_dense_block_count": "first_k_dense_replace",
        **_LATENT,
        "expert_gating_func": lambda config: 1 if config.model_type == "deepseek_v2" else 2,
        **_ROUTED,
    },
    "mistral4": {
        "attention.head_count_kv": lambda config: 1,
        **_LATENT,
        **_ROUTED,
        "attention.temperature_scale": lambda config: config.rope_parameters["llama_4_scaling_beta"],
    },
    "minicpm3": {
        "attention.q_lora_rank": "q_lora_rank",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.key_length": lambda config: config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length": lambda config: None,
        "rope.dimension_count": "qk_rope_head_dim",
    },
    "exaone": {},
    "internlm2": {},
    "baichuan": {},
    "xverse": {},
    "orion": {"attention.layer_norm_epsilon": "layer_norm_eps"},
    "qwen": {"feed_forward_length": lambda config: 2 * config.intermediate_size},
    "pangu-embedded": {},
    "nanbeige": {"num_loops": lambda config: LOOPS, "skip_loop_final_norm": lambda config: False},
    "ouro": {"num_loops": lambda config: LOOPS},
    "chatglm": {"rope.dimension_count": lambda config: config.head_dim // 2},
    "minicpm": {
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
        "rope.scaling.original_context_length": lambda config: config.rope_parameters.get(
            "original_max_position_embeddings"
        ),
    },
    "deepseek": _SHARED_ALIKE,
    "bailingmoe": {**_SHARED_ALIKE, "expert_weights_norm": "norm_topk_prob"},
    "bailingmoe2": {
        **_ROUTED,
        "expert_gating_func": lambda config: 2,
        "rope.dimension_count": lambda config: config.head_dim // 2,
    },
    "deci": {
        key: partial(_of_nemotron, at)
        for at, key in enumerate(("attention.head_count", "attention.head_count_kv", "feed_forward_length"))
    },
    "kimi-linear": {
        **_LATENT,
        "attention.head_count_kv": lambda config: [int(kind == "full_attention") for kind in config.layer_types],
        "leading_dense_block_count": lambda config: config.mlp_layer_types.count("dense"),
        "kda.head_dim": "linear_head_dim",
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "expert_gating_func": lambda config: 2,
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "n_shared_experts",
        "expert_weights_scale": "routed_scaling_factor",
    },
    "granitemoe": _GRANITE,
    "granitehybrid": {
        **_GRANITE,
        **_SSM,
        "attention.head_count_kv": _attending("full_attention"),
        "rope.scaling.finetuned": lambda config: False,
    },
    "falcon-h1": _SSM,
    "mamba": {
        "context_length": lambda config: 1 << 20,
        "feed_forward_length": lambda config: 0,
        "attention.head_count": lambda config: 0,
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "ssm.conv_kernel": "conv_kernel",
        "ssm.state_size": "state_size",
        "ssm.time_step_rank": "time_step_rank",
        "ssm.inner_size": "intermediate_size",
        "ssm.dt_b_c_rms": lambda config: config.model_type == "falcon_mamba",
    },
    "jamba": {
        "attention.head_count_kv": _attending("full_attention"),
        "expert_count": "num_experts",
        "ssm.conv_kernel": "mamba_d_conv",
        "ssm.state_size": "mamba_d_state",
        "ssm.time_step_rank": "mamba_dt_rank",
        "ssm.inner_size": lambda config: config.mamba_expand * config.hidden_size,
    },
    "mamba2": {
        "context_length": lambda config: 1 << 20,
        "feed_forward_length": lambda config: 0,
        "attention.head_count": lambda config: 0,
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "attention.key_length": lambda config: None,
        "attention.value_length": lambda config: None,
        "ssm.conv_kernel": "conv_kernel",
        "ssm.state_size": "state_size",
        "ssm.group_count": "n_groups",
        "ssm.time_step_rank": "num_heads",
        "ssm.inner_size": lambda config: config.num_heads * config.head_dim,
    },
    "nemotron_h": {**_NEMOTRON, **dict.fromkeys(_OF_EXPERTS, lambda config: None)},
    "nemotron_h_moe": {
        **_NEMOTRON,
        **_ROUTED,
        "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        "moe_latent_size": "moe_latent_size",
    },
    "lfm2": _LFM2,
    "lfm2moe": {
        **_LFM2,
        "expert_count": "num_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "leading_dense_block_count": "num_dense_layers",
        "expert_gating_func": lambda config: 2,
    },
    "minimax-m2": {
        "expert_feed_forward_length": "intermediate_size",
        "rope.dimension_count": lambda config: 8,
        "expert_gating_func": lambda config: 2,
    },
    "glm4moe": {
        **_ROUTED,
        "expert_gating_func": lambda config: 2,
        "rope.dimension_count": lambda config: config.hidden_size // config.num_attention_heads // 2,
    },
    "llama4": {
        "feed_forward_length": "intermediate_size_mlp",
        "expert_feed_forward_length": "intermediate_size",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
    },
    "qwen2moe": _QWEN_EXPERTS,
    "ernie4_5-moe": {
        "expert_count": "moe_num_experts",
        "expert_used_count": "moe_k",
        "interleave_moe_layer_step": "moe_layer_interval",
        "leading_dense_block_count": "moe_layer_start_index",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "moe_num_shared_experts",
        "expert_shared_feed_forward_length": lambda config: config.intermediate_size // config.num_key_value_heads,
    },
    "hunyuan-moe": {
        "expert_count": "num_experts",
        "expert_used_count": "moe_topk",
        "expert_feed_forward_length": "intermediate_size",
        "expert_shared_feed_forward_length": "intermediate_size",
        "expert_shared_count": lambda config: 1,
    },
    "dots1": {**_ROUTED, "expert_gating_func": lambda config: 2},
    "exaone-moe": {
        **_ROUTED,
        "expert_count": "num_experts",
        "expert_shared_count": "num_shared_experts",
        "expert_shared_feed_forward_length": lambda config: config.moe_intermediate_size * config.num_shared_experts,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: [kind == "sliding_attention" for kind in config.layer_types],
        "expert_gating_func": lambda config: 2,
    },
    "mimo2": {
        **_ROUTED,
        "attention.head_count_kv": lambda config: [
            config.num_key_value_heads * (2 if kind == "sliding_attention" else 1) for kind in config.layer_types
        ],
        "attention.value_length": "v_head_dim",
        "attention.value_scale": "attention_value_scale",
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: [kind == "sliding_attention" for kind in config.layer_types],
        "rope.dimension_count": lambda config: int(
            config.head_dim * config.rope_parameters["full_attention"]["partial_rotary_factor"]
        ),
        "rope.freq_base_swa": lambda config: float(config.rope_parameters["sliding_attention"]["rope_theta"]),
        "expert_weights_norm": lambda config: None,
    },
    "step35": {
        "attention.head_count": lambda config: [
            config.per_layer_config[layer].num_attention_heads for layer in range(config.num_hidden_layers)
        ],
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: [kind == "sliding_attention" for kind in config.layer_types],
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "share_expert_dim",
        "expert_weights_scale": "moe_router_scaling_factor",
        "expert_weights_norm": lambda config: True,
        "swiglu_clamp_exp": lambda config: [float(limit or 0) for limit in config.swiglu_limits],
        "swiglu_clamp_shexp": lambda config: [float(limit) for limit in config.swiglu_limits_shared],
        "rope.freq_base_swa": lambda config: float(config.rope_parameters["sliding_attention"]["rope_theta"]),
    },
    "mistral3": {
        "attention.temperature_scale": lambda config: config.rope_parameters["llama_4_scaling_beta"],
    },
    "olmo": {"attention.layer_norm_epsilon": lambda config: 1e-5},
    "jais2": {"attention.layer_norm_epsilon": "layer_norm_eps"},
    "phimoe": {
        "attention.sliding_window": lambda config: config.sliding_window or 0,
        "rope.scaling.original_context_length": lambda config: config.rope_parameters.get(
            "original_max_position_embeddings"
        ),
        "rope.scaling.attn_factor": lambda config: config.rope_parameters.get("short_mscale"),
    },
    "gpt2": _CLASSIC,
    "bloom": {
        "context_length": "seq_length",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "feed_forward_length": lambda config: 4 * config.hidden_size,
    },
    "mpt": {
        "context_length": "max_seq_len",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "feed_forward_length": lambda config: 4 * config.hidden_size,
        "attention.max_alibi_bias": lambda config: float(config.attn_config.alibi_bias_max),
        "attention.clamp_kqv": lambda config: config.attn_config.clip_qkv,
    },
    "dbrx": {
        "attention.layer_norm_epsilon": lambda config: 1e-5,
        "attention.head_count_kv": lambda config: config.attn_config.kv_n_heads,
        "attention.clamp_kqv": lambda config: config.attn_config.clip_qkv,
        "feed_forward_length": lambda config: config.ffn_config.ffn_hidden_size,
        "expert_count": lambda config: config.ffn_config.moe_num_experts,
        "expert_used_count": lambda config: config.ffn_config.moe_top_k,
    },
    "starcoder": {**_CLASSIC, "attention.head_count_kv": lambda config: 1},
    "gptneox": {
        "attention.layer_norm_epsilon": "layer_norm_eps",
        "use_parallel_residual": "use_parallel_residual",
        "rope.dimension_count": lambda config: int(
            config.hidden_size // config.num_attention_heads * config.rope_parameters["partial_rotary_factor"]
        ),
    },
    "falcon": {
        **_CLASSIC,
        "feed_forward_length": "ffn_hidden_size",
        "attention.head_count_kv": lambda config: config.num_kv_heads if config.new_decoder_architecture else 1,
    },
    "gemma4": {
        "attention.head_count_kv": lambda config: [
            config.to_dict()["num_key_value_heads"]
            if kind == "sliding_attention"
            else of_full(config, "num_key_value_heads")
            for kind in config.layer_types
        ],
        "attention.key_length": lambda config: of_full(config, "head_dim"),
        "attention.value_length": lambda config: of_full(config, "head_dim"),
        "attention.key_length_swa": lambda config: config.to_dict()["head_dim"],
        "attention.value_length_swa": lambda config: config.to_dict()["head_dim"],
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: [kind == "sliding_attention" for kind in config.layer_types],
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": lambda config: config.hidden_size_per_layer_input or 0,
        "feed_forward_length": lambda config: [
            config.intermediate_size * (2 if config.use_double_wide_mlp and layer >= _first_shared(config) else 1)
            for layer in range(config.num_hidden_layers)
        ],
        "expert_count": "num_experts",
        "expert_used_count": "top_k_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "final_logit_softcapping": "final_logit_softcapping",
        "rope.dimension_count": lambda config: of_full(config, "head_dim"),
        "rope.dimension_count_swa": lambda config: config.to_dict()["head_dim"],
        "rope.freq_base_swa": lambda config: float(config.rope_parameters["sliding_attention"]["rope_theta"]),
    },
    "gemma3n": {
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: [kind == "sliding_attention" for kind in config.layer_types],
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        "activation_sparsity_scale": lambda config: [
            float(torch.distributions.Normal(0, 1).icdf(torch.tensor(share)))
            for share in config.activation_sparsity_pattern
        ],
        "altup.num_inputs": "altup_num_inputs",
        "altup.active_idx": "altup_active_idx",
        "feed_forward_length": "intermediate_size",
        "final_logit_softcapping": "final_logit_softcapping",
        "rope.freq_base_swa": lambda config: float(config.rope_parameters["sliding_attention"]["rope_theta"]),
    },
    "afmoe": {
        "expert_count": "num_experts",
        "expert_shared_count": "num_shared_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "leading_dense_block_count": "num_dense_layers",
        "expert_weights_norm": lambda config: True,
        "expert_weights_scale": "route_scale",
        "attention.sliding_window": "sliding_window",
    },
}
"""Keys of an architecture besides: of a field, or of what follows from several."""
