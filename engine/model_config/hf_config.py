"""From a config.json to a :class:`DecoderConfig`, for files of any transformers version.

A field that a file leaves out has the default of its architecture in transformers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from .config_fields import Fields
from .decoder_config import MOST_LAYERS, Activation, ConfigError, DecoderConfig, LayerType, alternating_layers, checked
from .hf_rope import rope_from_hf, stretched_context

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
}

_LAYER_TYPES: Mapping[str, LayerType] = {"full_attention": "full", "sliding_attention": "sliding"}


def decoder_config_from_hf(config: Mapping[str, object]) -> DecoderConfig:
    """Raises :class:`ConfigError` when the architecture is unsupported or a field is missing or wrong."""
    fields = Fields(config)
    named = fields.texts("architectures")
    if named is None:
        kind = fields.text("model_type", "")
        if kind not in _BY_MODEL_TYPE:
            raise ConfigError(f"it names no architecture, expected one of {', '.join(_ARCHITECTURES)}")
        named = (_BY_MODEL_TYPE[kind],)
    name = next((name for name in named if name in _ARCHITECTURES), None)
    if name is None:
        raise ConfigError(
            f"its architecture {', '.join(map(repr, named))} is not supported, "
            f"expected one of {', '.join(_ARCHITECTURES)}"
        )
    return checked(_ARCHITECTURES[name](fields, name))


def _common(fields: Fields, name: str, *, head_dim: int | None = None, eps: float = 1e-6) -> DecoderConfig:
    """What every architecture reads alike. ``head_dim`` is the default where it does not follow from the sizes."""
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", head_dim or max(1, hidden // heads))
    activation = fields.text("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise ConfigError(f"hidden_act is {activation!r}, expected one of {', '.join(_ACTIVATIONS)}")
    rope = rope_from_hf(fields.values, head_dim)
    return DecoderConfig(
        architecture=name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers", most=MOST_LAYERS),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        max_position=stretched_context(rope, fields.integer("max_position_embeddings")),
        rms_eps=fields.number("rms_norm_eps", eps),
        activation=_ACTIVATIONS[activation],
        tie_embeddings=fields.flag("tie_word_embeddings"),
        rope=rope,
        bos_token_id=fields.token_id("bos_token_id"),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def _llama(fields: Fields, name: str) -> DecoderConfig:
    bias = fields.flag("attention_bias")
    return replace(_common(fields, name), qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias"))


def _mistral(fields: Fields, name: str) -> DecoderConfig:
    config = _common(fields, name)
    window = _window(fields)
    return _slide(config, window, _all_sliding(config))


def _qwen2(fields: Fields, name: str) -> DecoderConfig:
    return _qwen_windows(fields, replace(_common(fields, name), qkv_bias=True))


def _qwen3(fields: Fields, name: str) -> DecoderConfig:
    bias = fields.flag("attention_bias")
    config = _common(fields, name, head_dim=128)
    return _qwen_windows(fields, replace(config, qkv_bias=bias, output_bias=bias, qk_norm="head"))


def _qwen_windows(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    if not fields.flag("use_sliding_window"):
        return config
    window = _window(fields)
    first = fields.integer("max_window_layers", 28, least=0)
    default: tuple[LayerType, ...] = tuple(
        "sliding" if layer >= first else "full" for layer in range(config.num_layers)
    )
    return _slide(config, window, _layer_types(fields) or default)


def _phi3(fields: Fields, name: str) -> DecoderConfig:
    config = replace(_common(fields, name, eps=1e-5), fused_projections=True)
    return _slide(config, fields.integer("sliding_window", 0, least=0), _all_sliding(config))


def _gemma(fields: Fields, name: str) -> DecoderConfig:
    """What all Gemmas share. They name their activation anew and tie their head by default."""
    activation = fields.text("hidden_activation", "gelu_pytorch_tanh")
    bias = fields.flag("attention_bias")
    if fields.flag("use_bidirectional_attention"):
        raise ConfigError("use_bidirectional_attention is set, and only causal decoders are supported")
    config = _common(Fields({**fields.values, "hidden_act": activation}), name, head_dim=256)
    return replace(
        config,
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        qkv_bias=bias,
        output_bias=bias,
        norm_placement="sandwich",
        norm_plus_one=True,
        embedding_scale=math.sqrt(config.hidden_size),
        attention_scale=fields.positive("query_pre_attn_scalar", 256.0) ** -0.5,
    )


def _gemma1(fields: Fields, name: str) -> DecoderConfig:
    config = _gemma(fields, name)
    return replace(config, norm_placement="pre", attention_scale=0.0)


def _gemma2(fields: Fields, name: str) -> DecoderConfig:
    config = replace(
        _gemma(fields, name),
        attention_softcap=_softcap(fields, "attn_logit_softcapping", 50.0),
        logits_softcap=_softcap(fields, "final_logit_softcapping", 30.0),
    )
    window = _window(fields)
    return _slide(config, window, _layer_types(fields) or alternating_layers(config.num_layers, 2))


def _gemma3(fields: Fields, name: str) -> DecoderConfig:
    config = _gemma(fields, name)
    # Old files describe the stretch of the full layers at the top level, and the sliding ones by a base alone.
    full = rope_from_hf(fields.values, config.head_dim, theta=1_000_000.0, layer_type="full_attention")
    parameters = fields.table("rope_parameters") or {}
    local: Mapping[str, object] = Fields(parameters).table("sliding_attention") or {}
    sliding = rope_from_hf(
        {
            "max_position_embeddings": fields.integer("max_position_embeddings"),
            "rope_theta": fields.number("rope_local_base_freq", 10000.0),
            "rope_parameters": local,
        },
        config.head_dim,
    )
    config = replace(
        config,
        qk_norm="head",
        attention_softcap=_softcap(fields, "attn_logit_softcapping", 0.0),
        logits_softcap=_softcap(fields, "final_logit_softcapping", 0.0),
        max_position=fields.integer("max_position_embeddings"),
        rope=full,
        rope_sliding=sliding,
    )
    window = _window(fields)
    period = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    types = _layer_types(fields) or alternating_layers(config.num_layers, period)
    # Layers keep their types whatever the window: the rotary base depends on them.
    return replace(config, sliding_window=window or config.max_position, layer_types=types)


def _olmo2(fields: Fields, name: str) -> DecoderConfig:
    bias = fields.flag("attention_bias")
    config = _common(fields, name, eps=1e-5)
    return replace(config, qkv_bias=bias, output_bias=bias, qk_norm="full", norm_placement="post")


def _granite(fields: Fields, name: str) -> DecoderConfig:
    return replace(
        _llama(fields, name),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        attention_scale=fields.number("attention_multiplier", 1.0),
        logits_divisor=fields.number("logits_scaling", 1.0),
    )


def _softcap(fields: Fields, name: str, default: float) -> float:
    """A null cap means none; a file without the field has the default."""
    return fields.number(name, 0.0 if name in fields.values else default)


def _layer_types(fields: Fields) -> tuple[LayerType, ...]:
    named = fields.texts("layer_types") or ()
    unknown = next((kind for kind in named if kind not in _LAYER_TYPES), None)
    if unknown is not None:
        raise ConfigError(f"layer_types holds {unknown!r}, expected {' or '.join(_LAYER_TYPES)}")
    return tuple(_LAYER_TYPES[kind] for kind in named)


def _all_sliding(config: DecoderConfig) -> tuple[LayerType, ...]:
    types: list[LayerType] = ["sliding"] * config.num_layers
    return tuple(types)


def _window(fields: Fields) -> int:
    """A null window means none, 0 here; a file without the field has transformers' default."""
    return fields.integer("sliding_window", 0 if "sliding_window" in fields.values else 4096, least=0)


def _slide(config: DecoderConfig, window: int, types: tuple[LayerType, ...]) -> DecoderConfig:
    """A window that no sequence can outgrow is none."""
    if not window or window >= config.max_position or "sliding" not in types:
        return config
    return replace(config, sliding_window=window, layer_types=types)


_ARCHITECTURES: Mapping[str, Callable[[Fields, str], DecoderConfig]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Phi3ForCausalLM": _phi3,
    "GemmaForCausalLM": _gemma1,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma3TextForCausalLM": _gemma3,
    "Olmo2ForCausalLM": _olmo2,
    "GraniteForCausalLM": _granite,
}

_BY_MODEL_TYPE: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "granite": "GraniteForCausalLM",
}
"""For files that name no architecture."""
