"""Reads the config.json of mixtures of experts with other layer shapes: rotation, norms, names."""

import math
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.layer import PRE, LayerSpec, Norms
from ..spec.mlp import APART, STACKED, ExpertNames, MoESpec, RouterSpec
from ..spec.model import POST, ModelSpec, dense_mlp, with_layers, with_mixers, with_mtp
from ..spec.mtp_form import ERNIE, HUNYUAN, MIMO_V2, QWEN
from ..spec.token_input import TokenInputSpec
from .common import alternating, attention_bias, common, local_rope, slide, sliding_layers, softcap_of, window_of
from .dense import exaone4, exaone_head, llama
from .moe import (
    MIXTRAL,
    deepseek_experts,
    experts_of,
    granite_moe,
    shared_experts,
    sparse_from,
    sparse_kinds,
    with_experts,
)
from .rope import media_axes, rope_from_hf
from .variants import LAYER_NORM, command, ernie, granite_windows, hunyuan

_AFMOE_NORMS = Norms(
    mixer_in="input_layernorm",
    mixer_out="post_attention_layernorm",
    mlp_in="pre_mlp_layernorm",
    mlp_out="post_mlp_layernorm",
)
_ARIA_STACKED = replace(STACKED, router="mlp.router", transposed=True)
_ARIA = (
    replace(_ARIA_STACKED, into=("mlp.experts.fc1.weight",), out="mlp.experts.fc2.weight"),
    _ARIA_STACKED,
)


def _named(router: str = "mlp.gate", correction: str = "", held: str = "") -> tuple[ExpertNames, ExpertNames]:
    """Names in most checkpoints and in transformers; ``held``: the correction's name in the latter."""
    apart = replace(APART, router=router, correction=correction)
    return apart, replace(STACKED, router=router, correction=held or correction)


def _uniform(fields: Fields, name: str, default: int) -> int:
    """A field that may be a list of equal numbers, one a layer."""
    value = fields.get(name)
    if not isinstance(value, list):
        return fields.integer(name, default)
    if not value or any(each != value[0] for each in value):
        raise ConfigError(f"{name} is {str(value)[:60]}, expected the same number for every layer")
    return Fields({name: value[0]}).integer(name)


def ernie_moe(fields: Fields, name: str) -> ModelSpec:
    experts, inner = fields.integer("moe_num_experts", 64), fields.integer("moe_intermediate_size", 1536)
    spec, moe = _ernie(fields, name, experts, inner)
    step, first = fields.integer("moe_layer_interval", 1), fields.integer("moe_layer_start_index", 1, least=0)
    last = fields.integer("moe_layer_end_index", -1, least=-1)
    last = len(spec.layers) - 1 if last == -1 else last
    sparse = [(layer + 1) % step == 0 and first <= layer <= last for layer in range(len(spec.layers))]
    heads = fields.integer("num_nextn_predict_layers", 0, least=0)
    return with_mtp(with_experts(spec, moe, sparse), ERNIE, heads, spec.layers[0])


def ernie_vl_moe(fields: Fields, name: str) -> ModelSpec:
    """ERNIE 4.5 with as many smaller experts for tokens of media. Frequencies alternate between row and column, and
    then follow the frame."""
    sizes = [int(each) for each in fields.numbers("moe_intermediate_size")] or [1536, 512]
    if len(sizes) != 2 or min(sizes) < 1:
        raise ConfigError(f"moe_intermediate_size is {sizes}, expected two sizes: of experts of texts and of media")
    spec, moe = _ernie(fields, name, _uniform(fields, "moe_num_experts", 64), sizes[0])
    names = replace(moe.names[0], router_turned=True, correction_rows=2)
    of_media = replace(names, router="mlp.gate.weight_1", router_bare=True, correction_at=1, first=moe.experts)
    media = replace(moe, inner=sizes[1], names=(of_media,), shared=None)
    spec = with_experts(spec, replace(moe, names=(names,), media=media), sparse_kinds(fields, spec, 1))
    rope = spec.layers[0].attention.rope
    assert rope is not None
    if rope.kind != "default":
        raise ConfigError(f"rope_type is {rope.kind!r}, expected 'default'")
    frames, rows, columns = (
        media_axes(fields.values, (22, 22, 20), spec.layers[0].attention.head_dim // 2, interleaved=False).count(axis)
        for axis in (2, 0, 1)
    )
    if rows != columns:
        raise ConfigError(f"mrope_section has {rows} pairs for rows and {columns} for columns, expected as many")
    return with_mixers(spec, rope=replace(rope, axes=(1, 2) * rows + (0,) * frames))


def _ernie(fields: Fields, name: str, experts: int, inner: int) -> tuple[ModelSpec, MoESpec]:
    """The dense model, and the mixture of its sparse layers."""
    fields = Fields({**fields.values, "moe_intermediate_size": inner, "num_experts": experts})
    if not fields.has("head_dim"):
        head_dim = fields.integer("hidden_size") // fields.integer("num_attention_heads")
        fields = Fields({**fields.values, "head_dim": head_dim})
    spec = ernie(fields, name)
    if fields.flag("use_bias"):
        if spec.tie_embeddings:
            raise ConfigError("use_bias is set, expected false: a head that is the embedding has no bias")
        spec = replace(spec, head_bias=True)
    moe = experts_of(fields, spec, RouterSpec(fields.integer("moe_k", 6)), experts=experts)
    number = fields.integer("moe_num_shared_experts", 2, least=0)
    shared = shared_experts(spec, "mlp.shared_experts", moe.inner * number) if number else None
    stored = "moe_statics.e_score_correction_bias"
    names = _named(correction=f"mlp.{stored}", held=f"mlp.gate.{stored}")
    names = (replace(names[0], correction_rows=1), names[1])
    return spec, replace(moe, correction=True, names=names, shared=shared)


def hunyuan_moe(fields: Fields, name: str) -> ModelSpec:
    experts, inner = _uniform(fields, "num_experts", 1), fields.integer("intermediate_size")
    if _uniform(fields, "moe_intermediate_size", inner) != inner:
        raise ConfigError(f"moe_intermediate_size is not intermediate_size, {inner}: experts of another size")
    fields = Fields({**fields.values, "num_experts": experts, "num_local_experts": None})
    spec = hunyuan(fields, name)
    router = RouterSpec(_uniform(fields, "moe_topk", _uniform(fields, "num_experts_per_tok", 1)))
    moe = experts_of(fields, spec, router, experts=experts, inner="intermediate_size")
    shared = shared_experts(spec, "mlp.shared_mlp", inner * _uniform(fields, "num_shared_expert", 1))
    return with_layers(spec, mlp=replace(moe, names=_named(router="mlp.gate.wg"), shared=shared))


def hunyuan_v3(fields: Fields, name: str) -> ModelSpec:
    """Hy3: experts routed as in DeepSeek-V3, in all but the first layer."""
    shared = fields.integer("num_shared_experts", 1, least=0)
    scale = fields.number("router_scaling_factor", 2.826)
    defaults = {"num_experts": 192, "moe_intermediate_size": 1536}
    routed = {"n_shared_experts": shared, "routed_scaling_factor": scale, "norm_topk_prob": True}
    fields = Fields({**defaults, **fields.values, **routed})
    spec = attention_bias(fields, common(fields, name, head_dim=128, eps=1e-5, theta=11_158_840.0))
    bias = fields.flag("mlp_bias")
    spec = with_layers(with_mixers(spec, qk_norm="head"), mlp=replace(dense_mlp(spec), bias=bias))
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=8)
    moe = replace(moe, names=_named(router="mlp.router.gate", correction="mlp.expert_bias"))
    if moe.shared is not None:
        moe = replace(moe, shared=shared_experts(spec, "mlp.shared_mlp", moe.shared.inner))
    first = fields.integer("first_k_dense_replace", 1, least=0)
    spec = with_experts(spec, moe, sparse_kinds(fields, spec, first))
    spec = replace(spec, draft_prefix=f"{spec.prefix}.{len(spec.layers)}.")
    return with_mtp(spec, HUNYUAN, fields.integer("num_nextn_predict_layers", 1, least=0))


def mellum(fields: Fields, name: str) -> ModelSpec:
    """Mellum 2: Qwen's experts; layers with a window rotate otherwise."""
    defaults = {"head_dim": 128, "moe_intermediate_size": 896}
    fields = Fields({**defaults, **fields.values})
    spec = _turned_by_type(fields, with_mixers(attention_bias(fields, common(fields, name)), qk_norm="head"))
    router = RouterSpec(fields.integer("num_experts_per_tok", 8), renormalize=fields.flag("norm_topk_prob", True))
    moe = experts_of(fields, spec, router, experts=64)
    spec = with_experts(spec, moe, sparse_kinds(fields, spec, 0))
    window = window_of(fields, 1024)
    slides = sliding_layers(fields) or [False] * len(spec.layers)
    spec = slide(spec, window, slides)
    heads = fields.integer("num_nextn_predict_layers", fields.integer("num_mtp_layers", 0, least=0), least=0)
    kind = (fields.texts("mtp_layer_types") or ("sliding_attention",))[0]
    return with_mtp(spec, QWEN, heads, _of_kind(spec, slides, kind))


_LAGUNA_ROPE: Final = {
    "full_attention": {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
"""Defaults."""


def laguna(fields: Fields, name: str) -> ModelSpec:
    """Laguna: gated attention with more heads in some layers; experts routed by a sigmoid."""
    if fields.flag("moe_apply_router_weight_on_input"):
        raise ConfigError("moe_apply_router_weight_on_input is set, expected false: outputs of experts are weighted")
    gating = fields.get("gating") if fields.has("gating") else True
    if gating not in (True, "per-head", "per-element"):
        raise ConfigError(f"gating is {str(gating)[:40]!r}, expected true, 'per-head' or 'per-element'")
    if not fields.has("rope_parameters"):
        fields = Fields({**fields.values, "rope_parameters": _LAGUNA_ROPE})
    shared = fields.integer("shared_expert_intermediate_size", 512)
    scale = fields.number("moe_routed_scaling_factor", 1.0)
    fields = Fields({"head_dim": 128, "moe_intermediate_size": 512, **fields.values})
    spec = _turned_by_type(fields, with_mixers(attention_bias(fields, common(fields, name)), qk_norm="head"))
    by_head = gating != "per-element"
    spec = with_mixers(spec, gated=True, gate="g_proj", gate_by_head=by_head, gate_activation="softplus")
    if counts := fields.numbers("num_attention_heads_per_layer"):
        if len(counts) != len(spec.layers) or not all(count.is_integer() and count > 0 for count in counts):
            raise ConfigError(f"num_attention_heads_per_layer is no count for each of {len(spec.layers)} layers")
        for count in {*counts}:
            spec = with_mixers(spec, [each == count for each in counts], heads=int(count))
    router = RouterSpec(fields.integer("num_experts_per_tok", 8), score="sigmoid", scale=scale)
    router = replace(router, softcap=softcap_of(fields, "moe_router_logit_softcapping", 0.0))
    moe = experts_of(fields, spec, router, experts=256)
    names = _named(correction="mlp.experts.e_score_correction_bias", held="mlp.gate.e_score_correction_bias")
    moe = replace(moe, correction=True, names=names, shared=shared_experts(spec, "mlp.shared_expert", shared))
    spec = with_experts(spec, moe, sparse_kinds(fields, spec, 1))
    window = fields.integer("sliding_window", 512, least=0)
    return slide(spec, window, sliding_layers(fields) or [False] * len(spec.layers))


def _turned_by_type(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The spec with a rotation of its own in layers with a window."""
    head_dim = spec.layers[0].attention.head_dim
    slides = sliding_layers(fields) or [False] * len(spec.layers)
    full = rope_from_hf(fields.values, head_dim, theta=500_000.0, layer_type="full_attention")
    return with_mixers(with_mixers(spec, rope=full), slides, rope=local_rope(fields, head_dim, 10_000.0))


def _of_kind(spec: ModelSpec, slides: Sequence[bool], kind: str) -> LayerSpec | None:
    """The last layer whose attention is of this kind, which a head for multi-token prediction has too."""
    alike = (layer for layer, each in zip(spec.layers, slides, strict=True) if each == (kind == "sliding_attention"))
    return next(reversed([*alike]), None)


def flex_olmo(fields: Fields, name: str) -> ModelSpec:
    """OLMo-2 with experts."""
    spec = attention_bias(fields, common(fields, name, theta=500_000.0))
    spec = with_layers(with_mixers(spec, qk_norm="full"), norms=POST)
    router = RouterSpec(fields.integer("num_experts_per_tok", 5), renormalize=fields.flag("norm_topk_prob"))
    return with_layers(spec, mlp=experts_of(fields, spec, router, experts=7, inner="intermediate_size"))


def solar_open(fields: Fields, name: str) -> ModelSpec:
    """Solar Open: experts in every layer."""
    inner = fields.integer("moe_intermediate_size", 1280)
    fields = Fields({**fields.values, "moe_intermediate_size": inner, "intermediate_size": inner})
    spec = common(fields, name, eps=1e-5, theta=1_000_000.0, head_dim=128)
    spec = with_mixers(spec, qkv_bias=fields.flag("attention_bias"))
    return with_layers(spec, mlp=deepseek_experts(fields, spec, renormalize=True, top_k=8, shared=1))


def exaone_moe(fields: Fields, name: str) -> ModelSpec:
    """EXAONE 4 with pre-norms."""
    shared = fields.integer("num_shared_experts", 1)
    defaults = {"num_experts": 64, "moe_intermediate_size": 1024, "routed_scaling_factor": 2.5}
    fields = Fields({**defaults, **fields.values, "n_shared_experts": shared})
    spec = with_layers(exaone4(fields, name), norms=PRE)
    stored = "e_score_correction_bias"
    names = _named(correction=f"mlp.{stored}", held=f"mlp.gate.{stored}")
    moe = replace(deepseek_experts(fields, spec, renormalize=True, top_k=8), names=names)
    sparse = sparse_kinds(fields, spec, fields.integer("first_k_dense_replace", 1, least=0))
    heads = fields.integer("num_nextn_predict_layers", 1, least=0)
    return with_mtp(with_experts(spec, moe, sparse), QWEN, heads, exaone_head(fields, spec))


def granite_moe_swa(fields: Fields, name: str) -> ModelSpec:
    """Granite MoE with sinks; files have transformers' names of experts."""
    spec = granite_moe(fields, name)
    mlp = spec.layers[0].mlp
    assert isinstance(mlp, MoESpec)
    return granite_windows(fields, with_layers(spec, mlp=replace(mlp, names=mlp.names[::-1])))


def afmoe(fields: Fields, name: str) -> ModelSpec:
    """Trinity: gated attention; full layers do not rotate."""
    fields = Fields({"head_dim": 128, "moe_intermediate_size": 1408, **fields.values})
    spec = attention_bias(fields, common(fields, name, eps=1e-5))
    spec = with_layers(with_mixers(spec, qk_norm="head", gated=True, gate="gate_proj"), norms=_AFMOE_NORMS)
    if fields.flag("mup_enabled"):
        spec = replace(spec, input=TokenInputSpec(scale=math.sqrt(spec.hidden_size)))
    router = RouterSpec(
        fields.integer("num_experts_per_tok", 6), score="sigmoid", scale=fields.number("route_scale", 1.0)
    )
    moe = experts_of(fields, spec, router, experts=64)
    shared = shared_experts(spec, "mlp.shared_experts", moe.inner * fields.integer("num_shared_experts", 2))
    moe = replace(moe, correction=True, shared=shared)
    moe = replace(moe, names=_named(router="mlp.router.gate", correction="mlp.expert_bias"))
    spec = with_experts(spec, moe, sparse_from(spec, fields.integer("num_dense_layers", 1, least=0)))
    slides = sliding_layers(fields) or alternating(spec, fields.integer("global_attn_every_n_layers", 4))
    window = fields.integer("sliding_window", 1024, least=0)
    return slide(with_mixers(spec, [not each for each in slides], rope=None), window, slides)


def cohere2_moe(fields: Fields, name: str) -> ModelSpec:
    """Command R7B with experts in all but the first layers."""
    spec = command(fields, name, theta=10000.0, head_dim=128)
    if fields.has("rms_norm_eps"):
        norms = replace(spec.layers[0].norms, kind="rms")
        spec = replace(with_layers(spec, norms=norms), norm_eps=fields.number("rms_norm_eps"))
    first = fields.integer("first_k_dense_replace", 0, least=0)
    sparse = sparse_kinds(fields, spec, first)
    prefix = fields.integer("prefix_dense_sliding_window_pattern", 1)
    slides = sliding_layers(fields) or _cohere2_slides(fields, len(spec.layers), first, prefix)
    still = [not (slid or (prefix == 1 and not mixed)) for slid, mixed in zip(slides, sparse, strict=True)]
    spec = slide(with_mixers(spec, still, rope=None), window_of(fields), slides)
    moe = replace(experts_of(fields, spec, _cohere2_router(fields), experts=8, inner="intermediate_size"))
    if number := fields.integer("num_shared_experts", 0, least=0):
        moe = replace(moe, shared=shared_experts(spec, "mlp.shared_experts", moe.inner * number))
        if _one_of(fields, "shared_expert_combination_strategy", ("average", "sum")) == "average":
            moe = replace(moe, router=replace(moe.router, scale=0.5), shared_scale=0.5)
    dense = replace(dense_mlp(spec), inner=fields.integer("prefix_dense_intermediate_size", moe.inner))
    return with_experts(with_layers(spec, mlp=dense), moe, sparse)


def _cohere2_slides(fields: Fields, layers: int, first: int, prefix: int) -> list[bool]:
    """Default windows: one period before layer ``first``, another behind."""
    period = fields.integer("sliding_window_pattern", 4)
    return [
        (layer + 1) % prefix != 0 if layer < first else (layer - first + 1) % period != 0 for layer in range(layers)
    ]


def _cohere2_router(fields: Fields) -> RouterSpec:
    top_k = fields.integer("num_experts_per_tok", 2)
    if _one_of(fields, "expert_selection_fn", ("softmax", "sigmoid")) == "softmax":
        return RouterSpec(top_k)  # softmax over the chosen ones equals that over all, renormalised
    return RouterSpec(top_k, score="sigmoid", renormalize=fields.flag("norm_topk_prob", True))


def _one_of(fields: Fields, name: str, known: Sequence[str]) -> str:
    """A text field with a known value; by default the first."""
    value = fields.text(name, known[0])
    if value not in known:
        raise ConfigError(f"{name} is {value[:40]!r}, expected {' or '.join(map(repr, known))}")
    return value


def mimo_v2_flash(fields: Fields, name: str) -> ModelSpec:
    """MiMo-V2-Flash: narrow values; layers with a window have sinks, a rotation of their own and more key-value
    heads. Files are read in their authors' form and in transformers'."""
    eps = fields.number("layernorm_epsilon", 1e-5)
    defaults = {"head_dim": 192, "partial_rotary_factor": 0.334, "moe_intermediate_size": 2048}
    fields = Fields({**defaults, "n_routed_experts": 256, **fields.values})
    spec = common(fields, name, eps=eps)
    attention = spec.layers[0].attention
    heads, head_dim, v_dim = attention.heads, attention.head_dim, fields.integer("v_head_dim", 128)
    for field, same in (("swa_num_attention_heads", heads), ("swa_head_dim", head_dim), ("swa_v_head_dim", v_dim)):
        if fields.integer(field, same) != same:
            raise ConfigError(f"{field} is {fields.integer(field)}, expected {same} as in layers without a window")
    slides = sliding_layers(fields) or _listed(fields, "hybrid_layer_pattern", len(spec.layers))
    slides = slides or [layer > 0 and (layer + 1) % 6 != 0 for layer in range(len(spec.layers))]
    still = [not each for each in slides]
    spec = with_mixers(
        spec,
        v_dim=0 if v_dim == head_dim else v_dim,
        sinks_name="attention_sink_bias",
        qkv_bias=fields.flag("attention_bias"),
        rope=rope_from_hf(fields.values, head_dim, theta=5_000_000.0, layer_type="full_attention"),
    )
    spec = with_mixers(
        spec,
        slides,
        kv_heads=fields.integer("swa_num_key_value_heads", 2 * attention.kv_heads),
        rope=local_rope(fields, head_dim, fields.number("swa_rope_theta", 10_000.0)),
        sinks=fields.flag("add_swa_attention_sink_bias", True),
    )
    spec = with_mixers(spec, still, sinks=fields.flag("add_full_attention_sink_bias"))
    scale = fields.number("attention_value_scale", 1.0 if "attention_value_scale" in fields.values else 0.707)
    # values times a number are the heads' output, and that of a projection without a bias, times it
    spec = with_layers(spec, mixer_scale=scale)
    sparse = _listed(fields, "moe_layer_freq", len(spec.layers)) or sparse_kinds(fields, spec, 1)
    dense = dense_mlp(spec)
    spec = with_experts(spec, deepseek_experts(fields, spec, renormalize=True, top_k=8), sparse)
    window = fields.integer("sliding_window", 129)
    if fields.has("sliding_window_size"):  # without the token itself
        window = fields.integer("sliding_window_size") + 1
    spec = slide(spec, window, slides)
    head = _of_kind(spec, slides, "sliding_attention") or spec.layers[-1]
    norms = Norms(mixer_in="input_layernorm", mlp_in="pre_mlp_layernorm")
    return with_mtp(spec, MIMO_V2, 1, replace(head, mlp=dense, norms=norms))


def mimo_v2(fields: Fields, name: str) -> ModelSpec:
    """MiMo-V2.5 and V2.6, Pro and Flash: a MiMo-V2-Flash whose queries, keys and values may be stored as one matrix.
    Its heads for multi-token prediction are ignored if they are."""
    layout = fields.text("attention_projection_layout", "split")
    if layout not in ("split", "fused_qkv"):
        raise ConfigError(f"attention_projection_layout is {layout[:40]!r}, expected 'split' or 'fused_qkv'")
    if fields.flag("add_full_attention_sink_bias"):
        raise ConfigError("add_full_attention_sink_bias is set, expected false: full attention has no sinks")
    defaults = {"attention_value_scale": None, "add_swa_attention_sink_bias": False, "partial_rotary_factor": 1.0}
    spec = mimo_v2_flash(Fields({**defaults, **fields.values}), name)
    if layout == "split":
        return spec
    count, layers = fields.integer("num_key_value_heads"), []
    for layer in spec.layers:
        mixer = layer.attention
        if mixer.heads % count or mixer.kv_heads % count:
            raise ConfigError(
                f"{mixer.heads} query and {mixer.kv_heads} key-value heads do not divide into the {count} chunks of "
                "num_key_value_heads"
            )
        keys = mixer.kv_heads // count
        chunk = mixer.q_size // count, keys * mixer.head_dim, keys * mixer.value_dim
        layers.append(replace(layer, mixer=replace(mixer, fused=True, chunk=chunk)))
    return replace(spec, layers=tuple(layers), draft_layers=1, mtp=None, mtp_layer=None)


def _listed(fields: Fields, name: str, layers: int) -> list[bool]:
    """A list of 0 or 1 for each layer; empty if it is missing."""
    listed = fields.numbers(name)
    if listed and (len(listed) != layers or not {*listed} <= {0, 1}):
        raise ConfigError(f"{name} is {str(list(listed))[:60]}, expected 0 or 1 for each of {layers} layers")
    return [each == 1 for each in listed]


def phimoe(fields: Fields, name: str) -> ModelSpec:
    """Phi-3.5-MoE: Phi-3's attention with a bias, layer norms, and experts chosen one after the other."""
    table = Fields(fields.table("rope_scaling") or fields.table("rope_parameters") or {})
    factors = [table.optional_number(each) for each in ("short_mscale", "long_mscale")]
    if factors[0] != factors[1]:
        raise ConfigError(f"short_mscale is {factors[0]} and long_mscale {factors[1]}, expected the same number")
    spec = attention_bias(fields, common(fields, name, eps=1e-5, theta=1_000_000.0))
    rope = spec.layers[0].attention.rope
    if rope is not None and factors[0] is not None:
        spec = with_mixers(spec, rope=replace(rope, attention_factor=factors[0]))
    if (top_k := fields.integer("num_experts_per_tok", 2)) != 2:
        raise ConfigError(f"num_experts_per_tok is {top_k}, expected 2: sparsemixer chooses two")
    router = RouterSpec(
        top_k,
        score="sparsemixer",
        renormalize=False,
        nearness=2 * fields.number("router_jitter_noise", 0.01),
    )
    moe = experts_of(fields, spec, router, experts=16, inner="intermediate_size")
    moe = replace(moe, names=(MIXTRAL, replace(STACKED, router="mlp.router")))
    spec = replace(with_layers(spec, mlp=moe, norms=LAYER_NORM), head_bias=fields.flag("lm_head_bias"))
    return slide(spec, fields.integer("sliding_window", 0, least=0))


def aria(fields: Fields, name: str) -> ModelSpec:
    """A Llama of experts with SiLU, beside shared ones with the activation of the description."""
    if fields.flag("mlp_bias"):
        raise ConfigError("mlp_bias is true, expected false: experts have no biases here")
    spec = llama(fields, name)
    counted = Fields({**fields.values, "num_local_experts": fields.integer("moe_num_experts", 8)})
    moe = experts_of(counted, spec, RouterSpec(fields.integer("moe_topk", 2)), experts=8, inner="intermediate_size")
    shared = shared_experts(spec, "mlp.shared_experts", moe.inner * fields.integer("moe_num_shared_experts", 2))
    return with_layers(spec, mlp=replace(moe, activation="silu", names=_ARIA, shared=shared))
