"""Tiny configurations of the families that :mod:`stentor.engine.model_config.hf.variants` reads."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    narrow = shape["hidden_size"] // shape["num_attention_heads"]
    newer: dict[str, Callable[[], Any]] = {}
    if hasattr(transformers, "InternLM3Config"):  # transformers 5.17, which GPU machines have, has none
        newer["internlm3"] = partial(
            transformers.InternLM3Config, **shape, head_dim=32, attention_bias=True, mlp_bias=True
        )
    return {
        **newer,
        "glm": lambda: transformers.GlmConfig(**shape, head_dim=16),
        "glm4": lambda: transformers.Glm4Config(**shape, head_dim=32),
        "ernie": lambda: transformers.Ernie4_5Config(**shape, head_dim=32),
        "ernie-biased": lambda: transformers.Ernie4_5Config(**shape, head_dim=16, use_bias=True),
        "helium": lambda: transformers.HeliumConfig(**shape, head_dim=narrow, mlp_bias=True),
        "vault-gemma": lambda: transformers.VaultGemmaConfig(
            **shape, head_dim=32, query_pre_attn_scalar=24, sliding_window=24, attn_implementation="eager"
        ),
        "bitnet": lambda: transformers.BitNetConfig(**shape, attention_bias=True),
        "hyperclovax": lambda: transformers.HyperCLOVAXConfig(
            **shape, embedding_multiplier=6.0, residual_multiplier=0.3, logits_scaling=0.25
        ),
        "jais2": lambda: transformers.Jais2Config(**shape),
        "ministral": lambda: transformers.MinistralConfig(
            **shape, head_dim=narrow, sliding_window=24, layer_types=SLIDING
        ),
        "ministral3": lambda: transformers.Ministral3Config(
            **shape,
            head_dim=16,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.4,
            },
        ),
        "cohere": lambda: transformers.CohereConfig(**shape, logit_scale=0.25, attention_bias=True),
        "cohere-normed": lambda: transformers.CohereConfig(**shape, logit_scale=0.25, use_qk_norm=True),
        "cohere2": lambda: transformers.Cohere2Config(**shape, logit_scale=0.3, sliding_window=24, layer_types=SLIDING),
        "hunyuan": lambda: transformers.HunYuanDenseV1Config(**shape, head_dim=32),
        "hunyuan-alpha": lambda: transformers.HunYuanDenseV1Config(
            **shape,
            head_dim=16,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0},
        ),
        "arcee": lambda: transformers.ArceeConfig(**shape, mlp_bias=True),
        "nemotron": lambda: transformers.NemotronConfig(**shape, head_dim=16),
        "apertus": lambda: transformers.ApertusConfig(
            **shape,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
        "starcoder2": lambda: transformers.Starcoder2Config(**shape, sliding_window=24),
        "stablelm": lambda: transformers.StableLmConfig(**shape, use_qkv_bias=True),
        "stablelm-parallel": lambda: transformers.StableLmConfig(**shape, use_parallel_residual=True),
        "stablelm-normed": lambda: transformers.StableLmConfig(**shape, qk_layernorm=True),
        "phi-normed": lambda: transformers.PhiConfig(**shape, qk_layernorm=True),
        "phi": lambda: transformers.PhiConfig(**shape),
    }


_LARGE4 = {
    "model_type": "mistral_large4_text",
    **{"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24},
    **{"num_hidden_layers": 5, "num_key_value_heads": 4, "no_rope_layers": [1, 0, 1, 1, 0]},
    **{"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 3, "routed_scaling_factor": 1.5},
    **{"index_topk": 24, "index_n_heads": 8, "index_head_dim": 16, "first_k_dense_replace": 2},
    **{"indexer_types": ["full", "shared", "full", "full", "shared"], "final_logit_softcapping": 20.0},
    "rope_parameters": {
        **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "attention_factor": 1.0},
        "original_max_position_embeddings": 16,
    },
}
_LARGE4_SHARED = {
    "kv_source_layers": [0, 1, 0, 0, 1],
    "mlp_layer_types": ["dense"] * 5,
    "indexer_types": ["full", "shared", "full", "shared", "full"],
}
"""Layers 2 to 4 use latents of others, and layers 2 and 4 keep keys of an index."""


def _dots3_note(shape: Mapping[str, Any]) -> Any:
    """A whole one, of which the text alone is served."""
    latents = {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 3, "head_dim": 24}
    index = {"index_topk": 24, "index_n_heads": 8, "index_head_dim": 16, "num_key_value_heads": 4}
    sliding = {"swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "swa_q_lora_rank": 16, "swa_head_dim": 32}
    sliding |= {"swa_kv_lora_rank": 32, "swa_qk_nope_head_dim": 24, "swa_v_head_dim": 20, "sliding_window_size": 20}
    vision = {"embed_dim": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_heads": 2, "adapter_in_dim": 16}
    heard = {"d_model": 16, "encoder_attention_heads": 2, "encoder_layers": 1, "encoder_ffn_dim": 16}
    audio = {"whisper_config": {**heard, "num_mel_bins": 8}, "downsample_hidden_size": 4, "adapter_input_size": 16}
    width = {"adapter_out_dim": shape["hidden_size"]}
    return transformers.Dots3NoteConfig(
        text_config={"model_type": "dots3_note_text", **shape, **latents, **experts, **index, **sliding},
        vision_config={**vision, **width, "pyramid_num_routed": [-1]},
        audio_config={**audio, **width},
    )


def text_parts(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """Models that see images too, of which the text is served."""
    gemma3 = {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 24}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**vision, "image_size": 28, "patch_size": 14}
    return {
        "gemma3-seeing": lambda: transformers.Gemma3Config(
            text_config={**shape, **gemma3}, vision_config=vision, mm_tokens_per_image=4, image_token_index=5
        ),
        "qwen3.5-seeing": lambda: transformers.Qwen3_5Config(
            text_config={
                **shape,
                "head_dim": 32,
                "layer_types": ["linear_attention", "full_attention", "linear_attention"],
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
            },
            vision_config={
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_heads": 2,
                "out_hidden_size": shape["hidden_size"],
                "num_position_embeddings": 16,
            },
        ),
        "dots3-note-whole": lambda: _dots3_note(shape),
        "emu3-text": lambda: transformers.Emu3TextConfig(**shape),
        "mistral-large4-seeing": lambda: transformers.MistralLarge4Config(
            text_config={**shape, **_LARGE4}, vision_config={"model_type": "pixtral", **vision}, image_token_index=5
        ),
        "mistral-large4-shared": lambda: transformers.MistralLarge4Config(
            text_config={**shape, **_LARGE4, **_LARGE4_SHARED}, vision_config={"model_type": "pixtral", **vision}
        ),
        "mistral3-seeing": lambda: transformers.Mistral3Config(
            text_config={"model_type": "mistral", **shape, "sliding_window": None},
            vision_config={"model_type": "pixtral", **vision},
            image_token_index=5,
        ),
    }
