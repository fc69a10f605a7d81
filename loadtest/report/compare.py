"""``stentor bench compare``: ratios of two or more saved results, and an exit status for a check in CI."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..record import RecordError, load_record
from .comparison import Comparison, ComparisonError, ConditionError, Row, compare, judge, parse_conditions
from .figures import READY, figure_name, known_figures, show_figure

_STYLES: Final = {"better": "green", "worse": "red", "same": "dim", "": ""}
_MARKS: Final = {"better": "▲ better", "worse": "▼ worse", "same": "= same", "": ""}
_BASES: Final = {"": "interval", "bootstrap": "95% interval", "repeats": "over the repeats"}
_WIDE: Final = 120
"""Columns of a table that goes to a file."""
_KNOWN: Final = frozenset(known_figures())
_BRIEF: Final = (
    READY,
    "output_tokens_per_s",
    "requests_per_s",
    "goodput_share",
    "errors",
    *(f"{measure}.{statistic}" for measure in ("ttft", "itl", "tpot", "e2e") for statistic in ("p50", "p99")),
)


def main(argv: list[str]) -> int:
    """0 compared, 1 a ``--fail-if`` holds, 2 cannot compare."""
    options = _parser().parse_args(argv)
    try:
        conditions = parse_conditions(options.fail_if)
        first, *others = [load_record(path) for path in options.files]
        if not others:
            raise ComparisonError("only one file: expected two or more")
        comparisons = [one for other in others for one in compare(first, other, seed=options.seed)]
        broken = judge(comparisons, conditions)
    except (RecordError, ComparisonError, ConditionError) as error:
        print(f"stentor bench compare: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"stentor bench compare: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"comparisons": [one.as_json() for one in comparisons], "failed": broken}, indent=1))
    else:
        console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
        for one in comparisons:
            console.print(_table(one, None if options.all or not one.point else _BRIEF))
    for line in broken:
        print(f"stentor bench compare: {line}", file=sys.stderr)
    return 1 if broken else 0


def _table(comparison: Comparison, only: Sequence[str] | None) -> Table:
    at = f" at {comparison.point}" if comparison.point else ""
    table = Table(title=escape(f"{comparison.after} / {comparison.before}{at}"), title_justify="left")
    table.add_column("")
    basis = next((row.basis for row in comparison.rows if row.basis), "")
    for name in (escape(comparison.before), escape(comparison.after), "ratio", _BASES[basis], ""):
        named = name in (escape(comparison.before), escape(comparison.after))
        table.add_column(name, justify="left" if name == "" else "right", no_wrap=not named, overflow="fold")
    for row in comparison.rows:
        if only is None or row.figure in only or row.figure not in _KNOWN:
            table.add_row(
                escape(figure_name(row.figure)),
                show_figure(row.figure, row.before),
                show_figure(row.figure, row.after),
                f"{row.ratio:.3f}",
                _interval(row),
                _MARKS[row.verdict],
                style=_STYLES[row.verdict],
            )
    return table


def _interval(row: Row) -> str:
    return "" if row.low is None or row.high is None else f"{row.low:.3f} to {row.high:.3f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stentor bench compare",
        description="Ratios of each file's figures to the first file's. Takes results of `stentor bench serve`, or "
        "sweeps, compared value by value by the medians of their repeats, or starts. Three repeats or more give a "
        "ratio its bounds; of single runs that hold their requests, p50 and p99 have a 95% bootstrap interval, which "
        "knows nothing of how runs differ and is too narrow for the p99 of fewer than 100 values. A ratio whose "
        "bounds hold 1 is called the same; one without bounds is called better or worse from 2 percent on.",
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
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--all", action="store_true", help="every figure at each point of a sweep, not the main ones")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (default 0)")
    return parser
