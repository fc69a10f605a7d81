"""Distributions of lengths and times, written in one word: ``128``, ``uniform:64:256``, ``lognormal:200:0.8``."""

import math
from typing import Final

import msgspec
import numpy as np

from ..tool import UsageError

LENGTHS_HELP: Final = (
    "N, uniform:LOW:HIGH, normal:MEAN:DEVIATION or lognormal:MEDIAN:SIGMA; normal and lognormal may end in :LEAST:MOST"
)
_NUMBERS: Final = {"constant": (1,), "uniform": (2,), "normal": (2, 4), "lognormal": (2, 4)}


class Lengths(msgspec.Struct, frozen=True):
    """Where a number comes from, each time anew.

    ``constant`` is ``first``. ``uniform`` draws whole numbers from ``first`` to ``second``, both included. ``normal``
    has mean and deviation. Half of the draws of ``lognormal`` are below ``first``; ``second`` is the deviation of
    their logarithms.
    """

    form: str
    first: float
    second: float
    least: float
    """No draw is below it."""
    greatest: float
    """No draw is above it; infinite where none is excluded."""

    def draw(self, rng: np.random.Generator) -> float:
        match self.form:
            case "constant":
                return self.first
            case "uniform":
                return float(rng.integers(round(self.first), round(self.second), endpoint=True))
            case "normal":
                value = rng.normal(self.first, self.second)
            case _:
                value = self.first * math.exp(rng.normal(0.0, self.second))
        return min(max(value, self.least), self.greatest)


def constant(value: float) -> Lengths:
    return Lengths("constant", value, 0.0, value, value)


def parse_lengths(text: str, least: float = 1.0) -> Lengths:
    """One word as in :data:`LENGTHS_HELP`; ``least`` bounds every draw from below.

    Raises :class:`..tool.UsageError`.
    """
    form, *words = text.split(":")
    if not words:
        form, words = "constant", [form]
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if len(values) not in _NUMBERS.get(form, ()):
        raise UsageError(f"{text} is no length: expected {LENGTHS_HELP}")
    if form in ("constant", "uniform"):
        bounds = (values[0], values[-1])
    elif len(values) == 4:
        bounds = (max(values[2], least), values[3])
    else:
        bounds = (least, math.inf)
    if not all(0 <= value < math.inf for value in values) or not least <= bounds[0] <= bounds[1]:
        raise UsageError(f"{text} allows no length: values must be finite, at least {least:g} and in order")
    return Lengths(form, values[0], values[1] if len(values) > 1 else 0.0, *bounds)


def whole(lengths: Lengths, rng: np.random.Generator) -> int:
    """A draw as a number of tokens."""
    return round(lengths.draw(rng))
