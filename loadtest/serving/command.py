"""``stentor bench serve``. Exit codes: 0 done, 1 nothing was answered, 2 used wrongly, 130 interrupted."""

import sys
from pathlib import Path

from ..record import Result, save_csv, save_record
from ..tool import FAILED, INTERRUPTED, MISUSED, ToolError, UsageError, complain, has_plots, masked, wide_console
from .driver import Load
from .meter import ProgressLine
from .options import build_load, build_parser
from .run import Outcome, measure
from .table import print_result

_PROG = "stentor bench serve"


def main(argv: list[str]) -> int:
    try:
        arguments = build_parser().parse_args(argv)
        if arguments.self_test:
            from .selftest import self_test  # late: only this needs its server

            return self_test(wide_console())
        load = build_load(arguments, ["stentor", "bench", "serve", *masked(argv)])
        for path in (arguments.save, arguments.csv, arguments.html):
            _check_writable(path)
        if arguments.html is not None and not has_plots():
            raise UsageError("--html needs matplotlib: install stentor[plots]")
        outcome = measure(load) if arguments.quiet else measure_shown(load)
    except UsageError as error:
        return complain(_PROG, error, MISUSED)
    except ToolError as error:
        return complain(_PROG, error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    unsaved = None
    try:
        if outcome.result.requests:  # an interrupt before the first answer leaves older files as they are
            _save(outcome.result, arguments.save, arguments.csv, arguments.html)
    except OSError as error:  # what was measured is printed all the same
        unsaved = f"{error.filename or 'output'}: {error.strerror or error}"
    if not arguments.quiet:
        print_result(wide_console(), outcome.result, outcome.interrupted)
    code = _verdict(outcome, arguments.quiet)
    return code if unsaved is None else complain(_PROG, unsaved, code or FAILED)


def measure_shown(load: Load) -> Outcome:
    """Runs ``load`` by :func:`.run.measure`, with its progress on standard output."""
    requests, seconds = [one.requests for one in load.stages], [one.seconds for one in load.stages]
    line = ProgressLine(sys.stdout, sum(filter(None, requests)), sum(filter(None, seconds)))
    try:
        return measure(load, line)
    finally:
        line.clear()


def _verdict(outcome: Outcome, quiet: bool) -> int:
    if outcome.interrupted:
        return INTERRUPTED
    summary = outcome.result.summary
    if summary.completed:
        return 0
    if quiet and summary.errors:
        first = next(request.error for request in outcome.result.requests if request.error is not None)
        return complain(_PROG, f"all {summary.errors} requests failed, the first with {first}", FAILED)
    return FAILED


def _save(result: Result, save: Path | None, csv: Path | None, html: Path | None) -> None:
    if save is not None:
        save_record(result, save)
    if csv is not None:
        save_csv(result, csv)
    if html is not None:
        from ..report.page import write_html  # late: plots are not for every run

        write_html([result], html, result.name)


def _check_writable(path: Path | None) -> None:
    """A file that cannot be written is told before the run, not after it, as far as one can see."""
    if path is not None and path.is_dir():
        raise UsageError(f"{path} is a folder: expected the name of a file")
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.absolute().parent}; make it first")
