"""Reads the config.json of Inkling 2: as Inkling, with mixes of kept streams before each part, heads of a bounded
length, a score without a value that each token makes, and convolutions by taps of tokens."""

from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.attention_parts import AddedConvSpec
from ..spec.layer import PRE, LayerSpec
from ..spec.mlp import STACKED, MoESpec
from ..spec.model import ModelSpec, checked
from ..spec.streams import BlockLoopSpec, BlockResidualSpec
from ..spec.token_input import TokenInputSpec
from .common import common, expect, renamed, with_defaults
from .inkling import DRAFTS, attention, routed, slides_of

_OTHER_NAMES: Final = {
    "conv_kernel_size": "sconv_kernel_size",
    "max_position_embeddings": "model_max_length",
    "moe_intermediate_size": "intermediate_size",
    "n_routed_experts": "num_local_experts",
    "route_scale": "routed_scaling_factor",
    "sliding_window_size": "sliding_window",
}
"""Second names of fields."""
_DEFAULTS: Final = {
    "vocab_size": 201_024,
    "hidden_size": 4608,
    "intermediate_size": 2304,  # of no network
    "moe_intermediate_size": 2304,
    "num_hidden_layers": 48,
    **{f"{which}num_attention_heads": 48 for which in ("", "swa_")},
    **{f"{which}num_key_value_heads": 8 for which in ("", "swa_")},
    "head_dim": 128,
    "sliding_window_size": 1024,
    "log_scaling_n_floor": 128_000,
    "max_position_embeddings": 1_048_576,
}
_MINI_DEFAULTS: Final = {
    "hidden_size": 2304,
    "num_hidden_layers": 24,
    **{f"{which}num_attention_heads": 24 for which in ("", "swa_")},
    "log_scaling_n_floor": 8192,
    "moe_intermediate_size": 1152,
    "n_routed_experts": 128,
}
_LOOP_FIELDS: Final = {
    "core_start": "loop_layer_index_start",
    "core_end": "loop_layer_index_end",
    "num_passes": "loop_num_passes",
    "gate_rank": "loop_gate_rank",
}
"""Fields of the table of loops in published files, and those of transformers."""
_BOUNDS: Final = {"mlp_gate_softcap": 4.0, "mlp_up_softcap": 25.0}
"""Those that kernels have of the experts' gate."""
_NAMES: Final = (
    replace(STACKED, into=("mlp.experts.w13_weight",), out="mlp.experts.w2_weight", interleaved=True),
    STACKED,
)
"""Published ones, and those of transformers."""


def inkling2(fields: Fields, name: str) -> ModelSpec:
    """Inkling 2: layers with a window, and full ones that mix queries, keys and values apart."""
    expect(fields, {"scoring_func": "sigmoid", **_BOUNDS})
    fields = renamed(fields, {other: usual for usual, other in _OTHER_NAMES.items() if not fields.has(usual)})
    fields = with_defaults(Fields({"eos_token_id": 200_006, **fields.values}), **_DEFAULTS)
    spec = common(fields, name)
    slides = slides_of(fields, spec)
    moe = replace(routed(fields, spec, top_k=8, experts=384), activation="situ", names=_NAMES)
    width, count = fields.integer("conv_kernel_size", 4), len(spec.layers)
    kinds = {each: _layer(fields, moe, width, spec.hidden_size, slides=each) for each in {*slides}}
    said = fields.integer("unpadded_vocab_size", min(200_058, spec.vocab_size), most=spec.vocab_size)
    return replace(
        spec,
        layers=tuple(kinds[each] for each in slides),
        streams=BlockResidualSpec(
            count,
            fields.integer("n_layers_per_attn_res_block", 6),
            ("attention_input", "mlp_input"),
            "model.final_input",
            query=True,
            inputs=tuple(1 if each else 3 for each in slides),
        ),
        tie_embeddings=False,  # whatever files say, as in transformers
        input=TokenInputSpec(norm=f"{spec.embedding}.embed_norm"),
        logits_softcap=fields.positive("final_logit_softcapping", 30.0),
        unsaid=spec.vocab_size - said,
        padded_head=True,
        draft_prefix=DRAFTS,
    )


def inkling2_loop(fields: Fields, name: str) -> ModelSpec:
    """Inkling 2 Mini: an Inkling 2 of which the middle layers run several times, each time with keys, values and states
    of their own, from the streams before them and from mixes of what they made last."""
    told = fields.table("loop_config") or {}
    fields = Fields({**fields.values, **{own: told[each] for each, own in _LOOP_FIELDS.items() if each in told}})
    spec = inkling2(_with_usual_names(fields), name)
    count, streams = len(spec.layers), spec.streams
    assert isinstance(streams, BlockResidualSpec)
    first, end, passes = (
        fields.integer(f"loop_{field}", default, most=MOST_LAYERS)
        for field, default in (("layer_index_start", 6), ("layer_index_end", 18), ("num_passes", 3))
    )
    loop = BlockLoopSpec(first, end, fields.integer("loop_gate_rank", 64))
    spec = replace(spec, streams=replace(streams, loop=loop))
    checked(spec)
    if count + (passes - 1) * loop.layers > MOST_LAYERS:
        raise ConfigError(f"{loop.layers} of {count} layers run {passes} times, expected at most {MOST_LAYERS} in all")
    runs = (*range(first), *[*range(first, end)] * passes, *range(end, count))
    stored = [_repeated(layer) if loop.repeats(at) else layer for at, layer in enumerate(spec.layers)]
    return replace(
        spec,
        layers=tuple(stored[at] for at in runs),
        runs=runs if passes > 1 else (),
        expands_experts=not fields.has("quantization_config"),
    )


def _with_usual_names(fields: Fields) -> Fields:
    """The fields under one name each, with the defaults of Inkling 2 Mini."""
    fields = renamed(fields, {other: usual for usual, other in _OTHER_NAMES.items() if not fields.has(usual)})
    return with_defaults(fields, **_MINI_DEFAULTS)


def _repeated(layer: LayerSpec) -> LayerSpec:
    """A layer of a loop: queries, keys and values take inputs of their own, also where one norm is for all."""
    if layer.attention.apart:
        return layer
    norms = replace(layer.norms, inputs=("q", "k", "v"))
    return replace(layer, mixer=replace(layer.attention, apart=True), norms=norms)


def _layer(fields: Fields, moe: MoESpec, width: int, hidden: int, *, slides: bool) -> LayerSpec:
    """One with a window, or a full one."""
    scale = (width + 1) ** -0.5
    of_mixer, of_network = (
        AddedConvSpec(((f"{part}_sconv.conv1d", hidden),), width, scale) for part in ("attn", "mlp")
    )
    norms = PRE if slides else replace(PRE, mixer_in="{}_input_norm", inputs=("q", "k", "v"))
    return LayerSpec(_attention(fields, width, slides=slides), moe, norms, out_convs=(of_mixer, of_network))


def _attention(fields: Fields, width: int, *, slides: bool) -> AttentionSpec:
    fields.integer("log_scaling_n_floor")
    like = attention(fields, width, slides=slides)
    convs = AddedConvSpec(
        tuple((f"{part}_sconv{'.conv1d' if slides else ''}", like.kv_size) for part in "kv"),
        width,
        (width + 1 if slides else 2 * width + 1) ** -0.5,
        heads=0 if slides else like.kv_heads,
    )
    assert like.distances is not None
    longest = fields.positive("rel_l2_clip_threshold", 8.0)
    return replace(
        like,
        scale=like.head_dim**-0.5,
        qk_norm="clip",
        qk_norm_names=("q_l2_clip", ""),
        longest=fields.positive("qk_l2_clip_threshold", 512**0.5),
        v_norm=True,
        gated=True,
        gate="gate_attn",
        apart=not slides,
        key_convs=convs,
        distances=replace(like.distances, longest=longest, sinks="attn_sink_proj"),
    )
