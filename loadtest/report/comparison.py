"""Two results beside each other: the ratio of every figure, and how sure it is."""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, Final

from ..record import RequestRecord, Result, Saved, Startup, Sweep
from .bootstrap import ratio_interval
from .figures import (
    SPREADS,
    Figures,
    direction,
    figures_of,
    known_figures,
    medians,
    points_of,
    show_value,
    startup_figures,
)

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_FORM: Final = re.compile(r"\s*([a-z_0-9.]+)\s*(>=|<=|>|<)\s*([0-9.eE+-]+)\s*")


class ConditionError(ValueError):
    """A condition that cannot be read, or that has nothing to judge; the message is one line for the operator."""


@dataclass(frozen=True)
class Condition:
    """Holds where the ratio of ``figure`` stands in relation ``sign`` to ``bound``."""

    figure: str
    sign: str
    bound: float

    def holds(self, ratio: float) -> bool:
        return _OPERATORS[self.sign](ratio, self.bound)

    def __str__(self) -> str:
        return f"{self.figure}{self.sign}{self.bound:g}"


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """Conditions out of options, each one or several with commas between. Raises :class:`ConditionError`."""
    return [_parse(part) for text in texts for part in text.split(",")]


def _parse(text: str) -> Condition:
    form = _FORM.fullmatch(text)
    if form is None:
        raise ConditionError(f"--fail-if {text.strip()!r}: expected FIGURE>RATIO or FIGURE<RATIO, such as itl.p99>1.1")
    figure, sign, bound = form.groups()
    known = known_figures()
    if figure not in known:
        near = get_close_matches(figure, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
        raise ConditionError(f"--fail-if {text.strip()!r}: no figure is called {figure}; {hint}")
    try:
        value = float(bound)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConditionError(f"--fail-if {text.strip()!r}: {bound} is no number: expected a ratio, such as 1.1")
    return Condition(figure, sign, value)


_REPEATS: Final = 3
"""From how many runs on their extremes say something."""
_TOLERANCE: Final = 0.02
"""A ratio without an interval is called better or worse from two percent on: runs differ by that on their own."""


class ComparisonError(ValueError):
    """Files that have nothing to compare; the message is one line for the operator."""


@dataclass(frozen=True)
class Row:
    """One figure: ``ratio`` is after / before, somewhere from ``low`` to ``high`` where that is known.

    ``basis`` says how: ``repeats``, the most and the least that repeated runs allow, or ``bootstrap``, 95 percent of
    draws over the requests. ``verdict``: better, worse, same, or "" where neither way is better.
    """

    figure: str
    before: float
    after: float
    ratio: float
    low: float | None
    high: float | None
    basis: str
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """One pair of results, or one point of a pair of sweeps: then ``point`` says ``axis=value``."""

    before: str
    after: str
    point: str
    rows: Sequence[Row]

    def as_json(self) -> dict[str, Any]:
        """Plain data; a ratio to 0 is null, since JSON has no infinity."""
        rows = [
            {**asdict(row), **{name: _finite(getattr(row, name)) for name in ("ratio", "low", "high")}}
            for row in self.rows
        ]
        return {"before": self.before, "after": self.after, "point": self.point, "figures": rows}


def compare(before: Saved, after: Saved, *, seed: int = 0) -> list[Comparison]:
    """One comparison of two results, or one for each value that two sweeps share, or for cold and warm starts.

    Raises :class:`ComparisonError`."""
    names = _names(before.name, after.name)
    if isinstance(before, Startup) and isinstance(after, Startup):
        return _compare_starts(before, after, names)
    if isinstance(before, Result) and isinstance(after, Result):
        return [Comparison(*names, "", _rows([before], [after], seed))]
    if not isinstance(before, Sweep) or not isinstance(after, Sweep):
        raise ComparisonError(f"a {before.kind} and a {after.kind}: expected two of one kind")
    if before.axis != after.axis:
        raise ComparisonError(f"sweeps over {before.axis} and over {after.axis}: expected the same axis")
    others = {point.value: point for point in points_of(after)}
    found = [
        Comparison(*names, f"{before.axis}={show_value(point.value)}", _rows(point.results, other.results, seed))
        for point in points_of(before)
        if (other := others.get(point.value))
    ]
    if not found:
        raise ComparisonError(f"the sweeps over {before.axis} share no value: expected at least one in both")
    return found


def judge(comparisons: Sequence[Comparison], conditions: Sequence[Condition]) -> list[str]:
    """What each condition that holds found, one line each.

    Raises :class:`ConditionError` for a condition on a figure that a comparison lacks: silence would read as a pass.
    """
    broken = []
    for condition in conditions:
        for one in comparisons:
            row = next((row for row in one.rows if row.figure == condition.figure), None)
            where = f" at {one.point}" if one.point else ""
            if row is None or math.isnan(row.ratio):
                raise ConditionError(f"--fail-if {condition}: {condition.figure} was not measured on both sides{where}")
            if condition.holds(row.ratio):
                broken.append(f"{condition} holds{where}: {one.after} / {one.before} is {row.ratio:.3f}")
    return broken


def ratio_of(before: float, after: float) -> float:
    """after / before; 1 where both are 0, infinity where only ``before`` is."""
    if before == 0:
        return 1.0 if after == 0 else math.inf
    return after / before


def _compare_starts(before: Startup, after: Startup, names: tuple[str, str]) -> list[Comparison]:
    found = []
    for cold in (True, False):
        runs = [[startup_figures(one) for one in side.rounds if one.cold == cold] for side in (before, after)]
        if all(runs):
            first, second = (medians(side) for side in runs)
            rows = [
                _row(name, first[name], second[name], bounds := _repeats(name, *runs), "repeats" if bounds else "")
                for name in first
                if name in second
            ]
            found.append(Comparison(*names, "cold" if cold else "warm", rows))
    if not found:
        raise ComparisonError("cold starts and warm starts: expected some of the same kind in both")
    return found


def _rows(before: Sequence[Result], after: Sequence[Result], seed: int) -> list[Row]:
    runs = [[figures_of(result.summary) for result in side] for side in (before, after)]
    first, second = (medians(side) for side in runs)
    requests = [[request for result in side for request in result.requests] for side in (before, after)]
    rows = []
    for name in known_figures():
        if name in first and name in second:
            basis, bounds = "repeats", _repeats(name, *runs)
            if bounds is None:
                basis, bounds = "bootstrap", _bootstrap(name, requests[0], requests[1], seed)
            rows.append(_row(name, first[name], second[name], bounds, basis if bounds else ""))
    return rows


def _repeats(name: str, before: Sequence[Figures], after: Sequence[Figures]) -> tuple[float, float] | None:
    """The ratio of the extremes: surer than any single run, since runs differ by more than their requests do."""
    sides = [[figures[name] for figures in side if name in figures] for side in (before, after)]
    if min(map(len, sides)) < _REPEATS:
        return None
    return ratio_of(max(sides[0]), min(sides[1])), ratio_of(min(sides[0]), max(sides[1]))


def _bootstrap(
    name: str, before: Sequence[RequestRecord], after: Sequence[RequestRecord], seed: int
) -> tuple[float, float] | None:
    measure, _, statistic = name.partition(".")
    shares = {"p50": 0.5, "p99": 0.99}
    if measure not in SPREADS or statistic not in shares or not before or not after:
        return None
    return ratio_interval(before, after, measure, shares[statistic], seed=seed)


def _row(name: str, before: float, after: float, bounds: tuple[float, float] | None, basis: str) -> Row:
    ratio = ratio_of(before, after)
    low, high = bounds or (None, None)
    sense = 0 if bounds is None and name.endswith(".max") else direction(name)  # the worst of one run is chance
    certain = abs(ratio - 1) > _TOLERANCE if bounds is None else not bounds[0] <= 1 <= bounds[1]
    verdict = "" if sense == 0 else "same" if not certain else "better" if (ratio > 1) == (sense > 0) else "worse"
    return Row(name, before, after, ratio, low, high, basis, verdict)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _names(before: str, after: str) -> tuple[str, str]:
    return (before, after) if before != after else (f"{before} (A)", f"{after} (B)")
