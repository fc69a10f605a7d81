"""Tiny random checkpoints of the families with latent attention, for :mod:`.tiny`."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers


def _dots3(moe: Mapping[str, Any], index: Mapping[str, Any]) -> dict[str, Any]:
    """Four layers, of which two see the nearest 20 tokens with heads of other sizes."""
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 48}
    sizes |= {"head_dim": 32, "qk_nope_head_dim": 16, "v_head_dim": 20}
    sliding = {f"swa_{name}": value for name, value in sizes.items()}
    experts = {"shared_experts_intermediate_size": 48, "n_shared_experts": 2, "num_hidden_layers": 4, "head_dim": 24}
    return {**moe, **index, "index_n_heads": 8, **sliding, **experts, "sliding_window_size": 20}


def longcat(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Two pairs of layers, with experts of which some return their input."""
    known = {name: value for name, value in sizes.items() if name not in ("num_hidden_layers", "intermediate_size")}
    heads = {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24}
    experts = {"moe_topk": 3, "n_routed_experts": 6, "zero_expert_num": 4, "expert_ffn_hidden_size": 32, "head_dim": 8}
    return {**known, **heads, **experts, "num_layers": 2, "ffn_hidden_size": 96, "routed_scaling_factor": 1.5}


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
    moe: dict[str, Any] = {**sizes, **heads, "q_lora_rank": 24, "moe_intermediate_size": 32, "n_routed_experts": 8}
    moe |= {"num_experts_per_tok": 3, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
    groups = {"n_group": 4, "topk_group": 2}
    index = {"index_topk": 24, "index_n_heads": 16, "index_head_dim": 16}
    five = {"num_hidden_layers": 5, "indexer_types": ["full", "full", "shared", "full", "shared"]}
    return {
        "deepseek-v3.2": lambda: transformers.DeepseekV32Config(**moe, **groups, **index, rope_parameters=yarn),
        "glm-moe-dsa": lambda: transformers.GlmMoeDsaConfig(
            **{**moe, **five, "first_k_dense_replace": 3}, **index, rms_norm_eps=1e-5
        ),
        "deepseek-v2": lambda: transformers.DeepseekV2Config(**{**moe, "q_lora_rank": None}, n_shared_experts=2),
        "deepseek-v2-groups": lambda: transformers.DeepseekV2Config(
            **moe, **groups, topk_method="group_limited_greedy", rope_parameters=yarn
        ),
        "deepseek-v3": lambda: transformers.DeepseekV3Config(**moe, **groups, rope_parameters=yarn),
        "deepseek-v3-halves": lambda: transformers.DeepseekV3Config(
            **moe, n_group=1, topk_group=1, norm_topk_prob=False, rope_interleave=False, attention_bias=True
        ),
        "deepseek-v3-dense": lambda: transformers.DeepseekV3Config(**dense, q_lora_rank=24, rope_parameters=yarn),
        "youtu": lambda: transformers.YoutuConfig(**sizes, **heads, q_lora_rank=24),
        "minicpm3": lambda: transformers.MiniCPM3Config(
            **sizes, **heads, q_lora_rank=24, scale_emb=3, scale_depth=0.7, dim_model_base=32
        ),
        "mistral4": lambda: transformers.Mistral4Config(
            **moe, rope_parameters={**yarn, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
        ),
        "mistral4-groups": lambda: transformers.Mistral4Config(
            **{**moe, "first_k_dense_replace": 0, "q_lora_rank": None}, **groups, rope_interleave=False
        ),
        "dots3-note": lambda: transformers.Dots3NoteTextConfig(**_dots3(moe, index)),
        "dots3-note-full": lambda: transformers.Dots3NoteTextConfig(
            **{**_dots3(moe, index), **groups}, use_dsa=False, rms_norm_eps=1e-6
        ),
        "longcat": lambda: transformers.LongcatFlashConfig(**longcat(sizes), rope_parameters=yarn),
        "longcat-packed": lambda: transformers.LongcatFlashConfig(
            **{
                **longcat(sizes),
                "zero_expert_num": 0,
                "qk_rope_head_dim": 16,
                "head_dim": 16,
                "routed_scaling_factor": 1.0,
            }
        ),
        "axk2": lambda: transformers.AXK2Config(
            **{name: value for name, value in moe.items() if name != "first_k_dense_replace"},
            **{**index, "index_n_heads": 8},
            gated_norm_rank=8,
            rope_parameters=yarn,
        ),
        "axk2-groups": lambda: transformers.AXK2Config(**moe, **groups, **index, gated_norm_rank=6),
        "axk1": lambda: transformers.AXK1Config(**moe, **groups, rope_parameters=yarn),
        "glm4-moe-lite": lambda: transformers.Glm4MoeLiteConfig(
            **{name: value for name, value in moe.items() if name != "first_k_dense_replace"},
            mlp_layer_types=["dense", "sparse", "sparse"],
        ),
    }
