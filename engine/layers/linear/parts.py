"""Splits long operations into parts, between which others may use the device."""

import math
from collections.abc import Callable, Iterator
from typing import Final

from stentor.kernels.native import threads

_PACE: Final = 1 << 35
"""Approximate multiplications a second of a thread: a core of 2021 with AVX2."""
_FADE: Final = 0.95
_FIRST_SECONDS: Final = 0.02
"""Seconds of work at that pace that the estimate starts with."""
_MOST: Final = 16.0

BeforePart = Callable[[float], float]
"""Called before each part with the approximate seconds of the rest of the operation, infinity if unknown. Others may
use the device then. Returns the seconds to compute until the next call; infinity if nobody waits."""


class Pace:
    """The real duration of work relative to :data:`_PACE`, which varies with the processor, its load and its caches."""

    def __init__(self) -> None:
        self._taken = self._expected = _FIRST_SECONDS

    def took(self, seconds: float, expected: float) -> None:
        """Record a part's real and expected duration."""
        self._taken = _FADE * self._taken + min(seconds, _MOST * expected)
        self._expected = _FADE * self._expected + expected

    @property
    def factor(self) -> float:
        """Seconds that one expected second takes."""
        return self._taken / self._expected


def parts(count: int, multiplications: int, before: BeforePart, step: int = 1) -> Iterator[slice]:
    """Slices of ``count`` rows, each of about the duration that ``before`` returns, and of at least ``step`` rows.

    ``multiplications``: of one row.
    """
    for _, rows in tiles(1, count, multiplications, before, step):
        yield rows


def tiles(
    heads: int, count: int, multiplications: int, before: BeforePart, step: int = 1
) -> Iterator[tuple[slice, slice]]:
    """Slices of heads and of ``count`` rows, each of about the duration that ``before`` returns: some heads with all
    rows, or some rows of one head.

    ``multiplications``: of a row of one head.
    """
    head = first = 0
    each = multiplications / (_PACE * threads())
    while count and head < heads:
        seconds = before(((heads - head) * count - first) * each)
        rows = int(seconds / each) if math.isfinite(seconds) else heads * count
        if not first and rows >= count:
            last = min(heads, head + rows // count)
            yield slice(head, last), slice(0, count)
            head = last
            continue
        end = min(count, first + max(step, rows // step * step))
        yield slice(head, head + 1), slice(first, end)
        head, first = (head + 1, 0) if end == count else (head, end)
