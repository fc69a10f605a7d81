"""Tiny configurations of families that attend in ways of their own, for :mod:`.tiny`."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    llama4 = {**shape, "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 32, "intermediate_size_mlp": 96}
    llama4 |= {"attention_chunk_size": 24, "floor_scale": 16, "attn_scale": 0.5, "num_local_experts": 4}
    return {
        "llama4": lambda: transformers.Llama4TextConfig(
            **llama4,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 32,
            },
        ),
        "llama4-alternating": lambda: transformers.Llama4TextConfig(
            **llama4,
            interleave_moe_layer_step=2,
            no_rope_layer_interval=2,
            use_qk_norm=False,
            attn_temperature_tuning=False,
            attention_bias=True,
        ),
        "llama4-seeing": lambda: transformers.Llama4Config(
            text_config={**llama4, "attention_chunk_size": 17},
            vision_config={
                "hidden_size": 16,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
                "vision_output_dim": 16,
                "projector_input_dim": 16,
                "projector_output_dim": 16,
            },
        ),
    }
