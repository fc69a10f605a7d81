"""What a sweep says while it goes: a line before each run, and what came of it."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..record import Result, Sweep
from ..report.figures import figure_name, number, points_of, show_figure, show_value
from .runs import Run

_COLUMNS = ("output_tokens_per_s", "requests_per_s", "ttft.p50", "ttft.p99", "itl.p50", "itl.p99", "goodput_share")


class Progress:
    """A :class:`.runs.Watcher` for a terminal or a log. ``planned`` is None where it is not known how many come."""

    def __init__(self, console: Console, axis: str, repeats: int, planned: int | None) -> None:
        self.found = 0
        self.made = 0
        self._console = console
        self._axis = axis
        self._repeats = repeats
        self._planned = planned

    def begin(self, run: Run) -> None:
        if self.found and not self.made:
            self._console.print(f"[dim]{self.found} runs are there already[/]")
        of = f"/{self._planned}" if self._planned is not None else ""
        what = escape(f"{self._axis}={show_value(run.value)} on {run.target.name}")
        repeat = f", {run.number + 1} of {self._repeats}" if self._repeats > 1 else ""
        self._console.print(
            f"[bold]{self.found + self.made + 1}{of}[/] {what}{repeat}", end=" ", highlight=False, soft_wrap=True
        )
        if self._console.is_terminal:
            self._console.print()

    def end(self, run: Run, result: Result, found: bool) -> None:
        if found:
            self.found += 1
            return
        self.made += 1
        summary = result.summary
        errors = f", [red]{summary.errors} errors[/]" if summary.errors else ""
        good = f", {summary.goodput_share:.1%} within limits" if summary.goodput_share is not None else ""
        self._console.print(
            f"  {number(summary.output_tokens_per_s)} tokens/s, TTFT p50 {number(summary.ttft.p50)} ms, "
            f"ITL p50 {number(summary.itl.p50)} p99 {number(summary.itl.p99)} ms{good}{errors}",
            highlight=False,
        )


def print_sweeps(console: Console, sweeps: Sequence[Sweep]) -> None:
    """Medians of every value, the sweeps' rows of one value below one another."""
    grouped = [(sweep.name, points_of(sweep)) for sweep in sweeps]
    values = list(dict.fromkeys(point.value for _, points in grouped for point in points))
    if all(isinstance(value, float) for value in values):
        values.sort(key=float)
    having = {name for _, points in grouped for point in points for name in point.medians}
    columns = [name for name in (*_COLUMNS, "errors") if name in having]
    table = Table(title=f"medians over {sweeps[0].axis}" if sweeps else "", title_justify="left")
    for name in (sweeps[0].axis if sweeps else "", "server", "runs"):
        table.add_column(name)
    for name in columns:
        table.add_column(figure_name(name), justify="right")
    for value in values:
        for name, points in grouped:
            for point in points:
                if point.value == value:
                    cells = [
                        show_figure(each, point.medians[each]) if each in point.medians else "" for each in columns
                    ]
                    table.add_row(escape(show_value(value)), escape(name), str(len(point.repeats)), *cells)
    console.print(table)
