"""Readers of the config.json of each family with multi-head latent attention (arXiv:2405.04434)."""

import math
from collections.abc import Sequence
from dataclasses import replace

from .config_fields import ConfigError, Fields
from .hf_common import common
from .hf_moe import experts_of, with_experts
from .hf_rope import rope_from_hf
from .mlp_spec import GroupScore, MoESpec, RouterSpec
from .model_spec import LatentAttentionSpec, ModelSpec, RopeConfig, dense_mlp, with_layers


def deepseek_v2(fields: Fields, name: str) -> ModelSpec:
    spec = latent(fields, common(fields, name))
    spec = with_layers(spec, mlp=replace(dense_mlp(spec), bias=fields.flag("mlp_bias")))
    method = fields.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise ConfigError(f"topk_method is {method[:40]!r}, expected 'greedy' or 'group_limited_greedy'")
    if fields.flag("norm_topk_prob"):
        raise ConfigError("norm_topk_prob is set, expected false: weights of experts are not divided by their sum")
    scale = fields.number("routed_scaling_factor", 1.0)
    router = RouterSpec(fields.integer("num_experts_per_tok", 6), renormalize=False, scale=scale)
    if method == "group_limited_greedy":
        router = _in_groups(fields, router, 1, 1, "max")
    moe = _with_shared(fields, experts_of(fields, spec, router, experts=64), spec, 2)
    return with_experts(spec, moe, _sparse_from(fields, spec, 0))


def deepseek_v3(fields: Fields, name: str) -> ModelSpec:
    """Kimi K2 is one too."""
    spec = latent(fields, common(fields, name))
    moe = _sigmoid_experts(fields, spec, experts=256, top_k=8, scale=2.5, groups=8, top_groups=4)
    return with_experts(spec, moe, _sparse_from(fields, spec, 3))


def glm4_moe_lite(fields: Fields, name: str) -> ModelSpec:
    spec = latent(fields, common(fields, name, eps=1e-5), q_lora_rank=768, nope=192, v=256)
    moe = _sigmoid_experts(fields, spec, experts=64, top_k=4, scale=1.8, groups=1, top_groups=1)
    kinds = fields.texts("mlp_layer_types")
    if kinds is None:
        return with_experts(spec, moe, _sparse_from(fields, spec, 1))
    if len(kinds) != len(spec.layers) or not {*kinds} <= {"dense", "sparse"}:
        raise ConfigError(f"mlp_layer_types is not 'dense' or 'sparse' for each of {len(spec.layers)} layers")
    return with_experts(spec, moe, [kind == "sparse" for kind in kinds])


def _sigmoid_experts(
    fields: Fields, spec: ModelSpec, *, experts: int, top_k: int, scale: float, groups: int, top_groups: int
) -> MoESpec:
    """DeepSeek-V3's (arXiv:2412.19437): scores of each expert alone, and a correction of them for the choice."""
    router = RouterSpec(
        fields.integer("num_experts_per_tok", top_k),
        "sigmoid",
        renormalize=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", scale),
    )
    router = _in_groups(fields, router, groups, top_groups, "top2")
    moe = experts_of(fields, spec, router, experts=experts)
    return _with_shared(fields, replace(moe, correction=True), spec, 1)


def _in_groups(fields: Fields, router: RouterSpec, groups: int, top: int, score: GroupScore) -> RouterSpec:
    """``groups`` and ``top`` are the defaults."""
    groups, top = fields.integer("n_group", groups), fields.integer("topk_group", top)
    return replace(router, groups=groups, top_groups=top, group_score=score)


def _with_shared(fields: Fields, moe: MoESpec, spec: ModelSpec, default: int) -> MoESpec:
    """With so many shared experts of the size of the others, side by side as one network."""
    count = fields.integer("n_shared_experts", default, least=0)
    mlp = replace(
        dense_mlp(spec),
        inner=count * moe.inner,
        into=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
        out="mlp.shared_experts.down_proj",
    )
    return replace(moe, shared=mlp if count else None)


def _sparse_from(fields: Fields, spec: ModelSpec, default: int) -> Sequence[bool]:
    """The first layers are dense."""
    first = fields.integer("first_k_dense_replace", default, least=0)
    return [layer >= first for layer in range(len(spec.layers))]


def latent(fields: Fields, spec: ModelSpec, *, q_lora_rank: int = 1536, nope: int = 128, v: int = 128) -> ModelSpec:
    """With latent attention in every layer. The options are defaults; a null ``q_lora_rank`` means none."""
    nope, rotating = fields.integer("qk_nope_head_dim", nope), fields.integer("qk_rope_head_dim", 64)
    rope = rope_from_hf(fields.values, rotating)
    mixer = LatentAttentionSpec(
        heads=fields.integer("num_attention_heads"),
        kv_lora_rank=fields.integer("kv_lora_rank", 512),
        nope_dim=nope,
        rope_dim=rotating,
        v_dim=fields.integer("v_head_dim", v),
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
