"""Tiny configurations of families that attend in ways of their own, for :mod:`.tiny`."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
_Output: Any = MoeCausalLMOutputWithPast
_Output.image_outputs = None  # transformers 5.24's Llama 4 asks its text part for it
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    llama4 = {**shape, "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 32, "intermediate_size_mlp": 96}
    llama4 |= {"attention_chunk_size": 24, "floor_scale": 16, "attn_scale": 0.5, "num_local_experts": 4}
    sizes = {**shape, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    granite = {"embedding_multiplier": 6.0, "residual_multiplier": 0.3, "attention_multiplier": 0.1}
    gemma4 = {**shape, "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 24}
    gemma4 |= {"hidden_size_per_layer_input": 0}
    gemma3n = {**shape, "num_hidden_layers": 5, "head_dim": 16, "sliding_window": 24, "laurel_rank": 8}
    gemma3n |= {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": shape["vocab_size"] - 64}
    gemma3n |= {"intermediate_size": [96, 96, 64, 96, 64], "activation_sparsity_pattern": [0.9, 0.6, 0.0, 0.3, 0.0]}
    gemma3n |= {"layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"]}
    gemma3n |= {"num_kv_shared_layers": 3, "final_logit_softcapping": 5.0}
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
        "cwm": lambda: transformers.CwmConfig(
            **{**shape, "num_hidden_layers": 4},
            head_dim=32,
            sliding_window=24,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 16.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
        "olmo": lambda: transformers.OlmoConfig(**shape, attention_bias=True),
        "granite-swa": lambda: transformers.GraniteSWAConfig(
            **shape, **granite, sliding_window=24, layer_rope_theta=[0, 10000.0, 500.0]
        ),
        "granite-moe-swa": lambda: transformers.GraniteMoeSWAConfig(
            **shape,
            **granite,
            sliding_window=24,
            num_local_experts=4,
            num_experts_per_tok=2,
            shared_intermediate_size=48,
        ),
        "nanochat": lambda: transformers.NanoChatConfig(**shape),
        "ernie-moe": lambda: transformers.Ernie4_5_MoeConfig(
            **shape, moe_num_experts=6, moe_k=2, moe_intermediate_size=32
        ),
        "ernie-moe-biased": lambda: transformers.Ernie4_5_MoeConfig(
            **shape,
            moe_num_experts=6,
            moe_k=2,
            moe_intermediate_size=32,
            moe_num_shared_experts=0,
            moe_layer_interval=2,
            use_bias=True,
            tie_word_embeddings=False,
        ),
        "hunyuan-moe": lambda: transformers.HunYuanMoEV1Config(
            **shape,
            head_dim=16,
            num_experts=6,
            moe_topk=2,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0},
        ),
        "laguna": lambda: transformers.LagunaConfig(
            **sizes,
            head_dim=16,
            num_attention_heads_per_layer=[4, 8, 4],
            num_experts=6,
            shared_expert_intermediate_size=48,
            moe_routed_scaling_factor=1.5,
            sliding_window=24,
            layer_types=SLIDING,
        ),
        "laguna-by-element": lambda: transformers.LagunaConfig(
            **sizes,
            head_dim=16,
            num_experts=6,
            shared_expert_intermediate_size=48,
            gating="per-element",
            moe_router_logit_softcapping=0.5,
            attention_bias=True,
            mlp_layer_types=["sparse"] * 3,
        ),
        "mellum": lambda: transformers.MellumConfig(
            **sizes,
            head_dim=32,
            num_experts=6,
            sliding_window=24,
            layer_types=SLIDING,
            mlp_layer_types=["dense", "sparse", "sparse"],
            rope_parameters={
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 500_000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        ),
        "mellum-plain": lambda: transformers.MellumConfig(**sizes, head_dim=16, num_experts=6, attention_bias=True),
        "hy-v3": lambda: transformers.HYV3Config(**sizes, head_dim=32, num_experts=6, num_shared_experts=2),
        "flex-olmo": lambda: transformers.FlexOlmoConfig(**shape, num_experts=6, num_experts_per_tok=3),
        "solar-open": lambda: transformers.SolarOpenConfig(
            **{**sizes, "head_dim": 16},
            n_routed_experts=8,
            n_group=4,
            topk_group=2,
            attention_bias=True,
            routed_scaling_factor=1.5,
        ),
        "exaone-moe": lambda: transformers.ExaoneMoeConfig(
            **sizes, num_experts=6, sliding_window=24, layer_types=SLIDING
        ),
        "afmoe": lambda: transformers.AfmoeConfig(
            **sizes,
            head_dim=32,
            num_experts=6,
            num_shared_experts=1,
            route_scale=1.5,
            sliding_window=24,
            layer_types=SLIDING,
            mup_enabled=True,
        ),
        "cohere2-moe": lambda: transformers.Cohere2MoeConfig(
            **{**shape, "intermediate_size": 32, "num_hidden_layers": 4},
            head_dim=16,
            num_experts=6,
            num_shared_experts=1,
            first_k_dense_replace=1,
            prefix_dense_intermediate_size=96,
            sliding_window=24,
            sliding_window_pattern=3,
            logit_scale=0.25,
        ),
        "cohere2-moe-sigmoid": lambda: transformers.Cohere2MoeConfig(
            **{**shape, "intermediate_size": 32},
            head_dim=16,
            num_experts=6,
            num_shared_experts=2,
            shared_expert_combination_strategy="sum",
            expert_selection_fn="sigmoid",
            rms_norm_eps=1e-6,
            sliding_window=24,
            layer_types=SLIDING,
            logit_scale=0.25,
        ),
        "gemma3n": lambda: transformers.Gemma3nTextConfig(**gemma3n),
        "gemma3n-plain": lambda: transformers.Gemma3nTextConfig(
            **gemma3n
            | {
                "num_kv_shared_layers": 0,
                "activation_sparsity_pattern": [0.0] * 5,
                "intermediate_size": 96,
                "altup_num_inputs": 2,
                "altup_active_idx": 1,
                "altup_correct_scale": False,
            }
        ),
        "gemma4": lambda: transformers.Gemma4TextConfig(**gemma4, attention_k_eq_v=True, num_global_key_value_heads=1),
        "gemma4-small": lambda: transformers.Gemma4TextConfig(
            **{**gemma4, "num_hidden_layers": 5, "hidden_size_per_layer_input": 32},
            layer_types=["sliding_attention", "full_attention"] * 2 + ["full_attention"],
            vocab_size_per_layer_input=shape["vocab_size"],
            num_kv_shared_layers=3,
            use_double_wide_mlp=True,
            final_logit_softcapping=5.0,
        ),
        "gemma4-moe": lambda: transformers.Gemma4TextConfig(
            **gemma4, enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=32
        ),
        "gemma4-unified": lambda: transformers.Gemma4UnifiedTextConfig(
            **{name: value for name, value in gemma4.items() if name != "hidden_size_per_layer_input"},
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
            final_logit_softcapping=5.0,
        ),
        "gemma4-seeing": lambda: transformers.Gemma4Config(
            text_config={
                **{**gemma4, "num_hidden_layers": 5, "hidden_size_per_layer_input": 32},
                "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
                "vocab_size_per_layer_input": shape["vocab_size"],
                "num_kv_shared_layers": 2,
                "attention_k_eq_v": True,
                "use_bidirectional_attention": "vision",
            },
            vision_config={
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "position_embedding_size": 16,
            },
            audio_config=None,
        ),
        "step3.7-seeing": lambda: step(shape),
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


def step(shape: Mapping[str, Any]) -> Any:
    """A Step 3.7 with limits that gates pass."""
    text = {**shape, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 24, "num_sliding_attention_heads": 8}
    text |= {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
    text |= {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "n_routed_experts": 6}
    text |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "share_expert_dim": 48}
    text |= {"moe_router_scaling_factor": 1.5, "swiglu_limits": [0, None, 7, 7]}
    text |= {"swiglu_limits_shared": [1.5, 0, 1.5, 0.0]}
    llama3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0}
    full = {**llama3, "original_max_position_embeddings": 32, "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    window = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
    text |= {"rope_parameters": {"full_attention": full, "sliding_attention": window}}
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_ratio": 2.0}
    vision |= {"image_size": 56, "patch_size": 14, "max_position_embeddings": 16}
    return transformers.Step3p7Config(text_config=text, vision_config=vision, image_token_id=5)


def hy4(shape: Mapping[str, Any], **more: Any) -> Any:
    """A Hy4 whose index leaves tokens out."""
    sizes = {**shape, "moe_intermediate_size": 32, "n_routed_experts": 6, "num_experts_per_tok": 2}
    sizes |= {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20}
    sizes |= {"index_topk": 24, "index_head_dim": 16, "index_n_heads": 16, "hc_mult": 3, "num_hidden_layers": 3}
    return transformers.HYV4Config(**{**sizes, "attn_implementation": "eager", **more})
