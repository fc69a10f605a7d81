"""What the tools of ``stentor bench`` share: from a command line to a record, its tables and its file.

Flags mean the same in every tool: ``--save FILE`` writes the record as JSON, ``--input-tokens`` and
``--output-tokens`` are the lengths of a prompt and of an answer. Older spellings are hidden aliases.
"""

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from rich.console import Console
from rich.table import Table

from .record import about, save_record

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130
WIDE: Final = 150
"""Columns of a table that goes to a file."""

R = TypeVar("R")
_SECRET: Final = ("--api-key", "--header")


class UsageError(ValueError):
    """Options that are wrong; the message is one line."""


class ToolError(Exception):
    """A measurement that cannot be made; the message is one line for the operator."""


class Parser(argparse.ArgumentParser):
    """Raises :class:`UsageError` where argparse would exit."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def make_parser(
    tool: str, description: str | None, *, older_save: Sequence[str] = ("--json", "--output"), **options: Any
) -> argparse.ArgumentParser:
    """The parser of ``stentor bench TOOL``, with ``--save``."""
    options = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **options}
    parser = argparse.ArgumentParser(prog=f"stentor bench {tool}", description=description, **options)
    add_flag(parser, "--save", *older_save, type=Path, metavar="FILE", help="write every figure here, as JSON")
    return parser


def add_flag(group: argparse._ActionsContainer, name: str, *older: str, **settings: Any) -> None:
    """An option and the spellings that it had before, which ``--help`` does not show."""
    group.add_argument(name, **settings)
    hidden = {**settings, "dest": name.lstrip("-").replace("-", "_"), "help": argparse.SUPPRESS}
    for old in older:
        group.add_argument(old, **{**hidden, "default": argparse.SUPPRESS})


def run_tool(
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    measure: Callable[[argparse.Namespace, dict[str, Any]], R],
    show: Callable[[Console, R], int | None],
    *failures: type[Exception],
) -> int:
    """Parses, measures, shows and saves.

    ``measure`` gets the options and the fields of :class:`.record.Record`; ``show`` may return an exit code. Exit codes
    otherwise: 0 done, 1 failed while running (one of ``failures``, or :class:`ToolError`), 2 used wrongly.
    """
    arguments = parser.parse_args(argv)
    expected: tuple[type[Exception], ...] = (UsageError, ToolError, *failures)
    try:
        record = measure(arguments, about(parser.prog.rpartition(" ")[2], argv))
    except expected as error:
        return complain(parser.prog, error, MISUSED if isinstance(error, UsageError) else FAILED)
    code = show(wide_console(), record) or 0
    if arguments.save is not None:
        try:
            arguments.save.parent.mkdir(parents=True, exist_ok=True)
            save_record(record, arguments.save)
        except OSError as error:
            return complain(parser.prog, f"{error.filename or arguments.save}: {error.strerror}", FAILED)
    return code


def has_plots() -> bool:
    """Whether the extra `plots` is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def complain(prog: str, message: object, code: int) -> int:
    print(f"{prog}: {message}", file=sys.stderr)
    return code


def wide_console(columns: int = WIDE) -> Console:
    """Standard output; where that is no terminal, wide enough for a table not to be folded."""
    return Console(width=None if sys.stdout.isatty() else columns)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, **options: Any) -> Table:
    """A table whose first ``left`` columns are words and whose others are numbers."""
    made = Table(title_justify="left", **options)
    for place, column in enumerate(columns):
        made.add_column(column, justify="left" if place < left else "right")
    for row in rows:
        made.add_row(*row)
    return made


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: an integer from ``least`` on."""

    def integer(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, at least {least}")
        return int(text)

    return integer


def between(low: float, high: float = math.inf, *, closed: bool = False) -> Callable[[str], float]:
    """An argparse type: a number above ``low``, or from it on where ``closed``, and at most ``high``."""

    def real(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (low <= value <= high) or (value == low and not closed):
            most = f" and at most {high:g}" if math.isfinite(high) else ""
            raise argparse.ArgumentTypeError(
                f"{text!r}: expected a number {'from' if closed else 'above'} {low:g}{most}"
            )
        return value

    return real


def masked(options: Iterable[str]) -> list[str]:
    """Options as they are recorded: without keys and headers."""
    shown: list[str] = []
    hide = False
    for word in options:
        name, equals, _ = word.partition("=")
        shown.append("***" if hide else f"{name}=***" if name in _SECRET and equals else word)
        hide = word in _SECRET
    return shown
