"""Readers of the config.json of each family with multi-head latent attention (arXiv:2405.04434)."""

import math
from dataclasses import replace

from .config_fields import ConfigError, Fields
from .hf_common import common
from .hf_rope import rope_from_hf
from .model_spec import LatentAttentionSpec, ModelSpec, RopeConfig, with_layers


def deepseek_v2(fields: Fields, name: str) -> ModelSpec:
    spec = latent(fields, common(fields, name))
    spec = with_layers(spec, mlp=replace(spec.layers[0].mlp, bias=fields.flag("mlp_bias")))
    return _dense_only(fields, spec, 0)


def deepseek_v3(fields: Fields, name: str) -> ModelSpec:
    return _dense_only(fields, latent(fields, common(fields, name)), 3)


def _dense_only(fields: Fields, spec: ModelSpec, default: int) -> ModelSpec:
    dense = fields.integer("first_k_dense_replace", default, least=0)
    if dense < len(spec.layers):
        raise ConfigError(
            f"first_k_dense_replace is {dense}: the other layers are mixtures of experts, and only dense models are "
            "supported"
        )
    return spec


def latent(fields: Fields, spec: ModelSpec, *, q_lora_rank: int = 1536) -> ModelSpec:
    """With latent attention in every layer; ``q_lora_rank`` is the default, and a null one means none."""
    nope, rotating = fields.integer("qk_nope_head_dim", 128), fields.integer("qk_rope_head_dim", 64)
    rope = rope_from_hf({**fields.values, "head_dim": rotating}, rotating)
    mixer = LatentAttentionSpec(
        heads=fields.integer("num_attention_heads"),
        kv_lora_rank=fields.integer("kv_lora_rank", 512),
        nope_dim=nope,
        rope_dim=rotating,
        v_dim=fields.integer("v_head_dim", 128),
        scale=(nope + rotating) ** -0.5 * _stretch(rope),
        q_lora_rank=fields.integer("q_lora_rank", 0 if "q_lora_rank" in fields.values else q_lora_rank),
        rope=rope,
        interleaved=fields.flag("rope_interleave", True),
        bias=fields.flag("attention_bias"),
    )
    return with_layers(spec, mixer=mixer)


def _stretch(rope: RopeConfig) -> float:
    """What scores are multiplied by where the context is stretched: yarn's factor for queries, and again for keys."""
    if rope.kind == "default" or not rope.mscale_all_dim or rope.factor <= 1:
        return 1.0
    return (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0) ** 2
