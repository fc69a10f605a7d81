"""Tiny random checkpoints of the families with latent attention, for :mod:`.tiny`."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers


def architectures(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, of this shape."""
    sizes = {**shape, "num_key_value_heads": shape["num_attention_heads"]}
    heads = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24}
    dense = {**sizes, **heads, "first_k_dense_replace": shape["num_hidden_layers"]}
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    }
    return {
        "deepseek-v2-dense": lambda: transformers.DeepseekV2Config(**dense, q_lora_rank=None),
        "deepseek-v3-dense": lambda: transformers.DeepseekV3Config(**dense, q_lora_rank=24, rope_parameters=yarn),
        "deepseek-v3-halves": lambda: transformers.DeepseekV3Config(
            **dense, q_lora_rank=24, rope_interleave=False, attention_bias=True
        ),
    }
