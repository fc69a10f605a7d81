"""Describes attention to a window and to compressed entries of everything before it, as values. Torch-free."""

from collections.abc import Iterator

import msgspec

from ..config_fields import ConfigError
from .cache import CacheSpec, seen_pairs
from .positions import RopeConfig, check_rope
from .projection import Projection
from .recurrent import StateTensor


class CandidatesSpec(msgspec.Struct, frozen=True):
    """Blocks of entries, of which a first index chooses those with the best scores of any entry, and the last one.
    Later indexes choose entries of these blocks alone (DeepSeek V4.1)."""

    size: int
    """Entries of a block."""
    top_k: int
    chooses: bool
    """Whether the layer's index is the first one."""

    @property
    def most(self) -> int:
        """Entries up to which all blocks are chosen."""
        return self.size * self.top_k


class EntryIndexSpec(msgspec.Struct, frozen=True):
    """Chooses the entries that a token sees: those with the largest sums over heads of weight · relu(q · k)."""

    heads: int
    head_dim: int
    top_k: int
    """Entries that are seen; all if there are fewer."""
    shared: bool = False
    """Whether the layer uses the choice of the last layer with an index (DeepSeek V4.1)."""
    of_entries: bool = False
    """Whether keys are products with entries before these rotate, normed (DeepSeek V4.1); otherwise they are compressed
    as entries are."""
    candidates: CandidatesSpec | None = None
    """None: it chooses among all entries."""

    @property
    def scale(self) -> float:
        """Factor on the heads' weights."""
        return float((self.heads * self.head_dim) ** -0.5)

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions, besides projections, of so many pairs of tokens and entries."""
        return 2 * self.heads * self.head_dim * seen_pairs(tokens, context)


class CompressedAttentionSpec(msgspec.Struct, frozen=True):
    """Attention to the last ``window`` tokens and to one entry for every ``ratio`` tokens (DeepSeek V4, V4.1).

    A token makes one vector of ``head_dim`` numbers that is key and value of all heads. The last ones are a state of
    fixed size, or all are cached. Entries are sums of vectors of their own, weighted by a softmax of gates for each
    dimension; they are cached in blocks, one for every ``ratio`` tokens. With an index whose keys are compressed too
    they overlap: an entry is made of two halves, one of the tokens before its own.
    """

    heads: int
    head_dim: int
    rope_dim: int
    """Dimensions that rotate, the last of each head. Outputs are rotated back."""
    window: int
    """Tokens that a token sees, itself included."""
    q_lora_rank: int
    out_groups: int
    """Groups of heads, each with a projection of its own to ``out_rank`` numbers."""
    out_rank: int
    ratio: int = 0
    """Tokens of an entry; 0: there are no entries."""
    index: EntryIndexSpec | None = None
    """Chooses the visible entries; None: all that are complete."""
    shares: int = -1
    """The layer whose entries, and keys of the index, it uses (DeepSeek V4.1); -1: its own."""
    biased: bool = True
    """Whether gates have a bias for each of an entry's tokens. Without biases an entry of one token has no gate either
    (DeepSeek V4.1)."""
    norms_queries: bool = True
    """Whether each head's query is normed."""
    rope: RopeConfig = msgspec.field(default_factory=RopeConfig)
    """Rotation of neighbouring dimensions."""
    norm_eps: float = 1e-6
    caches_tokens: bool = False
    """Whether the vectors of all tokens are cached in place of a state, in a head that drafts: it may be behind the
    model's tokens. It has no entries then."""
    name: str = "attn"
    """Prefix of its tensors' names."""

    @property
    def scale(self) -> float:
        """Factor on q·k."""
        return float(self.head_dim**-0.5)

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def halves(self) -> int:
        """Vectors of a token that go into entries: 2 if entries overlap."""
        return 2 if self.index and not self.index.of_entries else 1

    @property
    def gated(self) -> bool:
        """Whether entries are sums by gates."""
        return self.biased or self.depth > 1

    @property
    def depth(self) -> int:
        """Tokens that an entry is made of."""
        return self.halves * self.ratio

    @property
    def out_size(self) -> int:
        """Inputs of the output projection."""
        return self.out_groups * self.out_rank

    @property
    def compressed(self) -> tuple[tuple[str, int], ...]:
        """Prefix and size of what is compressed: entries, and possibly the index's keys; nothing if the layer uses
        another's."""
        if not self.ratio or self.shares >= 0:
            return ()
        entries = (f"{self.name}.compressor", self.head_dim)
        if self.index is None or self.index.of_entries:
            return (entries,)
        return entries, (f"{self.name}.indexer.compressor", self.index.head_dim)

    @property
    def channels(self) -> int:
        """Numbers of a token from which entries are made: vectors and gates."""
        return sum(map(self.channels_of, (size for _, size in self.compressed)))

    def channels_of(self, size: int) -> int:
        """Of them, those of entries or keys of so many numbers."""
        return (2 if self.gated else 1) * self.halves * size

    def into(self, hidden: int) -> Projection:
        """The projection to the queries' latent and the token's vector."""
        parts = (f"{self.name}.wq_a", self.q_lora_rank), (f"{self.name}.wkv", self.head_dim)
        return Projection(parts, hidden, False)

    def queries(self) -> Projection:
        """The projection from the queries' latent."""
        return Projection(((f"{self.name}.wq_b", self.q_size),), self.q_lora_rank, False)

    def grouped(self) -> Projection:
        """The projections of all groups of heads, one after another."""
        return Projection(((f"{self.name}.wo_a", self.out_size),), self.q_size // self.out_groups, False)

    def out(self, hidden: int) -> Projection:
        """The projection of all groups' outputs."""
        return Projection(((f"{self.name}.wo_b", hidden),), self.out_size, False)

    def compressing(self, hidden: int) -> Projection:
        """The projection to :attr:`channels`; for entries, then for the index's keys, vectors before gates."""
        made = ("wkv", "wgate") if self.gated else ("wkv",)
        parts = ((f"{name}.{part}", self.halves * size) for name, size in self.compressed for part in made)
        return Projection(tuple(parts), hidden, False)

    @property
    def own_index(self) -> EntryIndexSpec | None:
        """The index that the layer has itself."""
        return None if self.index is None or self.index.shared else self.index

    @property
    def makes_keys(self) -> bool:
        """Whether keys of the index are made of the layer's entries."""
        return self.index is not None and self.index.of_entries and self.shares < 0

    def indexing(self, hidden: int) -> tuple[Projection, Projection]:
        """The index's projections from the queries' latent, and to the heads' weights."""
        assert self.index is not None
        name, size = f"{self.name}.indexer", self.index.heads * self.index.head_dim
        return (
            Projection(((f"{name}.wq_b", size),), self.q_lora_rank, False),
            Projection(((f"{name}.weights_proj", self.index.heads),), hidden, False),
        )

    def keying(self) -> Projection:
        """The index's projection from entries to keys."""
        assert self.index is not None
        return Projection(((f"{self.name}.indexer.wk", self.index.head_dim),), self.head_dim, False)

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        """All projections."""
        found = self.into(hidden), self.queries(), self.grouped(), self.out(hidden)
        compressing = (self.compressing(hidden),) if self.compressed else ()
        keying = (self.keying(),) if self.makes_keys else ()
        return (*found, *compressing, *(self.indexing(hidden) if self.own_index else ()), *keying)

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, by name."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        name = f"{prefix}.{self.name}"
        yield f"{name}.q_norm.weight", (self.q_lora_rank,)
        yield f"{name}.kv_norm.weight", (self.head_dim,)
        yield f"{name}.attn_sink", (self.heads,)
        for part, size in self.compressed:
            if self.biased:
                yield f"{prefix}.{part}.ape", (self.ratio, self.halves * size)
            yield f"{prefix}.{part}.norm.weight", (size,)
        if self.makes_keys and self.index is not None:
            yield f"{name}.indexer.k_norm.weight", (self.index.head_dim,)

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions, besides projections, of ``tokens`` behind ``context`` others."""
        pairs = seen_pairs(tokens, context, self.window)
        if not self.ratio:
            return 4 * self.q_size * pairs
        most = self.index.top_k * self.ratio if self.index else 0
        pairs += seen_pairs(tokens, context, most) // self.ratio
        index = self.own_index.work(tokens, context) // self.ratio if self.own_index else 0
        return 4 * self.q_size * pairs + index

    @property
    def keeps(self) -> CacheSpec | None:
        """The cache of one such layer; None with neither entries of its own nor cached vectors."""
        if self.caches_tokens:
            return CacheSpec("latent", (), 0, 1, self.head_dim)
        if not self.compressed:
            return None
        return CacheSpec("latent", (), 0, 1, self.head_dim, self.index.head_dim if self.index else 0, every=self.ratio)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        """The vectors of the last tokens, and what the next entry is made of; none if vectors are cached."""
        if self.caches_tokens:
            return ()
        window = StateTensor((self.window - 1, self.head_dim), recurrent=False)
        if not self.compressed or self.depth < 2:
            return (window,)
        return window, StateTensor((self.depth - 1, self.channels), recurrent=False)

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        check_rope(self.rope, self.rope_dim)
        if not 0 < self.rope_dim <= min(self.head_dim, self.index.head_dim if self.index else self.head_dim):
            raise ConfigError(f"{self.rope_dim} dimensions of each head rotate, which is more than there are")
        if self.window < 2:
            raise ConfigError(f"sliding_window is {self.window}, expected at least 2")
        if self.ratio and self.caches_tokens:
            raise ConfigError("a layer that caches its tokens has no entries of several")
        if self.ratio and self.biased and self.depth < 2:
            raise ConfigError(f"an entry is made of {self.ratio} token, expected at least 2")
        if self.index and (candidates := self.index.candidates) and candidates.most < self.index.top_k:
            raise ConfigError(
                f"candidate_topk_blocks of {candidates.top_k} blocks of {candidates.size} entries are fewer than the "
                f"{self.index.top_k} of index_topk"
            )
        if self.heads % self.out_groups:
            raise ConfigError(f"{self.heads} heads do not divide among o_groups, {self.out_groups}")
