"""Reads the config.json of each dense family."""

import math
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.layer import LayerSpec
from ..spec.mlp import FUSED_MLP
from ..spec.model import POST, SANDWICH, ModelSpec, dense_mlp, with_layers, with_mixers, with_mtp
from ..spec.mtp_form import QWEN
from ..spec.token_input import TokenInputSpec
from .common import (
    alternating,
    attention_bias,
    common,
    local_rope,
    slide,
    sliding_layers,
    softcap_of,
    window_of,
)
from .rope import rope_from_hf


def llama(fields: Fields, name: str) -> ModelSpec:
    spec = attention_bias(fields, common(fields, name))
    return with_layers(spec, mlp=replace(dense_mlp(spec), bias=fields.flag("mlp_bias")))


def emu3(fields: Fields, name: str) -> ModelSpec:
    """Emu3: a Llama with other defaults. Its files, and its makers' own, have the tokens of pictures too."""
    return llama(Fields({"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, **fields.values}), name)


def mistral(fields: Fields, name: str) -> ModelSpec:
    return slide(common(fields, name), window_of(fields))


def qwen2(fields: Fields, name: str) -> ModelSpec:
    return qwen_windows(fields, with_mixers(common(fields, name), qkv_bias=True))


def qwen3(fields: Fields, name: str) -> ModelSpec:
    spec = attention_bias(fields, common(fields, name, head_dim=128))
    return qwen_windows(fields, with_mixers(spec, qk_norm="head"))


def qwen_windows(fields: Fields, spec: ModelSpec) -> ModelSpec:
    if not fields.flag("use_sliding_window"):
        return spec
    window = window_of(fields)
    first = fields.integer("max_window_layers", 28, least=0)
    return slide(spec, window, sliding_layers(fields) or [layer >= first for layer in range(len(spec.layers))])


def phi3(fields: Fields, name: str) -> ModelSpec:
    spec = with_mixers(common(fields, name, eps=1e-5), fused=True)
    spec = with_layers(spec, mlp=replace(dense_mlp(spec), into=FUSED_MLP))
    return slide(spec, fields.integer("sliding_window", 0, least=0))


_GELU: Final = ("gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast")
"""Gemma 1's files have the first and mean the second."""


def gemma(fields: Fields, name: str) -> ModelSpec:
    """The common part of all Gemmas: an activation under another name, and a tied head by default."""
    activation = fields.text("hidden_activation", "gelu_pytorch_tanh")
    if name == "GemmaForCausalLM" and (older := fields.text("hidden_act", "gelu")) not in _GELU:
        raise ConfigError(f"hidden_act is {older!r}, expected 'gelu_pytorch_tanh'")
    if fields.flag("use_bidirectional_attention"):
        raise ConfigError("use_bidirectional_attention is set, and only causal decoders are supported")
    spec = common(Fields({**fields.values, "hidden_act": activation}), name, head_dim=256)
    return replace(
        attention_bias(fields, spec),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        norm_plus_one=True,
        input=TokenInputSpec(scale=math.sqrt(spec.hidden_size)),
    )


def gemma2(fields: Fields, name: str) -> ModelSpec:
    spec = replace(gemma(fields, name), logits_softcap=softcap_of(fields, "final_logit_softcapping", 30.0))
    spec = gemma_attention(fields, spec, softcap=50.0)
    return slide(spec, window_of(fields), sliding_layers(fields) or alternating(spec, 2))


def gemma3(fields: Fields, name: str) -> ModelSpec:
    spec = replace(
        gemma(fields, name),
        logits_softcap=softcap_of(fields, "final_logit_softcapping", 0.0),
        max_position=fields.integer("max_position_embeddings"),
    )
    head_dim = spec.layers[0].attention.head_dim
    # Old files have the full layers' extension at the top level, and only a base for layers with a window.
    full = rope_from_hf(fields.values, head_dim, theta=1_000_000.0, layer_type="full_attention")
    sliding = local_rope(fields, head_dim, fields.number("rope_local_base_freq", 10000.0))
    spec = with_mixers(gemma_attention(fields, spec, softcap=0.0), qk_norm="head", rope=full)
    period = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    slides = sliding_layers(fields) or alternating(spec, period)
    return slide(with_mixers(spec, slides, rope=sliding), window_of(fields), slides)


def gemma_attention(fields: Fields, spec: ModelSpec, *, softcap: float) -> ModelSpec:
    """The attention of Gemma-2 and later; ``softcap``: the default."""
    return with_layers(
        with_mixers(
            spec,
            scale=fields.positive("query_pre_attn_scalar", 256.0) ** -0.5,
            softcap=softcap_of(fields, "attn_logit_softcapping", softcap),
        ),
        norms=SANDWICH,
    )


def olmo2(fields: Fields, name: str) -> ModelSpec:
    spec = attention_bias(fields, common(fields, name, eps=1e-5))
    return with_layers(with_mixers(spec, qk_norm="full"), norms=POST)


def olmo3(fields: Fields, name: str) -> ModelSpec:
    """OLMo-2 with unextended rotation in layers with a window."""
    spec = olmo2(fields, name)
    head_dim = spec.layers[0].attention.head_dim
    slides = sliding_layers(fields) or alternating(spec, 4)
    full = rope_from_hf(fields.values, head_dim, theta=500_000.0, layer_type="full_attention")
    sliding = local_rope(fields, head_dim, fields.number("rope_theta", 500_000.0))
    return slide(with_mixers(with_mixers(spec, rope=full), slides, rope=sliding), window_of(fields), slides)


def smollm3(fields: Fields, name: str) -> ModelSpec:
    """A Llama in which every fourth layer has no positions; those may have a window."""
    spec = llama(Fields({"tie_word_embeddings": True, "rope_theta": 2_000_000.0, **fields.values}), name)
    period = fields.integer("no_rope_layer_interval", 4)
    stated = fields.numbers("no_rope_layers")  # 1 for a layer that rotates
    still = [not rotates for rotates in stated] if stated else [not slides for slides in alternating(spec, period)]
    spec = with_mixers(spec, still, rope=None)
    if not fields.flag("use_sliding_window"):
        return spec
    return slide(spec, fields.integer("sliding_window", 0, least=0), sliding_layers(fields) or still)


def exaone4(fields: Fields, name: str) -> ModelSpec:
    """If some layers have a window, the others do not rotate."""
    spec = with_layers(with_mixers(common(fields, name, eps=1e-5), qk_norm="head"), norms=POST)
    if window := window_of(fields):
        slides = sliding_layers(fields) or alternating(spec, fields.integer("sliding_window_pattern", 4))
        spec = slide(with_mixers(spec, [not each for each in slides], rope=None), window, slides)
    heads = fields.integer("num_nextn_predict_layers", 0, least=0)  # EXAONE 4.5's
    return with_mtp(spec, QWEN, heads, exaone_head(fields, spec)) if heads else spec


def exaone_head(fields: Fields, spec: ModelSpec) -> LayerSpec:
    """The layer of a head for multi-token prediction: it rotates, and has a window if the first layer of its own list,
    or of the model's, has one."""
    kinds = fields.texts("mtp_layer_types") or fields.texts("layer_types") or ()
    turning = next(layer for layer in spec.layers if layer.attention.rope is not None)
    window = turning.attention.window if kinds[:1] == ("sliding_attention",) else 0
    return replace(turning, mixer=replace(turning.attention, window=window))


def seed_oss(fields: Fields, name: str) -> ModelSpec:
    spec = llama(Fields({**fields.values, "head_dim": fields.integer("head_dim", 128)}), name)
    return with_mixers(
        spec, qkv_bias=fields.flag("attention_bias", True), output_bias=fields.flag("attention_out_bias")
    )


def granite(fields: Fields, name: str) -> ModelSpec:
    return replace(
        with_mixers(llama(fields, name), scale=fields.number("attention_multiplier", 1.0)),
        input=TokenInputSpec(scale=fields.number("embedding_multiplier", 1.0)),
        scales_media=True,
        residual_scale=fields.number("residual_multiplier", 1.0),
        logits_divisor=fields.number("logits_scaling", 1.0),
    )
