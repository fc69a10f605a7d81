"""Parts that only some attention mixers have, as values. Torch-free."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from ..config_fields import ConfigError
from .positions import DistanceBias, RopeConfig, check_rope
from .recurrent import StateTensor

Shapes = Iterator[tuple[str, tuple[int, ...]]]


class BlockIndexSpec(msgspec.Struct, frozen=True):
    """The index of attention to blocks (MiniMax-M3): the queries of a key-value head see the ``top_k`` blocks of
    ``size`` tokens with the largest product of a token's key and the head's query of the index.

    Queries, one a key-value head, and keys, one a token for all heads, are made from the layer's input, normed and
    rotated as in the attention.
    """

    head_dim: int
    size: int
    top_k: int
    """Blocks that are seen, with the token's own; all if there are fewer."""
    local: int = 1
    """The last of them up to the token's own, which are always seen."""
    prefix: str = "index_"
    """Prefix of its tensors' names within the attention's."""

    @property
    def most(self) -> int:
        """Tokens up to which all are seen."""
        return self.size * self.top_k

    @property
    def every(self) -> int:
        """Tokens that have one cached key."""
        return 1

    def parts(self, name: str, kv_heads: int) -> tuple["IndexPart", ...]:
        """The projections to its queries and its key; ``name``: the attention's."""
        return (
            IndexPart(f"{name}.{self.prefix}q_proj", kv_heads * self.head_dim),
            IndexPart(f"{name}.{self.prefix}k_proj", self.head_dim, by_head=False),
        )

    def norms(self, name: str) -> tuple[str, str]:
        """Stored names of the norms of its queries and keys, of :attr:`head_dim` weights."""
        return f"{name}.{self.prefix}q_norm", f"{name}.{self.prefix}k_norm"

    def shapes(self, prefix: str, name: str) -> Shapes:
        """Shapes of its stored tensors besides projections, by name; ``prefix``: the layer's."""
        yield from ((f"{prefix}.{which}.weight", (self.head_dim,)) for which in self.norms(name))

    def work(self, kv_heads: int, pairs: int) -> int:
        """Multiplications and additions of the scores of so many pairs of tokens."""
        return 2 * kv_heads * self.head_dim * pairs

    def states(self) -> tuple[StateTensor, ...]:
        """It has none."""
        return ()

    def check(self, rotating: int) -> None:
        """Raise :class:`ConfigError` for contradictory fields; ``rotating``: dimensions that rotate, as the
        attention's do."""
        if not 1 <= self.local <= self.top_k:
            raise ConfigError(
                f"the last {self.local} blocks are always seen, expected from 1 to the {self.top_k} that are"
            )
        if rotating > self.head_dim:
            raise ConfigError(f"keys of the index have {self.head_dim} dimensions, expected at least as many as rotate")


class IndexPart(NamedTuple):
    """A projection from a layer's input that an index takes."""

    name: str
    size: int
    by_head: bool = True
    """Whether each key-value head has a part of its own."""

    @property
    def sized(self) -> tuple[str, int]:
        return self.name, self.size


class RegionIndexSpec(msgspec.Struct, frozen=True):
    """The index of attention to regions of ``size`` tokens (Step 5): the queries of a key-value head see the token's
    own region, and ``top_k`` of those before it with the largest sums over the index's heads of weight · relu(q · k).

    Each key-value head has ``heads`` of the index. All share one key of a region: the sum of its tokens' keys with a
    softmax of gates for each dimension. Queries, keys, gates and weights are made from the layer's input; queries have
    an RMS norm as the attention's, keys a LayerNorm, and both rotate.
    """

    heads: int
    head_dim: int
    size: int
    top_k: int
    """Regions that are seen besides the token's own; all if there are fewer."""
    rope: RopeConfig
    prefix: str = "sparse_indexer_"
    """Prefix of its tensors' names within the attention's."""

    @property
    def most(self) -> int:
        """Tokens up to which all are seen."""
        return self.size * (self.top_k + 1)

    @property
    def every(self) -> int:
        """Tokens that have one cached key."""
        return self.size

    def parts(self, name: str, kv_heads: int) -> tuple[IndexPart, ...]:
        """The projections to its queries, key, gates and weights; ``name``: the attention's."""
        own, heads = f"{name}.{self.prefix}", kv_heads * self.heads
        return (
            IndexPart(f"{own}q", heads * self.head_dim),
            IndexPart(f"{own}k", self.head_dim, by_head=False),
            IndexPart(f"{own}z", self.head_dim, by_head=False),
            IndexPart(f"{own}w", heads),
        )

    def shapes(self, prefix: str, name: str) -> Shapes:
        """Shapes of its stored tensors besides projections, by name; ``prefix``: the layer's."""
        own = f"{prefix}.{name}.{self.prefix}"
        yield from ((f"{own}{which}", (self.head_dim,)) for which in ("q_norm.weight", "k_norm.weight", "k_norm.bias"))

    def work(self, kv_heads: int, pairs: int) -> int:
        """Multiplications and additions of the scores of so many pairs of tokens."""
        return 2 * kv_heads * self.heads * self.head_dim * pairs // self.size

    def states(self) -> tuple[StateTensor, ...]:
        """The keys and gates of the tokens that the next region begins with."""
        return (StateTensor((self.size - 1, 2 * self.head_dim), recurrent=False),)

    def check(self, rotating: int) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        check_rope(self.rope, self.head_dim)
        if self.size < 2 or 16 % self.size:
            raise ConfigError(f"regions of {self.size} tokens are not known, expected 2, 4, 8 or 16")


class LoopSpec(msgspec.Struct, frozen=True):
    """How a later run of a layer also attends to the first one's keys and values (IQuest LoopCoder)."""

    first: int
    """The layer of the first loop."""
    gate: str
    """Stored name of the product of each head's query that weights both, [heads, head_dim] with a bias."""


class ConvolvedSpec(msgspec.Struct, frozen=True):
    """Queries and keys that pass two convolutions over tokens, one of each channel and one within each head, and values
    of which half are those of the token before (ZAYA, arXiv:2510.04476). Heads are normed without weights."""

    by_channel: int = 2
    """Tokens of the first convolution, the current one included."""
    by_head: int = 2
    """Of the second."""
    into: str = "qkv_proj"
    """Where its products are stored, within the attention."""
    key_scales: str = "qk_norm.temp"
    """Stored name of a factor on each key head."""

    @property
    def convolutions(self) -> tuple[str, str]:
        """Stored names of the convolutions of channels and of heads."""
        return f"{self.into}.conv_qk_depthwise", f"{self.into}.conv_qk_grouped"

    @property
    def before(self) -> int:
        """Tokens before the current one that it sees."""
        return self.by_channel + self.by_head - 2

    def shapes(self, at: str, channels: int, head_dim: int, kv_heads: int) -> Shapes:
        """Shapes of its stored tensors besides projections, by name; ``at``: prefix of the attention."""
        first, second = (f"{at}.{each}" for each in self.convolutions)
        yield f"{first}.weight", (channels, 1, self.by_channel)
        yield f"{first}.bias", (channels,)
        yield f"{second}.weight", (channels, head_dim, self.by_head)
        yield f"{second}.bias", (channels,)
        yield f"{at}.{self.key_scales}", (kv_heads,)


class BlockSumsSpec(msgspec.Struct, frozen=True):
    """What the tokens of a whole text see besides those in their window: the sum of the inputs of each ``size`` tokens,
    normed, as a key and a value (LongT5, arXiv:2112.07916, section 3.1.2). The last block also has the tokens behind
    it; a text of fewer tokens has none."""

    size: int
    bias: DistanceBias
    """What scores get by the distance in blocks."""
    norm: str = "global_input_layer_norm"
    """Stored name of the norm of the sums."""

    def shapes(self, at: str, hidden: int, heads: int) -> Shapes:
        """Shapes of its stored tensors, by name; ``at``: prefix of the attention."""
        yield f"{at}.{self.norm}.weight", (hidden,)
        yield f"{self.bias.stored}.weight", (self.bias.buckets, heads)

    def check(self, near: bool) -> None:
        """Raise :class:`ConfigError` for contradictory fields; ``near``: whether tokens see others in a window, with a
        bias by distance."""
        self.bias.check()
        if not near:
            raise ConfigError(
                "sums of blocks that are seen without a window, or without a bias by distance, are not known"
            )


class DistanceSpec(msgspec.Struct, frozen=True):
    """What a token adds to its scores by the distance back to a key: for each head, a product of ``size`` numbers that
    are made of the token with a learned profile of each of them over distances (Inkling)."""

    size: int
    extent: int
    """Distances from 0 on that profiles have; further keys get nothing."""
    into: str = "r_proj"
    """Stored name of the projection to the numbers of all heads."""
    profiles: str = "rel_logits_proj.proj"
    """Stored name of the profiles, [size, extent]."""
    longest: float = 0.0
    """Most that the numbers of a head may have as length, behind a factor on each: they are scaled down to it (Inkling
    2); 0: any, and there are no factors."""
    factors: str = "rel_l2_clip.scale"
    """Stored name of these factors, [heads, size]."""
    sinks: str = ""
    """Stored name of the projection to a score of each head without a value in its softmax, which each token makes
    anew (Inkling 2); "": none."""

    def parts(self, name: str, heads: int) -> tuple[tuple[str, int], ...]:
        """The projections to the numbers and the scores without values; ``name``: the attention's."""
        numbers = (f"{name}.{self.into}", heads * self.size)
        return (numbers, (f"{name}.{self.sinks}", heads)) if self.sinks else (numbers,)

    def shapes(self, prefix: str, heads: int) -> Shapes:
        """Shapes of its stored tensors besides projections, by name; ``prefix``: the attention's."""
        yield f"{prefix}.{self.profiles}", (self.size, self.extent)
        if self.longest:
            yield f"{prefix}.{self.factors}", (heads, self.size)


class AddedConvSpec(msgspec.Struct, frozen=True):
    """(x + conv(x)) · scale: channels that are convolved over the last tokens, and added to what they were
    (Inkling)."""

    parts: tuple[tuple[str, int], ...]
    """Stored names and channels, in order."""
    width: int
    """Tokens that it sees, the current one included."""
    scale: float = 1.0
    heads: int = 0
    """Heads of each part whose channels share taps that each token brings, which are added to stored ones (Inkling 2);
    0: taps are stored alone."""

    @property
    def channels(self) -> int:
        return sum(size for _, size in self.parts)

    @property
    def taps(self) -> tuple[tuple[str, int], ...]:
        """The projections to taps of tokens, one a part."""
        if not self.heads:
            return ()
        return tuple((f"{name}.weight_proj", self.heads * self.width) for name, _ in self.parts)

    @property
    def state(self) -> StateTensor:
        """Its last inputs."""
        before = self.width - 1
        return StateTensor((before, self.channels) if self.heads else (self.channels, before), recurrent=False)

    def shapes(self, prefix: str) -> Shapes:
        """Shapes of its stored tensors besides projections, by name."""
        for name, size in self.parts:
            if self.heads:
                yield f"{prefix}.{name}.static_w", (self.width, size)
            else:
                yield f"{prefix}.{name}.weight", (size, 1, self.width)

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        if self.width < 2:
            raise ConfigError(f"a convolution sees {self.width} token, expected at least 2")


class ChosenHeadsSpec(msgspec.Struct, frozen=True):
    """Queries and outputs of experts that each token chooses, which share keys and values (JetMoe,
    arXiv:2404.07413). A token has the query heads of ``top_k`` experts, one of each for every key head."""

    experts: int
    top_k: int
    into: str = "experts.input_linear"
    """Stored name of the queries' matrices, [experts, outputs, inputs]."""
    out: str = "experts.output_linear"
    """Of the outputs'."""
    bias: str = "experts.bias"
    """Of a bias of the sum."""
    router: str = "experts.router.layer"
    keys: str = "kv_proj"
    """Of all keys, then all values."""

    def stored(self, shapes: Shapes, at: str, kv_size: int) -> Shapes:
        """The shapes of products, by name, as files have them; ``at``: prefix of the attention."""
        for name, shape in shapes:
            if name == f"{at}.{self.into}.weight":
                yield name, (self.experts, kv_size, shape[1])
            elif name == f"{at}.{self.out}.weight":
                yield name, (self.experts, shape[0], kv_size)
            else:
                yield (f"{at}.{self.bias}" if name == f"{at}.{self.out}.bias" else name), shape


class QueryLatentSpec(msgspec.Struct, frozen=True):
    """Queries that are made of a normed product of the layer's input (multi-matrix factorisation attention,
    arXiv:2412.19255; Step 3). ``q_proj`` makes the product, of ``size`` numbers."""

    size: int
    norm: str = "inter_norm"
    """Stored name of its RMS norm."""
    out: str = "wq"
    """Of the projection to the queries of all heads."""


class ValueExpertsSpec(msgspec.Struct, frozen=True):
    """Values that are the sum of weight · silu(matrix · x) over the matrices that each token chooses (K2 Horizon)."""

    experts: int
    top_k: int
    score: Literal["softmax", "sigmoid"]
    scale: float
    """Factor on the weights, which are divided by their sum if a token chooses several."""
    correction: bool
    """Whether a number of each matrix is added to its score for the choice, but not to its weight."""
    into: str = "v_experts.{}"
    """Stored name of a matrix by its number."""
    router: str = "v_router"
    """Of the product that scores them; its bias is the correction."""

    def parts(self, name: str, kv: int) -> tuple[tuple[str, int], ...]:
        """The products with the matrices, of ``kv`` outputs each, and of the scores; ``name``: the attention's."""
        matrices = ((f"{name}.{self.into.format(number)}", kv) for number in range(self.experts))
        return *matrices, (f"{name}.{self.router}", self.experts)


class DifferenceSpec(msgspec.Struct, frozen=True):
    """Half of the heads less a learned multiple of the others, each over the values of two heads (Differential
    Transformer, arXiv:2410.05258). ``heads`` and ``kv_heads`` count both values: twice what is stored."""

    first: float
    """What the learned multiple begins with."""
    names: tuple[str, str, str, str] = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    """Stored names of the vectors that it follows from, of ``head_dim`` numbers each."""
