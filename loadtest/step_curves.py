"""Curves through the times of steps, and points that deviate from them."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CHUNK = 512
TOLERANCE = 0.15
"""Fraction by which a step may deviate from its neighbours before it is reported."""


@dataclass(frozen=True)
class Figure:
    """One shape beside its limit. ``share`` of what the machine can do: memory for decode, arithmetic for prefill."""

    kind: str
    rows: int
    tokens: int
    context: int
    milliseconds: float
    fastest_milliseconds: float
    steps: int
    tokens_per_second: float
    megabytes: float
    gigaflops: float
    share: float


def curves(figures: Sequence[Figure]) -> Iterable[tuple[str, str, list[Figure]]]:
    """(what varies, what does not, its figures in order) of every line through the shapes."""
    decode = [each for each in figures if each.kind == "decode"]
    for context in sorted({each.context for each in decode}):
        yield "rows", f"decode at {context} tokens", [each for each in decode if each.context == context]
    for rows in sorted({each.rows for each in decode}):
        yield "context", f"decode of {rows}", [each for each in decode if each.rows == rows]
    yield "tokens", "prefill", [each for each in figures if each.kind == "prefill"]
    yield "context", f"a chunk of {CHUNK}", [each for each in figures if each.kind == "chunk"]


def surprises(figures: Sequence[Figure]) -> list[str]:
    """Where a step takes less than a smaller one, or more than the shape of its curve allows, beyond the tolerance.

    More rows or tokens may take as many times longer as there are of them; less where weights are shared. Time over
    context is a straight line: each key is read once by each row. Curves are judged by the fastest step of each
    shape, which neighbours on the machine disturb least.
    """
    found = []
    for axis, name, line in curves(figures):
        points = sorted((int(getattr(each, axis)), each.fastest_milliseconds) for each in line)
        for (x, small), (further, large) in itertools.pairwise(points):
            took = f"{name}: {small:.2f} ms at {x} {axis}, {large:.2f} ms at {further}"
            if large < small * (1 - TOLERANCE):
                found.append(f"{took}, although there is more to do")
            elif axis != "context" and large > small * further / x * (1 + TOLERANCE):
                found.append(f"{took}: {large / small:.2f} times, for {further / x:.2f} times the work")
        if axis == "context" and len(points) > 2:
            found += [f"{name}: {text}" for text in _bends(points)]
    return found


def _bends(points: Sequence[tuple[int, float]]) -> Iterable[str]:
    """Points above a straight line through the first and the last."""
    (first, low), *between, (last, high) = points
    for x, time in between:
        straight = low + (high - low) * (x - first) / (last - first)
        if time > straight * (1 + TOLERANCE):
            yield f"{time:.2f} ms at {x} context, {straight:.2f} ms on the line from {first} to {last}"
