"""Describes latent attention and the index of sparse attention as values. Torch-free."""

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from ..config_fields import ConfigError
from .cache import CacheSpec, seen_pairs
from .positions import RopeConfig, check_rope
from .projection import Projection
from .recurrent import StateTensor


class IndexSpec(msgspec.Struct, frozen=True):
    """The index of sparse attention: a token sees those with the largest sums over heads of weight · relu(q · k)
    (DeepSeek sparse attention, arXiv:2512.02556).

    Queries are made from the queries' latent, or from the layer's input. Keys, one a token for all heads, and head
    weights are made from the layer's input. The first dimensions of queries and keys rotate as in the attention.
    """

    heads: int
    head_dim: int
    top_k: int
    """Tokens that are seen; all if there are fewer."""
    interleaved: bool = False
    """Whether dimension 2i rotates with 2i + 1; otherwise i with i + half of the rotating ones."""
    shared: bool = False
    """Whether the layer uses the choice of the last layer with an index, and caches no keys."""
    norm_eps: float = 1e-6
    """Epsilon of its LayerNorms."""
    rotates_last: bool = False
    """Whether the last dimensions of queries and keys rotate, not the first (Hy4)."""
    input_norm: str = ""
    """Stored name of a LayerNorm of the layer's input, from which queries are made (Mistral Large 4); "": they are made
    from the queries' latent."""
    growth: str = ""
    """As :attr:`LatentAttentionSpec.growth`, for its own heads."""
    pool: int = 1
    """Tokens that have one key, the sum of theirs with a softmax of gates for each dimension, and are chosen together;
    those behind the last pool that is complete are always seen (GLM 5.3 Flash)."""

    @property
    def most(self) -> int:
        """Tokens up to which all are seen."""
        return self.top_k + self.pool - 1

    @property
    def gates(self) -> str:
        """Ending of the stored names of gates from the layer's input and of what is added to those of each token of a
        pool, ``_gate`` and ``_ape``; "": without pools."""
        return "index_kpool_compress" if self.pool > 1 and not self.shared else ""

    @property
    def scale(self) -> float:
        """Factor on the heads' weights."""
        return float((self.heads * self.head_dim) ** -0.5)

    @property
    def kept(self) -> int:
        """Numbers of a cached key."""
        return 0 if self.shared else self.head_dim

    def projections(self, name: str, hidden: int, rank: int) -> tuple[Projection, ...]:
        """The projections from the queries' latent of ``rank``, to the key, and to the heads' weights."""
        if self.shared:
            return ()
        return (
            Projection(((f"{name}.wq_b", self.heads * self.head_dim),), hidden if self.input_norm else rank, False),
            Projection(((f"{name}.wk", self.head_dim),), hidden, False),
            Projection(((f"{name}.weights_proj", self.heads),), hidden, False),
        )

    def shapes(self, name: str, prefix: str, hidden: int, rank: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, by name."""
        for projection in self.projections(name, hidden, rank):
            yield from projection.shapes(prefix)
        if self.shared:
            return
        yield f"{prefix}.{name}.k_norm.weight", (self.head_dim,)
        yield f"{prefix}.{name}.k_norm.bias", (self.head_dim,)
        if self.input_norm:
            yield f"{prefix}.{name}.{self.input_norm}.weight", (hidden,)
            yield f"{prefix}.{name}.{self.input_norm}.bias", (hidden,)
        if self.growth:
            yield from growth_shapes(f"{prefix}.{name}.{self.growth}", self.heads)
        if self.gates:
            yield f"{prefix}.{name}.{self.gates}_ape", (self.pool, self.head_dim)
            yield f"{prefix}.{name}.{self.gates}_gate", (self.head_dim, hidden)

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions, besides projections, of ``tokens`` behind ``context`` others."""
        return 2 * self.heads * self.kept * seen_pairs(tokens, context) // self.pool

    def states(self) -> tuple[StateTensor, ...]:
        """The keys and gates of the tokens that the next pool begins with."""
        return (StateTensor((self.pool - 1, 2 * self.head_dim), recurrent=False),) if self.gates else ()

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        if self.top_k % self.pool:
            raise ConfigError(f"index_topk is {self.top_k}, expected a multiple of index_kpool, {self.pool}")


class LatentAttentionSpec(msgspec.Struct, frozen=True):
    """Attention with keys and values made from one vector a token (DeepSeek-V2, arXiv:2405.04434).

    A layer caches a token's latent of ``kv_lora_rank`` numbers, and ``rope_dim`` rotated ones shared by all heads. A
    head's key is ``nope_dim`` numbers made from the latent, with the rotated ones; its value is ``v_dim`` numbers made
    from the latent.
    """

    heads: int
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    scale: float
    """Factor on q·k."""
    q_lora_rank: int = 0
    """Size of the queries' latent; 0: queries are made from the layer's input."""
    rope: RopeConfig | None = msgspec.field(default_factory=RopeConfig)
    """Rotation of the ``rope_dim`` numbers; None: they do not rotate, and there may be none."""
    interleaved: bool = True
    """Whether number 2i of them rotates with 2i + 1; otherwise i with i + rope_dim / 2."""
    norm_eps: float = 1e-6
    """Epsilon of both latents' norms."""
    bias: bool = False
    """Whether the projections to the latents and ``o_proj`` have biases."""
    index: IndexSpec | None = None
    """Chooses the visible tokens; None: all before the current one."""
    gate: str = ""
    """Stored name of a gate of each head, whose sigmoid multiplies the head's output (Ling 3.0); "": none."""
    gate_by_value: bool = False
    """Whether there is a gate for each number of the heads' outputs, not one a head (Hy4)."""
    sinks: str = ""
    """Stored name of a score of each head that takes part in its softmax and has no value (Hy4); "": none."""
    temperature_beta: float = 0.0
    """Queries at position p are multiplied by 1 + beta · log(1 + ⌊p / floor⌋) (Mistral 4)."""
    temperature_floor: int = 0
    growth: str = ""
    """Stored prefix of a scale and a bias of each head: queries at position p are multiplied by
    scale · log(1 + p) + bias (Mistral Large 4); "": none."""
    latent_scale: float = 1.0
    """Factor on normed latents (LongCat)."""
    rope_norm: str = ""
    """Stored name of a norm of the ``rope_dim`` numbers before their rotation (dots.3 note); "": none."""
    reach: int = 0
    """Tokens that a token sees, itself included (dots.3 note); 0: all before it. Latents of all tokens stay cached."""
    shares: int = -1
    """The layer whose latents it uses (Mistral Large 4); -1: its own."""
    gated_queries: bool = False
    """Whether queries are made with a gate for each number of the head's output, head by head, from the queries' latent
    normed and, behind it, as it is (A.X K2)."""
    made_apart: bool = False
    """Whether the projections from the latent are stored as ``k_b_proj`` [heads, kv_lora_rank, nope_dim] and
    ``v_b_proj`` [heads, v_dim, kv_lora_rank] (GGUF)."""
    name: str = "self_attn"
    """Prefix of its tensors' names."""
    out: str = "o_proj"

    window: ClassVar[int] = 0
    """None: no token leaves the cache."""

    @property
    def latent_dim(self) -> int:
        """Numbers cached a token."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def own_dim(self) -> int:
        """Numbers of its own latent, or none if it uses another layer's."""
        return 0 if self.shares >= 0 else self.latent_dim

    @property
    def q_size(self) -> int:
        return self.heads * (self.nope_dim + self.rope_dim)

    @property
    def v_size(self) -> int:
        return self.heads * self.v_dim

    @property
    def latent_norms(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the latents' norms."""
        of_q = ((f"{self.name}.q_a_layernorm", self.q_lora_rank),) if self.q_lora_rank else ()
        of_kv = ((f"{self.name}.kv_a_layernorm", self.kv_lora_rank),) if self.shares < 0 else ()
        return (*of_q, *of_kv)

    @property
    def index_name(self) -> str:
        """Prefix of the names of the index's tensors."""
        return f"{self.name}.indexer"

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        """All projections: of the attention, then of the index."""
        index = self.index.projections(self.index_name, hidden, self.q_lora_rank) if self.index else ()
        return (*self.attending(hidden), *index)

    @property
    def gates(self) -> tuple[tuple[str, int], ...]:
        """The part of the first projection with the heads' gates, its last; empty without."""
        return ((f"{self.name}.{self.gate}", self.gate_count),) if self.gate else ()

    @property
    def gate_count(self) -> int:
        """The number of gates of all heads; 0 without gates."""
        return 0 if not self.gate else self.v_size if self.gate_by_value else self.heads

    def attending(self, hidden: int) -> tuple[Projection, ...]:
        """The projections to latents; from the queries' latent, if there is one; from the cached latent to keys and
        values; and to the output."""
        name, rank = self.name, self.q_lora_rank
        kept = ((f"{name}.kv_a_proj_with_mqa", self.own_dim),) if self.own_dim else ()
        made = Projection(((f"{name}.kv_b_proj", self.heads * (self.nope_dim + self.v_dim)),), self.kv_lora_rank, False)
        out = Projection(((f"{name}.{self.out}", hidden),), self.v_size, self.bias)
        unbiased = tuple(gate for gate, _ in self.gates)
        if not rank:
            query = f"{name}.q_proj"
            return (
                Projection(((query, self.q_size), *kept, *self.gates), hidden, self.bias, (query, *unbiased)),
                made,
                out,
            )
        into = Projection(((f"{name}.q_a_proj", rank), *kept, *self.gates), hidden, self.bias, unbiased)
        asked, inputs = (self.q_size + self.v_size, 2 * rank) if self.gated_queries else (self.q_size, rank)
        return into, Projection(((f"{name}.q_b_proj", asked),), inputs, False), made, out

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, by name."""
        *others, made, out = self.attending(hidden)
        for projection in (*others, *(() if self.made_apart else (made,)), out):
            yield from projection.shapes(prefix)
        if self.made_apart:
            yield f"{prefix}.{self.name}.k_b_proj.weight", (self.heads, self.kv_lora_rank, self.nope_dim)
            yield f"{prefix}.{self.name}.v_b_proj.weight", (self.heads, self.v_dim, self.kv_lora_rank)
        for name, size in self.latent_norms:
            yield f"{prefix}.{name}.weight", (size,)
        if self.rope_norm:
            yield f"{prefix}.{self.name}.{self.rope_norm}.weight", (self.rope_dim,)
        if self.sinks:
            yield f"{prefix}.{self.name}.{self.sinks}", (self.heads,)
        if self.growth:
            yield from growth_shapes(f"{prefix}.{self.name}.{self.growth}", self.heads)
        if self.index:
            yield from self.index.shapes(self.index_name, prefix, hidden, self.q_lora_rank)

    def absorbs(self, tokens: int, context: int) -> bool:
        """Whether ``tokens`` behind ``context`` others are cheaper absorbed than expanded. Those that do not see all
        before them are always absorbed."""
        return self.chooses(tokens, context) or self._absorbed(tokens, context) <= self._expanded(tokens, context)

    def chooses(self, tokens: int, context: int) -> bool:
        """Whether the last of ``tokens`` behind ``context`` others has more tokens before it than it sees."""
        return bool(self.most) and tokens + context > self.most

    @property
    def most(self) -> int:
        """Tokens that a token sees: those that the index chooses, or the nearest; 0: all."""
        return self.index.most if self.index else self.reach

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions with keys and values of ``tokens`` behind ``context`` others, and of the index
        if it has to choose."""
        if self.chooses(tokens, context):
            scored = self.index.work(tokens, context) if self.index else 0
            return self._absorbed(tokens, context) + scored
        return min(self._absorbed(tokens, context), self._expanded(tokens, context))

    def _absorbed(self, tokens: int, context: int) -> int:
        return 2 * self.heads * (self.latent_dim + self.kv_lora_rank) * seen_pairs(tokens, context, self.most)

    def _expanded(self, tokens: int, context: int) -> int:
        """The keys and values of ``tokens`` themselves are counted in :meth:`projections`."""
        made = self.kv_lora_rank * (self.nope_dim + self.v_dim) * context
        return 2 * self.heads * (made + (self.nope_dim + self.rope_dim + self.v_dim) * seen_pairs(tokens, context))

    @property
    def keeps(self) -> CacheSpec | None:
        """The cache of one such layer: latents and keys of its index, less what it shares with an earlier layer."""
        keys = self.index.kept if self.index else 0
        if self.shares < 0:
            every = self.index.pool if self.index and self.index.gates else 0
            return CacheSpec("latent", (), 0, 1, self.latent_dim, keys, index_every=every)
        return CacheSpec("latent", (), 0, 1, keys) if keys else None

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        """That of its index, if any."""
        return self.index.states() if self.index else ()

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        if self.rope is not None:
            check_rope(self.rope, self.rope_dim)
        if self.temperature_beta and self.temperature_floor < 1:
            raise ConfigError(f"queries are scaled every {self.temperature_floor} positions, expected at least 1")
        if self.reach and self.index is not None:
            raise ConfigError(f"an index that chooses among the nearest {self.reach} tokens is not known")
        if self.gated_queries and (self.gate or not self.q_lora_rank):
            raise ConfigError("gates made with queries, beside others or without a latent of queries, are not known")
        if self.index is not None:
            self.index.check()
            if self.index.pool > 1 and self.shares >= 0:
                raise ConfigError("an index of pools in a layer that uses another's latents is not known")
        if self.index is not None and not self.q_lora_rank and not self.index.input_norm:
            raise ConfigError(
                "queries of its index are made of the latent of queries, and q_lora_rank says there is none"
            )
        if self.index is not None and self.index.head_dim < self.rope_dim:
            raise ConfigError(
                f"index_head_dim is {self.index.head_dim}, expected at least the {self.rope_dim} of qk_rope_head_dim"
            )


def growth_shapes(name: str, heads: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Shapes of what multiplies queries by their position: see :attr:`LatentAttentionSpec.growth`."""
    yield f"{name}.scale", (heads,)
    yield f"{name}.bias", (heads,)
