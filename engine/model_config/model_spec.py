"""What a language model is made of, whatever file described it, and what follows from that. Torch-free.

A model is its layers, and a layer is a mixer of tokens and a feed-forward network, with norms around them: values, so
that a family is a reader of its files and no code of its own. Shapes of weights, bytes of cache and work a token are
derived here, and written nowhere else.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from .config_fields import LONGEST_CONTEXT, ConfigError

Activation = Literal["silu", "gelu_tanh", "gelu"]
LayerType = Literal["full", "sliding"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
QKNorm = Literal["none", "head", "full"]
"""``head``: over each head (Qwen3, Gemma-3). ``full``: over the whole projection (OLMo-2)."""


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
class Projection:
    """One product of a layer: stored matrices of one input, fused along their outputs."""

    parts: tuple[tuple[str, int], ...]
    """Name within the layer, and outputs, of each."""
    inputs: int
    bias: bool

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what is stored, biases first."""
        if self.bias:
            yield from ((f"{prefix}.{name}.bias", (outputs,)) for name, outputs in self.parts)
        yield from ((f"{prefix}.{name}.weight", (outputs, self.inputs)) for name, outputs in self.parts)


@dataclass(frozen=True)
class AttentionSpec:
    """Attention of ``heads`` queries to ``kv_heads`` keys and values, each of ``head_dim`` dimensions."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Multiplies q·k; mostly head_dim ** -0.5."""
    rope: RopeConfig | None = field(default_factory=RopeConfig)
    """None: positions are not told apart."""
    window: int = 0
    """Tokens that it sees, the current one included; 0: all before it."""
    softcap: float = 0.0
    """q·k is capped at this; 0: not."""
    qk_norm: QKNorm = "none"
    qkv_bias: bool = False
    output_bias: bool = False
    fused: bool = False
    """The checkpoint stores ``qkv_proj`` (Phi-3)."""

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """Into queries, keys and values; and out of what the heads found."""
        q, kv = self.q_size, self.kv_size
        apart = (("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv))
        into = (("self_attn.qkv_proj", q + 2 * kv),) if self.fused else apart
        return (
            Projection(into, hidden, self.qkv_bias),
            Projection((("self_attn.o_proj", hidden),), q, self.output_bias),
        )

    @property
    def qk_norm_sizes(self) -> tuple[int, int] | None:
        """Of the norms of queries and keys."""
        match self.qk_norm:
            case "none":
                return None
            case "head":
                return self.head_dim, self.head_dim
            case "full":
                return self.q_size, self.kv_size

    def pairs(self, tokens: int, context: int) -> int:
        """Keys that ``tokens`` after ``context`` others attend to in all, each to itself as well."""
        growing = max(0, min(tokens, self.window - context)) if self.window else tokens
        return growing * context + growing * (growing + 1) // 2 + (tokens - growing) * self.window


SPLIT_MLP: Final = ("mlp.gate_proj", "mlp.up_proj")
FUSED_MLP: Final = ("mlp.gate_up_proj",)
"""As Phi-3 stores it."""


@dataclass(frozen=True)
class MLPSpec:
    """down(act(gate(x)) * up(x))."""

    inner: int
    activation: Activation = "silu"
    bias: bool = False
    into: tuple[str, ...] = SPLIT_MLP
    """The names that gate and up are stored under, or that of both together."""
    out: str = "mlp.down_proj"

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """Into gate and up; and down."""
        each = 2 * self.inner // len(self.into)
        into = tuple((name, each) for name in self.into)
        return Projection(into, hidden, self.bias), Projection(((self.out, hidden),), self.inner, self.bias)


@dataclass(frozen=True)
class Norms:
    """The norms around a layer's two parts, by the names that they are stored under; "" is none.

    ``_in`` norms what a part takes of the residual stream, ``_out`` what it gives before that is added.
    """

    mixer_in: str = ""
    mixer_out: str = ""
    mlp_in: str = ""
    mlp_out: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.mixer_in, self.mixer_out, self.mlp_in, self.mlp_out) if name)


PRE = Norms(mixer_in="input_layernorm", mlp_in="post_attention_layernorm")
"""Llama's."""
POST = Norms(mixer_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm")
"""OLMo-2's."""
SANDWICH = Norms(
    mixer_in="input_layernorm",
    mixer_out="post_attention_layernorm",
    mlp_in="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
)
"""Gemma-2's."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer: its mixer, its feed-forward network, and the norms around both."""

    mixer: AttentionSpec
    mlp: MLPSpec
    norms: Norms = PRE

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what a checkpoint stores of it."""
        into, out = self.mixer.projections(hidden)
        yield from into.shapes(prefix)
        yield from out.shapes(prefix)
        if (sizes := self.mixer.qk_norm_sizes) is not None:
            yield from ((f"{prefix}.self_attn.{name}_norm.weight", (n,)) for name, n in zip("qk", sizes, strict=True))
        for projection in self.mlp.projections(hidden):
            yield from projection.shapes(prefix)
        yield from ((f"{prefix}.{name}.weight", (hidden,)) for name in self.norms.names)


@dataclass(frozen=True)
class CacheGroup:
    """Layers that keep alike: as much of a token, for as long."""

    kind: Literal["full", "window"]
    layers: tuple[int, ...]
    window: int
    """Tokens after which one is not seen any more; 0: always seen."""
    kv_heads: int
    head_dim: int

    def token_bytes(self, itemsize: int) -> int:
        """Of one token over all layers, keys and values."""
        return 2 * self.kv_heads * self.head_dim * len(self.layers) * itemsize

    def cached_bytes(self, length: int, itemsize: int) -> int:
        """Of a sequence of ``length`` tokens that has dropped what no token will see."""
        return self.token_bytes(itemsize) * (min(length, self.window) if self.window else length)


@dataclass(frozen=True)
class ModelSpec:
    """One decoder."""

    architecture: str
    """transformers' class name, for messages."""
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_position: int
    norm_eps: float
    norm_plus_one: bool = False
    """RMSNorm multiplies by (1 + weight) (Gemma)."""
    tie_embeddings: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Multiplies what each part of a layer adds to the residual stream."""
    logits_divisor: float = 1.0
    logits_softcap: float = 0.0
    bidirectional: bool = False
    """Tokens see those behind them too, in a window so many as before them: an embedder, which draws nothing."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor that a checkpoint of plain weights holds, by name."""
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, self.hidden_size)}
        for number, layer in enumerate(self.layers):
            found.update(layer.shapes(f"model.layers.{number}", self.hidden_size))
        found["model.norm.weight"] = (self.hidden_size,)
        if not self.tie_embeddings:
            found["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return found

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.shapes().values()))

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """In the order in which layers first need them."""
        members: dict[tuple[int, int, int], list[int]] = {}
        for number, layer in enumerate(self.layers):
            mixer = layer.mixer
            members.setdefault((mixer.window, mixer.kv_heads, mixer.head_dim), []).append(number)
        return tuple(
            CacheGroup("window" if window else "full", tuple(layers), window, kv_heads, head_dim)
            for (window, kv_heads, head_dim), layers in members.items()
        )

    def products(self, layer: int) -> int:
        """Elements of the matrices of a layer, with each of which a token is multiplied once."""
        found = self.layers[layer]
        projections = (*found.mixer.projections(self.hidden_size), *found.mlp.projections(self.hidden_size))
        return sum(outputs * projection.inputs for projection in projections for _, outputs in projection.parts)

    def flops(self, tokens: int, context: int, sampled: int) -> int:
        """Multiplications and additions of a pass over ``tokens`` that follow ``context`` others: products with
        weights, attention to all that each token sees, and logits of ``sampled`` rows."""
        total = 2 * sampled * self.hidden_size * self.vocab_size
        for number, layer in enumerate(self.layers):
            attention = 4 * layer.mixer.q_size * layer.mixer.pairs(tokens, context)
            total += 2 * self.products(number) * tokens + attention
        return total


def alternating_layers(layers: int, period: int) -> tuple[LayerType, ...]:
    """Each ``period``-th layer is a full one, the others slide."""
    types: list[LayerType] = ["full" if (layer + 1) % period == 0 else "sliding" for layer in range(layers)]
    return tuple(types)


def with_mixers(spec: ModelSpec, which: Sequence[bool] | None = None, **changes: Any) -> ModelSpec:
    """The same with these fields of the attention of every layer changed, or of the layers ``which`` says."""
    which = [True] * len(spec.layers) if which is None else which
    if len(which) != len(spec.layers):
        raise ConfigError(f"types are given for {len(which)} layers, expected {len(spec.layers)}")
    return replace(
        spec,
        layers=tuple(
            replace(layer, mixer=replace(layer.mixer, **changes)) if chosen else layer
            for layer, chosen in zip(spec.layers, which, strict=True)
        ),
    )


def with_layers(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """The same with these fields of every layer changed."""
    return replace(spec, layers=tuple(replace(layer, **changes) for layer in spec.layers))


def checked(spec: ModelSpec) -> ModelSpec:
    """The spec itself, or :class:`ConfigError` where its parts contradict each other."""
    if spec.max_position > LONGEST_CONTEXT:
        raise ConfigError(f"its context is {spec.max_position} tokens, expected at most {LONGEST_CONTEXT}")
    for mixer in dict.fromkeys(layer.mixer for layer in spec.layers):
        if mixer.heads % mixer.kv_heads:
            raise ConfigError(f"{mixer.heads} query heads do not divide among {mixer.kv_heads} key-value heads")
        if mixer.rope is not None:
            _check_rope(mixer.rope, mixer.head_dim)
    return spec


def _check_rope(rope: RopeConfig, head_dim: int) -> None:
    rotary = rope.rotary_dim or head_dim
    if rotary > head_dim or rotary % 2:
        raise ConfigError(f"{rotary} dimensions of each head rotate, expected an even number up to {head_dim}")
    stretches = (rope.short_factor, rope.long_factor) if rope.kind == "longrope" else ()
    divisors = (rope.frequency_divisors,) if rope.frequency_divisors else ()
    for factors in (*stretches, *divisors):
        if len(factors) != rotary // 2 or min(factors) <= 0:
            raise ConfigError(f"rotary factors are {len(factors)} numbers, expected {rotary // 2} above 0")
    if rope.theta <= 0 or rope.factor <= 0:
        raise ConfigError(f"rotary base and factor are {rope.theta} and {rope.factor}, expected both above 0")
