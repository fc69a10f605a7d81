"""Reads the config.json of Inkling: scores that depend on the distance to a key, convolutions within and behind
attention and networks, experts of which every token uses some."""

import re
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.attention_parts import AddedConvSpec, DistanceSpec
from ..spec.mlp import STACKED, MoESpec, RouterSpec
from ..spec.model import ModelSpec, dense_mlp
from ..spec.token_input import TokenInputSpec
from .common import common, expect, renamed, with_defaults
from .moe import experts_of, sparse_kinds

_OTHER_NAMES: Final = {
    "conv_kernel_size": "sconv_kernel_size",
    "max_position_embeddings": "model_max_length",
    "sliding_window_size": "sliding_window",
    "n_routed_experts": "num_local_experts",
    "logits_mup_width_multiplier": "embedding_multiplier",
}
"""Second names of fields."""
_DEFAULTS: Final = {
    "vocab_size": 201_024,
    "hidden_size": 6144,
    "num_hidden_layers": 66,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 24_576,
    "moe_intermediate_size": 3072,
    "max_position_embeddings": 131_072,
}
_KINDS: Final = ("hybrid", "hybrid_sliding")
_NAMES: Final = (
    replace(
        STACKED,
        always=(("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"), "mlp.shared_experts.down_proj"),
    ),
    replace(
        STACKED,
        into=("mlp.experts.w13_weight",),
        out="mlp.experts.w2_weight",
        interleaved=True,
        always=(("mlp.shared_experts.shared_w13_weight",), "mlp.shared_experts.shared_w2_weight"),
    ),
)
"""Those of transformers, and published ones."""
_PUBLISHED: Final = "model.llm."
_RENAMED: Final = tuple(
    (re.compile(pattern), put)
    for pattern, put in (
        (r"\Aembed_norm\.", "embed_tokens.embed_norm."),
        (r"\Aembed\.", "embed_tokens."),
        (r"\.attn\.w([qkvr])_d[uv]\.", r".self_attn.\1_proj."),
        (r"\.attn\.wo_ud\.", ".self_attn.o_proj."),
        (r"(?<!\.controllers)\.attn\.", ".self_attn."),
        (r"_sconv\.weight\Z", "_sconv.conv1d.weight"),
        (r"_sconv\.weight_proj\Z", "_sconv.weight_proj.weight"),
        (r"\.attn_norm\.", ".input_layernorm."),
        (r"\.mlp_norm\.", ".post_attention_layernorm."),
        (r"\.mlp\.w2_md\.", ".mlp.down_proj."),
        (r"\.mlp\.gate\.bias\Z", ".mlp.gate.e_score_correction_bias"),
        (r"\Aattn_res\.mlp_queries\.(\d+)\Z", r"layers.\1.mlp_input.query"),
        (r"\Aattn_res\.output_query\Z", "final_input.query"),
    )
)
_MIXER_QUERY: Final = re.compile(r"\Aattn_res\.attn_queries\.(\d+)\Z")
"""Of the mix before the attention of a layer behind the first, of which the second has number 0 (Inkling 2)."""
DRAFTS: Final = "model.mtp."
"""Prefix of the layers that predict further tokens, which are ignored."""


def usual_name(stored: str) -> str | None:
    """The name of a tensor of the text part in published files of Inkling and Inkling 2: that of Inkling in
    transformers, or one of its kind; None if they have no such tensor."""
    if not stored.startswith(_PUBLISHED):
        return None
    name = stored.removeprefix(_PUBLISHED)
    if name.startswith("unembed."):
        return f"lm_head.{name.removeprefix('unembed.')}"
    for pattern, put in _RENAMED:
        name = pattern.sub(put, name)
    if (query := _MIXER_QUERY.match(name)) is not None:
        name = f"layers.{int(query[1]) + 1}.attention_input.query"
    return f"model.{name}"


def inkling(fields: Fields, name: str) -> ModelSpec:
    """Inkling: layers with a window and full ones of other heads; the latter scale queries by position."""
    expect(fields, {"shared_expert_sink": True})
    fields = _usual(fields)
    spec = common(fields, name)
    width, hidden = fields.integer("conv_kernel_size", 4), spec.hidden_size
    out_convs = tuple(AddedConvSpec(((f"{part}_sconv.conv1d", hidden),), width) for part in ("attn", "mlp"))
    dense = replace(dense_mlp(spec), factor="mlp.global_scale", alternating="mlp.w13_dn")
    moe = _experts(fields, spec)
    sparse = sparse_kinds(fields, spec, fields.integer("dense_mlp_idx", 0, least=0))
    layers = (
        replace(
            layer,
            mixer=attention(fields, width, slides=slides),
            mlp=moe if chosen else dense,
            out_convs=(out_convs[0], out_convs[1]),
        )
        for layer, slides, chosen in zip(spec.layers, slides_of(fields, spec), sparse, strict=True)
    )
    said = fields.integer("unpadded_vocab_size", spec.vocab_size, most=spec.vocab_size)
    return replace(
        spec,
        layers=tuple(layers),
        tie_embeddings=False,  # whatever files say, as in transformers
        input=TokenInputSpec(norm=f"{spec.embedding}.embed_norm"),
        logits_divisor=fields.positive("logits_mup_width_multiplier", 24.0),
        unsaid=spec.vocab_size - said,
        padded_head=True,
        draft_prefix=DRAFTS,
    )


def _usual(fields: Fields) -> Fields:
    """The fields under one name each, with the width of dense networks and that of experts apart."""
    fields = renamed(fields, {other: usual for usual, other in _OTHER_NAMES.items() if not fields.has(usual)})
    if fields.has("dense_intermediate_size"):  # the other width is then the experts'
        inner = fields.get("intermediate_size")
        dense = fields.get("dense_intermediate_size")
        fields = Fields({**fields.values, "moe_intermediate_size": inner, "intermediate_size": dense})
    return with_defaults(fields, **_DEFAULTS)


def slides_of(fields: Fields, spec: ModelSpec) -> list[bool]:
    """Which layers have a window: those of a type, those that are listed, or all but every sixth."""
    count = len(spec.layers)
    if (kinds := fields.texts("layer_types")) is not None:
        if len(kinds) != count or (unknown := {*kinds} - {*_KINDS}):
            what = f"{len(kinds)} types" if len(kinds) != count else repr(min(unknown))
            raise ConfigError(f"layer_types holds {what}, expected {' or '.join(map(repr, _KINDS))} for {count} layers")
        return [kind == _KINDS[1] for kind in kinds]
    if fields.has("local_layer_ids"):
        local = {*fields.numbers("local_layer_ids")}
        return [layer in local for layer in range(count)]
    return [(layer + 1) % 6 != 0 for layer in range(count)]


def attention(fields: Fields, width: int, *, slides: bool) -> AttentionSpec:
    """Attention with a window, or a full one, of heads of its own. Raises :class:`ConfigError`."""
    prefix = "swa_" if slides else ""
    heads = fields.integer(f"{prefix}num_attention_heads", 64)
    kv_heads = fields.integer(f"{prefix}num_key_value_heads", 16 if slides else 8)
    head_dim = fields.integer(f"{prefix}head_dim", 128)
    window = fields.integer("sliding_window_size", 512)
    extent = window if slides else fields.integer("rel_extent", 1024)
    floor = 0 if slides else fields.integer("log_scaling_n_floor", 0, least=0)
    return AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=1 / head_dim,
        rope=None,
        window=window if slides else 0,
        qk_norm="head",
        key_convs=AddedConvSpec(tuple((f"{part}_sconv.conv1d", kv_heads * head_dim) for part in "kv"), width),
        distances=DistanceSpec(fields.integer("d_rel", 16), extent),
        temperature_beta=fields.number("log_scaling_alpha", 0.1) if floor else 0.0,
        temperature_floor=floor,
        temperature_first=1 if floor else 0,
        temperature_late=bool(floor),
    )


def _experts(fields: Fields, spec: ModelSpec) -> MoESpec:
    """Experts beside some that every token uses."""
    chosen = routed(fields, spec, top_k=6, experts=256)
    always = fields.integer("n_shared_experts", 2)
    return replace(chosen, experts=chosen.experts + always, always=always, factor="mlp.gate.global_scale", names=_NAMES)


def routed(fields: Fields, spec: ModelSpec, *, top_k: int, experts: int) -> MoESpec:
    """Experts with sigmoid scores and a correction. The numbers are defaults."""
    router = RouterSpec(
        fields.integer("num_experts_per_tok", top_k),
        score="sigmoid",
        renormalize=True,
        scale=fields.number("route_scale", 8.0),
    )
    return replace(experts_of(fields, spec, router, experts=experts), correction=True)
