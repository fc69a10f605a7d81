"""Rotary positions, and slopes and biases that stand for positions."""

from typing import Literal

import msgspec

from ..config_fields import ConfigError

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]


class RopeConfig(msgspec.Struct, frozen=True):
    """Rotary embedding (RoFormer, arXiv:2104.09864) with its context extension.

    Fields have transformers' names; those that a kind does not use keep their defaults.
    """

    theta: float = 10000.0
    kind: RopeKind = "default"
    rotary_dim: int = 0
    """Dimensions of a head that rotate; the rest pass through. 0: all."""
    interleaved: bool = False
    """Whether dimension 2i rotates with 2i + 1 (GLM, Cohere, Ernie), not i with i + half of the rotating ones
    (Llama)."""
    backwards: bool = False
    """Whether it rotates by negative angles (nanochat)."""
    rotating: int = 0
    """Dimensions that actually rotate, at the frequencies that they have if all do (proportional); of another kind, at
    those of a head that has no others, each still with the one half of the head behind it (K2 Horizon)."""
    factor: float = 1.0
    original_max_position: int = 0
    """Training context before the extension (dynamic, llama3, yarn, longrope)."""
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
    """Divisors of the frequencies of rotating pairs: GGUF's form of ``llama3``."""
    learned: str = ""
    """Stored name of the logarithms of learned factors on the frequencies (LeRoPE, Mistral Large 4); "": none."""
    axes: tuple[int, ...] = ()
    """The axis of each rotating pair: frame (0), row (1) or column (2) of a media token (m-rope, arXiv:2409.12191), or
    another list of axes (:data:`..towers.media_spec.MediaAxes`). Empty: one position for all. Text has equal ones."""


def alibi_slopes(heads: int, steepest: float = 8.0) -> tuple[float, ...]:
    """ALiBi's slopes (arXiv:2108.12409): powers of two down to 2 ** -steepest, for numbers of heads between two powers
    of two with every other one of twice as many."""
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-steepest * head / whole) for head in range(1, whole + 1)]
    between = [2.0 ** (-steepest * head / (2 * whole)) for head in range(1, 2 * whole, 2)]
    return tuple((slopes + between)[:heads])


class DistanceBias(msgspec.Struct, frozen=True):
    """What is added to a head's score by the distance to the key (T5, arXiv:1910.10683, section 2.1): a learned number
    for each bucket of distances."""

    stored: str
    """Stored name of the numbers, [buckets, heads]; layers may share it."""
    buckets: int
    """Near distances have one each, far ones share them by their logarithm; half are of later keys if ``both_ways``."""
    farthest: int
    """From here on all distances share a bucket."""
    both_ways: bool
    """Whether tokens also see later ones: in an encoder."""

    def check(self) -> None:
        """Raise :class:`..config_fields.ConfigError` if there are too few buckets, or too many for the distances."""
        exact = self.buckets // (4 if self.both_ways else 2)
        if exact < 1 or self.farthest <= exact:
            raise ConfigError(
                f"{self.buckets} buckets of distances up to {self.farthest} are not known, expected at least "
                f"{4 if self.both_ways else 2} buckets and more than {exact} distances"
            )


def check_rope(rope: RopeConfig, head_dim: int) -> None:
    """Raise :class:`..config_fields.ConfigError` if the rotation does not fit the heads."""
    rotary = rope.rotary_dim or head_dim
    if rotary > head_dim or rotary % 2:
        raise ConfigError(f"{rotary} dimensions of each head rotate, expected an even number up to {head_dim}")
    stretches = (rope.short_factor, rope.long_factor) if rope.kind == "longrope" else ()
    divisors = (rope.frequency_divisors,) if rope.frequency_divisors else ()
    for factors in (*stretches, *divisors):
        if len(factors) != rotary // 2 or min(factors) <= 0:
            raise ConfigError(f"rotary factors are {len(factors)} numbers, expected {rotary // 2} above 0")
    if rope.rotating > rotary or rope.rotating % 2:
        raise ConfigError(f"{rope.rotating} dimensions of {rotary} rotate, expected an even number up to all")
    if rope.rotating and rope.kind in ("longrope", "dynamic"):
        raise ConfigError(f"rope_type {rope.kind!r} of some dimensions of two halves is not known")
    if rope.learned and rope.axes:
        raise ConfigError("learned frequencies with several axes of positions are not known")
    if rope.theta <= 0 or rope.factor <= 0:
        raise ConfigError(f"rotary base and factor are {rope.theta} and {rope.factor}, expected both above 0")
