"""Curves through the times of steps: what is odd about them, and how they are drawn."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .report.plot import Axis, Line, Plot
from .report.svg import draw

CHUNK = 512
TOLERANCE = 0.15
"""A step may be so much slower or faster than its neighbours say, as a share, before it is called a surprise."""

_WIDTH, _HEIGHT = 520, 320
_LINES = 6
"""In one plot at most."""


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


def make_plots(figures: Sequence[Figure]) -> list[Plot]:
    """Decode over batch and over context, prefill and chunks."""
    decode = [each for each in figures if each.kind == "decode"]
    prefill = [(float(each.tokens), each.milliseconds) for each in figures if each.kind == "prefill"]
    chunks = [(float(each.context), each.milliseconds) for each in figures if each.kind == "chunk"]
    time = Axis("ms a step", log=True)
    return [
        Plot(
            "batch",
            "A decode step over sequences at once",
            Axis("sequences", log=True, ticks=sorted({each.rows for each in decode})),
            time,
            _lines(decode, "rows"),
        ),
        Plot(
            "context",
            "A decode step over tokens in the cache",
            Axis("tokens", log=True, ticks=sorted({each.context for each in decode})),
            time,
            _lines(decode, "context"),
        ),
        Plot(
            "prefill",
            "A prefill step over its tokens",
            Axis("tokens", log=True, ticks=[tokens for tokens, _ in prefill]),
            time,
            [Line("a whole prompt", prefill, markers=True)],
        ),
        Plot(
            "chunk",
            f"A chunk of {CHUNK} over tokens in the cache before it",
            Axis("tokens", low=0.0),
            Axis("ms a step", low=0.0),
            [Line("a chunk", chunks, markers=True)],
        ),
    ]


def _lines(decode: Sequence[Figure], wanted: str) -> list[Line]:
    """The curves along one axis, of many every second or third."""
    lines = [(name, line) for axis, name, line in curves(decode) if axis == wanted and line]
    step = -(-len(lines) // _LINES)
    return [
        Line(name, [(float(getattr(each, wanted)), each.milliseconds) for each in line], colour, markers=True)
        for colour, (name, line) in enumerate(lines[::step] if step else [])
    ]


def draw_all(plots: Sequence[Plot]) -> str:
    """One picture, two plots a row."""
    rows = -(-len(plots) // 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH} {rows * _HEIGHT}" '
        f'width="{2 * _WIDTH}" height="{rows * _HEIGHT}">'
    ]
    for index, plot in enumerate(plots):
        place = f'x="{index % 2 * _WIDTH}" y="{index // 2 * _HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
        drawn = draw(plot, width=_WIDTH, height=_HEIGHT, standalone=True)
        parts.append(drawn.replace("<svg ", f"<svg {place} ", 1))
    return "\n".join([*parts, "</svg>", ""])
