"""Distributions of lengths and times, written in one word: ``128``, ``uniform:64:256``, ``lognormal:200:0.8``."""

import math
from functools import lru_cache
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..tool import UsageError

LENGTHS_HELP: Final = (
    "N, uniform:LOW:HIGH, normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA or zipf:EXPONENT:MOST; "
    "normal and lognormal may end in :LEAST:MOST"
)
_ZIPF_MOST: Final = 1e6
_FORMS: Final = {"constant": (1, 1), "uniform": (2, 2), "normal": (2, 4), "lognormal": (2, 4), "zipf": (2, 2)}


class LengthError(UsageError):
    """A distribution that is none; the message is one line."""


class Lengths(Protocol):
    """Where a number comes from, each time anew."""

    def draw(self, rng: np.random.Generator) -> float:
        """One value, at least the least."""

    @property
    def greatest(self) -> float:
        """No draw is above it; infinite where none is excluded."""


class Constant(msgspec.Struct, frozen=True):
    value: float

    def draw(self, rng: np.random.Generator) -> float:
        return self.value

    @property
    def greatest(self) -> float:
        return self.value


class Uniform(msgspec.Struct, frozen=True):
    """Whole numbers from ``low`` to ``high``, both included, each as likely."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.integers(round(self.low), round(self.high), endpoint=True))

    @property
    def greatest(self) -> float:
        return self.high


class Normal(msgspec.Struct, frozen=True):
    mean: float
    deviation: float
    least: float
    most: float = math.inf

    def draw(self, rng: np.random.Generator) -> float:
        return min(max(rng.normal(self.mean, self.deviation), self.least), self.most)

    @property
    def greatest(self) -> float:
        return self.most


class Lognormal(msgspec.Struct, frozen=True):
    """Half of the draws are below ``median``; ``sigma`` is the deviation of their logarithms."""

    median: float
    sigma: float
    least: float
    most: float = math.inf

    def draw(self, rng: np.random.Generator) -> float:
        return min(max(self.median * math.exp(rng.normal(0.0, self.sigma)), self.least), self.most)

    @property
    def greatest(self) -> float:
        return self.most


class Zipf(msgspec.Struct, frozen=True):
    """P(n) proportional to n ** -exponent for n from 1 to ``most``; any exponent above 0."""

    exponent: float
    most: float

    def draw(self, rng: np.random.Generator) -> float:
        cumulative = _zipf(self.exponent, int(self.most))
        return float(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right") + 1)

    @property
    def greatest(self) -> float:
        return self.most


@lru_cache
def _zipf(exponent: float, most: int) -> NDArray[np.float64]:
    return np.cumsum(np.arange(1, most + 1, dtype=np.float64) ** -exponent)


def parse_lengths(text: str, least: float = 1.0) -> Lengths:
    """One word as in :data:`LENGTHS_HELP`; ``least`` bounds every draw from below. Raises :class:`LengthError`."""
    name, *rest = text.split(":")
    if not rest:
        name, rest = "constant", [name]
    if name not in _FORMS or not _FORMS[name][0] <= len(rest) <= _FORMS[name][1]:
        raise LengthError(f"{text} is no length: expected {LENGTHS_HELP}")
    try:
        values = [float(word) for word in rest]
    except ValueError:
        raise LengthError(f"{text} holds what is no number: expected {LENGTHS_HELP}") from None
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise LengthError(f"{text} holds a number that is negative or not finite")
    return _build(text, name, values, least)


def _build(text: str, name: str, values: list[float], least: float) -> Lengths:
    made: Lengths
    match name:
        case "constant":
            made, ordered = Constant(*values), least <= values[0]
        case "uniform":
            made, ordered = Uniform(*values), least <= values[0] <= values[1]
        case "zipf":
            made, ordered = Zipf(*values), values[0] > 0 and least <= values[1] <= _ZIPF_MOST
        case _:
            low = max(values[2], least) if len(values) > 2 else least
            high = values[3] if len(values) > 3 else math.inf
            kind = Normal if name == "normal" else Lognormal
            made, ordered = kind(values[0], values[1], low, high), low <= high
    if not ordered:
        raise LengthError(f"{text} allows no length: values must be at least {least:g} and in order")
    return made


def whole(lengths: Lengths, rng: np.random.Generator) -> int:
    """A draw as a number of tokens."""
    return round(lengths.draw(rng))
