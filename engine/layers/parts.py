"""Long operations a part at a time, where others may wait for the device between two parts."""

import math
from collections.abc import Callable, Iterator
from typing import Final

from stentor.kernels.native import threads

_PACE: Final = 1 << 35
"""Multiplications a second of a thread, about: a core of 2021 with AVX2."""

BeforePart = Callable[[], float]
"""Called before each part: others may compute then. Returns for how many seconds to compute until it is called next,
about; infinity where nobody waits."""


def parts(count: int, multiplications: int, before: BeforePart, step: int = 1) -> Iterator[slice]:
    """Slices of ``count`` rows, or heads, each of which takes about as long as ``before`` says ahead of it, and is no
    shorter than ``step``; ``multiplications`` are those of one of them."""
    first = 0
    while first < count:
        seconds = before()
        last = count
        if math.isfinite(seconds):
            most = int(seconds * _PACE * threads() / multiplications)
            last = min(count, first + max(step, most // step * step))
        yield slice(first, last)
        first = last
