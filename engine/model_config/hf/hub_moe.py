"""Reads the config.json of mixtures of experts whose code comes with their checkpoints. None of it runs."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.layer import PRE, LayerSpec, Norms
from ..spec.mlp import APART, MLPSpec, MoESpec, RouterSpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mixers, with_mtp
from ..spec.mtp_form import DEEPSEEK, LING
from ..spec.token_input import TokenInputSpec
from .common import check_silu, common, expect, renamed, softcap_of, with_defaults
from .latent import latent
from .moe import MIXTRAL, deepseek_experts, experts_of, shared_experts, sparse_from, with_experts

_LING_NAMES: Final = (replace(APART, correction="mlp.gate.expert_bias"),)
_PANGU: Final[Mapping[str, str]] = {
    "attention_kv_lora_dim": "kv_lora_rank",
    "attention_q_lora_dim": "q_lora_rank",
    "attention_qk_dim": "qk_nope_head_dim",
    "attention_qk_rope_dim": "qk_rope_head_dim",
    "attention_v_dim": "v_head_dim",
    "num_dense_layers": "first_k_dense_replace",
    "num_mtp_layers": "num_nextn_predict_layers",
    "num_routed_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
}
"""Names of DeepSeek's fields in some files of openPangu."""
_PANGU_NORMS: Final = Norms(
    mixer_in="input_layernorm",
    mixer_out="post_attention_layernorm",
    mlp_in="pre_mlp_layernorm",
    mlp_out="post_mlp_layernorm",
)
_ARCTIC: Final = "block_sparse_moe.mlp"
_GROK_NAMES: Final = replace(
    APART,
    router="moe_block.gate",
    into=("moe_block.experts.{}.linear.weight", "moe_block.experts.{}.linear_v.weight"),
    out="moe_block.experts.{}.linear_1.weight",
)
_GROK_NORMS: Final = Norms(
    mixer_in="pre_attn_norm", mixer_out="post_attn_norm", mlp_in="pre_moe_norm", mlp_out="post_moe_norm"
)
_SARVAM: Final = {"attention_bias": "use_qkv_bias", "n_shared_experts": "num_shared_experts"}
"""Names of Ling's fields that transformers writes."""
_ONE_GROUP: Final[Mapping[str, object]] = {"n_group": 1, "topk_group": 1}


def arctic(fields: Fields, name: str) -> ModelSpec:
    """Snowflake Arctic: a dense network behind attention, and experts that take the layer's input. A layer is two here,
    of which the first has the experts alone."""
    check_silu(fields)
    for field in ("sliding_window", "quantization"):
        if fields.has(field):
            raise ConfigError(f"{field} is set, expected null")
    every = fields.integer("moe_layer_frequency", 2)
    beside = fields.flag("parallel_attn_mlp_res", fields.flag("use_residual"))
    if fields.flag("use_residual", beside) != beside:
        raise ConfigError("parallel_attn_mlp_res and use_residual differ, expected both or neither")
    spec = common(fields, name, eps=1e-5, theta=1_000_000.0)
    top_k = fields.integer("num_experts_per_tok", 1)
    router = RouterSpec(top_k, renormalize=top_k > 1)
    moe = replace(experts_of(fields, spec, router, experts=8, inner="intermediate_size"), names=(MIXTRAL,))
    dense = MLPSpec(moe.inner, into=(f"{_ARCTIC}.w1", f"{_ARCTIC}.w3"), out=f"{_ARCTIC}.w2")
    own = MLPSpec(spec.hidden_size, into=("residual_mlp.w1", "residual_mlp.w3"), out="residual_mlp.w2")
    alone = LayerSpec(None, None, Norms(mlp_in=PRE.mlp_in), shortcut=moe)
    layers: list[LayerSpec] = []
    for number, layer in enumerate(spec.layers, 1):
        if number % every:
            layers += LayerSpec(None, None, Norms()), replace(layer, mlp=dense)
        elif beside:
            layers += alone, replace(layer, mlp=own, norms=replace(PRE, mlp_in="residual_layernorm"))
        else:
            layers += LayerSpec(None, None, Norms()), replace(layer, mlp=moe)
    return replace(spec, layers=tuple(layers), sublayers=2)


def grok(fields: Fields, name: str) -> ModelSpec:
    """Grok 1 and 2: norms before and behind both parts; soft caps of scores, routers and logits. Grok 2 has a dense
    network beside its experts."""
    second = fields.flag("residual_moe") or fields.has("moe_intermediate_size")
    if (activation := fields.text("hidden_act", "gelu")) not in ("gelu", "gelu_new", "gelu_pytorch_tanh"):
        raise ConfigError(f"hidden_act is {activation[:40]!r}, expected 'gelu'")
    if (kind := fields.text("rope_type", "original")) not in ("original", "default"):
        raise ConfigError(f"rope_type is {kind[:40]!r}, expected 'original': angles that are stretched are not known")
    expect(fields, {"attn_logit_softcapping_method": "tanh", "rope_rotate_half_dims": False, "global_attn_every_n": 1})
    if fields.has("sliding_window_size"):
        expect(fields, {"sliding_window_size": -1})
    fields = with_defaults(fields, tie_word_embeddings=True)
    spec = common(Fields({**fields.values, "hidden_act": "gelu_pytorch_tanh"}), name, eps=1e-5)
    cap = max(softcap_of(fields, "attn_logit_softcapping", fields.number("max_attn_value", 30.0)), 0.0)
    scale = fields.positive("attn_output_multiplier", spec.layers[0].attention.head_dim ** -0.5)
    spec = with_mixers(spec, softcap=cap, scale=scale, name="self_attn" if second else "attn")
    beside = fields.flag("residual_moe")
    factor = 0.5**0.5 if beside else 1.0
    router = RouterSpec(fields.integer("num_experts_per_tok", 2), renormalize=False, scale=factor)
    router = replace(router, softcap=max(softcap_of(fields, "router_logit_softcapping", 30.0), 0.0))
    inner = "moe_intermediate_size" if fields.has("moe_intermediate_size") else "intermediate_size"
    moe = experts_of(fields, spec, router, experts=8, inner=inner)
    shared = dense_mlp(spec) if beside else None
    moe = replace(moe, names=(MIXTRAL if second else _GROK_NAMES,), shared=shared, shared_scale=factor)
    spec = with_layers(spec, mlp=moe, norms=_GROK_NORMS)
    if (longest := fields.number("attn_temperature_len", -1.0)) > 0:  # tokens behind it have other scores
        spec = replace(spec, max_position=min(spec.max_position, int(longest)))
    return replace(
        spec,
        input=TokenInputSpec(fields.positive("embedding_multiplier_scale", spec.hidden_size**0.5)),
        logits_divisor=1 / fields.positive("output_multiplier_scale", 3**-0.5),
        logits_softcap=max(softcap_of(fields, "final_logit_softcapping", 0.0), 0.0),
    )


def ling(fields: Fields, name: str) -> ModelSpec:
    """Ling 1 and Ring 1: Qwen2's experts by a softmax beside shared ones, and a head whose columns may be normed."""
    check_silu(fields)
    expect(fields, {"score_function": "softmax", "norm_softmax": False, "multi_gate": False, "use_bias": False})
    if fields.flag("use_qk_norm") and not fields.flag("use_rmsnorm"):
        raise ConfigError("use_qk_norm is set without use_rmsnorm, expected both: layer norms of heads are not known")
    if fields.has("rotary_dim"):
        head_dim = fields.integer("head_dim", fields.integer("hidden_size") // fields.integer("num_attention_heads"))
        fields = Fields({"partial_rotary_factor": fields.integer("rotary_dim") / head_dim, **fields.values})
    spec = _ling_attention(fields, name, normed=False)
    router = RouterSpec(fields.integer("num_experts_per_tok", 2), renormalize=fields.flag("norm_topk_prob", True))
    moe = experts_of(fields, spec, router, experts=64)
    moe = _with_shared(fields, spec, replace(moe, names=(APART,)), fields.integer("num_shared_experts", 0, least=0))
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 0, least=0)))


def ling2(fields: Fields, name: str) -> ModelSpec:
    """Ling 2.0, Ring 2.0: experts routed as in DeepSeek-V3, heads that are normed and rotate in part."""
    defaults = {"partial_rotary_factor": 0.5, "num_experts": 256, "n_group": 8, "topk_group": 4}
    spec = _ling2(Fields({**defaults, "routed_scaling_factor": 2.5, **fields.values}), name)
    spec = replace(spec, draft_prefix=f"{spec.prefix}.{len(spec.layers)}.")
    return with_mtp(spec, LING, fields.integer("num_nextn_predict_layers", 1, least=0))


def sarvam_moe(fields: Fields, name: str) -> ModelSpec:
    """Sarvam 30B: a Ling 2.0 whose heads rotate as a whole."""
    defaults = {"num_key_value_heads": 4, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "rope_theta": 8e6}
    return _ling2(renamed(fields, _SARVAM, routed_scaling_factor=2.5, **defaults), name)


def param2(fields: Fields, name: str) -> ModelSpec:
    """Param 2: a Ling 2.0 whose files tell the size of all shared experts together."""
    if fields.has("moe_shared_expert_intermediate_size"):
        number = fields.integer("num_shared_experts", 1)
        size = fields.integer("moe_shared_expert_intermediate_size")
        fields = Fields({**fields.values, "moe_shared_expert_intermediate_size": size // number})
    return _ling2(fields, name)


def sarvam_mla(fields: Fields, name: str) -> ModelSpec:
    """Sarvam 105B: a DeepSeek-V3 without a latent of queries."""
    check_silu(fields)
    expect(fields, {"score_function": "sigmoid", "moe_layer_freq": 1})
    fields = renamed(fields, _SARVAM)
    shared = fields.integer("num_shared_experts", 1, least=0)
    defaults = {"q_lora_rank": None, "intermediate_size": 16384, "routed_scaling_factor": 2.5}
    fields = Fields({**defaults, **fields.values})
    # head_dim is the size of its rotating part
    spec = common(Fields({**fields.values, "head_dim": fields.integer("qk_rope_head_dim", 64)}), name)
    spec = latent(fields, spec)
    moe = _with_shared(fields, spec, deepseek_experts(fields, spec, renormalize=True, top_k=8), shared)
    moe = replace(moe, correction=fields.flag("moe_router_enable_expert_bias", True))
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 1, least=0)))


def pangu_ultra(fields: Fields, name: str) -> ModelSpec:
    """openPangu Ultra: a DeepSeek-V3 with norms behind both parts of a layer, and all experts in one group."""
    check_silu(fields)
    fields = renamed(fields, _PANGU, routed_scaling_factor=2.5, rope_theta=10_000.0)
    fields = Fields({**fields.values, **_ONE_GROUP})
    if fields.has("rope_scaling"):
        raise ConfigError("rope_scaling is set, expected null: its context is not extended")
    # head_dim is the size of its rotating part
    spec = common(Fields({**fields.values, "head_dim": fields.integer("qk_rope_head_dim", 64)}), name, eps=1e-5)
    spec = latent(fields, spec)
    spec = with_mtp(spec, DEEPSEEK, fields.integer("num_nextn_predict_layers", 1, least=0))
    if fields.flag("sandwich_norm"):
        spec = with_layers(spec, norms=_PANGU_NORMS)
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=8, shared=1)
    moe = replace(moe, correction=fields.flag("router_enable_expert_bias"))
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 3, least=0)))


def _ling2(fields: Fields, name: str) -> ModelSpec:
    """Experts routed as in DeepSeek-V3 behind attention that is stored as one matrix."""
    check_silu(fields)
    expect(fields, {"score_function": "sigmoid"})
    spec = _ling_attention(fields, name, normed=True)
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=8)
    moe = replace(moe, names=_LING_NAMES, correction=fields.flag("moe_router_enable_expert_bias", True))
    moe = _with_shared(fields, spec, moe, fields.integer("num_shared_experts", 1, least=0))
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 0, least=0)))


def _ling_attention(fields: Fields, name: str, *, normed: bool) -> ModelSpec:
    """The dense model; ``normed``: whether heads have norms by default."""
    spec = with_mixers(
        common(fields, name),
        qkv_bias=fields.flag("use_qkv_bias"),
        output_bias=fields.flag("use_bias"),
        qk_norm="head" if fields.flag("use_qk_norm", normed) else "none",
        qk_norm_names=("query_layernorm", "key_layernorm"),
        fused=True,
        name="attention",
        into="query_key_value",
        out="dense",
    )
    return replace(spec, embedding="model.word_embeddings", head_norm="columns" if fields.flag("norm_head") else None)


def _with_shared(fields: Fields, spec: ModelSpec, moe: MoESpec, number: int) -> MoESpec:
    """The experts beside ``number`` shared ones, which may have a size of their own."""
    each = fields.integer("moe_shared_expert_intermediate_size", moe.inner)
    return replace(moe, shared=shared_experts(spec, "mlp.shared_experts", each * number) if number else None)
