"""Reads Step 3: queries of all heads are made of one latent; experts routed by a softmax. And Step 3.5 and Step 3.7:
full attention, or a window with more heads and a rotation of its own; a gate of each head; experts routed by a sigmoid,
the last layers' with limits.

Published files give a number for each layer, with those of the draft heads behind the last, and call some fields
otherwise than transformers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention_parts import QueryLatentSpec
from ..spec.mlp import STACKED, ExpertNames, MLPSpec, MoESpec, RouterSpec
from ..spec.model import ModelSpec, dense_mlp, with_mixers, with_mtp
from ..spec.mtp_form import STEP
from ..spec.positions import RopeConfig
from .common import attention_bias, check_silu, common, expect, slide, sliding_layers
from .moe import experts_of, shared_experts, sparse_kinds, with_experts
from .rope import rope_from_hf

_OTHER_NAMES: Final[Mapping[str, str]] = {
    "num_attention_groups": "num_key_value_heads",
    "moe_num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "share_expert_dims": "share_expert_dim",
    "max_position_embedding": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
}
"""Of published files."""
_STEP3: Final[Mapping[str, object]] = {
    "head_dim": 256,
    "moe_intermediate_size": 5120,
    "moe_layers_enum": [*range(4, 60)],
    "n_routed_experts": 48,
    "norm_expert_weight": False,
    "num_experts_per_tok": 3,
    "rope_theta": 500_000.0,
    "share_expert_dim": 5120,
    "share_q_dim": 2048,
}
"""Defaults of Step 3."""
_DEFAULTS: Final[Mapping[str, object]] = {
    "head_dim": 128,
    "moe_intermediate_size": 1280,
    "n_routed_experts": 288,
    "rms_norm_eps": 1e-5,
}
_NAMES: Final = ExpertNames(
    router="moe.gate",
    into=("moe.gate_proj.weight", "moe.up_proj.weight"),
    out="moe.down_proj.weight",
    correction="moe.router_bias",
)
_EXPECTED: Final[Mapping[str, object]] = {
    "moe_router_activation": "sigmoid",
    "att_impl_type": "GQA",
    "gating": True,
    "use_head_wise_attn_gate": True,
    "use_moe_router_bias": True,
    "norm_expert_weight": True,
    "zero_centered": True,
    "use_bidirectional_attention": False,
    "yarn_only_types": ["full_attention"],
}
"""Values of fields that say what is always so here."""
_PER_LAYER: Final = (
    *("layer_types", "mlp_layer_types", "rope_theta", "partial_rotary_factors", "use_rope_layers"),
    *("swiglu_limits", "swiglu_limits_shared"),
)
_WINDOW, _FULL = "sliding_attention", "full_attention"


def step3(fields: Fields, name: str) -> ModelSpec:
    """Step 3: multi-matrix factorisation attention (arXiv:2412.19255), and experts beside a shared one."""
    check_silu(fields)
    expect(fields, {"num_attention_groups": 1, "attention_bias": False, "mlp_bias": False, "att_impl_type": "MFA"})
    values = _usual_names(fields)
    fields = Fields({**_STEP3, **values, "num_key_value_heads": 1})
    spec = common(fields, name, eps=1e-5)
    spec = with_mixers(spec, query_latent=QueryLatentSpec(fields.integer("share_q_dim")))
    router = RouterSpec(fields.integer("num_experts_per_tok"), renormalize=fields.flag("norm_expert_weight"))
    moe = experts_of(fields, spec, router, experts=48)
    shared = shared_experts(spec, "share_expert", fields.integer("share_expert_dim"))
    names = replace(_NAMES, correction="")
    return with_experts(spec, replace(moe, names=(names,), shared=shared), _sparse(fields, spec))


def step(fields: Fields, name: str) -> ModelSpec:
    """Raises :class:`ConfigError` for what no published file asks for."""
    published, fields = fields, _uniform(fields)
    layers = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    slides = sliding_layers(fields) or [False] * layers
    spec = attention_bias(fields, common(_without_rotations(fields), name, eps=1e-5))
    spec = replace(spec, norm_plus_one=True)
    head_dim = spec.layers[0].attention.head_dim
    scale = fields.positive("query_pre_attn_scalar", float(head_dim)) ** -0.5
    spec = with_mixers(spec, qk_norm="head", gated=True, gate="g_proj", gate_by_head=True, scale=scale)
    spec = with_mixers(spec, slides, heads=_heads_of_windows(fields))
    for kind, which in ((_WINDOW, slides), (_FULL, [not each for each in slides])):
        if any(which):
            spec = with_mixers(spec, which, rope=_rope(fields, head_dim, kind, which))
    spec = slide(spec, fields.integer("sliding_window", 0, least=0), slides)
    return _with_head(published, _with_networks(fields, spec))


def _uniform(fields: Fields) -> Fields:
    """Fields as transformers calls them, of the model's own layers alone. Raises :class:`ConfigError`."""
    values = {**_DEFAULTS, **_usual_names(fields)}
    for field, expected in _EXPECTED.items():
        if (found := values.get(field, expected)) != expected and not (field == "gating" and found == "per-head"):
            raise ConfigError(f"{field} is {str(found)[:40]!r}, expected {expected!r}")
    layers = Fields(values).integer("num_hidden_layers", most=MOST_LAYERS)
    heads = Fields(values).integer("num_nextn_predict_layers", 0, least=0)
    for field in _PER_LAYER:
        listed = values.get(field)
        if not isinstance(listed, list) or not listed:
            continue
        if len(listed) not in (layers, layers + heads):
            raise ConfigError(f"{field} says what {len(listed)} layers are, expected {layers}")
        values[field] = listed[:layers]
    turning = values.get("use_rope_layers")
    if isinstance(turning, list) and not all(turning):
        raise ConfigError("use_rope_layers holds false, expected true of every layer")
    values.pop("num_local_experts", None)
    return Fields(values)


def _usual_names(fields: Fields) -> dict[str, object]:
    """Fields that are not null, also as transformers calls them."""
    values = {field: value for field, value in fields.values.items() if value is not None}
    for other, here in _OTHER_NAMES.items():
        if other in values:
            values.setdefault(here, values[other])
    return values


def _without_rotations(fields: Fields) -> Fields:
    """The fields without those of rotations, which :func:`_rope` reads by the kind of layer."""
    of_rotations = ("rope_theta", "rope_scaling", "rope_parameters")
    return Fields({field: value for field, value in fields.values.items() if field not in of_rotations})


def _heads_of_windows(fields: Fields) -> int:
    """Query heads of layers with a window. Raises :class:`ConfigError` if these differ otherwise too."""
    heads = fields.integer("num_attention_heads")
    other = Fields(fields.table("attention_other_setting") or {})
    if other.text("attention_type", _WINDOW) != _WINDOW:
        raise ConfigError(f"attention_other_setting is of {other.text('attention_type')!r}, expected {_WINDOW!r}")
    for field, here in (("num_attention_groups", "num_key_value_heads"), ("head_dim", "head_dim")):
        if other.integer(field, same := fields.integer(here)) != same:
            raise ConfigError(f"attention_other_setting has {field} {other.integer(field)}, expected {same}")
    return fields.integer("num_sliding_attention_heads", other.integer("num_attention_heads", heads))


def _rope(fields: Fields, head_dim: int, kind: str, which: Sequence[bool]) -> RopeConfig:
    """The rotation of the layers ``which``, all of a kind. Raises :class:`ConfigError` if they do not rotate alike."""
    parameters = Fields(fields.table("rope_parameters") or {})
    if not (table := dict(parameters.table(kind) or {})):
        table = dict(fields.table("rope_scaling") or {}) if kind == _FULL else {}
        table["rope_theta"] = _alike(fields, "rope_theta", which) or 10_000.0
        table["partial_rotary_factor"] = _alike(fields, "partial_rotary_factors", which) or 1.0
    longest = fields.integer("max_position_embeddings")
    return rope_from_hf({"max_position_embeddings": longest, "rope_parameters": table}, head_dim)


def _alike(fields: Fields, field: str, which: Sequence[bool]) -> float:
    """A number that may be listed for each layer, of these layers; 0 if absent."""
    if not isinstance(fields.get(field), list):
        return fields.number(field, 0.0)
    found = {number for number, chosen in zip(fields.numbers(field), which, strict=False) if chosen}
    if len(found) > 1:
        raise ConfigError(f"{field} differs among layers that see alike: {sorted(found)}")
    return found.pop() if found else 0.0


def _with_networks(fields: Fields, spec: ModelSpec) -> ModelSpec:
    layers = len(spec.layers)
    if fields.flag("mlp_bias"):
        raise ConfigError("mlp_bias is set, expected false: networks have no biases")
    router = RouterSpec(
        fields.integer("num_experts_per_tok", 8),
        score="sigmoid",
        scale=fields.number("moe_router_scaling_factor", 1.0),
    )
    moe = experts_of(fields, spec, router, experts=288)
    moe = replace(moe, correction=True, names=(_NAMES, STACKED))
    shared = shared_experts(spec, "share_expert", fields.integer("share_expert_dim", 1280))
    limits, of_all = _limits(fields, "swiglu_limits", layers), _limits(fields, "swiglu_limits_shared", layers)
    if (odd := next((limit for limit in limits if limit not in (0, 7)), None)) is not None:
        raise ConfigError(f"swiglu_limits holds {odd:g}, expected 0 or 7")
    made = []
    for layer, sparse, routed, limit in zip(spec.layers, _sparse(fields, spec), limits, of_all, strict=True):
        mlp: MLPSpec | MoESpec = dense_mlp(spec)
        if sparse:
            own = replace(shared, limit=limit, limits_active=limit > 0)
            mlp = replace(moe, activation="silu_7" if routed else moe.activation, shared=own)
        elif limit:
            mlp = replace(dense_mlp(spec), limit=limit, limits_active=True)
        made.append(replace(layer, mlp=mlp))
    return replace(spec, layers=tuple(made))


def _with_head(published: Fields, spec: ModelSpec) -> ModelSpec:
    """The spec with its first head for multi-token prediction, of which lists say what it is behind the model's own
    layers; ``published``: the fields with them. One with experts is not read."""
    heads, layers = published.integer("num_nextn_predict_layers", 0, least=0), len(spec.layers)
    kinds = published.texts("layer_types") or ()
    kind = kinds[layers] if len(kinds) > layers else (published.texts("mtp_layer_types") or (_FULL,))[0]
    alike = [layer for layer in spec.layers if bool(layer.attention.window) == (kind == _WINDOW)]
    limits = _limits(published, "swiglu_limits_shared", layers + heads)
    works = (published.texts("mlp_layer_types") or ())[layers:] or published.texts("mtp_mlp_layer_types") or ("dense",)
    if not heads or not alike or works[0] != "dense":
        return replace(spec, draft_layers=heads)
    limit = limits[layers] if len(limits) > layers else 0.0
    mlp = replace(dense_mlp(spec), limit=limit, limits_active=limit > 0)
    return with_mtp(spec, STEP, heads, replace(alike[-1], mlp=mlp))


def _sparse(fields: Fields, spec: ModelSpec) -> list[bool]:
    """Which layers have experts: by ``mlp_layer_types``, else by the numbers in ``moe_layers_enum``, which may be a
    text."""
    listed = fields.get("moe_layers_enum")
    if fields.has("mlp_layer_types") or listed is None:
        return sparse_kinds(fields, spec, 3)
    if isinstance(listed, str):
        parts = [part.strip() for part in listed.split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
            raise ConfigError(f"moe_layers_enum is {listed[:40]!r}, expected numbers of layers")
        chosen = {float(part) for part in parts}
    else:
        chosen = {*fields.numbers("moe_layers_enum")}
    return [number in chosen for number in range(len(spec.layers))]


def _limits(fields: Fields, field: str, layers: int) -> list[float]:
    """The limit of each layer's activations; 0: none."""
    listed = fields.get(field)
    if isinstance(listed, list):
        fields = Fields({field: [each or 0 for each in listed]})
    return list(fields.numbers(field)) or [0.0] * layers
