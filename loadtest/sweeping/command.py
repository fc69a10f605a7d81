"""The command line of ``stentor bench sweep``. Exit codes: 0 done, 1 a run failed, 2 used wrongly, 130 interrupted."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from ..record import RecordError, Result, save_record
from ..report.figures import show_value
from ..serving.options import build_load, build_parser
from ..serving.run import LoadError, measure
from ..serving.view import LiveView
from ..tool import FAILED, INTERRUPTED, MISUSED, Parser, UsageError, at_least, between, has_plots, masked, wide_console
from .axis import VALUES_HELP, AxisError, Value, parse_axis
from .progress import Progress, print_sweeps
from .runs import Interrupted, Measure, RunError, Runs, Search
from .store import Plan, Store, StoreError, Target

_TAKEN: Final = ("save", "csv", "html", "self_test")
"""What a sweep sees to itself."""


class ServeError(ValueError):
    """Options that serve refuses; the message is one line for the operator."""


def check(options: Sequence[str], *, whole: bool = True) -> argparse.Namespace:
    """What serve makes of its options. ``whole`` also reads what they name, such as a data set.

    Raises :class:`ServeError`.
    """
    try:
        parsed = build_parser().parse_args(list(options))
        if whole:
            build_load(parsed, [])
    except UsageError as error:
        raise ServeError(str(error).replace("stentor bench serve --help", "stentor bench sweep --help")) from None
    except OSError as error:
        raise ServeError(f"{error.filename}: {error.strerror}") from None
    for name in _TAKEN:
        if getattr(parsed, name):
            raise ServeError(f"--{name.replace('_', '-')} is for `stentor bench serve`: a sweep writes into --out")
    return parsed


class Serve:
    """Measures once a call, and shows how it goes where there is a terminal."""

    def __init__(self, live: bool) -> None:
        self._live = live

    def __call__(self, options: Sequence[str]) -> Result:
        load = build_load(build_parser().parse_args(list(options)), ["stentor", "bench", "serve", *masked(options)])
        try:
            if self._live and sys.stdout.isatty():
                with LiveView() as view:
                    outcome = measure(load, view)
            else:
                outcome = measure(load)
        except LoadError as error:
            raise RunError(str(error)) from None
        if outcome.interrupted:
            raise Interrupted
        return outcome.result


_MOST: Final = 1e9
_SECONDS: Final = 30
"""How long a rate is tried for, where nothing else is said."""
_EPILOG: Final = """\
Every other option goes to `stentor bench serve` (see its --help). Each run draws prompts of its own, so that no
answer comes out of a prefix cache by accident; all targets get the same ones. The same command goes on where an
interrupted one stopped.

examples:
  stentor bench sweep --axis concurrency 1:32:x2 --requests-each 4 --input-tokens 128 --output-tokens 128 --ignore-eos
  stentor bench sweep --axis concurrency 1,8,32 --target ours=http://127.0.0.1:8000 --target theirs=http://127.0.0.1:8080
  stentor bench sweep --saturate 1 --goodput ttft:500 tpot:50 --duration 60
"""


def main(argv: list[str], measure: Measure | None = None) -> int:
    """Sweep, write what came of it, and return the exit code. ``measure`` stands in for the load itself."""
    try:
        given, options = _parser().parse_known_args(argv)
        return _Command(given, options, argv).run(measure)
    except (UsageError, AxisError, ServeError, StoreError, RecordError) as error:
        print(f"stentor bench sweep: {error}", file=sys.stderr)
        return MISUSED
    except OSError as error:
        print(f"stentor bench sweep: {error.filename}: {error.strerror}", file=sys.stderr)
        return FAILED


class _Command:
    """One sweep, checked whole before its first run."""

    def __init__(self, given: argparse.Namespace, options: list[str], argv: Sequence[str]) -> None:
        self.given = given
        self.command = ["stentor", "bench", "sweep", *masked(argv)]
        self.axis, self.values = self._axis()
        if self.axis == "rate" and given.saturate is not None and not _names(options, "--duration", "--requests"):
            options = [*options, f"--duration={_SECONDS}"]
        self.options = options
        self.served = self._check()
        targets = _targets(given.target) or [Target(self.served.name or "server", self.served.url)]
        seed = "the same" if given.same_seed else f"of each run, from {self.served.seed}"
        each = [f"--requests-each={given.requests_each}"] if given.requests_each is not None else []
        plan = Plan(self.axis, masked([*options, *each]), targets, seed)
        self.store = Store(given.out or Path(f"sweep-{self.axis}"), plan)

    def run(self, measure: Measure | None) -> int:
        console = wide_console()
        targets = self.store.plan.targets
        planned = len(self.values) * self.given.repeats * len(targets) if self.values else None
        runs = Runs(
            store=self.store,
            measure=measure or Serve(live=not self.given.quiet),
            watcher=Progress(console, self.axis, self.given.repeats, planned),
            options=self.options,
            seed=None if self.given.same_seed or self.axis == "seed" else self.served.seed,
            repeats=self.given.repeats,
            cooldown=self.given.cooldown,
            requests_each=self.given.requests_each,
        )
        self.store.open(self.given.restart)
        searches: dict[str, Search] = {}
        code = 0
        try:
            if self.given.saturate is None:
                runs.sweep(self.values)
            else:
                searches = runs.saturate(self.given.saturate, self.given.precision, self.given.share / 100)
        except RunError as error:
            print(f"\nstentor bench sweep: {error}; the same command goes on from here", file=sys.stderr)
            code = FAILED
        except (Interrupted, KeyboardInterrupt):
            print("\nstentor bench sweep: interrupted; the same command goes on from here", file=sys.stderr)
            code = INTERRUPTED
        self._write(console, runs)
        for name, search in searches.items():
            console.print(_verdict(escape(name), search, self.given.share), highlight=False)
        return code

    def _write(self, console: Console, runs: Runs) -> None:
        sweeps = []
        for target in self.store.plan.targets:
            values = self.values or list(runs.tried.get(target.name, {}))
            sweep = self.store.gather(target, values, self.given.repeats, self.command, self.given.keep_requests)
            if sweep.points:
                save_record(sweep, self.store.sweep_path(target))
                console.print(str(self.store.sweep_path(target)), style="dim", markup=False, highlight=False)
                sweeps.append(sweep)
        if sweeps:
            print_sweeps(console, sweeps)
        if sweeps and not has_plots():
            console.print("no page is drawn without matplotlib: install stentor[plots]", highlight=False)
        elif sweeps:
            from ..report.page import write_html  # late: matplotlib takes a second

            title = self.given.title or f"{' and '.join(sweep.name for sweep in sweeps)} over {self.axis}"
            write_html(sweeps, self.store.page_path, title)
            console.print(str(self.store.page_path), style="dim", markup=False, highlight=False)

    def _axis(self) -> tuple[str, list[Value]]:
        if (self.given.axis is None) == (self.given.saturate is None):
            raise UsageError("expected either --axis NAME VALUES or --saturate")
        return parse_axis(*self.given.axis) if self.given.axis is not None else ("rate", [])

    def _check(self) -> argparse.Namespace:
        if _names(self.options, f"--{self.axis}"):
            raise UsageError(f"--{self.axis} is what is varied: leave it out")
        if self.given.target and _names(self.options, "--url", "--base-url"):
            raise UsageError("--url and --target exclude one another")
        if self.given.target and _names(self.options, "--name"):
            raise UsageError("--name and --target exclude one another: a target has a name")
        if self.given.requests_each is not None and self.axis != "concurrency":
            raise UsageError(f"--requests-each is for --axis concurrency, not {self.axis}")
        tried = [show_value(value) for value in self.values] or ["1"]
        served = check([*self.options, f"--{self.axis}={tried[0]}"])
        for value in tried[1:]:
            check([*self.options, f"--{self.axis}={value}"], whole=False)
        if self.given.saturate is not None and not served.goodput:
            raise UsageError("--saturate needs limits that a rate is to hold: --goodput ttft:500 tpot:50")
        return served


def _names(options: Sequence[str], *names: str) -> bool:
    return any(option.partition("=")[0] in names for option in options)


def _targets(given: Sequence[str]) -> list[Target]:
    targets = []
    for text in given:
        name, equals, address = text.partition("=")
        if not equals or not re.fullmatch(r"[\w.+ -]+", name) or name.startswith(".") or not address:
            raise UsageError(f"--target {text}: expected NAME=URL, the name of letters, digits and .+-_")
        targets.append(Target(name, address))
    if len({target.name for target in targets}) < len(targets):
        raise UsageError("--target: expected a name of its own for each")
    return targets


def _verdict(name: str, search: Search, share: float) -> str:
    if search.low is None:
        return f"{name}: no rate down to {search.high:g} requests/s keeps {share:g}% within the limits"
    if search.high is None:
        return f"{name}: {search.low:g} requests/s and maybe more keep {share:g}% within the limits"
    return f"[bold]{name}: {search.low:g} requests/s[/] keep {share:g}% within the limits; {search.high:g} do not"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="stentor bench sweep",
        description="Runs `stentor bench serve` over a range of one parameter, several times each, against one server "
        "or several in turn, and draws what comes of it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--axis", nargs=2, metavar=("NAME", "VALUES"), help=f"an option of serve, and its values: {VALUES_HELP}"
    )
    parser.add_argument(
        "--saturate",
        type=between(0, _MOST),
        nargs="?",
        const=1.0,
        metavar="RATE",
        help="find the highest rate that keeps the limits of --goodput, beginning at this many requests a second (1); "
        "a queue takes time to grow, so short runs flatter",
    )
    parser.add_argument(
        "--share", type=between(0, 100), default=95.0, metavar="PERCENT", help="of requests that must keep them (95)"
    )
    parser.add_argument(
        "--precision",
        type=between(0, _MOST),
        default=0.05,
        help="how near --saturate gets, as a part of the rate (0.05)",
    )
    parser.add_argument(
        "--repeats", type=at_least(1), default=3, metavar="N", help="of each value; medians are shown (3)"
    )
    parser.add_argument(
        "--cooldown",
        type=between(0, _MOST, closed=True),
        default=2.0,
        metavar="SECONDS",
        help="of rest between two runs (2)",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="a server; given more than once, they take turns at every repeat",
    )
    parser.add_argument(
        "--requests-each",
        type=at_least(1),
        metavar="N",
        help="with --axis concurrency: requests for each user, so that all values take about as long",
    )
    parser.add_argument("--same-seed", action="store_true", help="ask the same in every run, prefix caches or not")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where runs are kept (sweep-NAME)")
    parser.add_argument("--restart", action="store_true", help="discard the runs that are there")
    parser.add_argument(
        "--keep-requests", action="store_true", help="every request in sweep.json too, not in runs/ alone"
    )
    parser.add_argument("--title", help="of the page")
    parser.add_argument("--quiet", action="store_true", help="no picture of the run in progress")
    return parser
