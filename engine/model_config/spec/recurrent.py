"""Describes mixers with a state of fixed size in place of keys and values. Torch-free.

Each has a convolution over the last few tokens. :class:`ShortConvSpec` consists of it; in the others a recurrence
follows (:mod:`stentor.kernels`: ``gated_delta``, ``mamba2`` and ``selective_scan``).
"""

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from ..config_fields import ConfigError
from .projection import Projection

Shapes = Iterator[tuple[str, tuple[int, ...]]]
DeltaStorage = Literal["by_head", "by_part", "fused", "apart", "low_rank", "full_rank", "full_gates"]
"""``by_head``: queries, keys, values and gates by key head, then two numbers a value head (Qwen3-Next). ``by_part``:
all convolved channels, then gates, then numbers (Qwen3.5). ``fused``: these as one matrix (LARA mini). ``apart``: a
matrix each, and three convolutions (OLMo Hybrid). ``low_rank``: the same, with low-rank gates and decays, separate
decays of key channels, and sigmoid gates (Kimi Linear, arXiv:2510.26692). ``full_rank``: as that, with gates and
decays from a matrix each (Ling 3.0). ``full_gates``: with low-rank decays, and gates from a matrix (Kimi K3)."""
Mamba2Norm = Literal["gated", "ungated", "none"]
"""``gated``: the norm's input is multiplied by gates. ``ungated``: its output is. ``none``: gates only."""

MambaNorm = Literal["none", "plain", "weighted"]
"""Norms of steps, B and C: ``plain`` without weights (Falcon Mamba), ``weighted`` with (Jamba)."""


class StateTensor(msgspec.Struct, frozen=True):
    """A part of one sequence's state in one layer."""

    shape: tuple[int, ...]
    recurrent: bool
    """Whether a recurrence updates it; float32 by default. Otherwise it holds the last inputs of a convolution, in the
    dtype of activations."""

    def nbytes(self, inputs: int, recurrent: int) -> int:
        """Bytes, by the bytes of an element of either kind."""
        return math.prod(self.shape) * (recurrent if self.recurrent else inputs)


class WithoutCache(msgspec.Struct, frozen=True):
    """A mixer that caches nothing for a token: all that it keeps is a state of fixed size."""

    @property
    def keeps(self) -> None:
        """The cache of one such layer."""
        return None


class ShortConvSpec(WithoutCache, frozen=True):
    """out(c * conv(b * x)) with b, c and x from one projection (LFM2, arXiv:2511.23404)."""

    channels: int
    width: int
    """Tokens that the convolution sees, the current one included."""
    bias: bool = False
    """Whether the convolution and both projections have biases."""
    centered: bool = False
    """Whether it sees as many tokens behind the current one as before it, in whole texts (LFM2.5-Embedding)."""
    name: str = "conv"

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """The projections to b, c and x, and out."""
        return (
            Projection(((f"{self.name}.in_proj", 3 * self.channels),), hidden, self.bias),
            Projection(((f"{self.name}.out_proj", hidden),), self.channels, self.bias),
        )

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Shapes of its stored tensors, by name."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        yield from _conv_shapes(f"{prefix}.{self.name}.conv", self.channels, self.width, self.bias)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        return (StateTensor((self.channels, self.width - 1), recurrent=False),)

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides projections: negligible."""
        return 0

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        _check_width(self.width)
        if self.centered and self.width % 2 == 0:
            raise ConfigError(f"conv_L_cache is {self.width}, expected an odd number: it sees both sides of a token")


class GatedDeltaSpec(WithoutCache, frozen=True):
    """The gated delta rule (arXiv:2412.06464) between a convolution and a gated norm (Qwen3-Next)."""

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    width: int
    """Tokens that the convolution sees, the current one included."""
    stored: DeltaStorage = "by_head"
    beta_scale: float = 1.0
    """Factor on the update; beyond 1 a key's former value is reversed (OLMo Hybrid)."""
    norm_eps: float | None = None
    """Epsilon of the gated norm; None: the model's."""
    sigmoid_gate: bool = False
    """Whether gates are sigmoids where usually they are SiLU (Qwen4)."""
    flat_rates: bool = False
    """Whether decay rates are stored as one a head, not as [1, 1, heads, 1], with low rank (GLM 5.3 Flash, AliceAI)."""
    least_decay: float = 0.0
    """If below 0, logarithms of decays are this times the sigmoid of rate times step, not minus rate times softplus of
    it (Ling 3.0)."""
    tiled: bool = False
    """Whether the output projection takes the first value head of every key head, then the second of each (GGUF)."""
    name: str = "linear_attn"
    out: str = ""
    """Stored name of the output projection; "": its usual one."""

    @property
    def keys(self) -> int:
        return self.k_heads * self.k_dim

    @property
    def values(self) -> int:
        return self.v_heads * self.v_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def by_channel(self) -> bool:
        """Whether channels of a key decay separately."""
        return self.stored in ("low_rank", "full_rank", "full_gates")

    @property
    def decays(self) -> int:
        """Decays a token."""
        return self.v_heads * self.k_dim if self.by_channel else self.v_heads

    @property
    def rates(self) -> tuple[int, ...]:
        """Shape of the stored decay rates."""
        return (1, 1, self.v_heads, 1) if self.stored == "low_rank" and not self.flat_rates else (self.v_heads,)

    @property
    def split(self) -> tuple[int, int, int, int]:
        """Sizes of the projected parts unless stored by head: convolved channels, gates, and two numbers a value head;
        or the low-rank inputs of gates and decays."""
        if self.stored == "low_rank":
            return self.channels, self.v_dim, self.v_heads, self.k_dim
        if self.stored == "full_gates":
            return self.channels, self.values, self.v_heads, self.k_dim
        return self.channels, self.values, self.v_heads, self.decays

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        """The projections to convolved channels, gates and two numbers a value head; out; with low rank also to gates
        and decays, or to decays alone."""
        keys, values, heads = self.keys, self.values, self.v_heads
        stored: tuple[tuple[str, int], ...]
        match self.stored:
            case "by_head":
                stored = ("in_proj_qkvz", self.channels + values), ("in_proj_ba", 2 * heads)
            case "by_part":
                stored = ("in_proj_qkv", self.channels), ("in_proj_z", values)
                stored += ("in_proj_b", heads), ("in_proj_a", heads)
            case "fused":
                stored = (("in_proj", sum(self.split)),)
            case "apart":
                stored = ("q_proj", keys), ("k_proj", keys), ("v_proj", values), ("g_proj", values)
                stored += ("b_proj", heads), ("a_proj", heads)
            case "low_rank":
                stored = ("q_proj", keys), ("k_proj", keys), ("v_proj", values), ("g_a_proj", self.v_dim)
                stored += ("b_proj", heads), ("f_a_proj", self.k_dim)
            case "full_rank":
                stored = ("q_proj", keys), ("k_proj", keys), ("v_proj", values), ("g_proj", values)
                stored += ("b_proj", heads), ("f_proj", self.decays)
            case "full_gates":
                stored = ("q_proj", keys), ("k_proj", keys), ("v_proj", values), ("g_proj", values)
                stored += ("b_proj", heads), ("f_a_proj", self.k_dim)
        into = tuple((f"{self.name}.{part}", size) for part, size in stored)
        out = self.out or ("o_proj" if self._apart else "out_proj")
        outer = (
            Projection(into, hidden, bias=False),
            Projection(((f"{self.name}.{out}", hidden),), values, bias=False),
        )
        gates = Projection(((f"{self.name}.g_b_proj", values),), self.v_dim, bias=False)
        decays = Projection(((f"{self.name}.f_b_proj", self.decays),), self.k_dim, bias=False)
        match self.stored:
            case "low_rank":
                return *outer, gates, decays
            case "full_gates":
                return *outer, decays
            case _:
                return outer

    @property
    def _apart(self) -> bool:
        return self.stored == "apart" or self.by_channel

    @property
    def convolutions(self) -> tuple[tuple[str, int], ...]:
        """Names and channels of the stored convolutions."""
        if not self._apart:
            return ((f"{self.name}.conv1d", self.channels),)
        parts = ("q", self.keys), ("k", self.keys), ("v", self.values)
        return tuple((f"{self.name}.{part}_conv1d", size) for part, size in parts)

    @property
    def norm(self) -> str:
        """The name of the gated norm."""
        kind = "o_norm" if self._apart else "out_norm" if self.stored == "fused" else "norm"
        return f"{self.name}.{kind}"

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Shapes of its stored tensors, by name."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        for name, channels in self.convolutions:
            yield from _conv_shapes(f"{prefix}.{name}", channels, self.width, bias=False)
        yield f"{prefix}.{self.name}.dt_bias", (self.decays,)
        yield f"{prefix}.{self.name}.A_log", self.rates
        yield f"{prefix}.{self.norm}.weight", (self.v_dim,)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        recurrent = StateTensor((self.v_heads, self.k_dim, self.v_dim), recurrent=True)
        return StateTensor((self.channels, self.width - 1), recurrent=False), recurrent

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides projections: the state is scaled, read, updated and read."""
        return 7 * tokens * self.v_heads * self.k_dim * self.v_dim

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        _check_width(self.width)
        if self.v_heads % self.k_heads:
            raise ConfigError(f"{self.v_heads} value heads do not divide among {self.k_heads} key heads")
        if self.least_decay > 0 or (self.least_decay and not self.by_channel):
            raise ConfigError(f"logarithms of decays are at least {self.least_decay}, expected less than 0, by channel")


class Mamba2Spec(WithoutCache, frozen=True):
    """Mamba-2 (arXiv:2405.21060) between a convolution and a gated norm (Nemotron-H, Granite 4, Falcon-H1)."""

    heads: int
    head_dim: int
    groups: int
    """Groups of heads that share B and C."""
    state_dim: int
    width: int
    """Tokens that the convolution sees, the current one included."""
    conv_bias: bool = True
    bias: bool = False
    """Whether both projections have biases."""
    least_step: float = 0.0
    most_step: float = math.inf
    """Bounds of steps."""
    norm_groups: int = 1
    """Each is normed separately."""
    norm_workers: int = 1
    """Workers that have a part of each group, if several split the model."""
    norm: Mamba2Norm = "gated"
    scales: tuple[float, float, float, float, float] | None = None
    """Factors on projected gates, x, B, C and steps (Falcon-H1); None: none."""
    name: str = "mamba"

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state_dim

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """The projections to gates, convolved channels and steps, and out."""
        into = self.inner + self.channels + self.heads
        return (
            Projection(((f"{self.name}.in_proj", into),), hidden, self.bias),
            Projection(((f"{self.name}.out_proj", hidden),), self.inner, self.bias),
        )

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Shapes of its stored tensors, by name."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        yield from _conv_shapes(f"{prefix}.{self.name}.conv1d", self.channels, self.width, self.conv_bias)
        yield from ((f"{prefix}.{self.name}.{which}", (self.heads,)) for which in ("dt_bias", "A_log", "D"))
        if self.norm != "none":
            yield f"{prefix}.{self.name}.norm.weight", (self.inner,)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        recurrent = StateTensor((self.heads, self.head_dim, self.state_dim), recurrent=True)
        return StateTensor((self.channels, self.width - 1), recurrent=False), recurrent

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides projections: the state is scaled, updated and read."""
        return 5 * tokens * self.inner * self.state_dim

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        _check_width(self.width)
        if self.heads % self.groups:
            raise ConfigError(f"{self.heads} heads of a state space do not divide among {self.groups} groups")
        if self.inner % self.norm_groups:
            raise ConfigError(f"{self.inner} channels do not divide among {self.norm_groups} groups of a norm")


class MambaSpec(WithoutCache, frozen=True):
    """Mamba (arXiv:2312.00752) between a convolution and a gate: each channel has its own state and steps (Mamba,
    Falcon Mamba, Jamba)."""

    inner: int
    """Channels."""
    rank: int
    """Size of the steps' low-rank input."""
    state_dim: int
    width: int
    """Tokens that the convolution sees, the current one included."""
    conv_bias: bool = True
    bias: bool = False
    """Whether the input and output projections have biases."""
    norm: MambaNorm = "none"
    norm_eps: float | None = None
    """Epsilon of these norms; None: the model's."""
    heads: int = 1
    """Equal parts of the channels, each with its own steps' input, B and C (Zamba). With several, files have matrices
    of each head, and channels and gates in turn."""
    name: str = "mamba"

    @property
    def low(self) -> int:
        """Size of the steps' input, B and C of one head."""
        return self.rank + 2 * self.state_dim

    def projections(self, hidden: int) -> tuple[Projection, Projection, Projection, Projection]:
        """The projections to convolved channels and gates; out; from convolved channels to the steps' input, B and C;
        and to steps. The last two have zeros between different heads."""
        low = self.heads * self.low
        return (
            Projection(((f"{self.name}.in_proj", 2 * self.inner),), hidden, self.bias),
            Projection(((f"{self.name}.out_proj", hidden),), self.inner, self.bias),
            Projection(((f"{self.name}.x_proj", low),), self.inner, bias=False),
            Projection(((f"{self.name}.dt_proj", self.inner),), self.heads * self.rank, bias=False),
        )

    @property
    def norms(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the norms of the steps' input, B and C; empty without."""
        if self.norm == "none":
            return ()
        sizes = (self.rank, self.state_dim, self.state_dim)
        return tuple(
            (f"{self.name}.{part}_layernorm", size) for part, size in zip(("dt", "b", "c"), sizes, strict=True)
        )

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Shapes of its stored tensors, by name."""
        if self.heads > 1:
            yield from self._shapes_by_head(prefix, hidden)
            return
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        yield from _conv_shapes(f"{prefix}.{self.name}.conv1d", self.inner, self.width, self.conv_bias)
        yield f"{prefix}.{self.name}.dt_proj.bias", (self.inner,)
        yield f"{prefix}.{self.name}.A_log", (self.inner, self.state_dim)
        yield f"{prefix}.{self.name}.D", (self.inner,)
        if self.norm == "weighted":
            yield from ((f"{prefix}.{name}.weight", (size,)) for name, size in self.norms)

    def _shapes_by_head(self, prefix: str, hidden: int) -> Shapes:
        name, each = f"{prefix}.{self.name}", self.inner // self.heads
        for projection in self.projections(hidden)[:2]:
            yield from projection.shapes(prefix)
        yield f"{name}.x_proj_weight", (self.heads, self.low, each)
        yield f"{name}.dt_proj_weight", (self.heads, each, self.rank)
        yield from _conv_shapes(f"{name}.conv1d", self.inner, self.width, self.conv_bias)
        yield f"{name}.dt_proj_bias", (self.heads, each)
        yield f"{name}.A_log", (self.heads, each, self.state_dim)
        yield f"{name}.D", (self.heads, each)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        """The last inputs of the convolution, and the state of each head."""
        recurrent = StateTensor((self.state_dim, self.inner // self.heads), recurrent=True)
        return StateTensor((self.inner, self.width - 1), recurrent=False), *(recurrent,) * self.heads

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides projections: the state is scaled, updated and read."""
        return 5 * tokens * self.inner * self.state_dim

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        _check_width(self.width)
        if self.inner % self.heads:
            raise ConfigError(f"{self.inner} channels of a state space do not divide among {self.heads} heads")
        if self.heads > 1 and self.norm != "none":
            raise ConfigError("heads of a state space whose steps are normed are not known")


class RGLRUSpec(WithoutCache, frozen=True):
    """A gated linear recurrence of each channel behind a convolution, beside a gate (RecurrentGemma; Griffin,
    arXiv:2402.19427)."""

    blocks: int
    """Blocks of channels; the recurrence's gates mix the channels of a block."""
    block: int
    """Channels of a block."""
    width: int
    """Tokens that the convolution sees, the current one included."""
    name: str = "temporal_block"

    @property
    def channels(self) -> int:
        return self.blocks * self.block

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """The projections to gates and convolved channels, and out."""
        into = (f"{self.name}.linear_y", self.channels), (f"{self.name}.linear_x", self.channels)
        return (
            Projection(into, hidden, bias=True),
            Projection(((f"{self.name}.linear_out", hidden),), self.channels, bias=True),
        )

    @property
    def gates(self) -> tuple[str, str]:
        """Names of the gates of the recurrence and of its input, whose weights and biases are stored apart."""
        return f"{self.name}.rg_lru.recurrent_gate", f"{self.name}.rg_lru.input_gate"

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Shapes of its stored tensors, by name."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        yield from _conv_shapes(f"{prefix}.{self.name}.conv_1d", self.channels, self.width, bias=True)
        for gate in self.gates:
            yield f"{prefix}.{gate}_weight", (self.blocks, self.block, self.block)
            yield f"{prefix}.{gate}_bias", (self.blocks, self.block)
        yield f"{prefix}.{self.name}.rg_lru.recurrent_param", (self.channels,)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        recurrent = StateTensor((self.channels, 1, 1), recurrent=True)
        return StateTensor((self.channels, self.width - 1), recurrent=False), recurrent

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides projections: both gates mix a block's channels."""
        return 4 * tokens * self.channels * self.block

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        _check_width(self.width)


def _conv_shapes(name: str, channels: int, width: int, bias: bool) -> Shapes:
    if bias:
        yield f"{name}.bias", (channels,)
    yield f"{name}.weight", (channels, 1, width)


def _check_width(width: int) -> None:
    if width < 2:
        raise ConfigError(f"a convolution over {width} tokens keeps nothing, expected at least 2")
