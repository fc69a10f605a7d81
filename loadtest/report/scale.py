"""Axes: from values to pixels, and where the ticks stand."""

import math
from dataclasses import dataclass
from typing import Final

_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_PREFIXES: Final = ((1e9, "G"), (1e6, "M"), (1e5, "k"))


@dataclass(frozen=True)
class Scale:
    """Values from ``low`` to ``high`` on pixels from ``start`` to ``end``; ``start`` may be the larger."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value. A value below a logarithmic axis, such as 0, lies at its start."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def inverse(self, pixel: float) -> float:
        """The value at a pixel."""
        share = (pixel - self.start) / (self.end - self.start)
        if self.log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)

    def ticks(self, count: int) -> list[float]:
        """About ``count`` round values within the axis."""
        return log_ticks(self.low, self.high, count) if self.log else linear_ticks(self.low, self.high, count)


def fit(low: float, high: float, start: float, end: float, *, log: bool = False, count: int = 5) -> Scale:
    """A scale whose ends are round values around ``low`` to ``high``: whole steps of the ticks, or 1, 2 and 5."""
    if log:
        low = max(low, 1e-9)
        high = max(high, low)
        low, high = _floor_log(low), _ceil_log(high)
        return Scale(low, high if high > low else low * 10, start, end, log=True)
    if high <= low:
        high = low + (abs(low) or 1.0)
    step = _step(high - low, count)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end)


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    step = _step(high - low, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """1, 2 and 5 of each decade where they fit, else powers of ten, as many apart as it takes."""
    decades = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**decade for decade in decades for factor in factors]
        within = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(within) <= count + 2 and len(within) >= 2:
            return within
    powers = [10.0**decade for decade in decades if low * (1 - 1e-9) <= 10.0**decade <= high * (1 + 1e-9)]
    return powers[:: math.ceil(len(powers) / count)] or [low, high]


def show(value: float) -> str:
    """A value beside a tick or in a tooltip: 0.05, 1.5, 250, 2,000, 150k."""
    size = abs(value)
    for limit, letter in _PREFIXES:
        if size >= limit:
            unit = 1e3 if letter == "k" else limit
            return f"{value / unit:.4g}{letter}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if size >= 1e-3 or size == 0 else f"{value:.2g}"


def _step(span: float, count: int) -> float:
    rough = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))


def _floor_log(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return max(step * power for step in (1, 2, 5) if step * power <= value * (1 + 1e-9))


def _ceil_log(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return min(step * power for step in _STEPS if step * power >= value * (1 - 1e-9))
