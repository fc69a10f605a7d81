"""Reads the config.json of MiniMax-01 and M1, in their authors' form and in transformers'."""

from dataclasses import replace

from .config_fields import ConfigError, Fields
from .hf_common import check_silu, common, slide
from .hf_hybrid import kinds_of
from .hf_moe import MIXTRAL, experts_of
from .mlp_spec import STACKED, RouterSpec
from .model_spec import LayerSpec, ModelSpec, Norms, with_layers
from .recurrent_spec import LightningSpec

_KINDS = ("linear_attention", "full_attention")


def minimax(fields: Fields, name: str) -> ModelSpec:
    """Lightning attention in most layers, and a Mixtral's attention and experts. The residual stream is normed, and
    scaled, before each part."""
    check_silu(fields)
    if fields.integer("shared_intermediate_size", 0, least=0):
        raise ConfigError("shared_intermediate_size is not 0: shared experts of MiniMax-01 are not supported")
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // fields.integer("num_attention_heads"))
    if fields.has("rotary_dim"):
        fields = Fields({"partial_rotary_factor": fields.integer("rotary_dim") / head_dim, **fields.values})
    spec = common(fields, name, eps=1e-5, theta=1_000_000.0)
    experts = experts_of(
        fields, spec, RouterSpec(fields.integer("num_experts_per_tok", 2)), experts=8, inner="intermediate_size"
    )
    spec = with_layers(
        slide(spec, fields.integer("sliding_window", 0, least=0)),
        mlp=replace(experts, names=(MIXTRAL, STACKED)),
        norms=Norms(
            mixer_in="input_layernorm", mlp_in="post_attention_layernorm", renews=fields.flag("postnorm", True)
        ),
    )
    listed = fields.numbers("attn_type_list")
    if (odd := next((each for each in listed if each not in (0, 1)), None)) is not None:
        raise ConfigError(f"attn_type_list holds {odd:g}, expected 0 or 1")
    kinds = kinds_of(fields, _KINDS) or tuple(_KINDS[int(each)] for each in listed)
    kinds = kinds or tuple(_KINDS[layer % 2 == 0] for layer in range(len(spec.layers)))
    if len(kinds) != len(spec.layers):
        raise ConfigError(f"layer_types says what {len(kinds)} layers are, expected {len(spec.layers)}")
    of_mlp = _factors(fields, "mlp", "mlp")
    layers = [
        _layer(fields, layer, kind, of_mlp, _rates(layer.attention.heads, number, len(kinds)))
        for number, (layer, kind) in enumerate(zip(spec.layers, kinds, strict=True))
    ]
    return replace(spec, layers=tuple(layers))


def _layer(
    fields: Fields, layer: LayerSpec, kind: str, of_mlp: tuple[float, float], rates: tuple[float, ...]
) -> LayerSpec:
    linear = kind == "linear_attention"
    of_mixer = (
        _factors(fields, "linear_attn", "linear_attention")
        if linear
        else _factors(fields, "full_attn", "full_attention")
    )
    return replace(
        layer,
        mixer=LightningSpec(rates, layer.attention.head_dim) if linear else layer.mixer,
        stream_scales=(of_mixer[0], of_mlp[0]),
        mixer_scale=of_mixer[1],
        mlp_scale=of_mlp[1],
    )


def _factors(fields: Fields, here: str, there: str) -> tuple[float, float]:
    """Factors on the stream and on a part's output, by their names in transformers' files and in the authors'."""
    stream, part = (
        fields.number(f"{here}_{which}_factor", fields.number(f"layernorm_{there}_{which}", 1.0))
        for which in ("alpha", "beta")
    )
    return stream, part


def _rates(heads: int, layer: int, layers: int) -> tuple[float, ...]:
    """Slopes of ALiBi (arXiv:2108.12409), smaller in later layers."""
    factor = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    return tuple(2 ** (-8 * (head + 1) / heads) * factor for head in range(heads))
