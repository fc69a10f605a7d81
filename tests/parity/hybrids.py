"""Tiny configurations of the families that :mod:`stentor.engine.model_config.hf_hybrid` reads."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers
QWEN: Mapping[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
CONVOLVED = ["conv", "full_attention", "conv"]


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    return {
        "lfm2": lambda: transformers.Lfm2Config(**shape, layer_types=CONVOLVED),
        "lfm2-biased": lambda: transformers.Lfm2Config(
            **shape, layer_types=CONVOLVED, conv_bias=True, conv_L_cache=4, block_auto_adjust_ff_dim=False
        ),
        "granite4-hybrid": lambda: transformers.GraniteMoeHybridConfig(
            **shape,
            num_local_experts=0,
            num_experts_per_tok=0,
            shared_intermediate_size=80,
            layer_types=["mamba", "full_attention", "mamba"],
            mamba_n_heads=8,
            mamba_d_head=16,
            mamba_d_state=16,
            mamba_n_groups=2,
            mamba_chunk_size=16,
            residual_multiplier=0.3,
            attention_multiplier=0.1,
        ),
        "granite4-hybrid-moe": lambda: transformers.GraniteMoeHybridConfig(
            **shape,
            num_local_experts=4,
            num_experts_per_tok=2,
            shared_intermediate_size=80,
            layer_types=["mamba", "full_attention", "mamba"],
            mamba_n_heads=8,
            mamba_d_head=16,
            mamba_d_state=16,
        ),
        "lfm2-moe": lambda: transformers.Lfm2MoeConfig(
            **shape,
            layer_types=CONVOLVED,
            num_dense_layers=1,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
        ),
        "qwen3.5": lambda: transformers.Qwen3_5TextConfig(**shape, **QWEN, head_dim=32),
        "qwen3.5-attending": lambda: transformers.Qwen3_5TextConfig(
            **shape, head_dim=32, layer_types=["full_attention"] * shape["num_hidden_layers"]
        ),
        "qwen3.5-moe": lambda: transformers.Qwen3_5MoeTextConfig(
            **shape,
            **QWEN,
            head_dim=32,
            num_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=48,
        ),
        "qwen3-next-moe": lambda: transformers.Qwen3NextConfig(
            **shape,
            **QWEN,
            head_dim=32,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=48,
        ),
        "qwen3-next": lambda: transformers.Qwen3NextConfig(
            **shape,
            **QWEN,
            head_dim=32,
            num_experts=0,
        ),
    }
