"""Costs that are counted, so that they do not depend on the machine."""

import gc
import math
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final


def lines_executed(call: Callable[[], object]) -> int:
    """Lines of Python that this thread executes in ``call()``; what is written in C counts for nothing."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # callbacks of a collection would be counted
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


GROWTH: Final = 4
_PLAINLY_LINEAR: Final = 7.0
"""Times as long for a size :data:`GROWTH` times as large: 4 where time is linear, 16 where it is quadratic."""
_TRIES: Final = 20


def takes_linear_time(work: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Whether the time of ``work(size)()`` grows with ``size`` as it should: for costs in C, which has no lines.

    Compared are the shortest of up to 20 runs each, in CPU time of this thread: other work on the machine would have to
    disturb all of them. ``work`` itself, which makes what is needed, is not measured.
    """
    short = long = math.inf
    for _ in range(_TRIES):
        short, long = min(short, _seconds(work(size // GROWTH))), min(long, _seconds(work(size)))
        if long < _PLAINLY_LINEAR * short:
            return True
    return False


def _seconds(call: Callable[[], object]) -> float:
    gc.disable()  # it would walk all that the tests hold
    began = time.thread_time()
    try:
        call()
    finally:
        seconds = time.thread_time() - began
        gc.enable()
    return seconds
