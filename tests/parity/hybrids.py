"""Tiny configurations of the families that :mod:`stentor.engine.model_config.hf.hybrid` reads."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import transformers as untyped_transformers
from safetensors.torch import load_file, save_file

transformers: Any = untyped_transformers
EACH_KIND = (
    *("lfm2", "granite4-hybrid", "qwen3-next", "nemotron-h", "falcon-h1", "olmo-hybrid"),
    *("mamba2", "falcon-mamba", "jamba", "kimi-linear", "minimax", "recurrent-gemma", "ling"),
    *("deepseek-v4", "zamba2", "zaya", "glm5-next-seeing"),
)
"""One of each kind of state, and of each way to combine it with attention."""
QWEN: Mapping[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
QWEN4: Mapping[str, Any] = {
    **{**QWEN, "layer_types": ["linear_attention", "linear_attention", "full_attention"]},
    "head_dim": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "hc_lowrank": 24,
    "ple_layer_ids": [1, 2],
    "ple_embed_dim": 48,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 50,
    "split_ngram_parts": 4,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 128,
    "indexer_compress_ratio": 4,
}
NEMOTRON: Mapping[str, Any] = {
    "head_dim": 16,
    "ssm_state_size": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "chunk_size": 16,
}
FALCON: Mapping[str, Any] = {
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
}
FACTORS: Mapping[str, Any] = {
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.4,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.7,
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.9, 0.7, 1.2, 0.8, 1.1],
    "mlp_multipliers": [0.8, 0.6],
}
OLMO: Mapping[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
KIMI: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
MAMBA2: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 16,
    "n_groups": 2,
    "chunk_size": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MAMBA: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "state_size": 12,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
JAMBA: Mapping[str, Any] = {
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "mamba_d_state": 12,
    "num_experts_per_tok": 2,
}
MINIMAX: Mapping[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "block_size": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
LING: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
    "head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
DEEPSEEK4: Mapping[str, Any] = {
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 48,
    "sliding_window": 12,
    "o_groups": 2,
    "o_lora_rank": 16,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 5,
    "hc_sinkhorn_iters": 6,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 24},
}
CONVOLVED = ["conv", "full_attention", "conv"]


def _without(shape: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in shape.items() if key != name}


_NEWER = {
    **dict.fromkeys(("deepseek-v4", "deepseek-v4-plain"), "DeepseekV4Config"),
    **dict.fromkeys(("ling", "ling-unbound"), "BailingHybridConfig"),
    **dict.fromkeys(("qwen4", "qwen4-plain"), "Qwen4ExpTextConfig"),
    **dict.fromkeys(("lfm3", "lfm3-plain"), "Lfm3Config"),
    **dict.fromkeys(("glm5-next-seeing", "glm5-next-seeing-unbound"), "Glm5NextConfig"),
}
"""Classes that transformers 5.17, which GPU machines have, has not."""


_ZAMBA2 = {"n_mamba_heads": 8, "mamba_d_state": 16, "mamba_ngroups": 2, "chunk_size": 16, "adapter_rank": 8}


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    zaya = {name: value for name, value in shape.items() if name != "intermediate_size"}
    zaya |= {"head_dim": 16, "router_hidden_size": 24, "moe_intermediate_size": 32}
    made: dict[str, Callable[[], Any]] = {
        "zaya": lambda: transformers.ZayaConfig(**zaya, num_experts=6),
        "zaya-windows": lambda: transformers.ZayaConfig(
            **{**zaya, "num_attention_heads": 2},
            num_experts=4,
            cca_time0=3,
            layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding"],
            sliding_window=24,
            tie_word_embeddings=False,
            lm_head_bias=True,
        ),
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
        "nemotron-h": lambda: transformers.NemotronHConfig(
            **_without(shape, "num_hidden_layers"),
            **NEMOTRON,
            layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"],
        ),
        "nemotron-h-moe": lambda: transformers.NemotronHConfig(
            **_without(shape, "num_hidden_layers"),
            **NEMOTRON,
            layers_block_type=["linear_attention", "moe", "full_attention", "moe"],
            n_routed_experts=8,
            n_group=4,
            topk_group=2,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            moe_shared_expert_intermediate_size=48,
            routed_scaling_factor=1.5,
        ),
        "nemotron-h-latent": lambda: transformers.NemotronHConfig(
            **_without(shape, "num_hidden_layers"),
            **NEMOTRON,
            layers_block_type=["moe", "linear_attention", "full_attention"],
            n_routed_experts=4,
            moe_intermediate_size=32,
            moe_shared_expert_intermediate_size=48,
            moe_latent_size=32,
        ),
        "falcon-h1": lambda: transformers.FalconH1Config(**shape, **FALCON, **FACTORS),
        "falcon-h1-normed": lambda: transformers.FalconH1Config(
            **shape, **FALCON, mamba_n_groups=2, mamba_rms_norm=True, mamba_norm_before_gate=True
        ),
        "falcon-h1-gated-norm": lambda: transformers.FalconH1Config(
            **shape, **FALCON, mamba_rms_norm=True, mamba_norm_before_gate=False, ssm_in_multiplier=0.7
        ),
        "bamba": lambda: transformers.BambaConfig(
            **shape,
            attn_layer_indices=[1],
            mamba_n_heads=8,
            mamba_d_head=16,
            mamba_d_state=16,
            mamba_n_groups=2,
            mamba_chunk_size=16,
        ),
        "zamba2": lambda: transformers.Zamba2Config(
            **{**shape, "num_hidden_layers": 4, "num_key_value_heads": 4},
            **_ZAMBA2,
            layers_block_type=["linear_attention", "hybrid", "hybrid", "hybrid"],
            num_mem_blocks=2,
            use_shared_attention_adapter=True,
            use_mem_rope=True,
        ),
        "zamba2-plain": lambda: transformers.Zamba2Config(
            **{**shape, "num_hidden_layers": 4},
            **_ZAMBA2,
            layers_block_type=["hybrid", "linear_attention", "hybrid", "linear_attention"],
        ),
        "kimi-linear": lambda: transformers.KimiLinearConfig(**{**shape, **KIMI}),
        "mamba2": lambda: transformers.Mamba2Config(**MAMBA2),
        "mamba2-biased": lambda: transformers.Mamba2Config(
            **MAMBA2, use_bias=True, use_conv_bias=False, tie_word_embeddings=True, time_step_limit=(0.01, 0.5)
        ),
        "mamba": lambda: transformers.MambaConfig(**MAMBA),
        "mamba-biased": lambda: transformers.MambaConfig(
            **MAMBA, use_bias=True, use_conv_bias=False, tie_word_embeddings=False, time_step_rank=7, conv_kernel=3
        ),
        "falcon-mamba": lambda: transformers.FalconMambaConfig(**MAMBA, mixer_rms_eps=1e-3),
        "jamba": lambda: transformers.JambaConfig(**shape, **JAMBA, num_experts=4),
        "jamba-dense": lambda: transformers.JambaConfig(
            **shape, **JAMBA, num_experts=1, mamba_conv_bias=False, mamba_proj_bias=True
        ),
        "olmo-hybrid": lambda: transformers.OlmoHybridConfig(**shape, **OLMO, linear_num_key_heads=2),
        "olmo-hybrid-still": lambda: transformers.OlmoHybridConfig(
            **shape, **OLMO, linear_allow_neg_eigval=False, rope_parameters={"rope_type": "default", "rope_theta": None}
        ),
        "minimax": lambda: transformers.MiniMaxConfig(
            **MINIMAX,
            **shape,
            linear_attn_alpha_factor=3.5,
            full_attn_alpha_factor=2.5,
            mlp_alpha_factor=1.5,
            linear_attn_beta_factor=0.8,
            full_attn_beta_factor=0.7,
            mlp_beta_factor=1.2,
        ),
        "minimax-plain": lambda: transformers.MiniMaxConfig(**MINIMAX, **shape),
        "recurrent-gemma": lambda: transformers.RecurrentGemmaConfig(
            **_without(shape, "max_position_embeddings"), lru_width=96, attention_window_size=24
        ),
        # all experts: where rounding changed the choice, the error would be larger than that of rounding
        "ling": lambda: transformers.BailingHybridConfig(
            **{**LING, "num_experts_per_tok": 8}, **_without(shape, "num_key_value_heads")
        ),
        "ling-unbound": lambda: transformers.BailingHybridConfig(
            **{**LING, "kda_safe_gate": False}, **_without(shape, "num_key_value_heads")
        ),
        "deepseek-v4": lambda: transformers.DeepseekV4Config(
            **{**_without(shape, "num_key_value_heads"), **DEEPSEEK4, "num_hidden_layers": 4},
            layer_types=[
                "sliding_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
            ],
            mlp_layer_types=["hash_moe", "moe", "hash_moe", "moe"],
            rope_parameters={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        "deepseek-v4-plain": lambda: transformers.DeepseekV4Config(
            **{**_without(shape, "num_key_value_heads"), **DEEPSEEK4, "hc_mult": 2, "scoring_func": "sigmoid"},
            mlp_layer_types=["moe"] * 3,
        ),
        # all experts
        "glm5-next-seeing": lambda: glm5(shape, num_experts_per_tok=6),
        "glm5-next-seeing-unbound": lambda: glm5(
            shape,
            index_kpool=16,
            index_topk=32,
            hc_mult=2,
            linear_lower_bound=None,
            layer_types=None,
            indexer_types=None,
        ),
        "lfm3": lambda: transformers.Lfm3Config(**{**shape, "num_hidden_layers": 6}, head_dim=32, sliding_window=24),
        "lfm3-plain": lambda: transformers.Lfm3Config(
            **shape,
            head_dim=16,
            layer_types=["conv", "sliding_attention", "full_attention"],
            sliding_window=24,
            conv_L_cache=3,
            conv_bias=True,
            attention_bias=True,
            use_sandwich_norm=False,
            use_attention_gate=False,
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
        "qwen4": lambda: transformers.Qwen4ExpTextConfig(**shape, **QWEN4),
        "qwen4-plain": lambda: transformers.Qwen4ExpTextConfig(
            **{**shape, **QWEN4, "ple_layer_ids": None, "output_gate_type": "sigmoid", "hc_count": 2}
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
    return {name: make for name, make in made.items() if hasattr(transformers, _NEWER.get(name, "PreTrainedConfig"))}


def glm5(shape: Mapping[str, Any], *, vision: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """A GLM 5.3 Flash whose index leaves pools out, and whose third layer uses the second's."""
    text = {**shape, "num_key_value_heads": 4, "num_hidden_layers": 4, "moe_intermediate_size": 32}
    text |= {
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    }
    text |= {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "v_head_dim": 20}
    text |= {"linear_head_dim": 16, "linear_num_heads": 4, "hc_mult": 3, "hc_sinkhorn_iters": 6}
    text |= {"index_topk": 24, "index_kpool": 4, "index_head_dim": 16, "index_n_heads": 16}
    text |= {"layer_types": ["linear_attention", "indexed_attention", "indexed_attention", "linear_attention"]}
    text |= {"indexer_types": ["full", "full", "shared", "full"], **more}
    small = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
    small |= {"projection_intermediate_size": 48}
    return transformers.Glm5NextConfig(text_config=text, vision_config=vision or small, image_token_id=5)


def publish_kimi(model: Any, folder: Path) -> None:
    """Writes a checkpoint of Kimi Linear under the published names: transformers 5.23 saves dense networks as it does
    experts."""
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        dense = ".layers." in name and model.config.mlp_layer_types[int(name.split(".")[2])] == "dense"
        tensors[name.replace("block_sparse_moe", "mlp") if dense else name] = tensor
    save_file(tensors, folder / "model.safetensors")


def publish(model: Any, folder: Path) -> None:
    """Writes a checkpoint of OLMo Hybrid under the published names.

    Those that transformers 5.23 saves it under are not: it renames a norm of layers that attend too, and cuts
    convolutions into equal thirds."""
    config, tensors = model.config, {}
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    for name, tensor in model.state_dict().items():
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else None
        if layer is not None and config.layer_types[layer] == "linear_attention":
            name = name.replace("input_layernorm", "attention_layer_norm")
            name = name.replace("post_attention_layernorm", "feedforward_layer_norm")
            if ".conv1d." in name:
                for part, stored in zip("qkv", tensor.split((keys, keys, values)), strict=True):
                    tensors[name.replace("conv1d", f"{part}_conv1d")] = stored.contiguous()
                continue
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
