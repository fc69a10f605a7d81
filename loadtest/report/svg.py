"""Draws a :class:`~.plot.Plot` as SVG: text that scales, colours by class, nothing that needs a script."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from .marks import draw_mark
from .plot import Axis, Bars, Dots, Heat, Line, Mark, Plot, Rule, Stretches, spans
from .scale import Scale, fit, show
from .theme import LIGHT, plot_style

WIDTH: Final = 460
HEIGHT: Final = 300
_NAMESPACE: Final = "http://www.w3.org/2000/svg"
_RIGHT: Final = 16
_LETTER: Final = 6.1
"""Pixels of an average letter at 11 pixels; labels are placed by it, never cut by it."""
_ROW: Final = 17
_INSET: Final = 14.0
"""Pixels between data and the ends of an axis whose ticks are given."""


@dataclass(frozen=True)
class Frame:
    """The axes of one drawing, in pixels."""

    x: Scale
    y: Scale


def draw(plot: Plot, *, width: int = WIDTH, height: int = HEIGHT, standalone: bool = False) -> str:
    """One ``<svg>`` element. ``standalone`` gives it a namespace, a background, a heading and its own style sheet."""
    heading = 26 if standalone else 4
    legend = _legend(plot.marks, width, heading)
    frame = _frame(plot, width, height, heading + _ROW * len(legend) + 24)
    spoken = escape(". ".join(filter(None, (plot.title, plot.about))))
    namespace = f'xmlns="{_NAMESPACE}" ' if standalone else ""
    parts = [
        f'<svg {namespace}class="plot" viewBox="0 0 {width} {height}" role="img" aria-label="{spoken}" '
        f'data-x="{_machine(frame.x, plot.x)}" data-y="{_machine(frame.y, plot.y)}">'
    ]
    if standalone:
        parts.append(f"<title>{spoken}</title>")  # in a page it would cover what the script shows
        parts.append(f"<style>{plot_style()}</style>")
        parts.append(f'<rect class="paper" width="{width}" height="{height}" rx="6"/>')
        parts.append(f'<text class="heading" x="12" y="19">{escape(plot.title)}</text>')
    parts += [element for row in legend for element in row]
    parts += _axes(plot, frame)
    if plot.empty:
        middle = (frame.x.start + frame.x.end) / 2, (frame.y.start + frame.y.end) / 2
        parts.append(f'<text x="{middle[0]:.1f}" y="{middle[1]:.1f}" text-anchor="middle">nothing to show</text>')
    parts += [draw_mark(mark, frame.x, frame.y) for mark in plot.marks]
    parts.append("</svg>")
    return "\n".join(parts)


def _frame(plot: Plot, width: int, height: int, top: float) -> Frame:
    bottom = height - 38.0
    y = _scale(plot.y, _reach(plot, 1), bottom, top, count=5)
    widest = max((len(text) for _, text in _labels(y, plot.y, 5)), default=1)
    left = 14 + widest * _LETTER
    return Frame(_scale(plot.x, _reach(plot, 0), left, width - _RIGHT, count=6), y)


def _reach(plot: Plot, which: int) -> tuple[float, float]:
    axis = (plot.x, plot.y)[which]
    given = [value for value in (axis.low, axis.high) if value is not None]
    values = [value for mark in plot.marks if (found := spans(mark)) for value in found[which]]
    usable = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)] + given
    low, high = min(usable, default=1.0 if axis.log else 0.0), max(usable, default=1.0)
    for mark in plot.marks:  # a limit is shown where it does not squeeze the data
        if isinstance(mark, Rule) and mark.upright == (which == 0) and low / 4 <= mark.value <= high * 2:
            low, high = min(low, mark.value), max(high, mark.value)
    return low, high


def _scale(axis: Axis, reach: tuple[float, float], start: float, end: float, count: int) -> Scale:
    if axis.names:
        return Scale(-0.5, len(axis.names) - 0.5, start, end)
    if axis.ticks and reach[1] > reach[0]:
        inset = _INSET * math.copysign(1.0, end - start)
        within = Scale(*reach, start + inset, end - inset, axis.log)
        return Scale(within.inverse(start), within.inverse(end), start, end, axis.log)
    return fit(*reach, start, end, log=axis.log, count=count)


def _labels(scale: Scale, axis: Axis, count: int) -> list[tuple[float, str]]:
    if axis.names:
        return [(float(index), name) for index, name in enumerate(axis.names)]
    return [(tick, show(tick)) for tick in axis.ticks or scale.ticks(count)]


def _axes(plot: Plot, frame: Frame) -> Iterable[str]:
    x, y = frame.x, frame.y
    for tick, text in _labels(y, plot.y, 5):
        at = y(tick)
        yield f'<path class="grid" d="M{x.start:.1f} {at:.1f}H{x.end:.1f}"/>'
        yield f'<text x="{x.start - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    yield f'<path class="axis" fill="none" d="M{x.start:.1f} {y.start:.1f}H{x.end:.1f}"/>'
    labels = _labels(x, plot.x, 6)
    room = (x.end - x.start) / max(len(labels), 1)
    every = max(math.ceil(max((len(text) + 1) * _LETTER for _, text in labels) / room), 1) if labels else 1
    for tick, text in labels[::every]:
        at = x(tick)
        yield f'<path class="axis" d="M{at:.1f} {y.start:.1f}v4"/>'
        yield f'<text x="{at:.1f}" y="{y.start + 16:.1f}" text-anchor="middle">{escape(text)}</text>'
    yield f'<text x="{x.end:.1f}" y="{y.start + 32:.1f}" text-anchor="end">{escape(plot.x.label)}</text>'
    yield f'<text x="6" y="{y.end - 11:.1f}">{escape(plot.y.label)}</text>'


def _legend(marks: Sequence[Mark], width: int, top: float) -> list[list[str]]:
    """Rows of keys; a single series that is named like nothing else needs none."""
    shown: dict[str, Mark] = {}
    for mark in marks:
        if mark.label and not isinstance(mark, Rule):
            shown.setdefault(mark.label, mark)
    if len(shown) < 2:
        return []
    rows: list[list[str]] = [[]]
    x = 12.0
    for label, mark in shown.items():
        taken = 26 + len(label) * _LETTER + 8
        if x + taken > width and rows[-1]:
            rows.append([])
            x = 12.0
        y = top + _ROW * len(rows) - 5
        colour = mark.colour % len(LIGHT) if not isinstance(mark, Rule) else 0
        dashed = " dashed" if isinstance(mark, Line) and mark.dashed else ""
        rows[-1].append(
            f'<rect class="bar f{colour}" x="{x + 4:.1f}" y="{y - 8.5:.1f}" width="10" height="10" rx="2"/>'
            if isinstance(mark, (Bars, Heat, Dots, Stretches))
            else f'<path class="line s{colour}{dashed}" d="M{x:.1f} {y - 4:.1f}h18"/>'
        )
        rows[-1].append(f'<text class="key" x="{x + 24:.1f}" y="{y:.1f}">{escape(label)}</text>')
        x += taken
    return rows


def _machine(scale: Scale, axis: Axis) -> str:
    """The scale as the page's script reads it to say what lies under the pointer."""
    ends = f"{scale.low:.9g} {scale.high:.9g} {scale.start:.2f} {scale.end:.2f} {int(scale.log)}"
    return escape("|".join([ends, axis.label, *axis.names]))
