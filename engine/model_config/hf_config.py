"""From a config.json to a :class:`ModelSpec`, for files of any transformers version.

A field that a file leaves out has the default of its architecture in transformers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from .config_fields import MOST_LAYERS, ConfigError, Fields
from .hf_rope import rope_from_hf, stretched_context
from .model_spec import (
    FUSED_MLP,
    POST,
    SANDWICH,
    Activation,
    AttentionSpec,
    LayerSpec,
    LayerType,
    MLPSpec,
    ModelSpec,
    RopeConfig,
    alternating_layers,
    checked,
    with_layers,
    with_mixers,
)

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
}

_LAYER_TYPES: Mapping[str, LayerType] = {"full_attention": "full", "sliding_attention": "sliding"}


def model_spec_from_hf(config: Mapping[str, object]) -> ModelSpec:
    """Raises :class:`ConfigError` when the architecture is no decoder's or a field is missing or wrong."""
    name = named_architecture(config, {name: decoder.model_type for name, decoder in DECODERS.items()})
    return checked(DECODERS[name].read(Fields(config), name))


def named_architecture(config: Mapping[str, object], known: Mapping[str, str]) -> str:
    """Which of the ``known`` architectures a config.json names, or where it names none, which has its model type: those
    of all are given. Raises :class:`ConfigError` where it is none of them."""
    fields = Fields(config)
    named = fields.texts("architectures")
    if named is None:
        kind = fields.text("model_type", "")
        if (found := next((name for name, each in known.items() if each == kind), None)) is None:
            raise ConfigError(f"it names no architecture, expected one of {', '.join(known)}")
        return found
    if (found := next((name for name in named if name in known), None)) is None:
        raise ConfigError(
            f"its architecture {', '.join(map(repr, named))} is not supported, expected one of {', '.join(known)}"
        )
    return found


def _common(
    fields: Fields, name: str, *, head_dim: int | None = None, eps: float = 1e-6, theta: float = 10000.0
) -> ModelSpec:
    """What every architecture reads alike: layers that are all the same. The options are defaults: ``head_dim`` where
    it does not follow from the sizes, ``theta`` the rotary base."""
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", head_dim or max(1, hidden // heads))
    activation = fields.text("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise ConfigError(f"hidden_act is {activation!r}, expected one of {', '.join(_ACTIVATIONS)}")
    rope = rope_from_hf(fields.values, head_dim, theta=theta)
    layer = LayerSpec(
        AttentionSpec(
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope,
        ),
        MLPSpec(fields.integer("intermediate_size"), _ACTIVATIONS[activation]),
    )
    return ModelSpec(
        architecture=name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        layers=(layer,) * fields.integer("num_hidden_layers", most=MOST_LAYERS),
        max_position=stretched_context(rope, fields.integer("max_position_embeddings")),
        norm_eps=fields.number("rms_norm_eps", eps),
        tie_embeddings=fields.flag("tie_word_embeddings"),
        bos_token_id=fields.token_id("bos_token_id"),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def _attention_bias(fields: Fields, spec: ModelSpec) -> ModelSpec:
    bias = fields.flag("attention_bias")
    return with_mixers(spec, qkv_bias=bias, output_bias=bias)


def _llama(fields: Fields, name: str) -> ModelSpec:
    spec = _attention_bias(fields, _common(fields, name))
    return with_layers(spec, mlp=replace(spec.layers[0].mlp, bias=fields.flag("mlp_bias")))


def _mistral(fields: Fields, name: str) -> ModelSpec:
    return _slide(_common(fields, name), _window(fields))


def _qwen2(fields: Fields, name: str) -> ModelSpec:
    return _qwen_windows(fields, with_mixers(_common(fields, name), qkv_bias=True))


def _qwen3(fields: Fields, name: str) -> ModelSpec:
    spec = _attention_bias(fields, _common(fields, name, head_dim=128))
    return _qwen_windows(fields, with_mixers(spec, qk_norm="head"))


def _qwen_windows(fields: Fields, spec: ModelSpec) -> ModelSpec:
    if not fields.flag("use_sliding_window"):
        return spec
    window = _window(fields)
    first = fields.integer("max_window_layers", 28, least=0)
    return _slide(spec, window, _sliding(fields) or [layer >= first for layer in range(len(spec.layers))])


def _phi3(fields: Fields, name: str) -> ModelSpec:
    spec = with_mixers(_common(fields, name, eps=1e-5), fused=True)
    spec = with_layers(spec, mlp=replace(spec.layers[0].mlp, into=FUSED_MLP))
    return _slide(spec, fields.integer("sliding_window", 0, least=0))


def _gemma(fields: Fields, name: str) -> ModelSpec:
    """What all Gemmas share. They name their activation anew and tie their head by default."""
    activation = fields.text("hidden_activation", "gelu_pytorch_tanh")
    if fields.flag("use_bidirectional_attention"):
        raise ConfigError("use_bidirectional_attention is set, and only causal decoders are supported")
    spec = _common(Fields({**fields.values, "hidden_act": activation}), name, head_dim=256)
    return replace(
        _attention_bias(fields, spec),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        norm_plus_one=True,
        embedding_scale=math.sqrt(spec.hidden_size),
    )


def _gemma2(fields: Fields, name: str) -> ModelSpec:
    spec = replace(_gemma(fields, name), logits_softcap=_softcap(fields, "final_logit_softcapping", 30.0))
    spec = _gemma_attention(fields, spec, softcap=50.0)
    return _slide(spec, _window(fields), _sliding(fields) or _alternating(spec, 2))


def _gemma3(fields: Fields, name: str) -> ModelSpec:
    spec = replace(
        _gemma(fields, name),
        logits_softcap=_softcap(fields, "final_logit_softcapping", 0.0),
        max_position=fields.integer("max_position_embeddings"),
    )
    head_dim = spec.layers[0].mixer.head_dim
    # Old files describe the stretch of the full layers at the top level, and the sliding ones by a base alone.
    full = rope_from_hf(fields.values, head_dim, theta=1_000_000.0, layer_type="full_attention")
    sliding = _local_rope(fields, head_dim, fields.number("rope_local_base_freq", 10000.0))
    spec = with_mixers(_gemma_attention(fields, spec, softcap=0.0), qk_norm="head", rope=full)
    period = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    slides = _sliding(fields) or _alternating(spec, period)
    return _slide(with_mixers(spec, slides, rope=sliding), _window(fields), slides)


def _local_rope(fields: Fields, head_dim: int, theta: float) -> RopeConfig:
    """Of sliding layers, which no stretch at the file's top level is about; ``theta`` is the default."""
    parameters = fields.table("rope_parameters") or {}
    local: Mapping[str, object] = Fields(parameters).table("sliding_attention") or {}
    longest = fields.integer("max_position_embeddings")
    return rope_from_hf({"max_position_embeddings": longest, "rope_theta": theta, "rope_parameters": local}, head_dim)


def _gemma_attention(fields: Fields, spec: ModelSpec, *, softcap: float) -> ModelSpec:
    """Of Gemma-2 and those after it; ``softcap`` is the default."""
    return with_layers(
        with_mixers(
            spec,
            scale=fields.positive("query_pre_attn_scalar", 256.0) ** -0.5,
            softcap=_softcap(fields, "attn_logit_softcapping", softcap),
        ),
        norms=SANDWICH,
    )


def _olmo2(fields: Fields, name: str) -> ModelSpec:
    spec = _attention_bias(fields, _common(fields, name, eps=1e-5))
    return with_layers(with_mixers(spec, qk_norm="full"), norms=POST)


def _olmo3(fields: Fields, name: str) -> ModelSpec:
    """An OLMo-2 whose sliding layers rotate unstretched."""
    spec = _olmo2(fields, name)
    head_dim = spec.layers[0].mixer.head_dim
    slides = _sliding(fields) or _alternating(spec, 4)
    full = rope_from_hf(fields.values, head_dim, theta=500_000.0, layer_type="full_attention")
    sliding = _local_rope(fields, head_dim, fields.number("rope_theta", 500_000.0))
    return _slide(with_mixers(with_mixers(spec, rope=full), slides, rope=sliding), _window(fields), slides)


def _smollm3(fields: Fields, name: str) -> ModelSpec:
    """A Llama of which every fourth layer does not tell positions apart; those may slide."""
    spec = _llama(Fields({"tie_word_embeddings": True, "rope_theta": 2_000_000.0, **fields.values}), name)
    period = fields.integer("no_rope_layer_interval", 4)
    told = fields.numbers("no_rope_layers")  # 1 for a layer that rotates
    still = [not rotates for rotates in told] if told else [not slides for slides in _alternating(spec, period)]
    spec = with_mixers(spec, still, rope=None)
    if not fields.flag("use_sliding_window"):
        return spec
    return _slide(spec, fields.integer("sliding_window", 0, least=0), _sliding(fields) or still)


def _exaone4(fields: Fields, name: str) -> ModelSpec:
    """Where layers slide, those that do not do not rotate."""
    spec = with_layers(with_mixers(_common(fields, name, eps=1e-5), qk_norm="head"), norms=POST)
    window = _window(fields)
    if not window:
        return spec
    slides = _sliding(fields) or _alternating(spec, fields.integer("sliding_window_pattern", 4))
    return _slide(with_mixers(spec, [not each for each in slides], rope=None), window, slides)


def _seed_oss(fields: Fields, name: str) -> ModelSpec:
    spec = _llama(Fields({**fields.values, "head_dim": fields.integer("head_dim", 128)}), name)
    return with_mixers(
        spec, qkv_bias=fields.flag("attention_bias", True), output_bias=fields.flag("attention_out_bias")
    )


def _granite_hybrid(fields: Fields, name: str) -> ModelSpec:
    """Granite 4, where it is dense: a Granite whose network has other names."""
    if fields.integer("num_local_experts", 8, least=0):
        raise ConfigError("it is a mixture of experts (num_local_experts), and only dense models are supported")
    kinds = fields.texts("layer_types") or fields.texts("layers_block_type") or ("mamba",)
    if odd := next((kind for kind in kinds if kind not in ("attention", "full_attention")), None):
        raise ConfigError(f"layer_types holds {odd!r}, expected 'attention' alone")
    spec = _granite(fields, name)
    inner = fields.integer("shared_intermediate_size", 1024)
    mlp = replace(spec.layers[0].mlp, inner=inner, into=("shared_mlp.input_linear",), out="shared_mlp.output_linear")
    spec = with_layers(spec, mlp=mlp)
    return with_mixers(spec, rope=None) if fields.text("position_embedding_type", "nope") != "rope" else spec


def _granite(fields: Fields, name: str) -> ModelSpec:
    return replace(
        with_mixers(_llama(fields, name), scale=fields.number("attention_multiplier", 1.0)),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logits_divisor=fields.number("logits_scaling", 1.0),
    )


def _softcap(fields: Fields, name: str, default: float) -> float:
    """A null cap means none; a file without the field has the default."""
    return fields.number(name, 0.0 if name in fields.values else default)


def _sliding(fields: Fields) -> list[bool]:
    """Which layers slide; empty where the file does not say."""
    named = fields.texts("layer_types") or ()
    unknown = next((kind for kind in named if kind not in _LAYER_TYPES), None)
    if unknown is not None:
        raise ConfigError(f"layer_types holds {unknown!r}, expected {' or '.join(_LAYER_TYPES)}")
    return [_LAYER_TYPES[kind] == "sliding" for kind in named]


def _alternating(spec: ModelSpec, period: int) -> list[bool]:
    return [kind == "sliding" for kind in alternating_layers(len(spec.layers), period)]


def _window(fields: Fields) -> int:
    """A null window means none, 0 here; a file without the field has transformers' default."""
    return fields.integer("sliding_window", 0 if "sliding_window" in fields.values else 4096, least=0)


def _slide(spec: ModelSpec, window: int, slides: Sequence[bool] | None = None) -> ModelSpec:
    """All layers, or those that ``slides`` says, see a window. One that no sequence can outgrow is none."""
    return with_mixers(spec, slides, window=window if window < spec.max_position else 0)


class Decoder(NamedTuple):
    model_type: str
    """What a config.json says that names no architecture."""
    read: Callable[[Fields, str], ModelSpec]


DECODERS: Mapping[str, Decoder] = {
    "LlamaForCausalLM": Decoder("llama", _llama),
    "MistralForCausalLM": Decoder("mistral", _mistral),
    "Qwen2ForCausalLM": Decoder("qwen2", _qwen2),
    "Qwen3ForCausalLM": Decoder("qwen3", _qwen3),
    "Phi3ForCausalLM": Decoder("phi3", _phi3),
    "GemmaForCausalLM": Decoder("gemma", _gemma),
    "Gemma2ForCausalLM": Decoder("gemma2", _gemma2),
    "Gemma3ForCausalLM": Decoder("gemma3_text", _gemma3),
    "Gemma3TextForCausalLM": Decoder("gemma3_text", _gemma3),
    "Olmo2ForCausalLM": Decoder("olmo2", _olmo2),
    "Olmo3ForCausalLM": Decoder("olmo3", _olmo3),
    "GraniteForCausalLM": Decoder("granite", _granite),
    "GraniteMoeHybridForCausalLM": Decoder("granitemoehybrid", _granite_hybrid),
    "SmolLM3ForCausalLM": Decoder("smollm3", _smollm3),
    "Exaone4ForCausalLM": Decoder("exaone4", _exaone4),
    "SeedOssForCausalLM": Decoder("seed_oss", _seed_oss),
}
"""By the name of their architecture."""
