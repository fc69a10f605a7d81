"""Draws the marks of a plot. Every vertex is written as ``Mx y`` or ``Lx y``, which the page's script reads back."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from .plot import Band, Bars, Dots, Heat, Line, Mark, Point, Rule, Steps, Stretches
from .scale import Scale, show
from .theme import LIGHT

_LEVELS: Final = 8
"""Shades of a heat strip."""
_EDGE: Final = 24
"""Pixels from the right end at which a label goes to the left of its point."""
_SHAPES: Final = (
    "M{x} {y}m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
    "M{x} {y}m-3-3h6v6h-6z",
    "M{x} {y}m0-4l3.8 6.6h-7.6z",
    "M{x} {y}m0-4l4 4l-4 4l-4-4z",
)
"""Circle, square, triangle, diamond: series are told apart without colour too."""


def draw_mark(mark: Mark, x: Scale, y: Scale) -> str:
    """The elements of one mark, within a group that carries its label."""
    if isinstance(mark, Rule):
        return _rule(mark, x, y)
    return f'<g class="mark" data-label="{escape(mark.label)}">{_body(mark, x, y)}</g>'


def _body(mark: Line | Steps | Dots | Bars | Band | Heat | Stretches, x: Scale, y: Scale) -> str:
    match mark:
        case Line():
            return "".join(_line(mark, x, y))
        case Steps():
            return _path(f"line s{mark.colour % len(LIGHT)}", _stairs(mark.points, x, y))
        case Dots():
            return _dots(mark, x, y)
        case Bars():
            return "".join(_bars(mark, x, y))
        case Band():
            return _band(mark, x, y)
        case Heat():
            return "".join(_heat(mark, x, y))
        case Stretches():
            return "".join(_stretches(mark, x, y))


def _path(classes: str, vertices: Sequence[str]) -> str:
    return f'<path class="{classes}" d="{"".join(vertices)}"/>' if vertices else ""


def _join(points: Iterable[Point], x: Scale, y: Scale) -> list[str]:
    """Vertices of a line; a value that is not finite interrupts it."""
    vertices: list[str] = []
    letter = "M"
    for px, py in points:
        if not (math.isfinite(px) and math.isfinite(py)):
            letter = "M"
            continue
        vertices.append(f"{letter}{x(px):.2f} {y(py):.2f}")
        letter = "L"
    return vertices


def _line(mark: Line, x: Scale, y: Scale) -> Iterable[str]:
    colour = mark.colour % len(LIGHT)
    yield _path(f"line s{colour}{' dashed' if mark.dashed else ''}", _join(mark.points, x, y))
    shape = _SHAPES[mark.colour % len(_SHAPES)]
    for index, (px, py) in enumerate(mark.points):
        if not (math.isfinite(px) and math.isfinite(py)):
            continue
        if mark.markers:
            drawn = shape.format(x=f"{x(px):.2f}", y=f"{y(py):.2f}")
            yield f'<path class="marker f{colour}" d="{drawn}"/>'
        if index < len(mark.labels):
            beside = f'x="{x(px) + 5:.1f}"' if x(px) < x.end - _EDGE else f'x="{x(px) - 5:.1f}" text-anchor="end"'
            yield f'<text {beside} y="{y(py) - 6:.1f}">{escape(mark.labels[index])}</text>'


def _stairs(points: Sequence[Point], x: Scale, y: Scale) -> list[str]:
    corners: list[Point] = []
    for px, py in points:
        if corners:
            corners.append((px, corners[-1][1]))
        corners.append((px, py))
    return _join(corners, x, y)


def _dots(mark: Dots, x: Scale, y: Scale) -> str:
    finite = [(x(px), y(py)) for px, py in mark.points if math.isfinite(px) and math.isfinite(py)]
    colour = f"s{mark.colour % len(LIGHT)}"
    if mark.cross:
        return _path(f"cross {colour}", [f"M{px:.2f} {py:.2f}m-3-3l6 6m0-6l-6 6" for px, py in finite])
    return _path(f"dots {colour}", [f"M{px:.2f} {py:.2f}h0" for px, py in finite])


def _bars(mark: Bars, x: Scale, y: Scale) -> Iterable[str]:
    for count, low, high in zip(mark.counts, mark.edges, mark.edges[1:], strict=False):
        if count <= 0:
            continue
        left, right, top = x(low), x(high), y(count)
        width = max(right - left - 0.75, 0.5)
        yield (
            f'<rect class="bar f{mark.colour % len(LIGHT)}" x="{left:.2f}" y="{top:.2f}" width="{width:.2f}" '
            f'height="{y.start - top:.2f}"><title>{show(low)} to {show(high)}: {show(count)}</title></rect>'
        )


def _band(mark: Band, x: Scale, y: Scale) -> str:
    upper = [(px, py) for px, py in zip(mark.x, mark.high, strict=True) if math.isfinite(py)]
    lower = [(px, py) for px, py in zip(mark.x, mark.low, strict=True) if math.isfinite(py)]
    vertices = _join(upper + lower[::-1], x, y)
    return _path(f"band f{mark.colour % len(LIGHT)}", [*vertices, "Z"] if vertices else [])


def _heat(mark: Heat, x: Scale, y: Scale) -> Iterable[str]:
    """One path a shade, not a rectangle a cell. A shade grows with the square root, so that rare values show."""
    most = max((count for column in mark.counts for count in column), default=0)
    cells: list[list[str]] = [[] for _ in range(_LEVELS)]
    for column, counts in enumerate(mark.counts):
        left, right = x(mark.x_edges[column]), x(mark.x_edges[column + 1])
        for row, count in enumerate(counts):
            if count <= 0:
                continue
            bottom, top = y(mark.y_edges[row]), y(mark.y_edges[row + 1])
            level = math.ceil(_LEVELS * math.sqrt(count / most)) - 1
            cells[level].append(f"M{left:.2f} {top:.2f}h{right - left:.2f}v{bottom - top:.2f}H{left:.2f}z")
    for level, drawn in enumerate(cells):
        if drawn:
            opacity = 0.08 + 0.82 * (level + 1) / _LEVELS
            yield f'<path class="heat f{mark.colour % len(LIGHT)}" fill-opacity="{opacity:.2f}" d="{"".join(drawn)}"/>'


def _stretches(mark: Stretches, x: Scale, y: Scale) -> Iterable[str]:
    thickness = 0.6 * abs(y(1) - y(0))
    for row, low, high in mark.stretches:
        yield (
            f'<rect class="bar f{mark.colour % len(LIGHT)}" x="{x(low):.2f}" y="{y(row) - thickness / 2:.2f}" '
            f'width="{x(high) - x(low):.2f}" height="{thickness:.2f}"><title>{escape(mark.label)}: '
            f"{show(high - low)}</title></rect>"
        )


def _rule(mark: Rule, x: Scale, y: Scale) -> str:
    scale = x if mark.upright else y
    if not scale.low <= mark.value <= scale.high:
        return ""
    at = scale(mark.value)
    label = escape(mark.label)
    if mark.upright:
        beside = f'x="{at + 4:.1f}"' if at < x.end - 3 * _EDGE else f'x="{at - 4:.1f}" text-anchor="end"'
        return (
            f'<path class="rule" d="M{at:.2f} {y.start:.2f}V{y.end:.2f}"/>'
            f'<text {beside} y="{y.start - 7:.1f}">{label}</text>'
        )
    return (
        f'<path class="rule" d="M{x.start:.2f} {at:.2f}H{x.end:.2f}"/>'
        f'<text x="{x.end:.1f}" y="{at - 4:.1f}" text-anchor="end">{label}</text>'
    )
