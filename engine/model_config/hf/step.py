"""Reads Step 1: scores lose with the root of the distance. Step 3: queries of all heads are made of one latent; experts
routed by a softmax. And Step 3.5, 3.7 and 5: full attention, or a window with more heads and a rotation of its own; a
gate of each head; experts routed by a sigmoid, the last layers' with limits. In Step 5 an index chooses the regions of
tokens that full attention sees.

Published files give a number for each layer, with those of the draft heads behind the last, and call some fields
otherwise than transformers."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention_parts import QueryLatentSpec, RegionIndexSpec
from ..spec.mlp import STACKED, ExpertNames, MLPSpec, MoESpec, RouterSpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mixers, with_mtp
from ..spec.mtp_form import STEP
from ..spec.positions import RopeConfig, alibi_slopes
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
    "swa_num_attention_heads": "num_sliding_attention_heads",
    "moe_layer_list": "moe_layers_enum",
    "layer_types_with_mtp": "layer_types",
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
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
}
_STEP5: Final[Mapping[str, object]] = {
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "moe_intermediate_size": 10240,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 4096,
}
"""Defaults of Step 5."""
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
}
"""Values of fields that say what is always so here."""
_INDEXED: Final[Mapping[str, object]] = {
    "apply_to_layer_types": ["full_attention"],
    "attention_impl": "sparse_gqa",
    "compression_method": "csa_block_compress",
    "softmax_variant": None,
    "sparse_indexer_csa_z_norm_type": "none",
    "sparse_indexer_k_norm_type": "layernorm",
    "sparse_indexer_num_k_heads": 1,
    "sparse_indexer_q_norm_type": "rmsnorm",
    "sparse_indexer_use_rope": True,
}
"""The same in the table of Step 5's index."""
_SCALED_SOFTMAX: Final = "ssmax_s"
"""Stored beside the index of Step 5, whose scores have no softmax."""
_PER_LAYER: Final = (
    *("layer_types", "mlp_layer_types", "rope_theta", "partial_rotary_factors", "use_rope_layers"),
    *("swiglu_limits", "swiglu_limits_shared"),
)
_WINDOW, _FULL = "sliding_attention", "full_attention"


def step1(fields: Fields, name: str) -> ModelSpec:
    """Step 1: a Llama without positions, whose scores lose a multiple of the root of the distance (Step-Audio)."""
    check_silu(fields)
    values = _usual_names(fields)
    values.setdefault("num_key_value_heads", 1)
    values.setdefault("tie_word_embeddings", True)
    fields = Fields({field: value for field, value in values.items() if field != "head_dim"})
    spec = attention_bias(fields, common(fields, name, eps=1e-5))
    slopes = alibi_slopes(spec.layers[0].attention.heads)
    spec = with_mixers(spec, rope=None, slopes=slopes, slopes_of_roots=True)
    return with_layers(spec, mlp=replace(dense_mlp(spec), bias=fields.flag("mlp_bias")))


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
    return _stepped(fields, name, _DEFAULTS)


def step5(fields: Fields, name: str) -> ModelSpec:
    """Step 5: a Step 3.7 whose full attention is to the regions of tokens that an index chooses.

    Raises :class:`ConfigError`.
    """
    expect(fields, {"step5_sparse_config": None, "step3p5_sparse_config": None})
    for flag in ("use_head_wise_attn_gate", "use_moe_router_bias"):
        if not fields.flag(flag):
            raise ConfigError(f"{flag} is missing or false, expected true")
    if not fields.has("layer_types") and not fields.has("layer_types_with_mtp"):
        raise ConfigError("layer_types is missing, expected the kind of each layer")
    enums = {frozenset(_numbers(fields, each)) for each in ("moe_layers_enum", "moe_layer_list") if fields.has(each)}
    if len(enums) > 1:
        raise ConfigError("moe_layers_enum and moe_layer_list are of different layers")
    taken = fields.integer("moe_top_k", 4) * fields.integer("moe_intermediate_size", 10_240)
    layers = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    values = dict(fields.values)
    if not enums:
        values["moe_layers_enum"] = [*range(1, layers)]
    spec = _stepped(Fields(values), name, {**_STEP5, "share_expert_dim": taken})
    spec = replace(spec, float32_stream=fields.flag("fp32_residual_connection"))
    whole = [not layer.attention.window for layer in spec.layers]
    table = Fields(fields.table("sparse_config") or {})
    if not fields.has("sparse_config"):
        return spec
    full = next((layer.attention for layer in spec.layers if not layer.attention.window), None)
    if full is None:
        raise ConfigError("sparse_config is set, and layer_types has no 'full_attention', which it is for")
    index = _regions(_uniform(Fields(values), _STEP5), table, full.kv_heads, whole)
    if not table.flag("enabled", True):
        parts = (part.name.removeprefix("self_attn.") for part in index.parts("self_attn", full.kv_heads))
        stored = (f"{part}.weight" for part in parts)
        norms = (name.removeprefix(".self_attn.") for name, _ in index.shapes("", "self_attn"))
        return with_mixers(spec, whole, unused=(_SCALED_SOFTMAX, *stored, *norms))
    spec = with_mixers(spec, whole, index=index, unused=(_SCALED_SOFTMAX,))
    head = spec.mtp_layer
    # a head for multi-token prediction with an index is not read
    return replace(spec, mtp=None, mtp_layer=None) if head is not None and not head.attention.window else spec


def _stepped(fields: Fields, name: str, defaults: Mapping[str, object]) -> ModelSpec:
    published, fields = fields, _uniform(fields, defaults)
    layers = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    slides = sliding_layers(fields) or [False] * layers
    spec = attention_bias(fields, common(_without_rotations(fields), name, eps=1e-5))
    spec = replace(spec, norm_plus_one=True)
    head_dim = spec.layers[0].attention.head_dim
    scale = fields.positive("query_pre_attn_scalar", float(head_dim)) ** -0.5
    spec = with_mixers(spec, qk_norm="head", gated=True, gate="g_proj", gate_by_head=True, scale=scale)
    for kind, which in ((_WINDOW, slides), (_FULL, [not each for each in slides])):
        if any(which):
            sizes = _sizes_of(fields, kind)
            dim = sizes.get("head_dim", head_dim)
            spec = with_mixers(spec, which, rope=_rope(fields, dim, kind, which), **sizes)
            if dim != head_dim:
                spec = with_mixers(spec, which, scale=dim**-0.5)
    if isinstance(turning := fields.get("use_rope_layers"), list) and turning:
        spec = with_mixers(spec, [not each for each in turning], rope=None)
    spec = slide(spec, fields.integer("sliding_window", 0, least=0), slides)
    return _with_head(published, _with_networks(fields, spec))


def _uniform(fields: Fields, defaults: Mapping[str, object]) -> Fields:
    """Fields as transformers calls them, of the model's own layers alone. Raises :class:`ConfigError`."""
    values = {**defaults, **_usual_names(fields)}
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


def _sizes_of(fields: Fields, kind: str) -> dict[str, int]:
    """The sizes of heads that layers of a kind have instead of the others'."""
    other = Fields(fields.table("attention_other_setting") or {})
    sizes = {}
    if other.values and other.text("attention_type") == kind:
        names = {"num_attention_heads": "heads", "num_attention_groups": "kv_heads", "head_dim": "head_dim"}
        sizes = {here: other.integer(field) for field, here in names.items() if other.has(field)}
    if kind == _WINDOW and fields.has("num_sliding_attention_heads"):
        sizes["heads"] = fields.integer("num_sliding_attention_heads")
    return sizes


def _rope(fields: Fields, head_dim: int, kind: str, which: Sequence[bool], part: float = 0.0) -> RopeConfig:
    """The rotation of the layers ``which``, all of a kind, or of their index, of whose dimensions ``part`` rotate, and
    which is extended whatever ``yarn_only_types`` says. Raises :class:`ConfigError` if they do not rotate alike."""
    parameters = Fields(fields.table("rope_parameters") or {})
    if not (table := dict(parameters.table(kind) or {})):
        stretched = bool(part) or kind in (fields.texts("yarn_only_types") or (_WINDOW, _FULL))
        table = dict(fields.table("rope_scaling") or {}) if stretched else {}
        table["rope_theta"] = _alike(fields, "rope_theta", which) or 10_000.0
        table["partial_rotary_factor"] = _alike(fields, "partial_rotary_factors", which) or 1.0
    if part:
        table["partial_rotary_factor"] = part
    longest = fields.integer("max_position_embeddings")
    return rope_from_hf({"max_position_embeddings": longest, "rope_parameters": table}, head_dim)


def _regions(fields: Fields, table: Fields, kv_heads: int, which: Sequence[bool]) -> RegionIndexSpec:
    """The index of the layers ``which``, that ``table`` describes. Raises :class:`ConfigError`."""
    expect(table, _INDEXED)
    variant = table.text("sparse_indexer_softmax_variant", "softmax").lower()
    if variant not in ("softmax", "standard", "ssmax"):
        raise ConfigError(f"sparse_indexer_softmax_variant is {variant[:40]!r}, expected 'softmax' or 'ssmax'")
    groups = table.integer("index_tp_size", table.integer("num_provider_groups", 4))
    heads = table.integer("sparse_indexer_num_heads", 16)
    if groups != kv_heads or heads % groups:
        raise ConfigError(
            f"index_tp_size is {groups} and sparse_indexer_num_heads {heads}, expected the {kv_heads} key-value heads "
            "of full attention, and a multiple of them"
        )
    dim = table.integer("proxy_dim", 256)
    part = table.integer("sparse_indexer_rope_dim", 32) / dim
    rope = _rope(fields, dim, _FULL, which, part)
    size, top_k = table.integer("region_block_size", 8), table.integer("topk", 512)
    return RegionIndexSpec(heads // groups, dim, size, top_k, rope)


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
    kinds = published.texts("layer_types_with_mtp") or published.texts("layer_types") or ()
    kind = kinds[layers] if len(kinds) > layers else (published.texts("mtp_layer_types") or (_FULL,))[0]
    alike = [layer for layer in spec.layers if bool(layer.attention.window) == (kind == _WINDOW)]
    limits = _limits(published, "swiglu_limits_shared", layers + heads)
    works = (published.texts("mlp_layer_types") or ())[layers:] or published.texts("mtp_mlp_layer_types") or ("dense",)
    sparse = any(layers in _numbers(published, each) for each in ("moe_layers_enum", "moe_layer_list"))
    if not heads or not alike or works[0] != "dense" or sparse:
        return replace(spec, draft_layers=heads)
    limit = limits[layers] if len(limits) > layers else 0.0
    mlp = replace(dense_mlp(spec), limit=limit, limits_active=limit > 0)
    return with_mtp(spec, STEP, heads, replace(alike[-1], mlp=mlp))


def _sparse(fields: Fields, spec: ModelSpec) -> list[bool]:
    """Which layers have experts: by ``mlp_layer_types``, else by the numbers in ``moe_layers_enum``, which may be a
    text."""
    if fields.has("mlp_layer_types") or fields.get("moe_layers_enum") is None:
        return sparse_kinds(fields, spec, 3)
    chosen = _numbers(fields, "moe_layers_enum")
    return [number in chosen for number in range(len(spec.layers))]


def _numbers(fields: Fields, field: str) -> set[float]:
    """Numbers of layers in a list, which may be a text; empty if absent. Raises :class:`ConfigError`."""
    listed = fields.get(field)
    if not isinstance(listed, str):
        return {*fields.numbers(field)}
    parts = [part.strip() for part in listed.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        raise ConfigError(f"{field} is {listed[:40]!r}, expected numbers of layers")
    return {float(part) for part in parts}


def _limits(fields: Fields, field: str, layers: int) -> list[float]:
    """The limit of each layer's activations; 0: none."""
    listed = fields.get(field)
    if isinstance(listed, list):
        fields = Fields({field: [each or 0 for each in listed]})
    return list(fields.numbers(field)) or [0.0] * layers
