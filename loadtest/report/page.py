"""``stentor bench report``: saved results as one HTML file that fetches nothing, or plots as SVG."""

import argparse
import base64
import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from ..record import RecordError, Result, Saved, Startup, Steps, Sweep, load_record
from .figures import SPREADS, figure_name, figures_of, number, points_of, show_figure, show_value
from .plots import RESULT_PLOTS, STARTUP_PLOTS, STEP_PLOTS, SWEEP_PLOTS, Plot, phases_of, render

PLOTS: Final[dict[type[Saved], Mapping[str, Plot]]] = {
    Result: RESULT_PLOTS,
    Sweep: SWEEP_PLOTS,
    Startup: STARTUP_PLOTS,
    Steps: STEP_PLOTS,
}
_WIDTH: Final = 760
_HEIGHT: Final = 400
_PAGE_SIZE: Final = {"width": 520, "height": 330}
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_COLUMNS: Final = (
    "output_tokens_per_s",
    "requests_per_s",
    "goodput_share",
    *(f"{name}.{statistic}" for name in ("ttft", "itl", "tpot") for statistic in ("p50", "p99")),
    "errors",
)
_NOTHING: Final = "-"


class ReportError(ValueError):
    """What was given cannot be shown together; the message is one line for the operator."""


def main(argv: list[str]) -> int:
    """0 written, 2 used wrongly."""
    options = _parser().parse_args(argv)
    try:
        if options.out and not options.svg:
            raise ReportError("--out is for --svg: name the page by --html")
        records = [load_record(path) for path in options.files]
        if options.svg:
            out = options.out or Path(f"{options.svg}.svg")
            write_svg(records, options.svg.split(","), out, width=options.width, height=options.height)
            print(out)
        if options.html or not options.svg:
            out = options.html or options.files[0].with_suffix(".html")
            write_html(records, out, options.title or _join(dict.fromkeys(record.name for record in records)))
            print(out)
    except (RecordError, ReportError) as error:
        print(f"stentor bench report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"stentor bench report: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def write_svg(
    records: Sequence[Saved], names: Sequence[str], path: Path, *, width: int = _WIDTH, height: int = _HEIGHT
) -> None:
    """Plots of records of one kind in one file, two a row. Raises :class:`ReportError`."""
    plots = _plots_for(records)
    if unknown := [name for name in names if name not in plots]:
        kind = records[0].kind
        raise ReportError(f"no plot of a {kind} is called {unknown[0]}: expected one of {', '.join(plots)}")
    drawn = render([plots[name] for name in names], records, width=width, height=height)
    if drawn is None:
        asked = ", ".join(names)
        raise ReportError(
            f"plot {asked} would be empty: what was saved has nothing of it (was it saved with requests?)"
        )
    path.write_text(drawn, encoding="utf-8")


def write_html(records: Sequence[Saved], path: Path, title: str) -> None:
    """One page of records of one kind, laid over one another. Raises :class:`ReportError` where they do not fit."""
    figures = []
    for name, plot in _plots_for(records).items():
        if (drawn := render([plot], records, **_PAGE_SIZE)) is not None:
            source = base64.b64encode(drawn.encode()).decode()
            alt = escape(f"{plot.title}. {plot.about}")
            figures.append(
                f'<figure id="{name}"><figcaption>{escape(plot.about)}</figcaption>'
                f'<img src="data:image/svg+xml;base64,{source}" alt="{alt}"></figure>'
            )
    plots = f'<section class="plots">\n{"".join(figures)}\n</section>' if figures else ""
    results = [record for record in records if isinstance(record, Result)]
    head = [_cards(results[0])] if len(results) == 1 else [_side_by_side(results)] if results else []
    about = _run(results[0]) if len(results) == 1 else _join(record.name for record in records)
    body = [f'<header><h1>{escape(title)}</h1><p class="muted wrap">{escape(about)}</p></header>', *head, plots]
    for record in records:
        body += [f"<h2>{escape(record.name)}</h2>", *_sections(record)]
    style = Path(__file__).with_name("page.css").read_text()
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style></head>\n"
        "<body>\n" + "\n".join(filter(None, body)) + "\n</body></html>\n",
        encoding="utf-8",
    )


def _plots_for(records: Sequence[Saved]) -> Mapping[str, Plot]:
    """Raises :class:`ReportError` unless all records, one at least, are of one kind, and sweeps over one axis."""
    kinds = {type(record) for record in records}
    if len(kinds) != 1:
        found = ", ".join(sorted({record.kind for record in records})) or "none"
        raise ReportError(f"files of kinds {found}: expected one kind in a report")
    axes = sorted({record.axis for record in records if isinstance(record, Sweep)})
    if len(axes) > 1:
        raise ReportError(f"sweeps over {_join(axes)}: expected sweeps over one and the same axis in a report")
    return PLOTS[kinds.pop()]


def _run(result: Result) -> str:
    machine = [str(result.machine[key]) for key in ("cpu", "cpu_model", "gpu") if result.machine.get(key)]
    return " · ".join([result.target.model, result.target.url, *machine, result.started_at[:16].replace("T", " ")])


def _join(names: Iterable[str]) -> str:
    *rest, last = names
    return f"{', '.join(rest)} and {last}" if rest else last


def _cards(result: Result) -> str:
    """The headlines of one run."""
    summary = result.summary
    cards = [("Output tokens/s", number(summary.output_tokens_per_s), f"in {number(summary.seconds)} s")]
    for name in SPREADS:
        spread = getattr(summary, name)
        note = f"p99 {number(spread.p99)}, max {number(spread.max)}" if spread.count else "not measured"
        cards.append((f"{name.upper()} p50, ms", number(spread.p50) if spread.count else _NOTHING, note))
    rate = f"{number(summary.requests_per_s)}/s, at most {summary.peak_concurrency} at a time"
    cards.append(("Requests", f"{number(summary.completed)} of {number(summary.requests)}", rate))
    if summary.errors:
        kinds = _join(f"{count} {kind}" for kind, count in summary.errors_by_kind.items())
        cards.append(("Errors", number(summary.errors), kinds))
    if summary.goodput_share is not None:
        limits = _join([f"{name.upper()} ≤ {limit:g} ms" for name, limit in result.limits.items()] or ["no limit"])
        cards.append(("Goodput", f"{summary.goodput_share:.1%}", limits))
    drawn = (f"<div><dt>{name}</dt><dd>{escape(value)}</dd><p>{escape(note)}</p></div>" for name, value, note in cards)
    return f'<dl class="cards">{"".join(drawn)}</dl>'


def _side_by_side(results: Sequence[Result]) -> str:
    sides = [figures_of(result.summary) for result in results]
    names = [name for name in _COLUMNS if any(name in side for side in sides)]
    rows = [[figure_name(name), *(_cell(name, side) for side in sides)] for name in names]
    return table(["", *(result.name for result in results)], rows)


def _cell(name: str, figures: Mapping[str, float]) -> str:
    return show_figure(name, figures[name]) if name in figures else _NOTHING


def _sections(record: Saved) -> Iterator[str]:
    """Tables of one record, and what it was measured on."""
    match record:
        case Result():
            yield from _result_tables(record)
        case Sweep():
            points = [(show_value(one.value), len(one.repeats), one.medians) for one in points_of(record)]
            rows = [[value, str(runs), *(_cell(name, found) for name in _COLUMNS)] for value, runs, found in points]
            yield table([record.axis, "runs", *map(figure_name, _COLUMNS)], rows)
            if record.points:
                yield from _circumstances(record.points[0].result)
        case Startup():
            yield _startup_table(record)
        case Steps():
            names = ["rows", "tokens", "context", "milliseconds", "tokens_per_second", "share"]
            for kind, figures in groupby(record.figures, lambda one: one.kind):
                yield table([kind, *names[1:]], [[number(getattr(one, name)) for name in names] for one in figures])
            yield _facts("Worker", record.worker)
    yield f"<pre>{escape(shlex.join(record.command))}</pre>" if record.command else ""
    yield _facts("Machine", record.machine)


def _result_tables(result: Result) -> Iterator[str]:
    rows = []
    for name in SPREADS:
        spread = getattr(result.summary, name)
        values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max, spread.count)
        if spread.count:
            rows.append([f"{name.upper()}, ms", *map(number, values)])
    if rows:
        yield table(["", "mean", "p50", "p90", "p95", "p99", "max", "count"], rows)
    examples = {one.error_kind: one.error for one in reversed(result.requests) if one.error is not None}
    counts = result.summary.errors_by_kind.items()
    if counts:
        rows = [[kind, number(count), examples.get(kind) or ""] for kind, count in counts]
        yield "<h2>Errors</h2>" + table(["kind", "requests", "the first"], rows)
    yield from _circumstances(result)


def _circumstances(result: Result) -> Iterator[str]:
    client = f"{result.client_seconds:.2f} CPU seconds of the load client in {result.summary.seconds:.2f} s"
    target = {"url": result.target.url, "model": result.target.model, "api": result.target.api}
    server = result.target.server or _NOTHING
    yield _facts("Target", {**target, "server": server, "started": result.started_at, "client": client})
    yield _facts("Workload", result.workload)
    before = result.metrics_before
    after = {name: value for name, value in result.metrics_after.items() if value != before.get(name, 0.0)}
    changed = {name: f"{before.get(name, 0.0):g} → {value:g}" for name, value in after.items()}
    yield _facts("Server metrics that changed", changed)


def _startup_table(startup: Startup) -> str:
    found = phases_of(startup)
    rounds = {kind: [one for one in startup.rounds if one.cold == (kind == "cold")] for kind in found}
    names = dict.fromkeys(name for phases in found.values() for name in phases)
    rows = [[name, *(f"{phases.get(name, 0.0):.2f}" for phases in found.values())] for name in names]
    rows.append(["ready", *(f"{statistics.median(one.ready_s for one in each):.2f}" for each in rounds.values())])
    return table(["seconds, medians", *(f"{kind}, {len(each)} rounds" for kind, each in rounds.items())], rows)


def _facts(name: str, facts: Mapping[str, Any]) -> str:
    """Folded: it is looked up rather than read."""
    if not facts:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(str(key))}</th><td class="text">{escape(str(value))}</td></tr>'
        for key, value in facts.items()
    )
    return f'<details><summary>{name}</summary><div class="scroll"><table><tbody>{rows}</tbody></table></div></details>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the row. Cells are escaped here."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stentor bench report",
        description="Draws what `stentor bench serve`, `sweep`, `start` or `steps` saved. Several files of one kind "
        "lie "
        "over one another. Without --html and --svg, the page goes beside the first file.",
        epilog=" ".join(f"Plots of {kind.__name__.lower()}: {', '.join(plots)}." for kind, plots in PLOTS.items()),
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what they saved")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page here")
    parser.add_argument("--svg", metavar="PLOT,…", help="write plots as one SVG, two a row; names below")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where --svg goes (default PLOT.svg)")
    parser.add_argument("--title", help="heading of the page (default: the names of what was run)")
    parser.add_argument("--width", type=int, default=_WIDTH, help=f"of the SVG, in pixels (default {_WIDTH})")
    parser.add_argument("--height", type=int, default=_HEIGHT, help=f"of the SVG, in pixels (default {_HEIGHT})")
    return parser
