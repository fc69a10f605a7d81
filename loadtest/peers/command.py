"""``stentor bench peers``: our server and every installed peer with the same weights and the same load, in turn."""

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
from rich.console import Console
from rich.status import Status

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.hub import DEFAULT_MODEL, resolve_model

from ..record import about, save_record
from ..server_process import free_port
from ..tool import INTERRUPTED, add_flag, make_parser, wide_console
from .figures import Column, Report, measures, medians, settle_shapes
from .measuring import Entry, Settings, run_rounds, start_all, weigh_starts
from .places import installed, llama_binary, root
from .prompts import Words
from .running import Server, shown
from .sides import SIDES, Side
from .tables import markdown, remarks, terminal_tables, title
from .weights import Weights, WeightsError

DESCRIPTION = """\
Starts Stentor's server and every installed peer with the same weights, and puts the same prompts to each in turn,
round by round, so that a machine that slows down slows all. Only one server works at a time. Prints medians and
ratios; --save keeps every round. Peers are installed by `make peers`.
"""
WIDE = 200
"""Columns of tables that go to a file."""


def main(argv: list[str]) -> int:
    """Exit code: 0 done, 1 something failed while running, 2 used wrongly, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    console = wide_console(WIDE)
    if arguments.list:
        for side in SIDES.values():
            console.print(f"{side.name:<22} {side.missing or 'ready'}", highlight=False)
        return 0
    try:
        sides = choose(arguments.only)
        settings = Settings(
            shapes=settle_shapes(arguments.shapes),
            rounds=_checked(arguments.rounds, 1, "--rounds"),
            starts=_checked(arguments.starts, 0, "--starts"),
            prompt=_checked(arguments.input_tokens, 1, "--input-tokens"),
            output=_checked(arguments.output_tokens, 2, "--output-tokens"),
            long_prompt=_checked(arguments.long_prompt, 1, "--long-prompt"),
            seed=arguments.seed,
        )
        for file in (arguments.save, arguments.markdown):
            if file is not None and not file.parent.is_dir():
                raise ValueError(f"{file} cannot be written: there is no folder {file.parent}")
    except ValueError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    given = msgspec.to_builtins(settings)
    report = Report(model=arguments.model, settings=given, columns=[], skipped={}, **about("peers", argv))
    try:
        with _ending_on_sigterm(), console.status("looking for weights") as status:
            _run(report, sides, settings, arguments.model, console, status)
    except (WeightsError, CheckpointError) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("peers: interrupted; what was measured follows", file=sys.stderr)
        _tell(report, settings, arguments, console)
        return INTERRUPTED
    return _tell(report, settings, arguments, console)


def choose(only: str | None) -> list[Side]:
    """The sides that ``--only`` names, in its order: A B A B. Raises ValueError with one line."""
    if only is None:
        return list(SIDES.values())
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in SIDES]
    if unknown or not names:
        raise ValueError(f"no side is called {unknown[0] if unknown else only!r}; expected {', '.join(SIDES)}")
    return [SIDES[name] for name in dict.fromkeys(names)]


def _run(
    report: Report, sides: Sequence[Side], settings: Settings, model: str, console: Console, status: Status
) -> None:
    def say(what: str) -> None:
        status.update(what)
        if not console.is_terminal:
            console.print(what, highlight=False)

    source = resolve_model(model, progress=lambda what, done, total: status.update(what))
    weights = Weights(source, root() / "weights", llama_binary("llama-quantize"))
    words = Words(weights.form("hf", say))
    entries = []
    for side in sides:
        why = side.missing
        if why is None:
            try:
                entries.append(_entry(side, weights.form(side.form, say)))
            except WeightsError as error:
                why = str(error)
        if why is not None:
            report.skipped[side.name] = why
            console.print(f"{side.name} skipped: {why}", highlight=False)
    report.columns.extend(entry.column for entry in entries)
    with _stopping(entries):
        weigh_starts(entries, settings, words, say)
        start_all([entry for entry in entries if entry.live], words, say)
        run_rounds(entries, settings, words, say)


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """As on Ctrl-C: servers must not outlive this process."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _stopping(entries: Sequence[Entry]) -> Iterator[None]:
    try:
        yield
    finally:
        for entry in entries:
            entry.server.stop()


def _entry(side: Side, weights: Path) -> Entry:
    server = Server(side, weights, free_port())
    files = [weights] if weights.is_file() else list(weights.glob("*.safetensors"))
    known = installed(side.peer)
    return Entry(
        server,
        Column(
            name=side.name,
            peer=side.peer,
            bits=side.bits,
            version=known.version if known else "",
            command=server.command,
            weights=shown(str(weights)),
            weight_bytes=sum(file.stat().st_size for file in files),
        ),
    )


def _tell(report: Report, settings: Settings, arguments: argparse.Namespace, console: Console) -> int:
    console.print(title(report), highlight=False)
    for table in terminal_tables(report, settings.shapes):
        console.print(table)
    for line in remarks(report):
        console.print(line, highlight=False)
    console.print("How each was started:")
    for column in report.columns:
        console.print(f"  {column.name}: {column.command}", highlight=False, soft_wrap=True)
    if arguments.save is not None:
        content = {**msgspec.to_builtins(report), "medians": medians(report.columns, measures(settings.shapes))}
        save_record(content, arguments.save)
        console.print(f"written: {arguments.save}", highlight=False)
    if arguments.markdown is not None:
        arguments.markdown.write_text(markdown(report, settings.shapes), encoding="utf-8")
        console.print(f"written: {arguments.markdown}", highlight=False)
    return 1 if not report.columns or any(column.failed for column in report.columns) else 0


def _checked(given: int, least: int, flag: str) -> int:
    if given < least:
        raise ValueError(f"{flag} is {given}, expected at least {least}")
    return given


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("peers", DESCRIPTION)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a .gguf file, or what names one (default: %(default)s)")
    parser.add_argument(
        "--only", metavar="SIDE,…", help="measure these in this order; --list names them (default: all)"
    )
    parser.add_argument("--shapes", metavar="SHAPE,…", help="numbers of streams, and prefill (default: 1,8,32,prefill)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds after one to warm up (default: 5)")
    parser.add_argument(
        "--starts",
        type=int,
        default=3,
        help="timed starts of each side, one where it takes 30 s; 0 for none (default: 3)",
    )
    add_flag(parser, "--input-tokens", "--prompt", type=int, default=128, metavar="N", help="tokens in (128)")
    add_flag(parser, "--output-tokens", "--tokens", type=int, default=128, metavar="N", help="tokens out (128)")
    parser.add_argument(
        "--long-prompt", type=int, default=2048, metavar="N", help="tokens in of the shape prefill (default: 2048)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default: 0)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.add_argument("--list", action="store_true", help="name the sides and whether they are installed")
    return parser
