"""The highest rate that holds: doubling or halving until it is enclosed, then bisection on a logarithmic scale."""

import math
from typing import Final

_DIGITS: Final = 3
_UP: Final = 4096
_DOWN: Final = 64
"""How many times its start a search goes up, and what part of it down."""


class Search:
    """One search, told what each rate did.

    ``low`` is the highest rate that held and ``high`` the lowest that did not. It ends when they are ``precision``
    apart (0.05: five percent), or when nothing up to 4,096 times the start fails, or down to a 64th of it holds.
    """

    def __init__(self, start: float, precision: float) -> None:
        self.low: float | None = None
        self.high: float | None = None
        self._start = start
        self._precision = precision

    def next_rate(self) -> float | None:
        """What to try; None when the search is over."""
        match self.low, self.high:
            case None, None:
                return self._start
            case float(low), None:
                rate = 2 * low
                return _round(rate) if rate <= self._start * _UP else None
            case None, float(high):
                rate = high / 2
                return _round(rate) if rate >= self._start / _DOWN else None
            case float(low), float(high):
                rate = _round(math.sqrt(low * high))
                return None if high <= low * (1 + self._precision) or not low < rate < high else rate
        raise AssertionError("unreachable")

    def tell(self, rate: float, held: bool) -> None:
        """What a rate did. One that held above one that did not is noise, and is believed no more than that one."""
        if held and (self.high is None or rate < self.high):
            self.low = rate if self.low is None else max(self.low, rate)
        elif not held and (self.low is None or rate > self.low):
            self.high = rate if self.high is None else min(self.high, rate)


def _round(rate: float) -> float:
    return float(f"{rate:.{_DIGITS}g}")
