"""Long operations a part at a time, where others may wait for the device between two parts."""

import math
from collections.abc import Callable, Iterator
from typing import Final

from stentor.kernels.native import threads

_PACE: Final = 1 << 35
"""Multiplications a second of a thread, about: a core of 2021 with AVX2."""
_FADE: Final = 0.95
_FIRST_SECONDS: Final = 0.02
"""For which parts are taken to have been as fast as that."""
_MOST: Final = 16.0

BeforePart = Callable[[float], float]
"""Called before each part, and told for how many seconds all that is left of the operation takes, about; infinity where
that is not known. Others may compute then. Returns for how many seconds to compute until it is called next; infinity
where nobody waits."""


class Pace:
    """How long work takes that is counted by :data:`_PACE`: the processor may be another, or compute for others too,
    and parts read weights that are not in its caches."""

    def __init__(self) -> None:
        self._taken = self._expected = _FIRST_SECONDS

    def took(self, seconds: float, expected: float) -> None:
        """A part that was expected to take so long."""
        self._taken = _FADE * self._taken + min(seconds, _MOST * expected)
        self._expected = _FADE * self._expected + expected

    @property
    def factor(self) -> float:
        """Seconds that one of work takes."""
        return self._taken / self._expected


def parts(count: int, multiplications: int, before: BeforePart, step: int = 1) -> Iterator[slice]:
    """Slices of ``count`` rows, each of which takes about as long as ``before`` says ahead of it, and has no fewer than
    ``step``; ``multiplications`` are those of one row."""
    for _, rows in tiles(1, count, multiplications, before, step):
        yield rows


def tiles(
    heads: int, count: int, multiplications: int, before: BeforePart, step: int = 1
) -> Iterator[tuple[slice, slice]]:
    """As :func:`parts`, of the ``count`` rows of each of several heads: some heads at a time, or some rows of one of
    them; ``multiplications`` are those of a row of one head."""
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
