"""Reads the config.json of families of 2026 whose parts other families have: windows that alone rotate, gates, sinks,
norms behind each part."""

from collections.abc import Sequence
from math import sqrt
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.attention_parts import ConvolvedSpec
from ..spec.expert_norms import ExpertNorms
from ..spec.layer import Norms
from ..spec.mlp import APART, STACKED, RouterSpec
from ..spec.model import SANDWICH, ModelSpec, with_layers, with_mixers
from ..spec.router_network import RouterNetworkSpec
from ..spec.token_input import TokenInputSpec
from .common import attention_bias, common, expect, slide, sliding_layers, softcap_of, window_of, with_defaults
from .moe import deepseek_experts, experts_of, shared_experts, sparse_kinds, sparse_steps, with_experts
from .rope import rope_from_hf
from .variants import COHERE

_KOLIBRI_NORMS: Final = Norms(
    mixer_in="input_layernorm",
    mixer_out="post_attn_norm",
    mlp_in="post_attention_layernorm",
    mlp_out="post_ffn_norm",
)
_KOLIBRI_NAMES: Final = (
    replace(APART, correction="moe.router.expert_bias"),
    replace(STACKED, correction="mlp.gate.e_score_correction_bias"),
)
_BEAM_SCALING: Final = {"temperature_power": 0.1, "temperature_floor": 2048, "temperature_first": 1}


def _slides(fields: Fields, full: Sequence[bool]) -> list[bool]:
    """Which layers have a window; without a list of types, those that are not ``full``."""
    return sliding_layers(fields) or [not each for each in full]


def _still(spec: ModelSpec, layers: Sequence[bool]) -> ModelSpec:
    """The spec without rotation in these layers."""
    return with_mixers(spec, layers, rope=None)


def flint(fields: Fields, name: str) -> ModelSpec:
    """Flint: heads are normed and have sinks; layers with a window rotate; experts with plain sigmoid scores."""
    fields = with_defaults(fields, head_dim=128, moe_intermediate_size=512, mlp_only_layers=[0, 1])
    spec = attention_bias(fields, common(fields, name))
    spec = with_mixers(spec, qk_norm="head", sinks=True, sinks_name="softmax_offset")
    renormalize = fields.flag("norm_topk_prob", True)
    router = RouterSpec(fields.integer("num_experts_per_tok", 6), score="sigmoid", renormalize=renormalize)
    shared = shared_experts(spec, "mlp.shared_expert", fields.integer("shared_expert_intermediate_size", 1024))
    moe = replace(experts_of(fields, spec, router, experts=256), shared=shared)
    spec = with_experts(spec, moe, sparse_steps(fields, spec))
    last = len(spec.layers) - 1
    slides = _slides(fields, [at < 2 or at % 4 == 1 or at == last for at in range(last + 1)])
    return slide(_still(spec, [not each for each in slides]), fields.integer("sliding_window", 513), slides)


def kolibri1(fields: Fields, name: str) -> ModelSpec:
    """Kolibri 1: norms behind each part; layers with a window rotate; experts are chosen by corrected logits and
    weighted by their sigmoid."""
    inner = fields.integer("shared_expert_intermediate_size", 512)
    fields = with_defaults(fields, head_dim=128, moe_intermediate_size=512, intermediate_size=inner)
    spec = with_layers(with_mixers(common(fields, name), qk_norm="head"), norms=_KOLIBRI_NORMS)
    router = RouterSpec(
        fields.integer("num_experts_per_tok", 6),
        score="sigmoid",
        renormalize=fields.flag("norm_topk_prob"),
        corrects_logits=True,
    )
    moe = experts_of(fields, spec, router, experts=384)
    shared = shared_experts(spec, "mlp.shared_experts", inner)
    spec = with_layers(spec, mlp=replace(moe, correction=True, names=_KOLIBRI_NAMES, shared=shared))
    slides = _slides(fields, [(at + 1) % 5 == 0 for at in range(len(spec.layers))])
    return slide(_still(spec, [not each for each in slides]), fields.integer("sliding_window", 513), slides)


def muse_glimmer(fields: Fields, name: str) -> ModelSpec:
    """Muse Glimmer: gated attention over normed heads, norms around each part and of embeddings; full layers do not
    rotate."""
    fields = with_defaults(fields, head_dim=128, hidden_act=fields.text("hidden_activation", "silu"))
    spec = attention_bias(fields, common(fields, name, eps=1e-5))
    mixer = spec.layers[0].attention
    spec = with_mixers(
        spec,
        qk_norm="head",
        qk_norm_names=None,
        scale=mixer.scale * fields.positive("qk_scale_factor", 3.87),
        gated=True,
        gate="gate_proj",
    )
    norms = replace(SANDWICH, out_eps=fields.positive("post_norm_eps", 1e-8), offsets=(("norm", 0.0),))
    spec = with_layers(spec, norms=norms)
    spec = replace(
        spec,
        norm_plus_one=True,
        input=TokenInputSpec(norm=""),
        logits_divisor=1 / fields.positive("output_multiplier", 0.19611613513818404),
        logits_softcap=fields.positive("final_logit_softcapping", 20.0),
    )
    last = len(spec.layers) - 1
    full = [(last - at) % 4 == 0 for at in range(last + 1)]
    window = window_of(fields, 2048)
    return slide(_still(spec, _unturned(fields, spec, full)), window, _slides(fields, full))


def muse_spark(fields: Fields, name: str) -> ModelSpec:
    """Muse Spark: a Muse Glimmer whose heads' outputs are normed, whose sums are gated by channel, and whose experts
    work on a projection of the token."""
    told = fields.text("hidden_act", "silu")
    given = with_defaults(
        fields,
        **{"hidden_activation": told, "head_dim": 64, "rope_theta": 500_000.0, "moe_intermediate_size": 4096},
        **{"qk_scale_factor": 5.4730064863875, "output_multiplier": 0.1767766952966369},
    )
    spec = with_mixers(muse_glimmer(given, name), head_out_norm=True)
    norms = replace(
        spec.layers[0].norms, unweighted=("post_attention_layernorm",), scaled_first=("post_feedforward_layernorm",)
    )
    router = RouterSpec(
        fields.integer("num_experts_per_tok", 8),
        score="sigmoid",
        renormalize=True,
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    post_eps = fields.positive("post_norm_eps", 1e-8)
    moe = replace(
        experts_of(given, spec, router, experts=256),
        correction=True,
        latent=fields.integer("moe_hidden_size", 4096),
        latent_names=("mlp.pre_expert_proj", "mlp.post_expert_proj"),
        norms=ExpertNorms("mlp.pre_expert_norm", "mlp.experts.post_expert_norm", spec.norm_eps, post_eps),
        logit_scale=given.positive("output_multiplier", 1.0),
    )
    spec = with_experts(spec, moe, sparse_kinds(fields, spec, 0))
    return with_layers(
        spec,
        norms=norms,
        sums=("post_attention_residual_gate", "post_feedforward_residual_gate"),
        sum_temperature=fields.positive("residual_gate_temperature", 0.3),
    )


def _unturned(fields: Fields, spec: ModelSpec, full: Sequence[bool]) -> list[bool]:
    """Which layers do not rotate: those with a base of 0, or the ``full`` ones if none are listed."""
    bases = fields.numbers("layer_rope_theta")
    rope = spec.layers[0].attention.rope
    if not bases or rope is None:
        return list(full)
    if len(bases) != len(spec.layers) or not {*bases} <= {0.0, rope.theta}:
        raise ConfigError(f"layer_rope_theta is not 0 or rope_theta ({rope.theta:g}) for each of {len(full)} layers")
    return [not base for base in bases]


def cohere_compass(fields: Fields, name: str) -> ModelSpec:
    """North: a Command R whose halves of heads rotate together, with a rotation for each type of layer, or none."""
    fields = with_defaults(fields, tie_word_embeddings=True)
    spec = common(_unturned_fields(fields), name, eps=1e-5, eps_field="layer_norm_eps")
    spec = with_layers(attention_bias(fields, spec), norms=COHERE, parallel=True)
    spec = replace(spec, logits_divisor=1 / fields.positive("logit_scale", 1.0))
    slides = sliding_layers(fields) or [False] * len(spec.layers)
    window = window_of(fields)
    return slide(_turned_by_type(fields, spec, slides), window, slides)


def _unturned_fields(fields: Fields) -> Fields:
    """The fields without rotations, of which there is one for each type of layer."""
    return Fields({**fields.values, "rope_parameters": None})


def _turned_by_type(fields: Fields, spec: ModelSpec, slides: Sequence[bool]) -> ModelSpec:
    """The spec with the rotation of each type of layer that ``rope_parameters`` gives: a table, or null for none. If it
    names no type, all layers rotate alike."""
    types, dim = fields.table("rope_parameters") or {}, spec.layers[0].attention.head_dim
    if not types.keys() & {"full_attention", "sliding_attention"}:
        return with_mixers(spec, rope=rope_from_hf(fields.values, dim))
    for kind, slid in (("full_attention", False), ("sliding_attention", True)):
        if slid not in slides:
            continue
        if kind not in types:
            raise ConfigError(f"rope_parameters lacks {kind}, expected a table or null for each type of layer")
        rope = None if types[kind] is None else rope_from_hf(fields.values, dim, layer_type=kind)
        spec = with_mixers(spec, [each == slid for each in slides], rope=rope)
    return spec


def beam(fields: Fields, name: str) -> ModelSpec:
    """Beam: gated attention, norms around each part, sums that give every part equal weight; layers that do not rotate
    scale queries by position."""
    defaults = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "num_experts": 256}
    fields = with_defaults(fields, head_dim=128, moe_intermediate_size=2560, **defaults)
    fields = with_defaults(fields, rope_parameters={"sliding_attention": {}, "full_attention": None})
    spec = attention_bias(fields, common(_unturned_fields(fields), name))
    spec = with_mixers(spec, qk_norm="head", gated=True, gate="gate_proj", gate_bias="gate_bias")
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=8)
    spec = with_experts(spec, moe, sparse_kinds(fields, spec, min(3, len(spec.layers))))
    last = len(spec.layers) - 1
    slides = _slides(fields, [(at + 1) % 6 == 0 or at == last for at in range(last + 1)])
    spec = _turned_by_type(fields, spec, slides)
    spec = with_mixers(spec, [layer.attention.rope is None for layer in spec.layers], **_BEAM_SCALING)
    spec = replace(
        spec,
        layers=tuple(
            replace(
                layer,
                norms=SANDWICH,
                mixer_scale=1 / sqrt(added),
                mlp_scale=1 / sqrt(added + 1),
                stream_scales=(sqrt((added - 1) / added), sqrt(added / (added + 1))),
            )
            for added, layer in zip(range(2, 2 * last + 3, 2), spec.layers, strict=True)
        ),
        logits_softcap=softcap_of(fields, "final_logit_softcapping", 30.0),
    )
    window = window_of(fields, 512)
    return slide(spec, window, slides)


_ZAYA_ROPE: Final = {
    "hybrid": {"rope_theta": 5_000_000.0, "partial_rotary_factor": 0.5},
    "hybrid_sliding": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}
"""Defaults."""
_ZAYA_NAMES: Final = replace(STACKED, correction="mlp.gate.balancing_biases")


def zaya(fields: Fields, name: str) -> ModelSpec:
    """ZAYA1: convolutions of queries and keys, scaled sums, and one expert a token, which a network chooses and may
    leave out."""
    expect(fields, {"num_experts_per_tok": 1, "attention_bias": False})
    inner = fields.integer("moe_intermediate_size", 2048)
    defaults = {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 40, "vocab_size": 262_272}
    defaults |= {"hidden_size": 2048, "max_position_embeddings": 131_072, "moe_intermediate_size": inner}
    fields = with_defaults(fields, **defaults, head_dim=128, tie_word_embeddings=True, rope_parameters=_ZAYA_ROPE)
    plain = Fields({**_unturned_fields(fields).values, "intermediate_size": inner})
    spec = common(plain, name, eps=1e-5)
    kinds = fields.texts("layer_types") or ("hybrid",) * len(spec.layers)
    if unknown := {*kinds} - _ZAYA_ROPE.keys():
        raise ConfigError(f"layer_types holds {min(unknown)!r}, expected {' or '.join(map(repr, _ZAYA_ROPE))}")
    taps = ConvolvedSpec(fields.integer("cca_time0", 2), fields.integer("cca_time1", 2))
    spec = with_mixers(spec, convolved=taps)
    for kind in {*kinds}:
        rope = rope_from_hf(fields.values, spec.layers[0].attention.head_dim, layer_type=kind)
        spec = with_mixers(spec, [each == kind for each in kinds], rope=rope)
    router = RouterSpec(1, renormalize=False)
    moe = replace(experts_of(fields, spec, router, experts=16), correction=True, names=(_ZAYA_NAMES,), skips=1)
    size = fields.integer("router_hidden_size", 256)
    layers = (
        replace(
            layer,
            mlp=replace(moe, network=RouterNetworkSpec(size, spec.norm_eps, carries=at > 0)),
            sums=("post_attention_residual_scale", "post_mlp_residual_scale"),
        )
        for at, layer in enumerate(spec.layers)
    )
    spec = replace(
        spec,
        layers=tuple(layers),
        input=TokenInputSpec(sum="model.input_hidden_states"),
        head_bias=fields.flag("lm_head_bias"),
    )
    slides = [kind == "hybrid_sliding" for kind in kinds]
    return slide(spec, fields.integer("sliding_window") if any(slides) else 0, slides)
