"""``stentor bench compare``: ratios of two or more saved results, and an exit status for a check in CI."""

import argparse
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.markup import escape
from rich.table import Table

from ..record import MEASURES, RecordError, Result, Saved, Startup, Sweep, load_record
from ..tool import FAILED, MISUSED, UsageError, complain, table, wide_console
from .figures import (
    READY,
    Figures,
    direction,
    figure_name,
    figures_of,
    known_figures,
    medians,
    points_of,
    rounds_of,
    show_figure,
    show_value,
)

_PROG: Final = "stentor bench compare"
_MARKS: Final = {"better": ("▲ better", "green"), "worse": ("▼ worse", "red"), "same": ("= same", "dim"), "": ("", "")}
_WIDE: Final = 120
"""Columns of a table that goes to a file."""
_OPERATORS: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_CONDITION: Final = re.compile(r"\s*([a-z_0-9.]+)\s*(>=|<=|>|<)\s*(\d+(?:\.\d*)?|\.\d+)\s*")
_REPEATS: Final = 3
"""From how many runs on their extremes say something."""
_TOLERANCE: Final = 0.02
"""A ratio without bounds is called better or worse from two percent on: runs differ by that on their own."""
_BRIEF: Final = (
    *(READY, "output_tokens_per_s", "requests_per_s", "goodput_share", "errors"),
    *(f"{measure}.{statistic}" for measure in MEASURES for statistic in ("p50", "p99")),
)
"""What is shown of each point of a sweep."""


@dataclass(frozen=True)
class Condition:
    """Holds where the ratio of ``figure`` stands in relation ``sign`` to ``bound``."""

    figure: str
    sign: str
    bound: float

    def holds(self, ratio: float) -> bool:
        return bool(_OPERATORS[self.sign](ratio, self.bound))

    def __str__(self) -> str:
        return f"{self.figure}{self.sign}{self.bound:g}"


@dataclass(frozen=True)
class Row:
    """One figure: ``ratio`` is after / before. ``bounds`` are the least and the most that repeated runs allow.

    ``verdict``: better, worse, same, or "" where neither way is better.
    """

    before: float
    after: float
    ratio: float
    bounds: tuple[float, float] | None
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """One pair of results, or one point of a pair of sweeps or starts; rows by the figure's name."""

    before: str
    after: str
    point: str
    """``axis=value``, ``cold`` or ``warm``; empty of a pair of results."""
    rows: Mapping[str, Row]


def main(argv: list[str]) -> int:
    """0 compared, 1 a ``--fail-if`` holds, 2 cannot compare."""
    parser = argparse.ArgumentParser(
        prog=_PROG,
        description="Ratios of each file's figures to the first file's. Takes results of `stentor bench serve`, or "
        "sweeps, compared value by value by the medians of their repeats, or starts. Three repeats or more give a "
        "ratio its bounds; one whose bounds hold 1 is called the same. A ratio without bounds is called better or "
        "worse from 2 percent on.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="two or more, the baseline first")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="end with status 1 where this holds for any ratio: itl.p99>1.1, or output_tokens_per_s<0.95; several with "
        "commas, or the option again",
    )
    parser.add_argument("--all", action="store_true", help="every figure at each point of a sweep, not the main ones")
    options = parser.parse_args(argv)
    try:
        conditions = parse_conditions(options.fail_if)
        first, *others = [load_record(path) for path in options.files]
        if not others:
            raise UsageError("only one file: expected two or more")
        comparisons = [one for other in others for one in compare(first, other)]
        broken = judge(comparisons, conditions)
    except (RecordError, UsageError) as error:
        return complain(_PROG, error, MISUSED)
    except OSError as error:
        return complain(_PROG, f"{error.filename}: {error.strerror}", MISUSED)
    for one in comparisons:
        wide_console(_WIDE).print(_table(one, options.all))
    for line in broken:
        complain(_PROG, line, FAILED)
    return FAILED if broken else 0


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """Conditions out of options, each one or several with commas between. Raises :class:`..tool.UsageError`."""
    found = []
    for text in (part for whole in texts for part in whole.split(",")):
        if (form := _CONDITION.fullmatch(text)) is None:
            raise UsageError(f"--fail-if {text.strip()!r}: expected FIGURE>RATIO or FIGURE<RATIO, such as itl.p99>1.1")
        if form[1] not in known_figures():
            raise UsageError(f"--fail-if {text.strip()!r}: no figure {form[1]}, expected {', '.join(known_figures())}")
        found.append(Condition(form[1], form[2], float(form[3])))
    return found


def compare(before: Saved, after: Saved) -> list[Comparison]:
    """One comparison of two results, or one for each value that two sweeps share, or for cold and warm starts.

    Raises :class:`..tool.UsageError` where they share nothing.
    """
    if type(before) is not type(after):
        raise UsageError(f"a {before.kind} and a {after.kind}: expected two of one kind")
    names = (before.name, after.name)
    if before.name == after.name:
        names = (f"{before.name} (A)", f"{after.name} (B)")
    sides = _points(before), _points(after)
    found = [Comparison(*names, at, _rows(runs, sides[1][at])) for at, runs in sides[0].items() if at in sides[1]]
    if not found:
        ours, theirs = (", ".join(side) or "nothing" for side in sides)
        raise UsageError(f"{names[0]} has {ours}, {names[1]} has {theirs}: expected something that both have")
    return found


def judge(comparisons: Sequence[Comparison], conditions: Sequence[Condition]) -> list[str]:
    """What each condition that holds found, one line each.

    Raises :class:`..tool.UsageError` for a condition on what a comparison lacks: silence would read as a pass.
    """
    broken = []
    for condition in conditions:
        for one in comparisons:
            row = one.rows.get(condition.figure)
            where = f" at {one.point}" if one.point else ""
            if row is None:
                raise UsageError(f"--fail-if {condition}: {condition.figure} was not measured on both sides{where}")
            if condition.holds(row.ratio):
                broken.append(f"{condition} holds{where}: {one.after} / {one.before} is {row.ratio:.3f}")
    return broken


def ratio_of(before: float, after: float) -> float:
    """after / before; 1 where both are 0, infinity where only ``before`` is."""
    if before == 0:
        return 1.0 if after == 0 else math.inf
    return after / before


def _points(record: Saved) -> dict[str, Sequence[Figures]]:
    """The figures of every run, by the point that it is a repeat of."""
    match record:
        case Result():
            return {"": [figures_of(record.summary)]}
        case Sweep():
            return {f"{record.axis}={show_value(point.value)}": point.repeats for point in points_of(record)}
        case Startup():
            return {
                kind: [{READY: one.ready_s, **one.phases} for one in rounds]
                for kind, rounds in rounds_of(record).items()
            }
    raise UsageError(f"a {record.kind} cannot be compared: expected a serve, a sweep or a startup")


def _rows(before: Sequence[Figures], after: Sequence[Figures]) -> dict[str, Row]:
    first, second = medians(before), medians(after)
    rows = {}
    for name in (name for name in first if name in second):
        ratio, bounds = ratio_of(first[name], second[name]), None
        sides = [[figures[name] for figures in side if name in figures] for side in (before, after)]
        if min(map(len, sides)) >= _REPEATS:
            bounds = ratio_of(max(sides[0]), min(sides[1])), ratio_of(min(sides[0]), max(sides[1]))
        sense = 0 if bounds is None and name.endswith(".max") else direction(name)  # the worst of one run is chance
        certain = abs(ratio - 1) > _TOLERANCE if bounds is None else not bounds[0] <= 1 <= bounds[1]
        verdict = "" if sense == 0 else "same" if not certain else "better" if (ratio > 1) == (sense > 0) else "worse"
        rows[name] = Row(first[name], second[name], ratio, bounds, verdict)
    return rows


def _table(comparison: Comparison, every: bool) -> Table:
    at = f" at {comparison.point}" if comparison.point else ""
    names = escape(comparison.before), escape(comparison.after)
    made = table(["", *names, "ratio", "over the repeats", ""], [], title=f"{names[1]} / {names[0]}{escape(at)}")
    for column, name in zip(made.columns, ("", *names, "", "", ""), strict=True):
        column.no_wrap, column.overflow = not name, "fold"
    known = known_figures()
    for name, row in comparison.rows.items():
        if every or not comparison.point or name in _BRIEF or name not in known:
            figures = show_figure(name, row.before), show_figure(name, row.after), f"{row.ratio:.3f}"
            bounds = "" if row.bounds is None else "{:.3f} to {:.3f}".format(*row.bounds)
            mark, style = _MARKS[row.verdict]
            made.add_row(escape(figure_name(name)), *figures, bounds, mark, style=style)
    return made
