"""Mixers that keep a state of fixed size in place of keys and values: what each is made of. Torch-free.

Each has a convolution over the last few tokens. :class:`ShortConvSpec` has nothing else; behind that of the others runs
a recurrence (:mod:`stentor.kernels`: ``gated_delta``, ``mamba2`` and ``selective_scan``).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .config_fields import ConfigError
from .projection import Projection

Shapes = Iterator[tuple[str, tuple[int, ...]]]
DeltaStorage = Literal["by_head", "by_part", "apart", "low_rank"]
"""``by_head``: queries, keys, values and gates of each key head side by side, and its two numbers a value head
(Qwen3-Next). ``by_part``: first those of all that is convolved, then gates, and numbers (Qwen3.5). ``apart``: a matrix
for each, and three convolutions (OLMo Hybrid). ``low_rank``: the same, with gates and decays from a few columns each,
where every channel of a key decays by itself and gates go through a sigmoid (Kimi Linear, arXiv:2510.26692)."""
Mamba2Norm = Literal["gated", "ungated", "none"]
"""``gated``: what is normed has been multiplied by its gates. ``ungated``: that follows. ``none``: gates alone."""

MambaNorm = Literal["none", "plain", "weighted"]
"""Of what makes steps, of B and of C: ``plain`` ones have no weights (Falcon Mamba), ``weighted`` ones do (Jamba)."""


@dataclass(frozen=True)
class StateTensor:
    """A part of the state of one sequence in one layer."""

    shape: tuple[int, ...]
    recurrent: bool
    """Whether a recurrence changes it, which keeps it in float32 if nothing else is asked for. Otherwise it is the last
    inputs of a convolution, kept as activations are."""

    def nbytes(self, inputs: int, recurrent: int) -> int:
        """By the bytes of an element of either kind."""
        return math.prod(self.shape) * (recurrent if self.recurrent else inputs)


@dataclass(frozen=True)
class ShortConvSpec:
    """out(c * conv(b * x)) with b, c and x of one projection (LFM2, arXiv:2511.23404)."""

    channels: int
    width: int
    """Tokens that the convolution sees, the current one included."""
    bias: bool = False
    """Of the convolution and both projections."""
    name: str = "conv"

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """Into b, c and x; and out."""
        return (
            Projection(((f"{self.name}.in_proj", 3 * self.channels),), hidden, self.bias),
            Projection(((f"{self.name}.out_proj", hidden),), self.channels, self.bias),
        )

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Of what a checkpoint stores of it."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        yield from _conv_shapes(f"{prefix}.{self.name}.conv", self.channels, self.width, self.bias)

    @property
    def keeps(self) -> None:
        """Nothing of a token: all is in the state."""
        return None

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        return (StateTensor((self.channels, self.width - 1), recurrent=False),)

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides its projections: next to nothing."""
        return 0

    def check(self) -> None:
        """Raises :class:`ConfigError`."""
        _check_width(self.width)


@dataclass(frozen=True)
class GatedDeltaSpec:
    """The gated delta rule (arXiv:2412.06464) between a convolution and a gated norm (Qwen3-Next)."""

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    width: int
    """Tokens that the convolution sees, the current one included."""
    stored: DeltaStorage = "by_head"
    beta_scale: float = 1.0
    """Multiplies what is written: beyond 1 what a key held before is turned round (OLMo Hybrid)."""
    norm_eps: float | None = None
    """Of the gated norm; None: the model's."""
    tiled: bool = False
    """What leads out takes the first value head of every key head, then the second of each (GGUF)."""
    name: str = "linear_attn"

    @property
    def keys(self) -> int:
        return self.k_heads * self.k_dim

    @property
    def values(self) -> int:
        return self.v_heads * self.v_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def by_channel(self) -> bool:
        """Whether channels of a key decay by themselves."""
        return self.stored == "low_rank"

    @property
    def decays(self) -> int:
        """Numbers of a token that become its decays."""
        return self.v_heads * self.k_dim if self.by_channel else self.v_heads

    @property
    def rates(self) -> tuple[int, ...]:
        """Of the stored tensor of what decays are multiplied by."""
        return (1, 1, self.v_heads, 1) if self.by_channel else (self.v_heads,)

    @property
    def split(self) -> tuple[int, int, int, int]:
        """What is projected in, where it does not lie by head: what is convolved, gates, and two numbers a value head;
        or what gates and decays are made of."""
        if self.by_channel:
            return self.channels, self.v_dim, self.v_heads, self.k_dim
        return self.channels, self.values, self.v_heads, self.v_heads

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        """Into what is convolved, gates, and two numbers a value head; and out. Where a few columns stand between, also
        into gates and decays."""
        keys, values, heads = self.keys, self.values, self.v_heads
        stored: tuple[tuple[str, int], ...]
        match self.stored:
            case "by_head":
                stored = ("in_proj_qkvz", self.channels + values), ("in_proj_ba", 2 * heads)
            case "by_part":
                stored = ("in_proj_qkv", self.channels), ("in_proj_z", values)
                stored += ("in_proj_b", heads), ("in_proj_a", heads)
            case "apart":
                stored = ("q_proj", keys), ("k_proj", keys), ("v_proj", values), ("g_proj", values)
                stored += ("b_proj", heads), ("a_proj", heads)
            case "low_rank":
                stored = ("q_proj", keys), ("k_proj", keys), ("v_proj", values), ("g_a_proj", self.v_dim)
                stored += ("b_proj", heads), ("f_a_proj", self.k_dim)
        into = tuple((f"{self.name}.{part}", size) for part, size in stored)
        out = "o_proj" if self._apart else "out_proj"
        outer = (
            Projection(into, hidden, bias=False),
            Projection(((f"{self.name}.{out}", hidden),), values, bias=False),
        )
        if not self.by_channel:
            return outer
        gates = Projection(((f"{self.name}.g_b_proj", values),), self.v_dim, bias=False)
        return *outer, gates, Projection(((f"{self.name}.f_b_proj", self.decays),), self.k_dim, bias=False)

    @property
    def _apart(self) -> bool:
        return self.stored in ("apart", "low_rank")

    @property
    def convolutions(self) -> tuple[tuple[str, int], ...]:
        """Names and channels of those stored, side by side."""
        if not self._apart:
            return ((f"{self.name}.conv1d", self.channels),)
        parts = ("q", self.keys), ("k", self.keys), ("v", self.values)
        return tuple((f"{self.name}.{part}_conv1d", size) for part, size in parts)

    @property
    def norm(self) -> str:
        """The name of the gated norm."""
        return f"{self.name}.{'o_norm' if self._apart else 'norm'}"

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Of what a checkpoint stores of it."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        for name, channels in self.convolutions:
            yield from _conv_shapes(f"{prefix}.{name}", channels, self.width, bias=False)
        yield f"{prefix}.{self.name}.dt_bias", (self.decays,)
        yield f"{prefix}.{self.name}.A_log", self.rates
        yield f"{prefix}.{self.norm}.weight", (self.v_dim,)

    @property
    def keeps(self) -> None:
        """Nothing of a token: all is in the state."""
        return None

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        recurrent = StateTensor((self.v_heads, self.k_dim, self.v_dim), recurrent=True)
        return StateTensor((self.channels, self.width - 1), recurrent=False), recurrent

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides its projections: the state is scaled, read, added to and read."""
        return 7 * tokens * self.v_heads * self.k_dim * self.v_dim

    def check(self) -> None:
        """Raises :class:`ConfigError`."""
        _check_width(self.width)
        if self.v_heads % self.k_heads:
            raise ConfigError(f"{self.v_heads} value heads do not divide among {self.k_heads} key heads")


@dataclass(frozen=True)
class Mamba2Spec:
    """Mamba-2 (arXiv:2405.21060) between a convolution and a gated norm (Nemotron-H, Granite 4, Falcon-H1)."""

    heads: int
    head_dim: int
    groups: int
    """Heads of a group share B and C."""
    state_dim: int
    width: int
    """Tokens that the convolution sees, the current one included."""
    conv_bias: bool = True
    bias: bool = False
    """Of both projections."""
    least_step: float = 0.0
    most_step: float = math.inf
    """Steps are kept within."""
    norm_groups: int = 1
    """Each is normed by itself."""
    norm_workers: int = 1
    """That have a part of each group, where several split the model."""
    norm: Mamba2Norm = "gated"
    scales: tuple[float, float, float, float, float] | None = None
    """Multiply gates, x, B, C and steps as they are projected (Falcon-H1); None: nothing does."""
    name: str = "mamba"

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state_dim

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """Into gates, what is convolved, and steps; and out."""
        into = self.inner + self.channels + self.heads
        return (
            Projection(((f"{self.name}.in_proj", into),), hidden, self.bias),
            Projection(((f"{self.name}.out_proj", hidden),), self.inner, self.bias),
        )

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Of what a checkpoint stores of it."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        yield from _conv_shapes(f"{prefix}.{self.name}.conv1d", self.channels, self.width, self.conv_bias)
        yield from ((f"{prefix}.{self.name}.{which}", (self.heads,)) for which in ("dt_bias", "A_log", "D"))
        if self.norm != "none":
            yield f"{prefix}.{self.name}.norm.weight", (self.inner,)

    @property
    def keeps(self) -> None:
        """Nothing of a token: all is in the state."""
        return None

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        recurrent = StateTensor((self.heads, self.head_dim, self.state_dim), recurrent=True)
        return StateTensor((self.channels, self.width - 1), recurrent=False), recurrent

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides its projections: the state is scaled, added to and read."""
        return 5 * tokens * self.inner * self.state_dim

    def check(self) -> None:
        """Raises :class:`ConfigError`."""
        _check_width(self.width)
        if self.heads % self.groups:
            raise ConfigError(f"{self.heads} heads of a state space do not divide among {self.groups} groups")
        if self.inner % self.norm_groups:
            raise ConfigError(f"{self.inner} channels do not divide among {self.norm_groups} groups of a norm")


@dataclass(frozen=True)
class MambaSpec:
    """Mamba (arXiv:2312.00752) between a convolution and a gate: each channel has a state and steps of its own (Mamba,
    Falcon Mamba, Jamba)."""

    inner: int
    """Channels."""
    rank: int
    """Dims of what steps are made of."""
    state_dim: int
    width: int
    """Tokens that the convolution sees, the current one included."""
    conv_bias: bool = True
    bias: bool = False
    """Of what leads in and out."""
    norm: MambaNorm = "none"
    norm_eps: float | None = None
    """Of these norms; None: the model's."""
    name: str = "mamba"

    def projections(self, hidden: int) -> tuple[Projection, Projection, Projection, Projection]:
        """Into what is convolved, and gates; out; of what is convolved what makes steps, B and C; and steps of that."""
        low = self.rank + 2 * self.state_dim
        return (
            Projection(((f"{self.name}.in_proj", 2 * self.inner),), hidden, self.bias),
            Projection(((f"{self.name}.out_proj", hidden),), self.inner, self.bias),
            Projection(((f"{self.name}.x_proj", low),), self.inner, bias=False),
            Projection(((f"{self.name}.dt_proj", self.inner),), self.rank, bias=False),
        )

    @property
    def norms(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of those of what makes steps, of B and of C; none where nothing is normed."""
        if self.norm == "none":
            return ()
        sizes = (self.rank, self.state_dim, self.state_dim)
        return tuple(
            (f"{self.name}.{part}_layernorm", size) for part, size in zip(("dt", "b", "c"), sizes, strict=True)
        )

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Of what a checkpoint stores of it."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        yield from _conv_shapes(f"{prefix}.{self.name}.conv1d", self.inner, self.width, self.conv_bias)
        yield f"{prefix}.{self.name}.dt_proj.bias", (self.inner,)
        yield f"{prefix}.{self.name}.A_log", (self.inner, self.state_dim)
        yield f"{prefix}.{self.name}.D", (self.inner,)
        if self.norm == "weighted":
            yield from ((f"{prefix}.{name}.weight", (size,)) for name, size in self.norms)

    @property
    def keeps(self) -> None:
        """Nothing of a token: all is in the state."""
        return None

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        recurrent = StateTensor((self.state_dim, self.inner), recurrent=True)
        return StateTensor((self.inner, self.width - 1), recurrent=False), recurrent

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides its projections: the state is scaled, added to and read."""
        return 5 * tokens * self.inner * self.state_dim

    def check(self) -> None:
        """Raises :class:`ConfigError`."""
        _check_width(self.width)


def _conv_shapes(name: str, channels: int, width: int, bias: bool) -> Shapes:
    if bias:
        yield f"{name}.bias", (channels,)
    yield f"{name}.weight", (channels, 1, width)


def _check_width(width: int) -> None:
    if width < 2:
        raise ConfigError(f"a convolution over {width} tokens keeps nothing, expected at least 2")
