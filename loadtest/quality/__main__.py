"""Holds the quality of what is computed: perplexity of a fixed text beside transformers in float32.

    python -P -m stentor.loadtest.quality                    # the demo model
    python -P -m stentor.loadtest.quality --model FOLDER --cases served --limit 1.0

The text is read in windows as prompts, and part of it token by token, alone and in batches, since other kernels
run then. Exit code 1 where a perplexity differs by more than the limit.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from stentor.engine.layers.weights import WeightError
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.worker.errors import SetupError
from stentor.protocols.ipc.config import WorkerConfig

from ..offline import wide_console
from ..record import now_iso
from ..serving.machine import describe_machine
from ..worker_options import add_worker_options, at_least, describe, worker_config
from .check import Verdict, check, make_cases, make_works
from .corpus import corpus
from .reference import Reference, ReferenceError

CASES = ("served", "float32", "bfloat16")


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = _parser().parse_args(given)
    started = now_iso()
    rows = max(arguments.decode, default=1)
    try:
        served = worker_config(arguments, max_num_seqs=max(arguments.max_num_seqs or 0, rows))
        verdicts = run(served, arguments, Console(stderr=True))
    except (CheckpointError, ReferenceError, SetupError, WeightError) as error:
        print(f"quality: {error}", file=sys.stderr)
        return 2
    limit = arguments.limit / 100
    print_verdicts(wide_console(), verdicts, limit)
    if arguments.json:
        content = {
            "kind": "quality",
            "started_at": started,
            "command": ["python", "-P", "-m", "stentor.loadtest.quality", *given],
            "machine": describe_machine(),
            "worker": describe(served),
            "limit": limit,
            "verdicts": [asdict(verdict) for verdict in verdicts],
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    return 0 if all(verdict.agreement.within(limit) for verdict in verdicts) else 1


def run(served: WorkerConfig, arguments: argparse.Namespace, console: Console) -> list[Verdict]:
    """Loads both sides and compares them."""
    checkpoint = open_checkpoint(Path(served.model), served.load_format)
    with console.status("loading transformers") as status:
        reference = Reference(checkpoint)
        text = arguments.text.read_text(encoding="utf-8") if arguments.text else corpus()
        tokens = reference.tokenize(text)[: arguments.tokens]
        lengths = [min(length, checkpoint.decoder.max_position) for length in arguments.window]
        works = make_works(tokens, lengths, arguments.decode)
        with make_cases(checkpoint, reference, served, arguments.cases) as cases:
            return check(cases, works, reference, status.update)


def print_verdicts(console: Console, verdicts: Sequence[Verdict], limit: float) -> None:
    table = Table(
        title=f"perplexity beside transformers' in float32, at most {limit:.2%} apart",
        caption="same: share of positions with the same likeliest token; KL: nats, at least",
    )
    table.add_column("case")
    for title in ("tokens", "ours", "reference", "apart", "same", "KL mean", "KL p99", ""):
        table.add_column(title, justify="right")
    for verdict in verdicts:
        found = verdict.agreement
        table.add_row(
            f"{verdict.case}, {verdict.work}",
            f"{found.positions:,}",
            f"{found.perplexity:.3f}",
            f"{found.reference_perplexity:.3f}",
            f"{found.difference:+.3%} ± {found.error:.3%}",
            f"{found.same_greedy:.1%}",
            f"{found.divergence_mean:.1e}",
            f"{found.divergence_p99:.1e}",
            "ok" if found.within(limit) else "TOO FAR",
        )
    console.print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="quality", description="Compares the perplexity of a fixed text with that of transformers in float32."
    )
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=CASES,
        default=list(CASES),
        help="served: as `stentor serve` with the options below; the others: plain weights in that type (all)",
    )
    parser.add_argument(
        "--window", type=at_least(2), nargs="+", default=[512, 2048], metavar="TOKENS", help="of prompts (512 2048)"
    )
    parser.add_argument(
        "--decode", type=at_least(1), nargs="*", default=[1, 8, 32], metavar="ROWS", help="batch sizes (1 8 32)"
    )
    parser.add_argument("--tokens", type=at_least(256), metavar="N", help="read only the first of the text")
    parser.add_argument("--text", type=Path, metavar="FILE", help="another text, in UTF-8")
    parser.add_argument("--limit", type=float, default=0.5, metavar="PERCENT", help="of difference (0.5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    add_worker_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
