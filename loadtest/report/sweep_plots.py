"""The plots of sweeps, each by its name: several sweeps, such as several servers, lie over one another."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from ..record import Sweep
from .figures import Point, points_of
from .plot import Axis, Band, Line, Mark, Plot

_AXIS_LABELS: Final = {"concurrency": "requests at a time", "rate": "requests sent a second"}

_TICKS: Final = 12
"""Up to how many values of the axis are its ticks."""


class _Sweeps:
    """Sweeps with their points side by side on one axis."""

    def __init__(self, sweeps: Sequence[Sweep]) -> None:
        self.series = [(sweep.name, points_of(sweep)) for sweep in sweeps]
        axis = sweeps[0].axis if sweeps else ""
        values = list(dict.fromkeys(point.value for _, points in self.series for point in points))
        self.names = [_short(value) for value in values] if any(isinstance(value, str) for value in values) else []
        numbers = [] if self.names else [float(value) for value in values]
        log = len(numbers) > 2 and min(numbers) > 0 and max(numbers) >= 8 * min(numbers)
        ticks = sorted(numbers) if log and len(numbers) <= _TICKS else []
        self.axis = Axis(_AXIS_LABELS.get(axis, axis), log=log, names=self.names, ticks=ticks)

    def x(self, point: Point) -> float:
        return float(self.names.index(_short(point.value))) if self.names else float(point.value)

    def lines(self, figure: str, suffix: str = "", dashed: bool = False, factor: float = 1.0) -> list[Mark]:
        """One line a sweep, and a band between its lowest and highest repeat where there are several."""
        marks: list[Mark] = []
        for index, (name, points) in enumerate(self.series):
            having = [point for point in points if figure in point.medians]
            if not having:
                continue
            drawn = [(self.x(point), factor * point.medians[figure]) for point in having]
            spreads = [point.spread(figure) or (math.nan, math.nan) for point in having]
            if not dashed and any(len(point.repeats) > 1 for point in having):
                low, high = ([factor * spread[end] for spread in spreads] for end in (0, 1))
                marks.append(Band("", [x for x, _ in drawn], low, high, index))
            label = " ".join(filter(None, (name if len(self.series) > 1 or not suffix else "", suffix)))
            marks.append(Line(label, drawn, index, dashed=dashed, markers=True))
        return marks

    def against(self, x: str, y: str) -> list[Mark]:
        """One figure over another, each point with its value beside it."""
        return [
            Line(
                name,
                [(point.medians[x], point.medians[y]) for point in points if {x, y} <= point.medians.keys()],
                index,
                markers=True,
                labels=[_short(point.value) for point in points if {x, y} <= point.medians.keys()],
            )
            for index, (name, points) in enumerate(self.series)
        ]


def sweep_plots(sweeps: Sequence[Sweep]) -> list[Plot]:
    """Every plot that the sweeps have data for."""
    return [plot for make in SWEEP_PLOTS.values() if not (plot := make(sweeps)).empty]


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _one(name: str, figure: str, title: str, unit: str, about: str, factor: float = 1.0) -> Callable[..., Plot]:
    def make(sweeps: Sequence[Sweep]) -> Plot:
        joined = _Sweeps(sweeps)
        return Plot(name, title, joined.axis, Axis(unit, low=0), joined.lines(figure, factor=factor), about)

    return make


def _percentiles(measure: str) -> Callable[[Sequence[Sweep]], Plot]:
    def make(sweeps: Sequence[Sweep]) -> Plot:
        joined = _Sweeps(sweeps)
        marks = joined.lines(f"{measure}.p50", "p50") + joined.lines(f"{measure}.p99", "p99", dashed=True)
        heights = [y for mark in marks if isinstance(mark, Line) for _, y in mark.points if y > 0]
        log = bool(heights) and max(heights) > 12 * min(heights)
        about = "Median and 99th percentile."
        return Plot(measure, measure.upper(), joined.axis, Axis("ms", log=log, low=None if log else 0), marks, about)

    return make


def _tradeoff(measure: str) -> Callable[[Sequence[Sweep]], Plot]:
    def make(sweeps: Sequence[Sweep]) -> Plot:
        joined = _Sweeps(sweeps)
        marks = joined.against(f"{measure}.p50", "output_tokens_per_s")
        reached = [x for mark in marks if isinstance(mark, Line) for x, _ in mark.points if x > 0]
        log = bool(reached) and max(reached) > 12 * min(reached)
        about = f"Up and to the left is better. Beside each point: its {sweeps[0].axis if sweeps else 'value'}."
        axes = Axis(f"{measure.upper()} p50, ms", log=log, low=None if log else 0), Axis("tokens/s", low=0)
        return Plot(f"pareto-{measure}", f"Throughput against {measure.upper()}", *axes, marks, about)

    return make


SWEEP_PLOTS: Final[dict[str, Callable[[Sequence[Sweep]], Plot]]] = {
    "output-rate": _one(
        "output-rate", "output_tokens_per_s", "Output tokens a second", "tokens/s", "Of all requests together."
    ),
    "pareto-tpot": _tradeoff("tpot"),
    "ttft": _percentiles("ttft"),
    "itl": _percentiles("itl"),
    "tpot": _percentiles("tpot"),
    "e2e": _percentiles("e2e"),
    "pareto-ttft": _tradeoff("ttft"),
    "request-rate": _one("request-rate", "requests_per_s", "Requests a second", "requests/s", "Completed requests."),
    "goodput": _one("goodput", "goodput_per_s", "Goodput", "requests/s", "Requests a second that kept every limit."),
    "goodput-share": _one(
        "goodput-share", "goodput_share", "Share within the limits", "%", "Of all requests, errors included.", 100
    ),
}
"""By the name that ``--svg`` takes, in the order of the page."""
