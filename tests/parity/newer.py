"""Tiny configurations of families that transformers 5.24 was the first to have."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
DELTA: Mapping[str, Any] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24},
}


def _of(model_type: str, **fields: Any) -> Any:
    return transformers.AutoConfig.for_model(model_type, **fields)


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    experts = {**shape, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    lara = {name: value for name, value in experts.items() if name != "intermediate_size"}
    lara |= {**DELTA, "head_dim": 32, "shared_expert_intermediate_size": 48, "sliding_window": 24}
    kinds = [f"{kind}_attention" for kind in ("linear", "sliding", "full")]
    sarvam = {**experts, "num_experts": 6, "routed_scaling_factor": 1.5}
    latents = {**sarvam, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "v_head_dim": 24}
    yarn = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32}
    dory = {**shape, "num_hidden_layers": 5, "head_dim": 16, "n_input_layers": 1, "n_output_layers": 2}
    dory |= {"sliding_window": 24, "initializer_range": 0.1}
    hrm = {name: value for name, value in shape.items() if name != "num_key_value_heads"}
    hrm |= {"num_hidden_layers": 1, "head_dim": 16, "prefix_lm": False}
    return {
        "exaone-saved": lambda: _of("exaone", **shape),
        "sarvam-moe-saved": lambda: _of("sarvam_moe", **sarvam, head_dim=16, num_shared_experts=2, use_qkv_bias=True),
        "sarvam-mla-saved": lambda: _of("sarvam_mla", **latents, qk_rope_head_dim=8, rope_parameters=yarn),
        "apertus1.5": lambda: _of("apertus1p5_text", **shape),
        "dory": lambda: transformers.DoryConfig(**dory, n_recurrent_loops=3),
        "dory-once": lambda: transformers.DoryConfig(**{**dory, "n_input_layers": 0}, n_recurrent_loops=1),
        "hrm": lambda: transformers.HrmTextConfig(**hrm, H_cycles=2, L_cycles=3),
        "hrm-once": lambda: transformers.HrmTextConfig(**hrm, H_cycles=1, L_cycles=1, embedding_scale=3.0),
        "lara-mini": lambda: transformers.LaraMiniConfig(**lara, num_experts=6, layer_types=kinds),
        "lara-mini-plain": lambda: transformers.LaraMiniConfig(
            **{**lara, "num_hidden_layers": 4},
            num_experts=4,
            norm_topk_prob=False,
            attention_bias=True,
            tie_word_embeddings=False,
        ),
    }
