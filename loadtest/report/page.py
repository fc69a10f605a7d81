"""``stentor bench report``: saved results as one HTML file that fetches nothing, or plots as SVG."""

import argparse
import base64
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader

from ..record import MEASURES, STATISTICS, RecordError, Result, Saved, Startup, Steps, Sweep, load_record
from ..tool import MISUSED, UsageError, complain
from .figures import figure_name, figures_of, number, points_of, show_figure, show_value, startup_table
from .plots import RESULT_PLOTS, STARTUP_PLOTS, STEP_PLOTS, SWEEP_PLOTS, Plot, render

_PROG: Final = "stentor bench report"
PLOTS: Final[dict[type[Saved], Mapping[str, Plot]]] = {
    Result: RESULT_PLOTS,
    Sweep: SWEEP_PLOTS,
    Startup: STARTUP_PLOTS,
    Steps: STEP_PLOTS,
}
_WIDTH: Final = 760
_HEIGHT: Final = 400
_PAGE_SIZE: Final = {"width": 520, "height": 330}
_COLUMNS: Final = (
    "output_tokens_per_s",
    "requests_per_s",
    "goodput_share",
    *(f"{name}.{statistic}" for name in ("ttft", "itl", "tpot") for statistic in ("p50", "p99")),
    "completed",
    "errors",
)
_NOTHING: Final = "-"

_Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Its columns and its rows; the first cell of a row names it."""


def main(argv: list[str]) -> int:
    """0 written, 2 used wrongly."""
    parser = argparse.ArgumentParser(
        prog=_PROG,
        description="Draws what `stentor bench serve`, `sweep`, `start` or `steps` saved. Several files of one kind "
        "lie over one another. Without --html and --svg, the page goes beside the first file.",
        epilog=" ".join(f"Plots of {kind.__name__.lower()}: {', '.join(plots)}." for kind, plots in PLOTS.items()),
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what they saved")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page here")
    parser.add_argument("--svg", metavar="PLOT,…", help="write plots as one SVG, two a row; names below")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where --svg goes (default PLOT.svg)")
    parser.add_argument("--title", help="heading of the page (default: the names of what was run)")
    parser.add_argument("--width", type=int, default=_WIDTH, help=f"of the SVG, in pixels (default {_WIDTH})")
    parser.add_argument("--height", type=int, default=_HEIGHT, help=f"of the SVG, in pixels (default {_HEIGHT})")
    options = parser.parse_args(argv)
    try:
        if options.out and not options.svg:
            raise UsageError("--out is for --svg: name the page by --html")
        records = [load_record(path) for path in options.files]
        if options.svg:
            out = options.out or Path(f"{options.svg}.svg")
            write_svg(records, options.svg.split(","), out, width=options.width, height=options.height)
            print(out)
        if options.html or not options.svg:
            out = options.html or options.files[0].with_suffix(".html")
            write_html(records, out, options.title or _join(dict.fromkeys(record.name for record in records)))
            print(out)
    except (RecordError, UsageError) as error:
        return complain(_PROG, error, MISUSED)
    except OSError as error:
        return complain(_PROG, f"{error.filename}: {error.strerror}", MISUSED)
    return 0


def write_svg(
    records: Sequence[Saved], names: Sequence[str], path: Path, *, width: int = _WIDTH, height: int = _HEIGHT
) -> None:
    """Plots of records of one kind in one file, two a row. Raises :class:`..tool.UsageError`."""
    plots = _plots_for(records)
    if unknown := [name for name in names if name not in plots]:
        kind = records[0].kind
        raise UsageError(f"no plot of a {kind} is called {unknown[0]}: expected one of {', '.join(plots)}")
    drawn = render([plots[name] for name in names], records, width=width, height=height)
    if drawn is None:
        asked = ", ".join(names)
        raise UsageError(f"plot {asked} would be empty: what was saved has nothing of it (was it saved with requests?)")
    path.write_text(drawn, encoding="utf-8")


def write_html(records: Sequence[Saved], path: Path, title: str) -> None:
    """One page of records of one kind, laid over one another. Raises :class:`..tool.UsageError` where they do not
    fit."""
    drawn = ((name, plot, render([plot], records, **_PAGE_SIZE)) for name, plot in _plots_for(records).items())
    results = [record for record in records if isinstance(record, Result)]
    folder = Path(__file__).parent
    page = Environment(loader=FileSystemLoader(folder), autoescape=True).get_template("page.html")
    path.write_text(
        page.render(
            title=title,
            style=(folder / "page.css").read_text(),
            about=_join(f"{one.name}, {one.started_at[:16].replace('T', ' ')}" for one in records),
            headlines=_headlines(results) if results else None,
            plots=[(name, plot, base64.b64encode(svg.encode()).decode()) for name, plot, svg in drawn if svg],
            sections=[(one.name, _tables(one), shlex.join(one.command), _facts(one)) for one in records],
        ),
        encoding="utf-8",
    )


def _plots_for(records: Sequence[Saved]) -> Mapping[str, Plot]:
    """Raises :class:`..tool.UsageError` unless all records, one at least, are of one kind, and sweeps over one axis."""
    kinds = {type(record) for record in records}
    if len(kinds) != 1:
        found = ", ".join(sorted({record.kind for record in records})) or "none"
        raise UsageError(f"files of kinds {found}: expected one kind in a report")
    axes = sorted({record.axis for record in records if isinstance(record, Sweep)})
    if len(axes) > 1:
        raise UsageError(f"sweeps over {_join(axes)}: expected sweeps over one and the same axis in a report")
    return PLOTS[kinds.pop()]


def _join(names: Iterable[str]) -> str:
    *rest, last = names
    return f"{', '.join(rest)} and {last}" if rest else last


def _headlines(results: Sequence[Result]) -> _Table:
    """The main figures of each run, side by side."""
    sides = [figures_of(result.summary) for result in results]
    names = [name for name in _COLUMNS if any(name in side for side in sides)]
    rows = [[figure_name(name), *(_cell(name, side) for side in sides)] for name in names]
    return ["", *(result.name for result in results)], rows


def _cell(name: str, figures: Mapping[str, float]) -> str:
    return show_figure(name, figures[name]) if name in figures else _NOTHING


def _tables(record: Saved) -> list[_Table]:
    match record:
        case Result():
            columns = (*STATISTICS, "count")
            spreads = [(name, getattr(record.summary, name)) for name in MEASURES]
            rows = [
                [f"{name.upper()}, ms", *(number(getattr(spread, each)) for each in columns)]
                for name, spread in spreads
                if spread.count
            ]
            examples = {one.error_kind: one.error or "" for one in reversed(record.requests)}
            counts = record.summary.errors_by_kind.items()
            errors = [[kind, number(count), examples.get(kind, "")] for kind, count in counts]
            return [(["", *columns], rows), (["error", "requests", "the first"], errors)]
        case Sweep():
            rows = [
                [show_value(one.value), str(len(one.repeats)), *(_cell(name, one.medians) for name in _COLUMNS)]
                for one in points_of(record)
            ]
            return [([record.axis, "runs", *map(figure_name, _COLUMNS)], rows)]
        case Startup():
            return [startup_table(record)]
        case Steps():
            names = ["rows", "tokens", "context", "milliseconds", "tokens_per_second", "share"]
            return [
                ([kind, *names[1:]], [[number(getattr(one, name)) for name in names] for one in figures])
                for kind, figures in groupby(record.figures, lambda one: one.kind)
            ]


def _facts(record: Saved) -> dict[str, Mapping[str, Any]]:
    """What a record was measured on, and what it was asked."""
    facts: dict[str, Mapping[str, Any]] = {}
    if isinstance(record, Steps):
        facts["Worker"] = record.worker
    result = record.points[0].result if isinstance(record, Sweep) and record.points else record
    if isinstance(result, Result):
        client = f"{result.client_seconds:.2f} CPU seconds of the load client in {result.summary.seconds:.2f} s"
        target = {"url": result.target.url, "model": result.target.model, "api": result.target.api}
        server = result.target.server or _NOTHING
        before, after = result.metrics_before, result.metrics_after
        facts["Target"] = {**target, "server": server, "started": result.started_at, "client": client}
        limits = {f"limit of {name.upper()}": f"{limit:g} ms" for name, limit in result.limits.items()}
        facts["Workload"] = {**result.workload, **limits}
        facts["Server metrics that changed"] = {
            name: f"{before.get(name, 0.0):g} → {value:g}"
            for name, value in after.items()
            if value != before.get(name, 0.0)
        }
    return {**facts, "Machine": record.machine}
