"""The command line of ``stentor bench sweep``. Exit codes: 0 done, 1 a run failed, 2 used wrongly, 130 interrupted."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from ..record import RecordError, Result, Sweep, save_record
from ..report.figures import figure_name, points_of, show_figure, show_value
from ..serving.command import measure_shown
from ..serving.options import build_load, build_parser
from ..serving.run import measure
from ..tool import (
    FAILED,
    INTERRUPTED,
    MISUSED,
    Parser,
    ToolError,
    UsageError,
    at_least,
    between,
    complain,
    has_plots,
    masked,
    table,
    wide_console,
)
from .runs import SHARE, VALUES_HELP, Runs, Search, Target, Value, parse_axis

_PROG: Final = "stentor bench sweep"
_TAKEN: Final = ("save", "csv", "html", "self_test")
"""Options of ``serve`` that a sweep sets itself."""
_MOST: Final = 1e9
_SECONDS: Final = 30
"""How long a rate is tried for, where nothing else is said."""
_COLUMNS = ("output_tokens_per_s", "requests_per_s", "ttft.p50", "ttft.p99", "itl.p50", "itl.p99", "goodput_share")
_EPILOG: Final = """\
Every other option goes to `stentor bench serve` (see its --help). Each run draws prompts of its own, so that no
answer comes out of a prefix cache by accident; all targets get the same ones. The same command goes on where an
interrupted one stopped.

examples:
  stentor bench sweep --axis concurrency 1:32:x2 --requests-each 4 --input-tokens 128 --output-tokens 128 --ignore-eos
  stentor bench sweep --axis concurrency 1,8,32 --target ours=http://127.0.0.1:8000 --target theirs=http://127.0.0.1:8080
  stentor bench sweep --saturate 1 --goodput ttft:500 tpot:50 --duration 60
"""


def serve(options: Sequence[str]) -> Result:
    """Measures once, and shows how it goes where there is a terminal. Raises :class:`..tool.ToolError`, and
    KeyboardInterrupt for a run that was interrupted."""
    load = build_load(build_parser().parse_args(list(options)), ["stentor", "bench", "serve", *masked(options)])
    outcome = measure_shown(load) if sys.stdout.isatty() else measure(load)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome.result


def main(argv: list[str], measure: Callable[[Sequence[str]], Result] = serve) -> int:
    """Sweep, write what came of it, and return the exit code. ``measure`` stands in for the load itself."""
    parser = Parser(
        prog=_PROG,
        description="Runs `stentor bench serve` over a range of one parameter, several times each, against one server\n"
        "or several in turn, and draws what comes of it.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("--axis", nargs=2, metavar=("NAME", "VALUES"), help=f"an option of serve, and its values: {VALUES_HELP}")
    rate = (
        "find the highest rate, from this many requests a second on (1), at which 95 percent keep the limits of "
        "--goodput; a queue takes time to grow, so short runs flatter"
    )
    add("--saturate", type=between(0, _MOST), nargs="?", const=1.0, metavar="RATE", help=rate)
    add("--repeats", type=at_least(1), default=3, metavar="N", help="of each value; medians are shown (3)")
    rest = "of rest between two runs (2)"
    add("--cooldown", type=between(0, _MOST, closed=True), default=2.0, metavar="SECONDS", help=rest)
    target = "a server; given more than once, they take turns at every repeat"
    add("--target", action="append", default=[], metavar="NAME=URL", help=target)
    each = "with --axis concurrency: requests for each user, so that all values take about as long"
    add("--requests-each", type=at_least(1), metavar="N", help=each)
    add("--out", type=Path, metavar="FOLDER", help="where runs are kept (sweep-NAME)")
    try:
        given, options = parser.parse_known_args(argv)
        runs = _runs(given, options, measure)
        runs.open()
        searches: dict[str, Search] = {}
        code = 0
        try:
            if given.saturate is None:
                runs.sweep()
            else:
                searches = runs.saturate(given.saturate)
        except ToolError as error:
            code = complain(f"\n{_PROG}", f"{error}; the same command goes on from here", FAILED)
        except KeyboardInterrupt:
            code = complain(f"\n{_PROG}", "interrupted; the same command goes on from here", INTERRUPTED)
        _write(runs, [*_PROG.split(), *masked(argv)])
        for name, search in searches.items():
            runs.console.print(_verdict(escape(name), search), highlight=False)
        return code
    except (UsageError, RecordError) as error:
        return complain(_PROG, error, MISUSED)
    except OSError as error:
        return complain(_PROG, f"{error.filename}: {error.strerror}", FAILED)


def check(options: Sequence[str]) -> argparse.Namespace:
    """What serve makes of its options, and of what they name, such as a data set. Raises :class:`..tool.UsageError`."""
    try:
        parsed = build_parser().parse_args(list(options))
        build_load(parsed, [])
    except UsageError as error:
        raise UsageError(str(error).replace("stentor bench serve --help", f"{_PROG} --help")) from None
    for name in _TAKEN:
        if getattr(parsed, name):
            raise UsageError(f"--{name.replace('_', '-')} is for `stentor bench serve`: a sweep writes into --out")
    return parsed


def _runs(given: argparse.Namespace, options: list[str], measure: Callable[[Sequence[str]], Result]) -> Runs:
    """Every option and value checked, before the first run. Raises :class:`..tool.UsageError`."""
    if (given.axis is None) == (given.saturate is None):
        raise UsageError("expected either --axis NAME VALUES or --saturate")
    axis, values = ("rate", list[Value]()) if given.axis is None else parse_axis(*given.axis)
    if given.saturate is not None and not _names(options, "--duration", "--requests"):
        options = [*options, f"--duration={_SECONDS}"]
    if _names(options, f"--{axis}"):
        raise UsageError(f"--{axis} is what is varied: leave it out")
    if given.target and _names(options, "--url", "--base-url", "--name"):
        raise UsageError("--url and --target exclude one another, and so do --name and --target")
    if given.requests_each is not None and axis != "concurrency":
        raise UsageError(f"--requests-each is for --axis concurrency, not {axis}")
    served, *_ = [check([*options, f"--{axis}={show_value(value)}"]) for value in values or [1.0]]
    if given.saturate is not None and not served.goodput:
        raise UsageError("--saturate needs limits that a rate is to hold: --goodput ttft:500 tpot:50")
    targets = _targets(given.target) or [Target(served.name or "server", served.url)]
    each = [f"--requests-each={given.requests_each}"] if given.requests_each is not None else []
    return Runs(
        folder=given.out or Path(f"sweep-{axis}"),
        axis=axis,
        values=values,
        targets=targets,
        options=options,
        plan={
            "axis": axis,
            "options": " ".join(masked([*options, *each])),
            "targets": " ".join(f"{target.name}={target.url}" for target in targets),
        },
        seed=served.seed,
        repeats=given.repeats,
        cooldown=given.cooldown,
        requests_each=given.requests_each,
        measure=measure,
        console=wide_console(),
    )


def _names(options: Sequence[str], *names: str) -> bool:
    return any(option.partition("=")[0] in names for option in options)


def _targets(given: Sequence[str]) -> list[Target]:
    targets = []
    for text in given:
        name, equals, address = text.partition("=")
        if not equals or not re.fullmatch(r"[\w+ -][\w.+ -]*", name) or not address:
            raise UsageError(f"--target {text}: expected NAME=URL, the name of letters, digits and .+-_")
        targets.append(Target(name, address))
    if len({target.name for target in targets}) < len(targets):
        raise UsageError("--target: expected a name of its own for each")
    return targets


def _write(runs: Runs, command: Sequence[str]) -> None:
    sweeps, written = [], []
    for target in runs.targets:
        sweep = runs.gather(target, command)
        if sweep.points:
            written.append(runs.folder / ("sweep.json" if len(runs.targets) == 1 else f"sweep-{target.name}.json"))
            save_record(sweep, written[-1])
            sweeps.append(sweep)
    if not sweeps:
        return
    print_sweeps(runs.console, sweeps)
    if has_plots():
        from ..report.page import write_html  # late: matplotlib takes a second

        written.append(runs.folder / "sweep.html")
        write_html(sweeps, written[-1], f"{' and '.join(sweep.name for sweep in sweeps)} over {runs.axis}")
    else:
        runs.console.print("no page is drawn without matplotlib: install stentor[plots]", highlight=False)
    for path in written:
        runs.console.print(str(path), style="dim", markup=False, highlight=False)


def print_sweeps(console: Console, sweeps: Sequence[Sweep]) -> None:
    """Medians of every value, the sweeps' rows of one value below one another."""
    found = [(sweep.name, point) for sweep in sweeps for point in points_of(sweep)]
    values = list(dict.fromkeys(point.value for _, point in found))
    if all(isinstance(value, float) for value in values):
        values.sort(key=float)
    columns = [name for name in (*_COLUMNS, "errors") if any(name in point.medians for _, point in found)]
    rows = [
        [
            *(escape(show_value(value)), escape(name), str(len(point.repeats))),
            *(show_figure(each, point.medians[each]) if each in point.medians else "" for each in columns),
        ]
        for value in values
        for name, point in found
        if point.value == value
    ]
    axis = sweeps[0].axis
    heads = [axis, "server", "runs", *map(figure_name, columns)]
    console.print(table(heads, rows, left=3, title=f"medians over {axis}"))


def _verdict(name: str, search: Search) -> str:
    keep = f"{SHARE:.0%} within the limits"
    if search.low is None:
        return f"{name}: no rate down to {search.high:g} requests/s keeps {keep}"
    if search.high is None:
        return f"{name}: {search.low:g} requests/s and maybe more keep {keep}"
    return f"[bold]{name}: {search.low:g} requests/s[/] keep {keep}; {search.high:g} do not"
