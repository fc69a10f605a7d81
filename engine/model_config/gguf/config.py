"""Reads a :class:`ModelSpec` from GGUF metadata.

Keys are llama.cpp's. Properties that a file omits (Gemma's window pattern and attention scale, a tied head, biases) are
read from its tensors or fixed here by architecture, as in llama.cpp.
"""

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec
from ..spec.mlp import FUSED_MLP, SPLIT_MLP, MLPSpec, MoESpec, RouterSpec
from ..spec.model import ModelSpec, alternating_layers, checked, with_mixers
from ..spec.positions import RopeConfig
from ..spec.token_input import TokenInputSpec
from .architectures import ARCHITECTURES, GGUFArchitecture
from .families import TRANSLATIONS
from .fields import ReadFloats, Shapes, head_dim_of, once, rope_of
from .translation import GGUF_EXPERTS, GGUFTranslation, translated_spec

GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""The sizes whose attention scale uses hidden_size / heads instead of head_dim."""

_STRETCHES_FULL_LAYERS_ONLY = frozenset({"gemma3", "olmo2"})
"""Layers with a window are not extended. OLMo-3 is stored under OLMo-2's name and recognised by its window."""

_STORED_AS: Mapping[str, str] = {
    "MistralForCausalLM": "LlamaForCausalLM",
    "LLaMAForCausalLM": "LlamaForCausalLM",
    "RWForCausalLM": "FalconForCausalLM",
    "BaiChuanForCausalLM": "BaichuanForCausalLM",
    "StableLMEpochForCausalLM": "StableLmForCausalLM",
    **dict.fromkeys(("ChatGLMModel", "ChatGLMForConditionalGeneration"), "GlmForCausalLM"),
    "Gemma3TextForCausalLM": "Gemma3ForCausalLM",
    "Olmo3ForCausalLM": "Olmo2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2VLForConditionalGeneration",
}
"""The class that a file names instead of another transformers class."""


def gguf_architecture(metadata: Mapping[str, object]) -> GGUFArchitecture | GGUFTranslation:
    """The file's architecture. Raises :class:`ConfigError` if it is not supported."""
    name = Fields(metadata).text("general.architecture")
    found = ARCHITECTURES.get(name) or TRANSLATIONS.get(name)
    if found is None:
        known = ", ".join((*ARCHITECTURES, *TRANSLATIONS))
        raise ConfigError(f"its architecture {name!r} is not supported, expected one of {known}")
    return found


def gguf_names(architecture: str) -> list[str]:
    """GGUF names of a transformers architecture; empty if it is not supported."""
    architecture = _STORED_AS.get(architecture, architecture)
    dense = [name for name, row in ARCHITECTURES.items() if architecture in (row.name, row.mixture)]
    return dense + [name for name, row in TRANSLATIONS.items() if architecture in (row.name, *row.others)]


def model_spec_from_gguf(metadata: Mapping[str, object], shapes: Shapes, read_floats: ReadFloats) -> ModelSpec:
    """The spec of a file. ``shapes``: of every tensor, in GGUF's order. Raises :class:`ConfigError`."""
    architecture = gguf_architecture(metadata)
    if isinstance(architecture, GGUFTranslation):
        return translated_spec(metadata, shapes, read_floats, architecture)
    name = Fields(metadata).text("general.architecture")
    fields = Fields(metadata, f"{name}.")
    experts = fields.integer("expert_count", 0, least=0)
    if experts and architecture.experts == "none":
        known = ", ".join(name for name, each in ARCHITECTURES.items() if each.experts != "none")
        raise ConfigError(f"it is a mixture of experts ({name}.expert_count), expected a dense model or one of {known}")

    hidden = fields.integer("embedding_length")
    layers = fields.integer("block_count", most=MOST_LAYERS)
    heads = once(fields, "attention.head_count")
    kv_heads = once(fields, "attention.head_count_kv", heads)
    head_dim = head_dim_of(fields, shapes, hidden, heads)
    embedding = shapes.get("token_embd.weight")
    if embedding is None or len(embedding) != 2:
        raise ConfigError("the tensor token_embd.weight is missing")
    if architecture.qk_norm == "none" and "blk.0.attn_q_norm.weight" in shapes:
        raise ConfigError("it norms the heads of queries and keys in a way that is not supported")
    # with m-rope (GLM-4.1V), rows of queries and keys are stored as halves
    interleaved = architecture.interleaved and not any(fields.numbers("rope.dimension_sections"))
    rope = replace(rope_of(fields, head_dim, shapes, read_floats), interleaved=interleaved)
    divisor = fields.number("logit_scale", 1.0) or 1.0
    mlp = _experts(fields, architecture, experts) if experts else _mlp(fields, architecture, shapes)
    attention = AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=fields.number("attention.scale", 0.0) or head_dim**-0.5,
        rope=rope,
        softcap=fields.number("attn_logit_softcapping", architecture.attention_softcap),
        qk_norm=architecture.qk_norm,
        qkv_bias="blk.0.attn_q.bias" in shapes or "blk.0.attn_qkv.bias" in shapes,
        output_bias="blk.0.attn_output.bias" in shapes,
        fused=architecture.fused,
    )
    layer = _layer(architecture, attention, mlp, shapes)
    spec = ModelSpec(
        architecture=(experts and architecture.mixture) or architecture.name,
        vocab_size=embedding[1],
        hidden_size=hidden,
        layers=(layer,) * layers,
        max_position=fields.integer("context_length"),
        norm_eps=fields.number(f"attention.layer_norm_{'rms_' if architecture.norms.kind == 'rms' else ''}epsilon"),
        norm_plus_one=architecture.plus_one,
        tie_embeddings="output.weight" not in shapes,
        head_bias="output.bias" in shapes,
        input=TokenInputSpec(scale=math.sqrt(hidden) if architecture.gemma else fields.number("embedding_scale", 1.0)),
        scales_media=name.startswith("granite"),
        residual_scale=fields.number("residual_scale", 1.0),
        logits_divisor=1 / divisor if architecture.multiplied_logits else divisor,
        logits_softcap=fields.number("final_logit_softcapping", architecture.logits_softcap),
        bos_token_id=Fields(metadata).token_id("tokenizer.ggml.bos_token_id"),
        eos_token_ids=Fields(metadata).token_ids("tokenizer.ggml.eos_token_id"),
    )
    spec = replace(spec, **architecture.model)
    if GEMMA_27B_LAYERS.get(name) == layers:
        spec = with_mixers(spec, scale=(hidden / heads) ** -0.5)
    return checked(_with_windows(spec, name, fields, architecture, rope))


def _layer(
    architecture: GGUFArchitecture, attention: AttentionSpec, mlp: MLPSpec | MoESpec, shapes: Shapes
) -> LayerSpec:
    layer = LayerSpec(replace(attention, **architecture.mixer), replace(mlp, **architecture.mlp), architecture.norms)
    layer = replace(layer, **architecture.layer)
    if architecture.norms.kind == "layer" and "blk.0.ffn_norm.weight" not in shapes:  # one norm for both parts
        layer = replace(layer, norms=replace(layer.norms, mlp_in=""), parallel=True)
    return layer


def _with_windows(
    spec: ModelSpec, name: str, fields: Fields, architecture: GGUFArchitecture, rope: RopeConfig
) -> ModelSpec:
    """The spec with the windows of some layers, and with the rotation of those whose angles depend on that."""
    layers = len(spec.layers)
    window, slides = _windows(fields, architecture, layers)
    if name in _STRETCHES_FULL_LAYERS_ONLY:
        local = RopeConfig(
            theta=fields.number("rope.freq_base_swa", architecture.local_theta or rope.theta),
            rotary_dim=rope.rotary_dim,
        )
        spec = with_mixers(spec, slides, rope=local)
    if window and architecture.still_full:
        spec = with_mixers(spec, [not each for each in slides], rope=None)
    if period := architecture.still_pattern:
        spec = with_mixers(spec, [kind == "full" for kind in alternating_layers(layers, period)], rope=None)
    # a window longer than the context counts as none
    return with_mixers(spec, slides, window=window if window < spec.max_position else 0)


def _mlp(fields: Fields, architecture: GGUFArchitecture, shapes: Shapes) -> MLPSpec:
    return MLPSpec(
        once(fields, "feed_forward_length"),
        "gelu_tanh" if architecture.gemma else "silu",
        bias="blk.0.ffn_down.bias" in shapes,
        into=FUSED_MLP if architecture.fused else SPLIT_MLP,
    )


def _experts(fields: Fields, architecture: GGUFArchitecture, experts: int) -> MoESpec:
    if (gating := fields.integer("expert_gating_func", 1)) != 1:
        raise ConfigError(f"expert_gating_func is {gating}, expected 1: a softmax")
    inner = fields.integer("expert_feed_forward_length", once(fields, "feed_forward_length"))
    router = RouterSpec(fields.integer("expert_used_count"), renormalize=architecture.experts == "renormalized")
    return MoESpec(experts, inner, router, names=(GGUF_EXPERTS,))


def _windows(fields: Fields, architecture: GGUFArchitecture, layers: int) -> tuple[int, Sequence[bool]]:
    """The window, and which layers have it."""
    window = fields.integer("attention.sliding_window", 0, least=0)
    pattern = fields.get("attention.sliding_window_pattern")
    if not window:
        return 0, [False] * layers
    if isinstance(pattern, list):
        if len(pattern) != layers:
            raise ConfigError(f"attention.sliding_window_pattern names {len(pattern)} layers, expected {layers}")
        return window, [bool(slides) for slides in pattern]
    if architecture.window_pattern:
        period = fields.integer("attention.sliding_window_pattern", architecture.window_pattern)
        return window, [kind == "sliding" for kind in alternating_layers(layers, period)]
    return window, [architecture.windowed] * layers
