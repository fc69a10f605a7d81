"""Reads the config.json of Dory: a normalised transformer (nGPT, arXiv:2410.01131) whose middle layers run several
times.

All hidden states have length 1. Here they have it times the root of their size, as RMS norms leave them: of what is not
normed anew, only gates of attention and logits show the difference.
"""

from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.model import SANDWICH, Blend, ModelSpec, dense_mlp, with_layers, with_mixers
from .common import common, expect, slide, sliding_layers, with_defaults
from .rope import rope_from_hf

_MLP: Final = "mlp"
"""Stands behind each layer's type in files that count attention and network as layers of their own."""
_COUNTS: Final = ("n_input_layers", "n_recurrent_layers", "n_output_layers")
_ROPE: Final = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 10_000_000.0},
}
"""Of a file that says nothing of it."""
_EPS: Final = 1e-6
"""Added to the square of a length."""


def dory(fields: Fields, name: str) -> ModelSpec:
    """Each run of the middle layers begins with the sum of what the former run made and what the first got, normed
    each, and keeps keys and values of its own."""
    expect(fields, {"attention_bias": False, "mlp_bias": False, "recurrent_kv_cache_mode": "per_loop"})
    fields = _paired(with_defaults(fields, head_dim=256, num_key_value_heads=4))
    spec = common(Fields({**fields.values, "rope_parameters": None}), name)
    hidden, head_dim = spec.hidden_size, spec.layers[0].attention.head_dim
    deviation = fields.positive("initializer_range", 0.0177)
    gate = fields.positive("attention_output_gate_logit_scale_init", hidden**0.5)
    spec = with_mixers(
        spec,
        scale=head_dim**-1.5,
        qk_norm="head",
        qk_norm_names=None,
        rotated_first=True,
        query_scales="sqk",
        query_rate=head_dim**0.5 / deviation,
        gated=True,
        gate="g_proj",
        gate_scales="s_gate",
        gate_rate=(gate / hidden**0.5) ** 0.5 / deviation,
        out_norm="attn_sub_norm",
        out_norm_weighted=False,
    )
    spec = with_layers(
        spec,
        norms=replace(SANDWICH, weighted=False, renews=True),
        mlp=replace(dense_mlp(spec), norm="ffn_sub_norm", norm_weighted=False, scales=("mlp.suv_gate", "mlp.suv_up")),
        sums=("lambda_1", "lambda_2"),
        sum_rate=fields.positive("ngpt_alpha_init", 0.05) / deviation,
    )
    return _run(
        fields,
        replace(
            _turned(fields, spec),
            norm_eps=_EPS / hidden,
            prefix="backbone.layers",
            embedding="backbone.embeddings",
            final_norm="backbone.norm",
            logit_scales="lm_head.logit_scale",
            logits_divisor=hidden**0.5 * deviation,
            blocks_apart=True,
        ),
    )


def _paired(fields: Fields) -> Fields:
    """The fields with a network in each layer, where the file counts it as a layer of its own."""
    kinds = fields.texts("layer_types")
    if kinds is None or _MLP not in kinds:
        return fields
    if kinds[1::2] != (_MLP,) * (len(kinds) // 2) or _MLP in kinds[::2] or len(kinds) % 2:
        raise ConfigError(f"layer_types is not a type of attention and {_MLP!r} in turn")
    halves: dict[str, object] = {"layer_types": [*kinds[::2]]}
    for field in ("num_hidden_layers", *_COUNTS):
        if fields.has(field):
            count = fields.integer(field, least=0)
            if count % 2:
                raise ConfigError(f"{field} is {count}, expected an even number: each layer is two in layer_types")
            halves[field] = count // 2
    return Fields({**fields.values, **halves})


def _turned(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The spec with the rotation of each type of layer, and windows."""
    slides = sliding_layers(fields) or [(layer + 1) % 4 != 0 for layer in range(len(spec.layers))]
    if len(slides) != len(spec.layers):
        raise ConfigError(f"layer_types has {len(slides)} types, expected {len(spec.layers)}")
    told = with_defaults(fields, rope_parameters=_ROPE).values
    for kind, slid in (("full_attention", False), ("sliding_attention", True)):
        rope = rope_from_hf(told, spec.layers[0].attention.head_dim, layer_type=kind)
        spec = with_mixers(spec, [each == slid for each in slides], rope=rope)
    return slide(spec, fields.integer("sliding_window", 1024), slides)


def _run(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The spec with its middle layers as often as they run."""
    count = len(spec.layers)
    before, behind = (fields.integer(field, 8, least=0) for field in ("n_input_layers", "n_output_layers"))
    middle = fields.integer("n_recurrent_layers", max(count - before - behind, 0), least=0)
    if before + middle + behind != count or not middle:
        raise ConfigError(
            f"{before} layers before, {middle} that run several times and {behind} behind are not the {count} of the "
            "model, expected at least one that runs several times"
        )
    loops = fields.integer("n_recurrent_loops", 2, most=MOST_LAYERS)
    if before + loops * middle + behind > MOST_LAYERS:
        raise ConfigError(f"{middle} layers run {loops} times, expected at most {MOST_LAYERS} in all")
    runs = (*range(before), *[*range(before, before + middle)] * loops, *range(before + middle, count))
    starts = tuple(range(before, before + loops * middle, middle))
    return replace(
        spec,
        layers=tuple(spec.layers[stored] for stored in runs),
        runs=runs if loops > 1 else (),
        normed_before=starts if loops > 1 else (),
        blends=tuple(Blend(start, before, 0.5) for start in starts[1:]),
    )
