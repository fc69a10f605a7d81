"""The figures of a summary by dotted names, which way each is better, and medians over repeats."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..record import MEASURES, STATISTICS, Spread, Startup, StartupRound, Summary, Sweep

READY: Final = "ready_s"
_HIGHER: Final = (
    *("output_tokens_per_s", "total_tokens_per_s", "requests_per_s"),
    *("goodput_per_s", "goodput_share", "completed"),
)
_NEITHER: Final = ("seconds", "requests", "prompt_tokens", "output_tokens", "peak_concurrency")
_NAMES: Final = {
    "output_tokens_per_s": "output tokens/s",
    "total_tokens_per_s": "all tokens/s",
    "requests_per_s": "requests/s",
    "goodput_per_s": "goodput, requests/s",
    "goodput_share": "within limits",
    "peak_concurrency": "most at a time",
    READY: "ready, s",
}

Figures = dict[str, float]


@dataclass(frozen=True)
class Point:
    """One value of a sweep's axis: the median of each figure over its repeats, and every repeat's own."""

    value: float | str
    medians: Figures
    repeats: Sequence[Figures]

    def spread(self, name: str) -> tuple[float, float] | None:
        """Lowest and highest of the repeats."""
        values = [figures[name] for figures in self.repeats if name in figures]
        return (min(values), max(values)) if values else None


def figures_of(summary: Summary) -> Figures:
    """``output_tokens_per_s``, ``ttft.p50`` and so on; what was not measured is left out."""
    found: Figures = {}
    for name in (*_HIGHER, "errors", *_NEITHER):
        value = getattr(summary, name)
        if value is not None:
            found[name] = float(value)
    for name in MEASURES:
        spread: Spread = getattr(summary, name)
        if spread.count:
            found.update({f"{name}.{statistic}": getattr(spread, statistic) for statistic in STATISTICS})
    return found


def direction(name: str) -> int:
    """1 where more is better, -1 where less is, 0 where neither."""
    return 1 if name in _HIGHER else 0 if name in _NEITHER else -1


def known_figures() -> list[str]:
    """Every name that :func:`figures_of` may give, and that of a start."""
    return [*_HIGHER, "errors", READY, *_NEITHER, *(f"{name}.{one}" for name in MEASURES for one in STATISTICS)]


def figure_name(name: str) -> str:
    """A figure as a table names it, with its unit."""
    measure, _, statistic = name.partition(".")
    if statistic:
        return f"{measure.upper()} {statistic}, ms"
    return _NAMES.get(name, name.replace("_", " "))


def show_figure(name: str, value: float) -> str:
    """A figure as a table shows it."""
    return f"{value:.1%}" if name == "goodput_share" else number(value)


def number(value: float) -> str:
    """Three digits of what is below a hundred, and all before the point of what is above."""
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.3g}"


def show_value(value: float | str) -> str:
    """A value of a sweep's axis, as an option takes it and as a file is named after it."""
    return value if isinstance(value, str) else f"{value:.12g}"


def medians(repeats: Sequence[Figures]) -> Figures:
    """The median of each figure over the repeats that have it."""
    names = dict.fromkeys(name for figures in repeats for name in figures)
    return {name: statistics.median(each[name] for each in repeats if name in each) for name in names}


def points_of(sweep: Sweep) -> list[Point]:
    """The points of a sweep, those of one value joined, in ascending order; words in the order they came."""
    grouped: dict[float | str, list[Figures]] = {}
    for point in sweep.points:
        grouped.setdefault(point.value, []).append(figures_of(point.result.summary))
    words = any(isinstance(value, str) for value in grouped)
    values = list(grouped) if words else sorted(grouped, key=float)
    return [Point(value, medians(grouped[value]), grouped[value]) for value in values]


def rounds_of(startup: Startup) -> dict[str, list[StartupRound]]:
    """The rounds of ``cold`` and of ``warm`` starts, as far as there are any."""
    kinds = {kind: [one for one in startup.rounds if one.cold == (kind == "cold")] for kind in ("cold", "warm")}
    return {kind: rounds for kind, rounds in kinds.items() if rounds}


def phases_of(startup: Startup) -> dict[str, dict[str, float]]:
    """Median seconds of each phase by kind of start. A phase that a round did not have took it no time."""
    found = {}
    for kind, rounds in rounds_of(startup).items():
        names = dict.fromkeys(name for one in rounds for name in one.phases)
        found[kind] = {name: statistics.median(one.phases.get(name, 0.0) for one in rounds) for name in names}
    return found


def startup_table(startup: Startup) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: the median seconds of each milestone and each phase, by kind of start."""
    kinds, phases = rounds_of(startup), phases_of(startup)
    milestones = {
        "until it listens": "listening_s",
        "until it is ready": "ready_s",
        "until its first token": "first_token_s",
    }
    rows = [
        [name, *(f"{statistics.median(getattr(one, field) for one in rounds):.2f}" for rounds in kinds.values())]
        for name, field in milestones.items()
    ]
    for name in dict.fromkeys(name for each in phases.values() for name in each):
        rows.append([name, *(f"{each.get(name, 0.0):.2f}" for each in phases.values())])
    return ["seconds, medians", *(f"{kind}, {len(rounds)} rounds" for kind, rounds in kinds.items())], rows
