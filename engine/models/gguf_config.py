"""From GGUF metadata to a :class:`DecoderConfig`.

Keys are llama.cpp's. What a file leaves unsaid (Gemma's window pattern and attention scale, a tied
head, biases) is read off its tensors or fixed here by architecture, as llama.cpp does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .config import ConfigError, DecoderConfig, LayerType, NormPlacement, RopeConfig, RopeKind
from .config_fields import Fields

ReadFloats = Callable[[str], tuple[float, ...]]
"""Reads a small float32 tensor by its name in the file."""


@dataclass(frozen=True)
class GGUFArchitecture:
    """What an architecture name implies."""

    name: str
    """transformers' class."""
    norm_placement: NormPlacement = "pre"
    qk_norm: Literal["none", "head", "full"] = "none"
    fused_projections: bool = False
    permuted: bool = False
    """Query and key rows are stored in the order of interleaved rotary pairs."""
    gemma: bool = False
    """GELU, scaled embeddings, and norms that were stored with their 1 added."""
    window_pattern: int = 0
    """Every such layer is a full one, the others slide; 0: all layers are alike."""


ARCHITECTURES: Mapping[str, GGUFArchitecture] = {
    "llama": GGUFArchitecture("LlamaForCausalLM", permuted=True),
    "qwen2": GGUFArchitecture("Qwen2ForCausalLM"),
    "qwen3": GGUFArchitecture("Qwen3ForCausalLM", qk_norm="head"),
    "phi3": GGUFArchitecture("Phi3ForCausalLM", fused_projections=True),
    "gemma2": GGUFArchitecture("Gemma2ForCausalLM", norm_placement="sandwich", gemma=True, window_pattern=2),
    "gemma3": GGUFArchitecture(
        "Gemma3ForCausalLM", norm_placement="sandwich", qk_norm="head", gemma=True, window_pattern=6
    ),
    "olmo2": GGUFArchitecture("Olmo2ForCausalLM", norm_placement="post", qk_norm="full"),
    "granite": GGUFArchitecture("GraniteForCausalLM", permuted=True),
}

GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""The sizes whose attention is scaled by hidden_size / heads instead of the head's own size."""

GEMMA3_LOCAL_THETA = 10000.0


def gguf_architecture(metadata: Mapping[str, object]) -> GGUFArchitecture:
    """Raises :class:`ConfigError` when the file names no supported architecture."""
    name = Fields(metadata).text("general.architecture")
    found = ARCHITECTURES.get(name)
    if found is None:
        raise ConfigError(f"its architecture {name!r} is not supported, expected one of {', '.join(ARCHITECTURES)}")
    return found


def decoder_config_from_gguf(
    metadata: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]], read_floats: ReadFloats
) -> DecoderConfig:
    """``shapes`` gives every tensor's shape in GGUF's order. Raises :class:`ConfigError`."""
    architecture = gguf_architecture(metadata)
    name = Fields(metadata).text("general.architecture")
    fields = Fields(metadata, f"{name}.")
    if fields.integer("expert_count", 0, least=0):
        raise ConfigError(f"it is a mixture of experts ({name}.expert_count), and only dense models are supported")

    hidden = fields.integer("embedding_length")
    layers = fields.integer("block_count")
    heads = _same_in_every_layer(fields, "attention.head_count")
    kv_heads = _same_in_every_layer(fields, "attention.head_count_kv", heads)
    head_dim = _head_dim(fields, shapes, hidden, heads)
    embedding = shapes.get("token_embd.weight")
    if embedding is None or len(embedding) != 2:
        raise ConfigError("the tensor token_embd.weight is missing")
    window, layer_types = _windows(fields, architecture, layers)
    rope = _rope(fields, architecture, head_dim, shapes, read_floats)

    config = DecoderConfig(
        architecture=architecture.name,
        vocab_size=embedding[1],
        hidden_size=hidden,
        intermediate_size=_same_in_every_layer(fields, "feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=fields.integer("context_length"),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        activation="gelu_tanh" if architecture.gemma else "silu",
        tie_embeddings="output.weight" not in shapes,
        qkv_bias="blk.0.attn_q.bias" in shapes or "blk.0.attn_qkv.bias" in shapes,
        output_bias="blk.0.attn_output.bias" in shapes,
        mlp_bias="blk.0.ffn_down.bias" in shapes,
        fused_projections=architecture.fused_projections,
        qk_norm=architecture.qk_norm,
        norm_placement=architecture.norm_placement,
        norm_plus_one=architecture.gemma,
        embedding_scale=math.sqrt(hidden) if architecture.gemma else fields.number("embedding_scale", 1.0),
        residual_scale=fields.number("residual_scale", 1.0),
        attention_scale=fields.number("attention.scale", 0.0),
        logits_divisor=fields.number("logit_scale", 1.0) or 1.0,
        attention_softcap=fields.number("attn_logit_softcapping", 0.0),
        logits_softcap=fields.number("final_logit_softcapping", 0.0),
        sliding_window=window,
        layer_types=layer_types,
        rope=rope,
        bos_token_id=Fields(metadata).token_id("tokenizer.ggml.bos_token_id"),
        eos_token_ids=Fields(metadata).token_ids("tokenizer.ggml.eos_token_id"),
    )
    if GEMMA_27B_LAYERS.get(name) == layers:
        config = replace(config, attention_scale=(hidden / heads) ** -0.5)
    if name == "gemma3":
        theta = fields.number("rope.freq_base_swa", GEMMA3_LOCAL_THETA)
        config = replace(config, rope_sliding=RopeConfig(theta=theta, rotary_dim=rope.rotary_dim))
    return config


def _same_in_every_layer(fields: Fields, name: str, default: int | None = None) -> int:
    """A count that may be stored once or once per layer."""
    value = fields.get(name)
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        return Fields({name: value[0]}).integer(name)
    return fields.integer(name, default)


def _head_dim(fields: Fields, shapes: Mapping[str, tuple[int, ...]], hidden: int, heads: int) -> int:
    query = shapes.get("blk.0.attn_q.weight")
    if fields.has("attention.key_length"):
        return fields.integer("attention.key_length")
    if query is not None and len(query) == 2 and query[1] % heads == 0:
        return query[1] // heads
    if hidden % heads:
        raise ConfigError(f"{hidden} hidden columns do not divide among {heads} heads")
    return hidden // heads


def _windows(fields: Fields, architecture: GGUFArchitecture, layers: int) -> tuple[int, tuple[LayerType, ...]]:
    """The sliding window and each layer's type; no window, no types."""
    window = fields.integer("attention.sliding_window", 0, least=0)
    if not window or window >= fields.integer("context_length"):
        return 0, ()
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) == layers:
        return window, tuple("sliding" if slides else "full" for slides in pattern)
    if architecture.window_pattern == 0:
        # llama.cpp reads the window of these architectures from Phi-3's files alone.
        return (window, ("sliding",) * layers) if architecture.fused_projections else (0, ())
    period = fields.integer("attention.sliding_window_pattern", architecture.window_pattern)
    return window, tuple("full" if (layer + 1) % period == 0 else "sliding" for layer in range(layers))


def _rope(
    fields: Fields,
    architecture: GGUFArchitecture,
    head_dim: int,
    shapes: Mapping[str, tuple[int, ...]],
    read_floats: ReadFloats,
) -> RopeConfig:
    rotary = fields.integer("rope.dimension_count", head_dim)
    context = fields.integer("context_length")
    original = fields.integer("rope.scaling.original_context_length", context)
    rope = RopeConfig(
        theta=fields.number("rope.freq_base", 10000.0),
        rotary_dim=0 if rotary == head_dim else rotary,
        attention_factor=fields.optional_number("rope.scaling.attn_factor"),
    )
    if "rope_factors_long.weight" in shapes and "rope_factors_short.weight" in shapes:
        return replace(
            rope,
            kind="longrope",
            factor=max(1.0, context / original),
            original_max_position=original,
            short_factor=read_floats("rope_factors_short.weight"),
            long_factor=read_floats("rope_factors_long.weight"),
        )
    rope = replace(rope, attention_factor=None)
    if "rope_freqs.weight" in shapes:
        rope = replace(rope, frequency_divisors=read_floats("rope_freqs.weight"))
    kind = fields.text("rope.scaling.type", "none")
    if kind == "none":
        return rope
    kinds: dict[str, RopeKind] = {"linear": "linear", "yarn": "yarn"}
    if kind not in kinds:
        raise ConfigError(f"rope.scaling.type is {kind!r}, expected one of none, {', '.join(kinds)}")
    return replace(
        rope,
        kind=kinds[kind],
        factor=fields.number("rope.scaling.factor", 1.0),
        original_max_position=original if kind == "yarn" else 0,
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=fields.optional_number("rope.scaling.yarn_attn_factor"),
    )
