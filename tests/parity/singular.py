"""Tiny configurations of the families that :mod:`stentor.engine.model_config.hf.singular` reads."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    ends = {name: shape[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    dbrx = {**ends, "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 128}
    return {
        "dbrx": lambda: transformers.DbrxConfig(
            **dbrx,
            attn_config={"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 20000.0},
            ffn_config={"ffn_hidden_size": 48, "moe_num_experts": 6, "moe_top_k": 3},
            rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
        ),
        "dbrx-plain": lambda: transformers.DbrxConfig(
            **dbrx,
            attn_config={"kv_n_heads": 4, "clip_qkv": 50, "rope_theta": 10000.0},
            ffn_config={
                "ffn_hidden_size": 32,
                "moe_num_experts": 4,
                "moe_top_k": 2,
                "moe_normalize_expert_weights": None,
                "ffn_act_fn": {"name": "gelu"},
            },
        ),
    }
