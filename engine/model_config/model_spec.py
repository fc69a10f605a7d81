"""What a model of text is made of, whatever file described it, and what follows from that. Torch-free.

A model is its layers, and a layer is a mixer of tokens and a feed-forward network, with norms around them: values, so
that a family is a reader of its files and no code of its own. Shapes of weights, bytes of cache and work a token are
derived here, and written nowhere else.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeVar

from .config_fields import LONGEST_CONTEXT, ConfigError

Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "xielu"]
"""``xielu`` has two learned numbers a layer (arXiv:2411.13010)."""
LayerType = Literal["full", "sliding"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
QKNorm = Literal["none", "head", "full"]
"""``head``: over each head (Qwen3, Gemma-3). ``full``: over the whole projection (OLMo-2)."""
NormKind = Literal["rms", "layer"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding (RoFormer, arXiv:2104.09864) and how it is stretched.

    The fields carry transformers' names; those that a kind does not use stay at their defaults.
    """

    theta: float = 10000.0
    kind: RopeKind = "default"
    rotary_dim: int = 0
    """Dimensions of a head that rotate; the rest pass through. 0 means all."""
    interleaved: bool = False
    """Dimension 2i turns with 2i + 1 (GLM, Cohere, Ernie), not i with i + half of those that rotate (Llama)."""
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
    unbiased: tuple[str, ...] = ()
    """Parts that have none where the others have one."""

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what is stored, biases first."""
        if self.bias:
            yield from ((f"{prefix}.{name}.bias", (size,)) for name, size in self.parts if name not in self.unbiased)
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
    """Tokens that it sees, the current one included; 0: all before it. Where texts see themselves whole, as many again
    behind the current one."""
    softcap: float = 0.0
    """q·k is capped at this; 0: not."""
    sinks: bool = False
    """Each head has a learned score that joins its softmax and has no value (gpt-oss, arXiv:2508.10925)."""
    qk_norm: QKNorm = "none"
    qk_norm_names: tuple[str, str] = ("q_norm", "k_norm")
    turned_first: bool = False
    """Heads are normed once they are rotated (HunYuan)."""
    gated: bool = False
    """The query projection holds query and gate of each head in turn; sigmoid(gate) multiplies what the head found
    (Qwen3-Next)."""
    temperature_beta: float = 0.0
    """Queries at position p are multiplied by 1 + beta · log(1 + ⌊p / ``temperature_floor``⌋) (Llama 4)."""
    temperature_floor: int = 0
    qkv_bias: bool = False
    key_bias: bool = True
    """Whether that of queries, keys and values is one of keys too."""
    output_bias: bool = False
    fused: bool = False
    """The checkpoint stores ``qkv_proj`` (Phi-3)."""
    name: str = "self_attn"
    """Before the names that its tensors are stored under."""
    out: str = "o_proj"

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """Into queries, keys and values; and out of what the heads found."""
        q, kv, name = self.q_size, self.kv_size, self.name
        asked = 2 * q if self.gated else q
        apart = ((f"{name}.q_proj", asked), (f"{name}.k_proj", kv), (f"{name}.v_proj", kv))
        into = ((f"{name}.qkv_proj", asked + 2 * kv),) if self.fused else apart
        return (
            Projection(into, hidden, self.qkv_bias, () if self.key_bias else (f"{name}.k_proj",)),
            Projection(((f"{name}.{self.out}", hidden),), q, self.output_bias),
        )

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what a checkpoint stores of it."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        for which, size in zip(self.qk_norm_names, self.qk_norm_sizes or (), strict=False):
            yield f"{prefix}.{self.name}.{which}.weight", (size,)
        if self.sinks:
            yield f"{prefix}.{self.name}.sinks", (self.heads,)

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
UP_MLP: Final = ("mlp.up_proj",)
"""Without a gate."""


@dataclass(frozen=True)
class MLPSpec:
    """down(act(gate(x)) * up(x)), or without a gate down(act(up(x)))."""

    inner: int
    activation: Activation = "silu"
    bias: bool = False
    """Of what goes into the activation, and of ``out`` unless ``out_bias`` says otherwise."""
    into: tuple[str, ...] = SPLIT_MLP
    """The names that gate and up are stored under, or that of both together."""
    out: str = "mlp.down_proj"
    gated: bool = True
    out_bias: bool | None = None
    act: str = "mlp.act_fn"
    """The name that what is learned of the activation is stored under."""

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """Into gate and up; and down."""
        each = (2 if self.gated else 1) * self.inner // len(self.into)
        into = tuple((name, each) for name in self.into)
        out_bias = self.bias if self.out_bias is None else self.out_bias
        return Projection(into, hidden, self.bias), Projection(((self.out, hidden),), self.inner, out_bias)


@dataclass(frozen=True)
class Norms:
    """The norms around a layer's two parts, by the names that they are stored under; "" is none.

    ``_in`` norms what a part takes of the residual stream, ``_out`` what it gives before that is added, ``_sum`` the
    stream itself once it is added.
    """

    mixer_in: str = ""
    mixer_out: str = ""
    mixer_sum: str = ""
    cross_in: str = ""
    mlp_in: str = ""
    mlp_out: str = ""
    mlp_sum: str = ""
    kind: NormKind = "rms"
    bias: bool = False
    """Only of kind ``layer``."""

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what is stored."""
        mixer, cross, mlp = (self.mixer_in, self.mixer_out, self.mixer_sum), self.cross_in, (self.mlp_in, self.mlp_out)
        for name in filter(None, (*mixer, cross, *mlp, self.mlp_sum)):
            yield f"{prefix}.{name}.weight", (hidden,)
            if self.bias:
                yield f"{prefix}.{name}.bias", (hidden,)


PRE = Norms(mixer_in="input_layernorm", mlp_in="post_attention_layernorm")
"""Llama's."""
POST = Norms(mixer_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm")
"""OLMo-2's."""
POST_SUM = Norms(mixer_sum="post_attention_layernorm", mlp_sum="post_mlp_layernorm", kind="layer", bias=True)
"""BERT's."""
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
    cross: AttentionSpec | None = None
    """Attention to audio, between both."""
    parallel: bool = False
    """The network takes what the mixer takes, not what the mixer leaves (GPT-J)."""

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what a checkpoint stores of it."""
        yield from self.mixer.shapes(prefix, hidden)
        if self.cross is not None:
            yield from self.cross.shapes(prefix, hidden)
        for projection in self.mlp.projections(hidden):
            yield from projection.shapes(prefix)
        if self.mlp.activation == "xielu":
            yield from ((f"{prefix}.{self.mlp.act}.{which}", (1,)) for which in ("alpha_p", "alpha_n"))
        yield from self.norms.shapes(prefix, hidden)


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
class TaskAdapters:
    """Low-rank additions to embeddings and all products of layers, a set for each task (Jina v3, arXiv:2409.10173)."""

    names: tuple[str, ...]
    """Of the tasks, in the order in which they are stored."""
    rank: int
    scale: float


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """From tokens to hidden states: what decoders and encoders have in common."""

    architecture: str
    """transformers' class name, for messages."""
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_position: int
    norm_eps: float
    norm_plus_one: bool = False
    """Norms multiply by (1 + weight) (Gemma, Nemotron)."""
    residual_scale: float = 1.0
    """Multiplies what each part of a layer adds to the residual stream."""
    prefix: str = "model.layers"
    """Before the number of a layer, where its tensors are named."""
    adapters: TaskAdapters | None = None

    def products(self, layer: int) -> int:
        """Elements of the matrices of a layer, with each of which a token is multiplied once."""
        found = self.layers[layer]
        projections = (*found.mixer.projections(self.hidden_size), *found.mlp.projections(self.hidden_size))
        return sum(outputs * projection.inputs for projection in projections for _, outputs in projection.parts)


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Backbone):
    """One decoder."""

    tie_embeddings: bool = False
    head_bias: bool = False
    final_norm: str = "model.norm"
    """The name of the last norm, which is one of the kind that the layers have."""
    embedding_scale: float = 1.0
    logits_divisor: float = 1.0
    logits_softcap: float = 0.0
    text_part: bool = False
    """The checkpoint is of a model that sees images too; its other tensors are left out."""
    bidirectional: bool = False
    """Tokens see those behind them too, in a window so many as before them: an embedder, which draws nothing."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor that a checkpoint of plain weights holds, by name."""
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, self.hidden_size)}
        for number, layer in enumerate(self.layers):
            found.update(layer.shapes(f"{self.prefix}.{number}", self.hidden_size))
        found[f"{self.final_norm}.weight"] = (self.hidden_size,)
        if self.layers[-1].norms.bias:
            found[f"{self.final_norm}.bias"] = (self.hidden_size,)
        if self.head_bias:
            found["lm_head.bias"] = (self.vocab_size,)
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


B = TypeVar("B", bound=Backbone)


def with_mixers(spec: B, which: Sequence[bool] | None = None, **changes: Any) -> B:
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


def with_layers(spec: B, **changes: Any) -> B:
    """The same with these fields of every layer changed."""
    return replace(spec, layers=tuple(replace(layer, **changes) for layer in spec.layers))


def checked(spec: B) -> B:
    """The spec itself, or :class:`ConfigError` where its parts contradict each other."""
    if spec.max_position > LONGEST_CONTEXT:
        raise ConfigError(f"its context is {spec.max_position} tokens, expected at most {LONGEST_CONTEXT}")
    for mixer in dict.fromkeys(layer.mixer for layer in spec.layers):
        if mixer.heads % mixer.kv_heads:
            raise ConfigError(f"{mixer.heads} query heads do not divide among {mixer.kv_heads} key-value heads")
        if mixer.gated and mixer.qk_norm == "full":
            raise ConfigError("gated attention whose queries are normed as a whole is not known")
        if mixer.temperature_beta and mixer.temperature_floor < 1:
            raise ConfigError(f"queries are scaled every {mixer.temperature_floor} positions, expected at least 1")
        if mixer.rope is not None:
            _check_rope(mixer.rope, mixer.head_dim)
    for mlp in dict.fromkeys(layer.mlp for layer in spec.layers):
        if mlp.gated and mlp.activation in ("relu", "xielu"):
            raise ConfigError(f"a gated MLP with {mlp.activation} is not known")
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
