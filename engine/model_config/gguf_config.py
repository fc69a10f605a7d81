"""From GGUF metadata to a :class:`ModelSpec`.

Keys are llama.cpp's. What a file leaves unsaid (Gemma's window pattern and attention scale, a tied
head, biases) is read off its tensors or fixed here by architecture, as llama.cpp does.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .attention_spec import AttentionSpec, QKNorm, RopeConfig
from .config_fields import MOST_LAYERS, ConfigError, Fields
from .hf_variants import COHERE, GLM4, LAYER_NORM
from .mlp_spec import FUSED_MLP, SPLIT_MLP, UP_MLP, ExpertNames, MLPSpec, MoESpec, RouterSpec
from .model_spec import POST, PRE, SANDWICH, LayerSpec, ModelSpec, Norms, alternating_layers, checked, with_mixers

ReadFloats = Callable[[str], tuple[float, ...]]
"""Reads a small float32 tensor by its name in the file."""


@dataclass(frozen=True)
class GGUFArchitecture:
    """What an architecture name implies."""

    name: str
    """transformers' class."""
    norms: Norms = PRE
    qk_norm: QKNorm = "none"
    fused: bool = False
    """Queries, keys and values are stored as one matrix, and gate and up as another."""
    permuted: bool = False
    """Query and key rows are stored in the order of interleaved rotary pairs."""
    gemma: bool = False
    """GELU and scaled embeddings."""
    plus_one: bool = False
    """Norms were stored with their 1 added."""
    interleaved: bool = False
    """Neighbouring dimensions rotate together."""
    still_full: bool = False
    """Where some layers slide, the others do not rotate."""
    still_pattern: int = 0
    """Every such layer does not rotate; 0: all do."""
    multiplied_logits: bool = False
    """``logit_scale`` multiplies logits, and does not divide them."""
    mixer: Mapping[str, Any] = field(default_factory=dict)
    mlp: Mapping[str, Any] = field(default_factory=dict)
    layer: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each spec."""
    windowed: bool = False
    """Every layer has the window."""
    window_pattern: int = 0
    """Every such layer is a full one, the others slide; 0: all layers are alike."""
    local_theta: float | None = None
    """Rotary base of sliding layers where it is not that of the others."""
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    experts: Literal["none", "renormalized", "as scored"] = "none"
    """Whether it may be a mixture of experts, and whether their weights are divided by their sum."""
    mixture: str = ""
    """transformers' class where it is one, unless it is :attr:`name`."""


_RELU2: Mapping[str, Any] = {"activation": "relu2", "gated": False, "into": UP_MLP}

ARCHITECTURES: Mapping[str, GGUFArchitecture] = {
    "llama": GGUFArchitecture("LlamaForCausalLM", permuted=True, experts="renormalized", mixture="MixtralForCausalLM"),
    "qwen2": GGUFArchitecture("Qwen2ForCausalLM"),
    "qwen3": GGUFArchitecture("Qwen3ForCausalLM", qk_norm="head"),
    "phi3": GGUFArchitecture("Phi3ForCausalLM", fused=True, windowed=True),
    "gemma2": GGUFArchitecture(
        "Gemma2ForCausalLM",
        norms=SANDWICH,
        gemma=True,
        plus_one=True,
        window_pattern=2,
        attention_softcap=50.0,
        logits_softcap=30.0,
    ),
    "gemma3": GGUFArchitecture(
        "Gemma3ForCausalLM",
        norms=SANDWICH,
        qk_norm="head",
        gemma=True,
        plus_one=True,
        window_pattern=6,
        local_theta=10000.0,
    ),
    "olmo2": GGUFArchitecture("Olmo2ForCausalLM", norms=POST, qk_norm="full"),
    "granite": GGUFArchitecture("GraniteForCausalLM", permuted=True),
    "gemma": GGUFArchitecture("GemmaForCausalLM", gemma=True, plus_one=True),
    "smollm3": GGUFArchitecture("SmolLM3ForCausalLM", permuted=True, still_pattern=4),
    "exaone4": GGUFArchitecture("Exaone4ForCausalLM", norms=POST, qk_norm="head", window_pattern=4, still_full=True),
    "seed_oss": GGUFArchitecture("SeedOssForCausalLM"),
    "glm4": GGUFArchitecture("Glm4ForCausalLM", norms=GLM4, interleaved=True, mlp={"into": FUSED_MLP}),
    "ernie4_5": GGUFArchitecture("Ernie4_5ForCausalLM", interleaved=True),
    "command-r": GGUFArchitecture(
        "CohereForCausalLM", norms=COHERE, interleaved=True, multiplied_logits=True, layer={"parallel": True}
    ),
    "cohere2": GGUFArchitecture(
        "Cohere2ForCausalLM",
        norms=COHERE,
        interleaved=True,
        window_pattern=4,
        still_full=True,
        multiplied_logits=True,
        layer={"parallel": True},
    ),
    "hunyuan-dense": GGUFArchitecture(
        "HunYuanDenseV1ForCausalLM",
        qk_norm="head",
        mixer={"qk_norm_names": ("query_layernorm", "key_layernorm"), "turned_first": True},
    ),
    "arcee": GGUFArchitecture("ArceeForCausalLM", permuted=True, mlp=_RELU2),
    "nemotron": GGUFArchitecture("NemotronForCausalLM", norms=LAYER_NORM, plus_one=True, mlp=_RELU2),
    "starcoder2": GGUFArchitecture(
        "Starcoder2ForCausalLM",
        norms=LAYER_NORM,
        mlp={"activation": "gelu_tanh", "gated": False, "into": ("mlp.c_fc",), "out": "mlp.c_proj"},
    ),
    "stablelm": GGUFArchitecture("StableLmForCausalLM", norms=LAYER_NORM),
    "phi2": GGUFArchitecture(
        "PhiForCausalLM",
        norms=LAYER_NORM,
        mixer={"out": "dense"},
        mlp={"activation": "gelu_tanh", "gated": False, "into": ("mlp.fc1",), "out": "mlp.fc2"},
        model={"final_norm": "model.final_layernorm"},
    ),
    "qwen3moe": GGUFArchitecture("Qwen3MoeForCausalLM", qk_norm="head", experts="renormalized"),
    "olmoe": GGUFArchitecture("OlmoeForCausalLM", qk_norm="full", experts="as scored"),
}

GGUF_EXPERTS = ExpertNames(
    into=("mlp.experts.gate_proj.weight", "mlp.experts.up_proj.weight"), out="mlp.experts.down_proj.weight"
)
"""What the tensors of all experts are called here; transformers has none like them."""

GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""The sizes whose attention is scaled by hidden_size / heads instead of the head's own size."""

_STRETCHES_FULL_LAYERS_ONLY = frozenset({"gemma3", "olmo2"})
"""Sliding layers rotate unstretched. OLMo-3 is stored under OLMo-2's name, told apart by its window."""


def gguf_architecture(metadata: Mapping[str, object]) -> GGUFArchitecture:
    """Raises :class:`ConfigError` when the file names no supported architecture."""
    name = Fields(metadata).text("general.architecture")
    found = ARCHITECTURES.get(name)
    if found is None:
        raise ConfigError(f"its architecture {name!r} is not supported, expected one of {', '.join(ARCHITECTURES)}")
    return found


def model_spec_from_gguf(
    metadata: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]], read_floats: ReadFloats
) -> ModelSpec:
    """``shapes`` gives every tensor's shape in GGUF's order. Raises :class:`ConfigError`."""
    architecture = gguf_architecture(metadata)
    name = Fields(metadata).text("general.architecture")
    fields = Fields(metadata, f"{name}.")
    experts = fields.integer("expert_count", 0, least=0)
    if experts and architecture.experts == "none":
        known = ", ".join(name for name, each in ARCHITECTURES.items() if each.experts != "none")
        raise ConfigError(f"it is a mixture of experts ({name}.expert_count), expected a dense model or one of {known}")

    hidden = fields.integer("embedding_length")
    layers = fields.integer("block_count", most=MOST_LAYERS)
    heads = _same_in_every_layer(fields, "attention.head_count")
    kv_heads = _same_in_every_layer(fields, "attention.head_count_kv", heads)
    head_dim = _head_dim(fields, shapes, hidden, heads)
    embedding = shapes.get("token_embd.weight")
    if embedding is None or len(embedding) != 2:
        raise ConfigError("the tensor token_embd.weight is missing")
    if architecture.qk_norm == "none" and "blk.0.attn_q_norm.weight" in shapes:
        raise ConfigError("it norms the heads of queries and keys in a way that is not supported")
    rope = replace(_rope(fields, architecture, head_dim, shapes, read_floats), interleaved=architecture.interleaved)
    divisor = fields.number("logit_scale", 1.0) or 1.0
    mlp = _experts(fields, architecture, experts) if experts else _mlp(fields, architecture, shapes)
    layer = LayerSpec(
        AttentionSpec(
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
        ),
        replace(mlp, **architecture.mlp),
        architecture.norms,
    )
    layer = replace(
        layer,
        mixer=replace(layer.attention, **architecture.mixer),
        **architecture.layer,
    )
    if architecture.norms.kind == "layer" and "blk.0.ffn_norm.weight" not in shapes:  # one norm for both parts
        layer = replace(layer, norms=replace(layer.norms, mlp_in=""), parallel=True)
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
        embedding_scale=math.sqrt(hidden) if architecture.gemma else fields.number("embedding_scale", 1.0),
        residual_scale=fields.number("residual_scale", 1.0),
        logits_divisor=1 / divisor if architecture.multiplied_logits else divisor,
        logits_softcap=fields.number("final_logit_softcapping", architecture.logits_softcap),
        bos_token_id=Fields(metadata).token_id("tokenizer.ggml.bos_token_id"),
        eos_token_ids=Fields(metadata).token_ids("tokenizer.ggml.eos_token_id"),
    )
    spec = replace(spec, **architecture.model)
    if GEMMA_27B_LAYERS.get(name) == layers:
        spec = with_mixers(spec, scale=(hidden / heads) ** -0.5)
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
    # a window that no sequence can outgrow is none
    return checked(with_mixers(spec, slides, window=window if window < spec.max_position else 0))


def _mlp(fields: Fields, architecture: GGUFArchitecture, shapes: Mapping[str, tuple[int, ...]]) -> MLPSpec:
    return MLPSpec(
        _same_in_every_layer(fields, "feed_forward_length"),
        "gelu_tanh" if architecture.gemma else "silu",
        bias="blk.0.ffn_down.bias" in shapes,
        into=FUSED_MLP if architecture.fused else SPLIT_MLP,
    )


def _experts(fields: Fields, architecture: GGUFArchitecture, experts: int) -> MoESpec:
    if (gating := fields.integer("expert_gating_func", 1)) != 1:
        raise ConfigError(f"expert_gating_func is {gating}, expected 1: a softmax")
    inner = fields.integer("expert_feed_forward_length", _same_in_every_layer(fields, "feed_forward_length"))
    router = RouterSpec(fields.integer("expert_used_count"), renormalize=architecture.experts == "renormalized")
    return MoESpec(experts, inner, router, names=(GGUF_EXPERTS,))


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


def _windows(fields: Fields, architecture: GGUFArchitecture, layers: int) -> tuple[int, Sequence[bool]]:
    """The sliding window, and which layers have it."""
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
    )
    if "rope_factors_long.weight" in shapes and "rope_factors_short.weight" in shapes:
        return replace(
            rope,
            kind="longrope",
            factor=max(1.0, context / original),
            original_max_position=original,
            short_factor=read_floats("rope_factors_short.weight"),
            long_factor=read_floats("rope_factors_long.weight"),
            attention_factor=fields.optional_number("rope.scaling.attn_factor"),
        )
    if "rope_freqs.weight" in shapes:
        rope = replace(rope, frequency_divisors=read_floats("rope_freqs.weight"))
    linear = fields.number("rope.scale_linear", 1.0)  # what old converters wrote
    kind = fields.text("rope.scaling.type", "linear" if linear != 1.0 else "none")
    match kind:
        case "none":
            return rope
        case "linear":
            return replace(rope, kind="linear", factor=fields.number("rope.scaling.factor", linear))
        case "yarn":
            return replace(
                rope,
                kind="yarn",
                factor=fields.number("rope.scaling.factor", max(1.0, context / original)),
                original_max_position=original,
                beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
                attention_factor=fields.optional_number("rope.scaling.attn_factor"),
            )
        case _:
            raise ConfigError(f"rope.scaling.type is {kind!r}, expected none, linear or yarn")
