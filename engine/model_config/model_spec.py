"""What a model of text is made of, whatever file described it, and what follows from that. Torch-free.

A model is its layers, and a layer is a mixer of tokens and a feed-forward network (:mod:`.mlp_spec`), with norms around
them: values, so that a family is a reader of its files and no code of its own. Shapes of weights, bytes of cache and
work a token are derived here, and written nowhere else.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

from .config_fields import LONGEST_CONTEXT, MOST_EXPERTS, ConfigError
from .mlp_spec import FeedForwardSpec, MLPSpec, MoESpec, Projection

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
        apart = ((f"{name}.q_proj", q), (f"{name}.k_proj", kv), (f"{name}.v_proj", kv))
        into = ((f"{name}.qkv_proj", q + 2 * kv),) if self.fused else apart
        return (
            Projection(into, hidden, self.qkv_bias, () if self.key_bias else (f"{name}.k_proj",)),
            Projection(((f"{name}.{self.out}", hidden),), q, self.output_bias),
        )

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what a checkpoint stores of it."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        for which, size in zip("qk", self.qk_norm_sizes or (), strict=False):
            yield f"{prefix}.{self.name}.{which}_norm.weight", (size,)
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

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions with keys and values, of ``tokens`` after ``context`` others."""
        return 4 * self.q_size * self.pairs(tokens, context)

    @property
    def keeps(self) -> "CacheGroup":
        """What one such layer keeps of its tokens."""
        return CacheGroup("window" if self.window else "full", (), self.window, self.kv_heads, self.head_dim)

    def check(self) -> None:
        """Raises :class:`ConfigError` where its parts contradict each other."""
        if self.heads % self.kv_heads:
            raise ConfigError(f"{self.heads} query heads do not divide among {self.kv_heads} key-value heads")
        if self.rope is not None:
            _check_rope(self.rope, self.head_dim)


@dataclass(frozen=True)
class LatentAttentionSpec:
    """Attention to keys and values that are made of one vector a token (DeepSeek-V2, arXiv:2405.04434).

    A layer keeps of a token its latent, ``kv_lora_rank`` numbers, and ``rope_dim`` rotated ones that all heads share. A
    head's key is ``nope_dim`` numbers made of the latent, and the rotated ones; its value is ``v_dim`` made of the
    latent.
    """

    heads: int
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    scale: float
    """Multiplies q·k."""
    q_lora_rank: int = 0
    """Of the latent that queries are made of; 0: they are made of the layer's input."""
    rope: RopeConfig | None = field(default_factory=RopeConfig)
    """Of the ``rope_dim`` numbers."""
    interleaved: bool = True
    """Number 2i of those rotates with 2i + 1; otherwise i with i + rope_dim / 2."""
    norm_eps: float = 1e-6
    """Of the norms of both latents."""
    bias: bool = False
    """Of what makes the latents, and of ``o_proj``."""
    name: str = "self_attn"
    """Before the names that its tensors are stored under."""

    window: ClassVar[int] = 0
    """It sees all tokens before the current one."""

    @property
    def latent_dim(self) -> int:
        """Numbers that are kept of a token."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def q_size(self) -> int:
        return self.heads * (self.nope_dim + self.rope_dim)

    @property
    def v_size(self) -> int:
        return self.heads * self.v_dim

    @property
    def latent_norms(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the norms of latents."""
        of_q = ((f"{self.name}.q_a_layernorm", self.q_lora_rank),) if self.q_lora_rank else ()
        return (*of_q, (f"{self.name}.kv_a_layernorm", self.kv_lora_rank))

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        """Into latents; from that of queries, if any, to them; from the kept one to keys and values; and out."""
        name, rank, kept = self.name, self.q_lora_rank, (f"{self.name}.kv_a_proj_with_mqa", self.latent_dim)
        made = Projection(((f"{name}.kv_b_proj", self.heads * (self.nope_dim + self.v_dim)),), self.kv_lora_rank, False)
        out = Projection(((f"{name}.o_proj", hidden),), self.v_size, self.bias)
        if not rank:
            query = f"{name}.q_proj"
            return Projection(((query, self.q_size), kept), hidden, self.bias, (query,)), made, out
        into = Projection(((f"{name}.q_a_proj", rank), kept), hidden, self.bias)
        return into, Projection(((f"{name}.q_b_proj", self.q_size),), rank, False), made, out

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what a checkpoint stores of it."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        for name, size in self.latent_norms:
            yield f"{prefix}.{name}.weight", (size,)

    def absorbs(self, tokens: int, context: int) -> bool:
        """Whether ``tokens`` after ``context`` others cost no more with queries taken into the space of latents, than
        with keys and values made of these anew."""
        return self._absorbed(tokens, context) <= self._expanded(tokens, context)

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions with keys and values, of ``tokens`` after ``context`` others."""
        return min(self._absorbed(tokens, context), self._expanded(tokens, context))

    def _absorbed(self, tokens: int, context: int) -> int:
        return 2 * self.heads * (self.latent_dim + self.kv_lora_rank) * _pairs(tokens, context)

    def _expanded(self, tokens: int, context: int) -> int:
        """Those of ``tokens`` themselves are made in either form: :meth:`projections` counts that."""
        made = self.kv_lora_rank * (self.nope_dim + self.v_dim) * context
        return 2 * self.heads * (made + (self.nope_dim + self.rope_dim + self.v_dim) * _pairs(tokens, context))

    @property
    def keeps(self) -> "CacheGroup":
        """What one such layer keeps of its tokens."""
        return CacheGroup("latent", (), 0, 1, self.latent_dim)

    def check(self) -> None:
        """Raises :class:`ConfigError` where its parts contradict each other."""
        if self.rope is not None:
            _check_rope(self.rope, self.rope_dim)


MixerSpec = AttentionSpec | LatentAttentionSpec


def _pairs(tokens: int, context: int) -> int:
    """Keys that ``tokens`` after ``context`` others see in all, each itself as well."""
    return tokens * context + tokens * (tokens + 1) // 2


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

    mixer: MixerSpec
    mlp: FeedForwardSpec
    norms: Norms = PRE
    cross: AttentionSpec | None = None
    """Attention to audio, between both."""

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what a checkpoint stores of it."""
        yield from self.mixer.shapes(prefix, hidden)
        if self.cross is not None:
            yield from self.cross.shapes(prefix, hidden)
        yield from self.mlp.shapes(prefix, hidden)
        yield from self.norms.shapes(prefix, hidden)


@dataclass(frozen=True)
class CacheGroup:
    """Layers that keep alike: as much of a token, for as long."""

    kind: Literal["full", "window", "latent"]
    layers: tuple[int, ...]
    window: int
    """Tokens after which one is not seen any more; 0: always seen."""
    kv_heads: int
    """Of a latent one."""
    head_dim: int

    @property
    def tensors(self) -> int:
        """Of a layer: keys and values, or latents."""
        return 1 if self.kind == "latent" else 2

    def token_bytes(self, itemsize: int) -> int:
        """Of one token over all layers."""
        return self.tensors * self.kv_heads * self.head_dim * len(self.layers) * itemsize

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
    """RMSNorm multiplies by (1 + weight) (Gemma)."""
    residual_scale: float = 1.0
    """Multiplies what each part of a layer adds to the residual stream."""
    prefix: str = "model.layers"
    """Before the number of a layer, where its tensors are named."""
    adapters: TaskAdapters | None = None

    def products(self, layer: int) -> int:
        """Elements of the matrices of a layer that a token is multiplied with, with each once."""
        mixer, mlp, hidden = self.layers[layer].mixer, self.layers[layer].mlp, self.hidden_size
        return sum(projection.elements for projection in mixer.projections(hidden)) + mlp.products(hidden)


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Backbone):
    """One decoder."""

    tie_embeddings: bool = False
    embedding_scale: float = 1.0
    logits_divisor: float = 1.0
    logits_softcap: float = 0.0
    bidirectional: bool = False
    """Tokens see those behind them too, in a window so many as before them: an embedder, which draws nothing."""
    draft_layers: int = 0
    """Layers that are stored behind the last and predict tokens further ahead; they are passed over."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor that a checkpoint of plain weights holds, by name."""
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, self.hidden_size)}
        for number, layer in enumerate(self.layers):
            found.update(layer.shapes(f"{self.prefix}.{number}", self.hidden_size))
        found["model.norm.weight"] = (self.hidden_size,)
        if not self.tie_embeddings:
            found["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return found

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.shapes().values()))

    @property
    def active_parameters(self) -> int:
        """Those that a token uses: all but those of the experts that it does not take."""
        return self.parameters - sum(layer.mlp.idle(self.hidden_size) for layer in self.layers)

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """In the order in which layers first need them."""
        members: dict[CacheGroup, list[int]] = {}
        for number, layer in enumerate(self.layers):
            members.setdefault(layer.mixer.keeps, []).append(number)
        return tuple(replace(keeps, layers=tuple(layers)) for keeps, layers in members.items())

    def flops(self, tokens: int, context: int, sampled: int) -> int:
        """Multiplications and additions of a pass over ``tokens`` that follow ``context`` others: products with
        weights, attention to all that each token sees, and logits of ``sampled`` rows."""
        total = 2 * sampled * self.hidden_size * self.vocab_size
        for number, layer in enumerate(self.layers):
            total += 2 * self.products(number) * tokens + layer.mixer.work(tokens, context)
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


def attention_of(spec: Backbone) -> AttentionSpec:
    """Of the first layer, whose mixer is plain attention."""
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, AttentionSpec)
    return mixer


def dense_mlp(spec: Backbone) -> MLPSpec:
    """The network of the first layer, which is no mixture of experts."""
    mlp = spec.layers[0].mlp
    assert isinstance(mlp, MLPSpec)
    return mlp


def checked(spec: B) -> B:
    """The spec itself, or :class:`ConfigError` where its parts contradict each other."""
    if spec.max_position > LONGEST_CONTEXT:
        raise ConfigError(f"its context is {spec.max_position} tokens, expected at most {LONGEST_CONTEXT}")
    for mixer in dict.fromkeys(layer.mixer for layer in spec.layers):
        mixer.check()
    for mlp in dict.fromkeys(layer.mlp for layer in spec.layers):
        if isinstance(mlp, MoESpec):
            _check_experts(mlp)
        elif mlp.gated and mlp.activation == "relu":
            raise ConfigError("a gated MLP with relu is not known")
    return spec


def _check_experts(moe: MoESpec) -> None:
    router, experts = moe.router, moe.experts
    if experts > MOST_EXPERTS:
        raise ConfigError(f"it has {experts} experts in a layer, expected at most {MOST_EXPERTS}")
    if experts % router.groups or router.top_groups > router.groups:
        raise ConfigError(
            f"{experts} experts do not divide into {router.groups} groups, of which {router.top_groups} are looked at"
        )
    looked_at = experts // router.groups * router.top_groups
    if router.top_k > looked_at:
        raise ConfigError(f"a token takes {router.top_k} experts of the {looked_at} that are looked at")
    if router.group_score == "top2" and router.groups > 1 and experts // router.groups < 2:
        raise ConfigError(f"a group of {experts // router.groups} expert has no two best scores")


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
