"""Reports as one HTML file each: it fetches nothing, and reads without a script."""

import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from ..record import Result, Spread, Startup, Sweep
from .figures import SPREADS, figure_name, figures_of, number, points_of, show_figure
from .plot import Plot
from .result_plots import result_plots
from .startup_plots import kinds, median_phases, startup_phases
from .svg import draw
from .sweep_plots import sweep_plots
from .theme import plot_style

_HERE: Final = Path(__file__).parent
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_COLUMNS: Final = (
    "output_tokens_per_s",
    "requests_per_s",
    "goodput_share",
    *(f"{name}.{statistic}" for name in ("ttft", "itl", "tpot") for statistic in ("p50", "p99")),
)
_NOTHING: Final = "-"


class ReportError(ValueError):
    """What was given cannot be shown together; the message is one line for the operator."""


def write_html(results: Sequence[Result], path: Path, title: str) -> None:
    """One report of one run, or of several laid over one another. Raises :class:`ReportError` for none at all."""
    if not results:
        raise ReportError("no result to report: expected at least one")
    parts = [_heading(title, _runs(results))]
    parts.append(_cards(results[0]) if len(results) == 1 else _side_by_side(results))
    parts.append(_plots(result_plots(results)))
    for result in results:
        parts.append(f"<h2>{escape(result.name)}</h2>" if len(results) > 1 else "<h2>Latencies</h2>")
        parts.append(_latencies(result))
        parts.append(_errors(result))
        parts.append(_circumstances(result))
    _write(path, title, parts)


def write_sweep_html(sweeps: Sequence[Sweep], path: Path, title: str) -> None:
    """One report of one sweep, or of several over the same axis. Raises :class:`ReportError` for anything else."""
    check_axes(sweeps)
    command = f"<pre>{escape(shlex.join(sweeps[0].command))}</pre>" if sweeps[0].command else ""
    parts = [_heading(title, f"{_join(sweep.name for sweep in sweeps)} over {sweeps[0].axis}"), command]
    parts.append(_plots(sweep_plots(sweeps)))
    for sweep in sweeps:
        parts += [f"<h2>{escape(sweep.name)}</h2>", _sweep_table(sweep)]
        if sweep.points:
            parts.append(_circumstances(sweep.points[0].result))
    _write(path, title, parts)


def write_startup_html(startups: Sequence[Startup], path: Path, title: str) -> None:
    """One report of starts. Raises :class:`ReportError` for none at all."""
    if not startups:
        raise ReportError("no start to report: expected at least one")
    parts = [_heading(title, _join(startup.name for startup in startups)), _plots([startup_phases(startups)])]
    for startup in startups:
        parts += [f"<h2>{escape(startup.name)}</h2>", _startup_table(startup)]
        parts.append(f"<pre>{escape(shlex.join(startup.command))}</pre>" if startup.command else "")
        parts.append(_facts("Machine", startup.machine))
    _write(path, title, parts)


def check_axes(sweeps: Sequence[Sweep]) -> None:
    """Raises :class:`ReportError` unless all sweeps, one at least, vary the same thing."""
    axes = sorted({sweep.axis for sweep in sweeps})
    if len(axes) != 1:
        found = f"sweeps over {_join(axes)}" if axes else "no sweep"
        raise ReportError(f"{found}: expected sweeps over one and the same axis in a report")


def _write(path: Path, title: str, parts: Iterable[str]) -> None:
    body = "\n".join(part for part in parts if part)
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{(_HERE / 'page.css').read_text()}{plot_style()}\n</style></head>\n"
        f"<body>\n{body}\n<script>\n{(_HERE / 'page.js').read_text()}</script>\n</body></html>\n",
        encoding="utf-8",
    )


def _heading(title: str, about: str) -> str:
    return f'<header><h1>{escape(title)}</h1><p class="muted wrap">{escape(about)}</p></header>'


def _runs(results: Sequence[Result]) -> str:
    if len(results) > 1:
        return _join(result.name for result in results)
    result = results[0]
    machine = [str(result.machine[key]) for key in ("cpu", "cpu_model", "gpu") if result.machine.get(key)]
    return " · ".join([result.target.model, result.target.url, *machine, result.started_at[:16].replace("T", " ")])


def _join(names: Iterable[str]) -> str:
    *rest, last = names
    return f"{', '.join(rest)} and {last}" if rest else last


def _cards(result: Result) -> str:
    summary = result.summary
    total = f"{number(summary.output_tokens)} in {number(summary.seconds)} s"
    cards = [
        ("Output tokens/s", number(summary.output_tokens_per_s), total),
        *((f"{name.upper()} p50, ms", *_spread_card(getattr(summary, name))) for name in SPREADS),
        (
            "Requests",
            f"{number(summary.completed)} <small>of {number(summary.requests)}</small>",
            f"{number(summary.requests_per_s)}/s, at most {summary.peak_concurrency} at a time",
        ),
    ]
    if summary.errors:
        kinds = _join(f"{count} {kind}" for kind, count in summary.errors_by_kind.items())
        cards.append(("Errors", f'<span class="bad">{number(summary.errors)}</span>', escape(kinds)))
    if summary.goodput_share is not None:
        limits = _join(f"{name.upper()} ≤ {limit:g} ms" for name, limit in result.limits.items())
        cards.append(("Goodput", f"{summary.goodput_share:.1%}", escape(limits)))
    drawn = "".join(f"<div><dt>{name}</dt><dd>{value}</dd><p>{note}</p></div>" for name, value, note in cards)
    return f'<dl class="cards">{drawn}</dl>'


def _side_by_side(results: Sequence[Result]) -> str:
    sides = [figures_of(result.summary) for result in results]
    rows = [
        [figure_name(name), *(show_figure(name, side[name]) if name in side else _NOTHING for side in sides)]
        for name in (*_COLUMNS, "errors")
        if any(name in side for side in sides)
    ]
    return '<div class="gap"></div>' + table(["", *(result.name for result in results)], rows)


def _spread_card(spread: Spread) -> tuple[str, str]:
    if not spread.count:
        return _NOTHING, "not measured"
    return number(spread.p50), f"p99 {number(spread.p99)}, max {number(spread.max)}"


def _plots(plots: Iterable[Plot]) -> str:
    drawn = "\n".join(
        f'<figure id="{escape(plot.name)}"><figcaption>{escape(plot.title)}<span>{escape(plot.about)}</span>'
        f"</figcaption>\n{draw(plot)}</figure>"
        for plot in plots
    )
    return f'<section class="plots">\n{drawn}\n</section>' if drawn else ""


def _latencies(result: Result) -> str:
    rows = []
    for name in SPREADS:
        spread: Spread = getattr(result.summary, name)
        values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)
        if spread.count:
            rows.append([f"{name.upper()}, ms", *map(number, values), number(spread.count)])
    return table(["", "mean", "p50", "p90", "p95", "p99", "max", "count"], rows) if rows else ""


def _errors(result: Result) -> str:
    examples: dict[str, str] = {}
    for request in result.requests:
        if request.error is not None and request.error_kind is not None:
            examples.setdefault(request.error_kind, request.error)
    rows = [[kind, number(count), examples.get(kind, "")] for kind, count in result.summary.errors_by_kind.items()]
    return "<h2>Errors</h2>" + table(["kind", "requests", "the first"], rows) if rows else ""


def _circumstances(result: Result) -> str:
    """What ran where: folded, since it is looked up rather than read."""
    target = {"url": result.target.url, "model": result.target.model, "api": result.target.api}
    client = f"{result.client_seconds:.2f} CPU seconds of the load client in {result.summary.seconds:.2f} s"
    about = {**target, "server": result.target.server or _NOTHING, "started": result.started_at, "client": client}
    parts = [_facts("Target", about), _facts("Workload", result.workload), _facts("Machine", result.machine)]
    changed = {
        name: f"{result.metrics_before.get(name, 0.0):g} → {after:g}"
        for name, after in result.metrics_after.items()
        if after != result.metrics_before.get(name, 0.0)
    }
    parts.append(_facts("Server metrics that changed", changed))
    command = f"<pre>{escape(shlex.join(result.command))}</pre>" if result.command else ""
    return command + "".join(parts)


def _facts(name: str, facts: Mapping[str, Any]) -> str:
    if not facts:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(str(key))}</th><td class="text">{escape(str(value))}</td></tr>'
        for key, value in facts.items()
    )
    return f'<details><summary>{name}</summary><div class="scroll"><table><tbody>{rows}</tbody></table></div></details>'


def _sweep_table(sweep: Sweep) -> str:
    rows = []
    for point in points_of(sweep):
        found = point.medians
        cells = [show_figure(name, found[name]) if name in found else _NOTHING for name in (*_COLUMNS, "errors")]
        value = point.value if isinstance(point.value, str) else f"{point.value:g}"
        rows.append([value, str(len(point.repeats)), *cells])
    return table([sweep.axis, "runs", *map(figure_name, (*_COLUMNS, "errors"))], rows)


def _startup_table(startup: Startup) -> str:
    found = [(f"{kind}, {len(rounds)} rounds", median_phases(rounds)) for kind, rounds in kinds(startup)]
    names = dict.fromkeys(name for _, phases in found for name in phases)
    rows = [[name, *(f"{phases.get(name, 0.0):.2f}" for _, phases in found)] for name in names]
    ready = {
        cold: statistics.median(one.ready_s for one in startup.rounds if one.cold == cold)
        for cold in {one.cold for one in startup.rounds}
    }
    rows.append(["ready", *(f"{ready[cold]:.2f}" for cold in sorted(ready, reverse=True))])
    return table(["seconds, medians", *(name for name, _ in found)], rows)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the row. Cells are escaped here."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
