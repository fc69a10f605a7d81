"""Several residual streams in place of one, and what layers add to them besides mixers: Gemma 3n's, DeepSeek V4's,
Qwen4's and Kimi K3's. Torch-free."""

import math
from collections.abc import Iterator
from typing import Final

import msgspec

from ..config_fields import ConfigError
from .projection import Projection
from .recurrent import StateTensor

Shapes = Iterator[tuple[str, tuple[int, ...]]]

MOST_STREAMS, MOST_ITERATIONS = 16, 100
"""More than any model has."""


class AltUpSpec(msgspec.Struct, frozen=True):
    """Several streams of which each layer computes one, and predicts and corrects the others by what came of it
    (alternating updates, arXiv:2301.13310)."""

    streams: int
    active: int = 0
    """The stream that layers compute."""
    scaled: bool = True
    """Whether the per-layer input reads the active stream times a learned vector."""

    def outer_shapes(self, hidden: int) -> Shapes:
        """Shapes of the tensors that widen embeddings to streams and narrow them behind the last layer."""
        for name in ("altup_projections", "altup_unembed_projections"):
            yield from ((f"model.{name}.{at}.weight", (hidden, hidden)) for at in range(self.streams - 1))

    def shapes(self, prefix: str, hidden: int, layer: int) -> Shapes:
        """Shapes of the tensors that a layer has for its streams."""
        yield f"{prefix}.altup.correct_output_scale", (hidden,)
        yield f"{prefix}.altup.correction_coefs.weight", (self.streams, self.streams)
        yield f"{prefix}.altup.prediction_coefs.weight", (self.streams**2, self.streams)
        yield f"{prefix}.altup.modality_router.weight", (self.streams, hidden)
        yield f"{prefix}.altup.router_norm.weight", (hidden,)

    def products(self, hidden: int) -> int:
        """Elements of the matrices of a layer that a token is multiplied with: the router's, which it takes twice."""
        return 2 * self.streams * hidden + self.streams**2 * (self.streams + 1)

    def check(self) -> None:
        """Raises :class:`ConfigError`."""
        if not 1 < self.streams <= MOST_STREAMS:
            raise ConfigError(f"it has {self.streams} residual streams, expected 2 to {MOST_STREAMS}")
        if self.active >= self.streams:
            raise ConfigError(f"layers compute stream {self.active} of {self.streams}")


class HyperSpec(msgspec.Struct, frozen=True):
    """Several streams of which mixer and network each take a sum, and to each of which they add a multiple of their
    output; before that, the streams are mixed (manifold-constrained hyper-connections, arXiv:2512.24880). All weights
    follow from the streams."""

    streams: int
    iterations: int = 20
    """Divisions of the mixing matrix by the sums of its columns; between them, by those of its rows."""
    eps: float = 1e-6
    """Added to weights of sums, to elements of the matrix, and to sums that are divided by."""
    parts: tuple[str, str] = ("hc_attn", "hc_ffn")
    """Beginnings of the stored names, of mixer and network."""
    head: str = "hc_head"
    """Of the sum behind the last layer; "": the streams' mean is taken (GLM 5.3 Flash)."""
    saved: tuple[str, str, str] | None = None
    """Other beginnings of these three, in files that transformers has saved (Hy4)."""
    mixes: bool = True
    """Whether the streams are mixed; otherwise outputs are added to them as they are (Hy4)."""
    most: float = 2.0
    """Of the weights of outputs, without :attr:`eps`, which is added to them if streams are not mixed."""
    delayed: bool = False
    """Whether each part takes the sum by weights that the part before it has made, the first one the first stream, and
    those of the last part narrow the streams (DeepSeek V4.1)."""

    @property
    def weights(self) -> int:
        """Weights of one part of a layer for a token: for the sum of streams, its output, and the mixing matrix."""
        return self.streams * (2 + (self.streams if self.mixes else 0))

    @property
    def scales(self) -> int:
        """How many scales a part's weights have."""
        return 3 if self.mixes else 2

    def outer_shapes(self, hidden: int) -> Shapes:
        """Shapes of the tensors that narrow the streams to one behind the last layer."""
        if not self.head:
            return
        yield f"{self.head}_fn", (self.streams, self.streams * hidden)
        yield f"{self.head}_base", (self.streams,)
        yield f"{self.head}_scale", (1,)

    def shapes(self, prefix: str, hidden: int, layer: int) -> Shapes:
        """Shapes of the tensors that a layer has for its streams."""
        for part in self.parts:
            yield f"{prefix}.{part}_fn", (self.weights, self.streams * hidden)
            yield f"{prefix}.{part}_base", (self.weights,)
            yield f"{prefix}.{part}_scale", (self.scales,)

    def products(self, hidden: int) -> int:
        """Elements of the matrices of a layer that a token is multiplied with."""
        return 2 * self.weights * self.streams * hidden

    def check(self) -> None:
        """Raises :class:`ConfigError`."""
        if not 1 < self.streams <= MOST_STREAMS:
            raise ConfigError(f"it has {self.streams} residual streams, expected 2 to {MOST_STREAMS}")
        if not 1 <= self.iterations <= MOST_ITERATIONS:
            raise ConfigError(f"streams are mixed by {self.iterations} iterations, expected 1 to {MOST_ITERATIONS}")
        if self.delayed and (self.head or not self.mixes):
            raise ConfigError("weights of an earlier part, with a head or without mixed streams, are not known")


class StreamMixSpec(msgspec.Struct, frozen=True):
    """Several streams, of which each part of a layer takes a mix, and adds its output to each by a weight; both follow
    from the normed streams (hyper-connections, arXiv:2409.19606; Qwen4)."""

    streams: int
    rank: int
    """Of the product that the mix follows from."""
    parts: tuple[str, str] = ("attn_hyper_connection", "mlp_hyper_connection")
    """Stored names of the connections of a layer's mixer and network."""
    last: str = "model.hyper_connection_mixer"
    """Stored name of what mixes the streams behind the last layer."""

    def outer_shapes(self, hidden: int) -> Shapes:
        """Shapes of the tensors that narrow the streams to one behind the last layer."""
        return self._shapes(self.last, hidden)

    def shapes(self, prefix: str, hidden: int, layer: int) -> Shapes:
        """Shapes of the tensors that a layer has for its streams."""
        for part in self.parts:
            yield from self._shapes(f"{prefix}.{part}", hidden)
            yield f"{prefix}.{part}.block_inject_weight.weight", (self.streams, self.streams * hidden)

    def _shapes(self, name: str, hidden: int) -> Shapes:
        wide = self.streams * hidden
        yield f"{name}.hc_norm.weight", (wide,)
        yield f"{name}.input_mix_weight_down.weight", (self.rank, wide)
        yield f"{name}.input_mix_weight_up.weight", (wide, self.rank)

    def products(self, hidden: int) -> int:
        """Elements of the matrices of a layer that a token is multiplied with."""
        return 2 * self.streams * hidden * (2 * self.rank + self.streams)

    def check(self) -> None:
        """Raises :class:`ConfigError`."""
        if not 1 < self.streams <= MOST_STREAMS:
            raise ConfigError(f"it has {self.streams} residual streams, expected 2 to {MOST_STREAMS}")


class BlockLoopSpec(msgspec.Struct, frozen=True):
    """Some blocks of layers run several times, each time from the streams before them. Later runs of a layer get mixes
    of what the blocks made last, each of which a gate adds to an input: (1 - tanh(f)) · input + tanh(m) · mix, where f
    and m are low-rank products of both, normed (Inkling 2 Mini)."""

    first: int
    """The stored layer that the first block begins with."""
    end: int
    """The stored layer behind the last."""
    rank: int
    """Of the products of a gate."""
    queries: tuple[str, str] = ("model.middle_cycle_cross_pass_queries", "model.middle_cycle_cross_pass_kv_queries")
    """Stored names of what mixes are made with: two vectors for each layer, for queries and network, and for keys and
    values."""
    gates: tuple[str, ...] = ("controllers.attn", "controllers.k", "controllers.v", "controllers.mlp")
    """Stored names of a layer's gates, of the inputs of queries, keys, values and network."""

    @property
    def layers(self) -> int:
        """Stored layers that run several times."""
        return self.end - self.first

    def repeats(self, layer: int) -> bool:
        """Whether a stored layer runs several times."""
        return self.first <= layer < self.end

    def gate(self, name: str, hidden: int) -> Shapes:
        """Shapes of the tensors of the gate with this name."""
        yield f"{name}.down_weight", (self.rank, 2 * hidden)
        yield f"{name}.forget_weight", (hidden, self.rank)
        yield f"{name}.gain_weight", (hidden, self.rank)

    def products(self, hidden: int) -> int:
        """Elements that the inputs of a layer that runs several times are multiplied with, at most."""
        return len(self.gates) * 4 * self.rank * hidden


class BlockResidualSpec(msgspec.Struct, frozen=True):
    """The stream before each block of layers is kept, and the stream begins anew behind it. Each part of a layer takes
    a mix of those kept and the stream, weighted by a softmax over their scores (attention residuals, arXiv:2603.15031;
    Kimi K3, AliceAI, Inkling 2)."""

    layers: int
    block: int
    """Layers of a block; the last may have fewer."""
    parts: tuple[str, str] = ("self_attention_res", "mlp_res")
    """Beginnings of the stored names of norms and scores, of a layer's mixer and network."""
    last: str = "model.output_attn_res"
    """Of what mixes the streams behind the last layer."""
    query: bool = False
    """Whether one vector stored as ``query`` takes the place of norm and scores: streams are normed without weights,
    their scores are products with it · hidden ** -0.5, and the mix is of the normed ones (Inkling 2)."""
    inputs: tuple[int, ...] = ()
    """Of each layer, how many inputs its mixer takes side by side, each a mix of its own; empty: one."""
    loop: BlockLoopSpec | None = None
    """The layers that run several times, by their stored numbers, as all numbers here are; None: none do."""

    def inputs_of(self, layer: int) -> int:
        """Inputs of a layer's mixer."""
        return self.inputs[layer] if self.inputs else 1

    @property
    def blocks(self) -> int:
        return -(-self.layers // self.block)

    @property
    def looped(self) -> int:
        """Blocks that run several times."""
        return 0 if self.loop is None else self.loop.layers // self.block

    @property
    def streams(self) -> int:
        """Streams side by side: the kept ones, in order, what each block of a loop made last, and the one that parts
        add to."""
        return self.blocks + self.looped + 1

    def kept(self, layer: int) -> int:
        """Streams that are kept before a layer, whose first part, if it begins a block, keeps a further one."""
        return -(-layer // self.block)

    def begins(self, layer: int) -> bool:
        """Whether a layer is the first of a block."""
        return layer % self.block == 0

    def outer_shapes(self, hidden: int) -> Shapes:
        """Shapes of the tensors that narrow the streams to one behind the last layer, and of what layers share."""
        yield from self._shapes(self.last, hidden)
        if (loop := self.loop) is not None:
            yield from ((name, (2 * loop.layers, hidden)) for name in loop.queries)

    def shapes(self, prefix: str, hidden: int, layer: int) -> Shapes:
        """Shapes of the tensors that a layer has for its streams; the first one's mixer takes the only one."""
        of_mixer, of_network = self.parts
        if layer:
            yield from self._shapes(f"{prefix}.{of_mixer}", hidden, self.inputs_of(layer))
        yield from self._shapes(f"{prefix}.{of_network}", hidden)
        if (loop := self.loop) is not None and loop.repeats(layer):
            for gate in loop.gates:
                yield from loop.gate(f"{prefix}.{gate}", hidden)

    def _shapes(self, name: str, hidden: int, inputs: int = 1) -> Shapes:
        if self.query:
            yield f"{name}.query", (hidden,) if inputs == 1 else (inputs, hidden)
            return
        yield f"{name}_norm.weight", (hidden,)
        yield f"{name}_proj.weight", (1, hidden)

    def products(self, hidden: int) -> int:
        """Elements that the streams of a token are multiplied with in a layer, at most."""
        return 2 * self.streams * hidden + (0 if self.loop is None else self.loop.products(hidden))

    def check(self) -> None:
        """Raises :class:`ConfigError`."""
        if (loop := self.loop) is not None:
            whole = not any(number % self.block for number in (loop.first, loop.end))
            if not whole or not 0 < loop.first < loop.end <= self.layers or not self.query:
                raise ConfigError(
                    f"layers {loop.first} to {loop.end - 1} run several times, expected whole blocks of {self.block}, "
                    "but for the first, in a model whose mixes have queries"
                )
        if not 1 < self.streams <= MOST_STREAMS:
            raise ConfigError(
                f"blocks of {self.block} among {self.layers} layers make {self.streams - 1} kept streams, expected at "
                f"most {MOST_STREAMS - 1}"
            )
        if self.inputs and not self.query:
            raise ConfigError("several mixes of streams for one part, with norms of their own, are not known")


StreamsSpec = AltUpSpec | HyperSpec | StreamMixSpec | BlockResidualSpec


DIGITS = 3
"""Digits of a token in the state of n-grams, to the base of 256: bfloat16 has no more exact integers."""


class NGramForm(msgspec.Struct, frozen=True):
    """How files store what belongs to n-grams; names within :attr:`NGramSpec.name`."""

    table: str
    """Of the tables of embeddings; ``{}`` stands for the number of a part."""
    made: tuple[str, ...]
    """Of the projections to keys and values; one of both, or one each."""
    norms: tuple[str, str]
    """Of the weights of the norms of keys and of streams."""
    flat: bool
    """Whether these are a row, to which 1 is added; otherwise a row for each stream, as they are."""


PLE: Final = NGramForm(
    "ple_embedding.ngram_embedding.shard_{}", ("key_proj", "value_proj"), ("norm_key.weight", "norm_query.weight"), True
)
"""Qwen4's."""
ENGRAM: Final = NGramForm("embed", ("wkv",), ("k_weight", "q_weight"), False)
"""DeepSeek V4.1's."""


class NGramSpec(msgspec.Struct, frozen=True):
    """Embeddings of the last few tokens by hashes of them, gated by each residual stream and added to it, with a
    convolution over them (Qwen4) or without (DeepSeek V4.1, Engram, arXiv:2601.07372)."""

    vocab_size: int
    """Tokens."""
    streams: int
    dim: int
    """Of all embeddings of a token together."""
    multipliers: tuple[int, ...]
    """Of the hashes: one for the token and one for each that is seen before it."""
    sizes: tuple[int, ...]
    """Rows of the tables of one token before, as many of two, and so on."""
    rows: int
    """Of all tables and the unused rows behind them."""
    shards: int
    """Stored parts of all tables."""
    eos: int
    """The token that stands for those before a text."""
    width: int
    """Tokens that the convolution sees, each as many tokens from the next as there are :attr:`multipliers`; 0: there is
    none."""
    ends: bool = True
    """Whether a text also begins behind the token :attr:`eos`."""
    folded: int = 0
    """Numbers that tokens have in hashes, those alike the same one: see :mod:`...loading.folded_tokens`; 0: their
    own."""
    silent: int | None = None
    """A token that is no part of n-grams, ends those behind it, and gets none: that of pictures (DeepSeek V4.1); None:
    there is none."""
    name: str = "ple"
    form: NGramForm = PLE

    @property
    def before(self) -> int:
        """Tokens that are seen before one."""
        return len(self.multipliers) - 1

    @property
    def reach(self) -> int:
        """Tokens that the convolution sees, with those that it passes by."""
        return (self.width - 1) * len(self.multipliers) + 1

    @property
    def table(self) -> str:
        """Stored name of the tables, or of a part of them."""
        return f"{self.name}.{self.form.table}"

    @property
    def numbers(self) -> str:
        """Name under which a layer gets the numbers of tokens in hashes."""
        return f"{self.name}.folded_tokens"

    @property
    def shard_rows(self) -> Iterator[int]:
        """Rows of each stored part."""
        each = -(-self.rows // self.shards)
        return (min(each, self.rows - first) for first in range(0, self.rows, each))

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        """The projections of n-gram embeddings: to keys of all streams, and to values."""
        sizes: tuple[int, ...] = (self.streams * hidden, hidden)
        sizes = sizes if len(self.form.made) == len(sizes) else (sum(sizes),)
        made = zip(self.form.made, sizes, strict=True)
        return tuple(Projection(((f"{self.name}.{part}", size),), self.dim, bias=False) for part, size in made)

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Shapes of its stored tensors, by name."""
        wide = self.streams * hidden
        for number, rows in enumerate(self.shard_rows):
            yield f"{prefix}.{self.table.format(number)}.weight", (rows, self.dim // len(self.sizes))
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        for norm in self.form.norms:
            yield f"{prefix}.{self.name}.{norm}", (wide,) if self.form.flat else (self.streams, hidden)
        if self.width:
            yield f"{prefix}.{self.name}.norm_conv.weight", (wide,)
            yield f"{prefix}.{self.name}.conv1d.weight", (wide, 1, self.width)

    def products(self, hidden: int) -> int:
        """Weights that a token is multiplied by."""
        return sum(projection.elements for projection in self.projections(hidden))

    @property
    def idle(self) -> int:
        """Elements of the tables that a token does not use."""
        return (self.rows - len(self.sizes)) * (self.dim // len(self.sizes))

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        """The inputs of the convolution, if there is one, and the last tokens."""
        tokens = StateTensor((DIGITS * self.before, self.before), recurrent=False)
        if not self.width:
            return (tokens,)
        return StateTensor((self.streams * hidden, self.reach - 1), recurrent=False), tokens

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        if not self.before or self.dim % len(self.sizes):
            raise ConfigError(f"{self.dim} dimensions do not divide among {len(self.sizes)} embeddings of n-grams")
        if self.vocab_size >= 256**DIGITS:
            raise ConfigError(f"n-grams of a vocabulary of {self.vocab_size} are not known")
        if self.width == 1:
            raise ConfigError(f"the convolution over n-grams sees {self.width} tokens, expected at least 2")


_WORD = (1 << 64) - 1


def hash_multipliers(vocab_size: int, count: int, layer: int, seed: int) -> tuple[int, ...]:
    """The odd factors of tokens in the hashes of the ``layer``-th layer with n-grams, below 2^63 / ``vocab_size``: by
    SplitMix64 (doi:10.1145/2660193.2660195)."""
    half = max(1, ((1 << 63) - 1) // max(vocab_size, 1) // 2)
    step = 0x9E3779B97F4A7C15
    found = []
    for at in range(1, count + 1):
        value = (seed + 10007 * layer + step * (at + 1)) & _WORD
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
        found.append(2 * ((value ^ (value >> 31)) % half) + 1)
    return tuple(found)


def primes_from(least: int, skipped: int, count: int) -> tuple[int, ...]:
    """``count`` primes of ``least`` and above, without the first ``skipped``."""
    found: list[int] = []
    number = least
    while len(found) < skipped + count:
        if number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            found.append(number)
        number += 1
    return tuple(found[skipped:])


class LaurelSpec(msgspec.Struct, frozen=True):
    """x + norm(right(left(x))), of what the mixer beside it takes (learned augmented residual, arXiv:2411.07501)."""

    rank: int
    name: str = "laurel"

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        return (
            Projection(((f"{self.name}.linear_left", self.rank),), hidden, bias=False),
            Projection(((f"{self.name}.linear_right", hidden),), self.rank, bias=False),
        )

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Shapes of its stored tensors, by name."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        yield f"{prefix}.{self.name}.post_laurel_norm.weight", (hidden,)

    @property
    def keeps(self) -> None:
        """Nothing of a token."""
        return None

    def states(self, hidden: int) -> tuple[()]:
        return ()

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides its projections: next to none."""
        return 0

    def check(self) -> None:
        """It has no parts that could contradict each other."""
