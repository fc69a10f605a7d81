"""``stentor bench peers``: our server and every installed peer with the same weights and the same load, in turn."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from stentor.engine.loading.download.hub import DEFAULT_MODEL, resolve_model
from stentor.engine.loading.errors import CheckpointError

from ..tool import INTERRUPTED, UsageError, add_flag, at_least, make_parser, run_tool, wide_console
from .figures import Report, Settings, markdown, measures, medians, settle_shapes, title
from .measuring import WIDE, entry_of, interrupted_by_sigterm, run_rounds, show_sides, start_all, weigh_starts
from .places import llama_binary, root
from .prompts import Words
from .random_models import PREFIX, RANDOM_MODELS, RandomModel
from .random_weights import RandomWeights
from .sides import SIDES, Side
from .weights import Weights, WeightsError

DESCRIPTION = """\
Starts Stentor's server and every installed peer with the same weights, and puts the same prompts to each in turn,
round by round, so that a machine that slows down slows all. Only one server works at a time. Prints medians and
ratios; --save keeps every round. Peers are installed by `make peers`. With --model random:NAME the weights are made
up, for a full-size model of a published configuration; --list names those too.
"""


def main(argv: list[str]) -> int:
    """Exit code: 0 done, 1 something failed while running, 2 used wrongly, 130 interrupted."""
    parser = make_parser("peers", DESCRIPTION)
    one = at_least(1)
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="a .gguf file, what names one, or random:NAME (default: %(default)s)"
    )
    parser.add_argument(
        "--only", metavar="SIDE,…", help="measure these in this order; --list names them (default: all)"
    )
    parser.add_argument(
        "--shapes", metavar="SHAPE,…", help="numbers of streams, prefill, prefill:TOKENS (default: 1,8,32,prefill)"
    )
    parser.add_argument("--rounds", type=one, default=5, help="measured rounds after one to warm up (default: 5)")
    parser.add_argument(
        "--starts",
        type=at_least(0),
        default=3,
        help="timed starts of each side, one where it takes 30 s; 0 for none (default: 3)",
    )
    add_flag(parser, "--input-tokens", "--prompt", type=one, default=128, metavar="N", help="tokens in (128)")
    add_flag(parser, "--output-tokens", "--tokens", type=at_least(2), default=128, metavar="N", help="tokens out (128)")
    parser.add_argument(
        "--long-prompt", type=one, default=2048, metavar="N", help="tokens in of the shape prefill (default: 2048)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default: 0)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.add_argument("--keep-weights", action="store_true", help="leave random weights on the disk for another run")
    parser.add_argument("--list", action="store_true", help="name the sides and whether they are installed")
    if parser.parse_args(argv).list:
        for side in SIDES.values():
            print(f"{side.name:<22} {side.missing or 'ready'}")
        for name, model in RANDOM_MODELS.items():
            print(f"{PREFIX + name:<32} {model.about}")
        return 0
    return run_tool(parser, argv, _measure, _show, WeightsError, CheckpointError)


def choose(only: str | None) -> list[Side]:
    """The sides that ``--only`` names, in its order: A B A B. Raises :class:`UsageError`."""
    if only is None:
        return list(SIDES.values())
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in SIDES]
    if unknown or not names:
        raise UsageError(f"no side is called {unknown[0] if unknown else only!r}; expected {', '.join(SIDES)}")
    return [SIDES[name] for name in dict.fromkeys(names)]


def random_model(named: str) -> RandomModel | None:
    """The model whose weights are made up; None where ``named`` is another. Raises :class:`UsageError`."""
    if not named.startswith(PREFIX):
        return None
    found = RANDOM_MODELS.get(named.removeprefix(PREFIX))
    if found is None:
        raise UsageError(
            f"no random model is called {named!r}; expected {', '.join(map(PREFIX.__add__, RANDOM_MODELS))}"
        )
    return found


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> Report:
    settings = Settings(
        shapes=settle_shapes(arguments.shapes),
        rounds=arguments.rounds,
        starts=arguments.starts,
        prompt=arguments.input_tokens,
        output=arguments.output_tokens,
        long_prompt=arguments.long_prompt,
        seed=arguments.seed,
    )
    report = Report(model=arguments.model, settings=settings, columns=[], skipped={}, **about)
    sides = choose(arguments.only)
    random_model(arguments.model)  # a name that there is not is told before anything starts
    interrupted = False
    if arguments.markdown is not None:
        arguments.markdown.parent.mkdir(parents=True, exist_ok=True)
    try:
        with interrupted_by_sigterm():
            _run(report, sides, keep_weights=arguments.keep_weights)
    except KeyboardInterrupt:
        print("stentor bench peers: interrupted; what was measured follows", file=sys.stderr)
        interrupted = True
    found = medians(report.columns, measures(settings.shapes))
    report = msgspec.structs.replace(report, medians=found, interrupted=interrupted)
    if arguments.markdown is not None:
        arguments.markdown.write_text(markdown(report), encoding="utf-8")
    return report


def _run(report: Report, sides: Sequence[Side], *, keep_weights: bool) -> None:
    """Fills the report's columns."""
    settings = report.settings
    console = wide_console(WIDE)
    with console.status("looking for weights") as status, ExitStack() as cleanup:

        def say(what: str) -> None:
            status.update(what)
            if not console.is_terminal:
                console.print(what, highlight=False)

        def named(model: str) -> Weights:
            source = resolve_model(model, progress=lambda what, done, total: status.update(what))
            return Weights(source, root() / "weights", llama_binary("llama-quantize"))

        random = random_model(report.model)
        real = named(report.model if random is None else DEFAULT_MODEL)
        words = Words(real.form("hf", say))
        weights: Weights | RandomWeights = real
        if random is not None:
            weights = RandomWeights(report.model.removeprefix(PREFIX), random, real.source, root() / "weights")
            if not keep_weights:
                cleanup.callback(weights.remove)
        entries = []
        for side in sides:
            try:
                if side.missing is not None:
                    raise WeightsError(side.missing)
                entries.append(entry_of(side, weights.form(side.form, say), settings.room))
            except WeightsError as error:
                report.skipped[side.name] = str(error)
                say(f"{side.name} skipped: {error}")
        report.columns.extend(entry.column for entry in entries)
        try:
            weigh_starts(entries, settings, words, say)
            start_all([entry for entry in entries if entry.live], words, say)
            run_rounds(entries, settings, words, say)
        finally:
            for entry in entries:
                entry.server.stop()


def _show(console: Console, report: Report) -> int:
    code = show_sides(title(report), report, measures(report.settings.shapes))
    return INTERRUPTED if report.interrupted else code
