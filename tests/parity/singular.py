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
    modernbert = {name: value for name, value in shape.items() if name != "num_key_value_heads"}
    modernbert |= {"cls_token_id": 1, "sep_token_id": 2}
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
        "jetmoe": lambda: transformers.JetMoeConfig(
            **{name: value for name, value in shape.items() if name != "num_attention_heads"},
            kv_channels=24,
            num_local_experts=5,
            num_experts_per_tok=3,
            rms_norm_eps=1e-3,
        ),
        "zamba": lambda: transformers.ZambaConfig(
            **{**shape, "num_hidden_layers": 5},
            layers_block_type=["linear_attention", "hybrid", "linear_attention", "linear_attention", "hybrid"],
            mamba_d_state=8,
            mamba_dt_rank=6,
        ),
        "zamba-biased": lambda: transformers.ZambaConfig(
            **{**shape, "num_key_value_heads": 4, "num_hidden_layers": 4},
            attn_layer_period=2,
            attn_layer_offset=0,
            n_mamba_heads=4,
            mamba_proj_bias=True,
            hidden_act="silu",
        ),
        "modernbert-decoder": lambda: transformers.ModernBertDecoderConfig(**modernbert, local_attention=48),
        "modernbert-decoder-biased": lambda: transformers.ModernBertDecoderConfig(
            **modernbert,
            local_attention=48,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            **dict.fromkeys(("attention_bias", "norm_bias", "mlp_bias", "classifier_bias"), True),
            tie_word_embeddings=False,
        ),
        "diffllama": lambda: transformers.DiffLlamaConfig(**shape),
        "diffllama-biased": lambda: transformers.DiffLlamaConfig(
            **{**shape, "num_attention_heads": 8, "num_key_value_heads": 4}, attention_bias=True, head_dim=16
        ),
    }
