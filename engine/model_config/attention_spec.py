"""Attention as values, and what its layers keep of tokens. Torch-free."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from .config_fields import ConfigError
from .projection import Projection
from .recurrent_spec import StateTensor

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]
QKNorm = Literal["none", "head", "full", "layer", "layer_own"]
"""``head``: over each head (Qwen3, Gemma-3). ``full``: over the whole projection (OLMo-2). ``layer``: a layer norm over
each head (Phi). ``layer_own``: one without a bias, with weights of each head (Command R+)."""


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
    backwards: bool = False
    """By negative angles (nanochat)."""
    rotating: int = 0
    """Dimensions that really turn, as slowly as if all did (proportional)."""
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
    axes: tuple[int, ...] = ()
    """One per rotating pair: whether it turns by the frame (0), row (1) or column (2) of a token of media (m-rope,
    arXiv:2409.12191). Empty: all by one position. Of text all three are one number."""


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
    chunked: bool = False
    """The window is a chunk: a token sees those from the last multiple of ``window`` on (Llama 4)."""
    causal: bool = False
    """Where texts see themselves whole, a token sees only what is before it all the same (CLIP)."""
    whole_spans: bool = False
    """Tokens of a picture see each other, those behind them too (Gemma 3; Gemma 4 in layers with a window)."""
    softcap: float = 0.0
    """q·k is capped at this; 0: not."""
    sinks: bool = False
    """Each head has a learned score that joins its softmax and has no value (gpt-oss, arXiv:2508.10925)."""
    qk_norm: QKNorm = "none"
    qk_norm_names: tuple[str, str] | None = ("q_norm", "k_norm")
    """None: the norms have no weights (Llama 4)."""
    turned_first: bool = False
    """Heads are normed once they are rotated (HunYuan)."""
    v_norm: bool = False
    """Values are normed by head, without weights (Gemma 4)."""
    tied_values: bool = False
    """Values are what keys are before they are normed and rotated: no ``v_proj`` is stored (Gemma 4)."""
    shares: int = -1
    """The layer whose keys and values it sees in place of its own (Gemma 4); -1: it makes its own."""
    gated: bool = False
    """The query projection holds query and gate of each head in turn; sigmoid(gate) multiplies what the head found
    (Qwen3-Next)."""
    gate: str = ""
    """The name that gates of all heads are stored under where they stand by themselves (Trinity)."""
    gate_by_head: bool = False
    """A head has one such gate, not one for each of its dimensions (LFM3)."""
    temperature_beta: float = 0.0
    """Queries at position p are multiplied by 1 + beta · log(1 + ⌊(p + first) / floor⌋) (Llama 4)."""
    temperature_floor: int = 0
    temperature_first: int = 0
    qkv_bias: bool = False
    key_bias: bool = True
    """Whether that of queries, keys and values is one of keys too."""
    output_bias: bool = False
    fused: bool = False
    """The checkpoint stores queries, keys and values as one (Phi-3)."""
    into: str = "qkv_proj"
    """Its name, where it does."""
    by_group: bool = False
    """It holds the queries of a key-value head, its key and its value, one head after another (GPT-NeoX, Falcon)."""
    regrouped: bool = False
    """It lay so where adapters were made, and holds all queries, keys and values one after another here (GGUF)."""
    transposed: bool = False
    """Matrices are stored as [inputs, outputs] (GPT-2)."""
    inputs: int = 1
    """Hidden sizes that queries, keys and values are made of: 2 where an embedding stands before the hidden state
    (EAGLE-3)."""
    name: str = "self_attn"
    """Before the names that its tensors are stored under."""
    out: str = "o_proj"

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def gates(self) -> int:
        """Of all heads."""
        if not self.gated:
            return 0
        return self.heads if self.gate_by_head else self.q_size

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """Into queries, keys and values; and out of what the heads found."""
        q, kv, name = self.q_size, self.kv_size, self.name
        asked = q + self.gates
        gates = ((f"{name}.{self.gate}", self.gates),) if self.gate else ()
        queries = ((f"{name}.q_proj", asked - sum(size for _, size in gates)), *gates)
        apart = (*queries, (f"{name}.k_proj", kv), (f"{name}.v_proj", kv))
        into = ((f"{name}.{self.into}", asked + 2 * kv),) if self.fused else apart
        into = queries if self.shares >= 0 else into
        unbiased = self.gate, "" if self.key_bias else "k_proj"
        return (
            Projection(
                into,
                hidden * self.inputs,
                self.qkv_bias,
                tuple(f"{name}.{part}" for part in unbiased if part),
                self.transposed,
            ),
            Projection(((f"{name}.{self.out}", hidden),), q, self.output_bias, transposed=self.transposed),
        )

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what a checkpoint stores of it."""
        values = (f"{prefix}.{self.name}.v_proj.weight", f"{prefix}.{self.name}.v_proj.bias")
        for projection in self.projections(hidden):
            for name, shape in projection.shapes(prefix):
                if not self.tied_values or name not in values:
                    yield name, shape
        names = (self.qk_norm_names or ())[: 1 if self.shares >= 0 else None]
        for which, size in zip(names, self.qk_norm_sizes or (), strict=False):
            yield f"{prefix}.{self.name}.{which}.weight", (size,)
        for which, heads in self.layer_norms:
            name = f"{prefix}.{self.name}.{which}"
            if self.qk_norm == "layer":
                yield f"{name}.bias", (self.head_dim,)
                yield f"{name}.weight", (self.head_dim,)
            elif "{}" in which:
                yield from ((f"{name.format(head)}.weight", (self.head_dim,)) for head in range(heads))
            else:
                yield f"{name}.weight", (heads, self.head_dim)
        if self.sinks:
            yield f"{prefix}.{self.name}.sinks", (self.heads,)

    @property
    def layer_norms(self) -> tuple[tuple[str, int], ...]:
        """Names of layer norms of queries and keys, and the heads of these."""
        if self.qk_norm not in ("layer", "layer_own") or self.qk_norm_names is None:
            return ()
        q, k = self.qk_norm_names
        return (q, self.heads), (k, self.kv_heads)

    @property
    def qk_norm_sizes(self) -> tuple[int, int] | None:
        """Of the RMS norms of queries and keys."""
        match self.qk_norm:
            case "none" | "layer" | "layer_own":
                return None
            case "head":
                return self.head_dim, self.head_dim
            case "full":
                return self.q_size, self.kv_size

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions of ``tokens`` after ``context`` others besides its projections."""
        return 4 * self.q_size * self.pairs(tokens, context)

    def pairs(self, tokens: int, context: int) -> int:
        """Keys that ``tokens`` after ``context`` others attend to in all, each to itself as well."""
        if self.chunked:
            return self._chunked_pairs(context + tokens) - self._chunked_pairs(context)
        return seen_pairs(tokens, context, self.window)

    def _chunked_pairs(self, tokens: int) -> int:
        """Of so many first tokens."""
        chunks, rest = divmod(tokens, self.window)
        return chunks * self.window * (self.window + 1) // 2 + rest * (rest + 1) // 2

    @property
    def keeps(self) -> "CacheSpec | None":
        """What one such layer keeps of its tokens: a window covers a chunk."""
        if self.shares >= 0:
            return None
        return CacheSpec("window" if self.window else "full", (), self.window, self.kv_heads, self.head_dim)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        """It has no state beside what it keeps of tokens."""
        return ()

    def check(self) -> None:
        """Raises :class:`ConfigError` where its parts contradict each other."""
        if self.heads % self.kv_heads:
            raise ConfigError(f"{self.heads} query heads do not divide among {self.kv_heads} key-value heads")
        if self.chunked and not self.window:
            raise ConfigError("attention in chunks has a chunk of no tokens")
        if self.qk_norm.startswith("layer") and (self.turned_first or self.qk_norm_names is None):
            raise ConfigError("layer norms of heads that are rotated before, or have no weights, are not known")
        if self.by_group and (self.gated or not self.fused):
            raise ConfigError("heads that are stored one after another, with gates or apart, are not known")
        if self.gate_by_head and not self.gate:
            raise ConfigError("a gate of each head that is stored among queries is not known")
        if self.gated and self.qk_norm == "full":
            raise ConfigError("gated attention whose queries are normed as a whole is not known")
        if self.temperature_beta and self.temperature_floor < 1:
            raise ConfigError(f"queries are scaled every {self.temperature_floor} positions, expected at least 1")
        if self.rope is not None:
            _check_rope(self.rope, self.head_dim)


@dataclass(frozen=True)
class IndexSpec:
    """Which tokens latent attention sees: those with the largest sums over heads of weight · relu(q · k) (DeepSeek
    sparse attention, arXiv:2512.02556).

    Queries are made of the latent of queries, one key a token, which all heads share, and the heads' weights of the
    layer's input. The first numbers of queries and keys rotate as those of the attention do.
    """

    heads: int
    head_dim: int
    top_k: int
    """Tokens that are seen; where fewer stand before one, all of them."""
    interleaved: bool = False
    """Number 2i rotates with 2i + 1; otherwise i with i + half of those that rotate."""
    shared: bool = False
    """The layer has none: it sees what the last layer with one chose, and keeps no keys."""
    norm_eps: float = 1e-6
    """Of the LayerNorm of keys."""

    @property
    def scale(self) -> float:
        """Multiplies the heads' weights."""
        return float((self.heads * self.head_dim) ** -0.5)

    @property
    def kept(self) -> int:
        """Numbers that are kept of a token."""
        return 0 if self.shared else self.head_dim

    def projections(self, name: str, hidden: int, rank: int) -> tuple[Projection, ...]:
        """Into queries, from their latent of ``rank``; into the key; and into the heads' weights."""
        if self.shared:
            return ()
        return (
            Projection(((f"{name}.wq_b", self.heads * self.head_dim),), rank, False),
            Projection(((f"{name}.wk", self.head_dim),), hidden, False),
            Projection(((f"{name}.weights_proj", self.heads),), hidden, False),
        )

    def shapes(self, name: str, prefix: str, hidden: int, rank: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what a checkpoint stores of it."""
        for projection in self.projections(name, hidden, rank):
            yield from projection.shapes(prefix)
        if not self.shared:
            yield f"{prefix}.{name}.k_norm.weight", (self.head_dim,)
            yield f"{prefix}.{name}.k_norm.bias", (self.head_dim,)

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions of ``tokens`` after ``context`` others besides its projections."""
        return 2 * self.heads * self.kept * seen_pairs(tokens, context)


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
    index: IndexSpec | None = None
    """Which tokens it sees; None: all before the current one."""
    made_apart: bool = False
    """What makes keys of the latent is stored as ``k_b_proj`` [heads, kv_lora_rank, nope_dim], and what makes values as
    ``v_b_proj`` [heads, v_dim, kv_lora_rank] (GGUF)."""
    name: str = "self_attn"
    """Before the names that its tensors are stored under."""

    window: ClassVar[int] = 0
    """It may see any token before the current one."""

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

    @property
    def index_name(self) -> str:
        """Before the names that the index's tensors are stored under."""
        return f"{self.name}.indexer"

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        """All that a token is multiplied with: those of attention, then those of the index."""
        index = self.index.projections(self.index_name, hidden, self.q_lora_rank) if self.index else ()
        return (*self.attending(hidden), *index)

    def attending(self, hidden: int) -> tuple[Projection, ...]:
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
        *others, made, out = self.attending(hidden)
        for projection in (*others, *(() if self.made_apart else (made,)), out):
            yield from projection.shapes(prefix)
        if self.made_apart:
            yield f"{prefix}.{self.name}.k_b_proj.weight", (self.heads, self.kv_lora_rank, self.nope_dim)
            yield f"{prefix}.{self.name}.v_b_proj.weight", (self.heads, self.v_dim, self.kv_lora_rank)
        for name, size in self.latent_norms:
            yield f"{prefix}.{name}.weight", (size,)
        if self.index:
            yield from self.index.shapes(self.index_name, prefix, hidden, self.q_lora_rank)

    def absorbs(self, tokens: int, context: int) -> bool:
        """Whether ``tokens`` after ``context`` others cost no more with queries taken into the space of latents, than
        with keys and values made of these anew. Where they choose what they see, they always are."""
        return self.chooses(tokens, context) or self._absorbed(tokens, context) <= self._expanded(tokens, context)

    def chooses(self, tokens: int, context: int) -> bool:
        """Whether the last of ``tokens`` after ``context`` others sees more than its index chooses."""
        return self.index is not None and tokens + context > self.index.top_k

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions with keys and values, of ``tokens`` after ``context`` others, and those of the
        index where it has to choose."""
        if self.index is not None and self.chooses(tokens, context):
            return self._absorbed(tokens, context) + self.index.work(tokens, context)
        return min(self._absorbed(tokens, context), self._expanded(tokens, context))

    def _absorbed(self, tokens: int, context: int) -> int:
        most = self.index.top_k if self.index else 0
        return 2 * self.heads * (self.latent_dim + self.kv_lora_rank) * seen_pairs(tokens, context, most)

    def _expanded(self, tokens: int, context: int) -> int:
        """Those of ``tokens`` themselves are made in either form: :meth:`projections` counts that."""
        made = self.kv_lora_rank * (self.nope_dim + self.v_dim) * context
        return 2 * self.heads * (made + (self.nope_dim + self.rope_dim + self.v_dim) * seen_pairs(tokens, context))

    @property
    def keeps(self) -> "CacheSpec":
        """What one such layer keeps of its tokens."""
        return CacheSpec("latent", (), 0, 1, self.latent_dim, self.index.kept if self.index else 0)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        """It has no state beside what it keeps of tokens."""
        return ()

    def check(self) -> None:
        """Raises :class:`ConfigError` where its parts contradict each other."""
        if self.rope is not None:
            _check_rope(self.rope, self.rope_dim)
        if self.index is not None and not self.q_lora_rank:
            raise ConfigError(
                "queries of its index are made of the latent of queries, and q_lora_rank says there is none"
            )
        if self.index is not None and self.index.head_dim < self.rope_dim:
            raise ConfigError(
                f"index_head_dim is {self.index.head_dim}, expected at least the {self.rope_dim} of qk_rope_head_dim"
            )


@dataclass(frozen=True)
class CacheSpec:
    """Layers that keep alike: as much of a token, for as long."""

    kind: Literal["full", "window", "latent", "cross"]
    layers: tuple[int, ...]
    window: int
    """Tokens after which one is not seen any more; 0: always seen."""
    kv_heads: int
    """Of a latent one."""
    head_dim: int
    index_dim: int = 0
    """Of a key of the index, beside a latent; 0: there is none."""
    positions: int = 0
    """Of a cross group: of the encoder, which all tokens of a sequence see, however many these are."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of a token in each tensor of a layer: keys and values, or latents, and perhaps keys of an index."""
        if self.kind == "latent":
            return (self.head_dim, self.index_dim) if self.index_dim else (self.head_dim,)
        return (self.kv_heads * self.head_dim,) * 2

    def token_bytes(self, itemsize: int) -> int:
        """Of one token, or position of the encoder, over all layers."""
        return sum(self.widths) * len(self.layers) * itemsize

    def cached_bytes(self, length: int, itemsize: int) -> int:
        """Of a sequence of ``length`` tokens that has dropped what no token will see."""
        seen = min(length, self.window) if self.window else length
        return self.token_bytes(itemsize) * (self.positions or seen)


def seen_pairs(tokens: int, context: int, most: int = 0) -> int:
    """Keys that ``tokens`` after ``context`` others see in all, each itself as well and ``most`` of them at most; 0: as
    many as there are."""
    growing = max(0, min(tokens, most - context)) if most else tokens
    return growing * context + growing * (growing + 1) // 2 + (tokens - growing) * most


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
