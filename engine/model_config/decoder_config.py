"""What a dense decoder is made of, whatever file described it. Torch-free."""

from dataclasses import dataclass, field
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "gelu"]
LayerType = Literal["full", "sliding"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
NormPlacement = Literal["pre", "post", "sandwich"]

MOST_LAYERS = 4096
LONGEST_CONTEXT = 1 << 30


class ConfigError(Exception):
    """A model's description cannot be used. The message is one clause without a final stop, to be put after a name."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding (RoFormer, arXiv:2104.09864) and how it is stretched.

    The fields carry transformers' names; those that a kind does not use stay at their defaults.
    """

    theta: float = 10000.0
    kind: RopeKind = "default"
    rotary_dim: int = 0
    """Dimensions of a head that rotate; the rest pass through. 0 means all."""
    factor: float = 1.0
    original_max_position: int = 0
    """Context the model was trained for before stretching (dynamic, llama3, yarn, longrope)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    frequency_divisors: tuple[float, ...] = ()
    """One per rotating pair, dividing its frequency before all else: how GGUF stores ``llama3``'s stretch."""


@dataclass(frozen=True)
class DecoderConfig:
    """One dense decoder. Norm placements: ``pre`` (Llama), ``post`` (OLMo-2: norms on the outputs of
    attention and MLP only), ``sandwich`` (Gemma-2/3: norms before and after both)."""

    architecture: str
    """transformers' class name, for messages."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_eps: float
    activation: Activation = "silu"
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    fused_projections: bool = False
    """The checkpoint stores ``qkv_proj`` and ``gate_up_proj`` (Phi-3)."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """``head``: over each head (Qwen3, Gemma-3). ``full``: over the whole projection (OLMo-2)."""
    norm_placement: NormPlacement = "pre"
    norm_plus_one: bool = False
    """RMSNorm multiplies by (1 + weight) (Gemma)."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float = 0.0
    """Multiplies q·k; 0 means head_dim ** -0.5."""
    logits_divisor: float = 1.0
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    sliding_window: int = 0
    """Tokens that a sliding layer sees, the current one included."""
    layer_types: tuple[LayerType, ...] = ()
    """One per layer; empty means all full."""
    rope: RopeConfig = field(default_factory=RopeConfig)
    rope_sliding: RopeConfig | None = None
    """Rotary of sliding layers where it differs (Gemma-3)."""
    bidirectional: bool = False
    """Tokens see those behind them too, in sliding layers so many as before them: an embedder, which draws nothing."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def layer_type(self, layer: int) -> LayerType:
        return self.layer_types[layer] if self.layer_types else "full"

    @property
    def scale(self) -> float:
        """The factor applied to q·k."""
        return self.attention_scale or self.head_dim**-0.5


def alternating_layers(layers: int, period: int) -> tuple[LayerType, ...]:
    """Each ``period``-th layer is a full one, the others slide."""
    types: list[LayerType] = ["full" if (layer + 1) % period == 0 else "sliding" for layer in range(layers)]
    return tuple(types)


def checked(config: DecoderConfig) -> DecoderConfig:
    """The config itself, or :class:`ConfigError` where its parts contradict each other."""
    if config.num_heads % config.num_kv_heads:
        raise ConfigError(f"{config.num_heads} query heads do not divide among {config.num_kv_heads} key-value heads")
    if config.max_position > LONGEST_CONTEXT:
        raise ConfigError(f"its context is {config.max_position} tokens, expected at most {LONGEST_CONTEXT}")
    if config.layer_types and len(config.layer_types) != config.num_layers:
        raise ConfigError(f"types are given for {len(config.layer_types)} layers, expected {config.num_layers}")
    for rope in (config.rope, config.rope_sliding or config.rope):
        rotary = rope.rotary_dim or config.head_dim
        if rotary > config.head_dim or rotary % 2:
            raise ConfigError(
                f"{rotary} dimensions of each head rotate, expected an even number up to {config.head_dim}"
            )
        stretches = (rope.short_factor, rope.long_factor) if rope.kind == "longrope" else ()
        divisors = (rope.frequency_divisors,) if rope.frequency_divisors else ()
        for factors in (*stretches, *divisors):
            if len(factors) != rotary // 2 or min(factors) <= 0:
                raise ConfigError(f"rotary factors are {len(factors)} numbers, expected {rotary // 2} above 0")
        if rope.theta <= 0 or rope.factor <= 0:
            raise ConfigError(f"rotary base and factor are {rope.theta} and {rope.factor}, expected both above 0")
    return config
