"""Histograms that the engine counts and the metrics page shows."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

import msgspec

STEP_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the classes of steps, by their tokens."""
REQUEST_PREEMPTIONS: Final = (0, 1, 2, 3, 5, 10, 20)
"""Upper bounds of the classes of requests, by their preemptions."""


class Histogram(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Observations so far."""

    counts: list[int] = []
    """By class, each counted once; the last has no upper bound. None: nothing was observed."""
    total: int = 0
    """Sum of the observed values."""


class Counts:
    """Counts observations into classes with these upper bounds, ascending."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[int]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0

    def observe(self, value: int) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def so_far(self) -> Histogram:
        return Histogram(self._counts.copy(), self._total)


def summed(*histograms: Histogram) -> Histogram:
    """All observations of histograms with the same bounds."""
    counts = [sum(at) for at in zip_longest(*(each.counts for each in histograms), fillvalue=0)]
    return Histogram(counts, sum(each.total for each in histograms))
