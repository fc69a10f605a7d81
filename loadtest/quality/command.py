"""Holds the quality of what is computed: perplexity of a fixed text beside transformers in float32.

    stentor bench quality                    # the demo model
    stentor bench quality --model FOLDER --cases served --limit 1.0

The text is read in windows as prompts, and part of it token by token, alone and in batches, since other kernels
run then. Exit code 1 where a perplexity differs by more than the limit.
"""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from stentor.engine.layers.weights import WeightError
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.worker.errors import SetupError

from ..record import Record
from ..tool import at_least, make_parser, run_tool, table
from ..worker_options import add_worker_options, describe, worker_config
from .check import Verdict, check, make_cases, make_works
from .corpus import corpus
from .reference import Reference, ReferenceError

CASES = ("served", "float32", "bfloat16")


class Quality(Record, frozen=True, kw_only=True, tag="quality"):
    worker: dict[str, Any]
    limit: float
    verdicts: list[Verdict]


def main(argv: list[str]) -> int:
    errors = (CheckpointError, ReferenceError, SetupError, WeightError)
    parser = make_parser("quality", "Compares the perplexity of a fixed text with that of transformers in float32.")
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
    add_worker_options(parser)
    return run_tool(parser, argv, _measure, _judge, *errors)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> Quality:
    """Loads both sides and compares them."""
    rows = max(arguments.decode, default=1)
    served = worker_config(arguments, max_num_seqs=max(arguments.max_num_seqs or 0, rows))
    checkpoint = open_checkpoint(Path(served.model), served.load_format)
    with Console(stderr=True).status("loading transformers") as status:
        reference = Reference(checkpoint)
        text = arguments.text.read_text(encoding="utf-8") if arguments.text else corpus()
        tokens = reference.tokenize(text)[: arguments.tokens]
        lengths = [min(length, checkpoint.decoder.max_position) for length in arguments.window]
        works = make_works(tokens, lengths, arguments.decode)
        with make_cases(checkpoint, reference, served, arguments.cases) as cases:
            verdicts = check(cases, works, reference, status.update)
    return Quality(worker=describe(served), limit=arguments.limit / 100, verdicts=verdicts, **about)


def _judge(console: Console, record: Quality) -> int:
    rows = []
    for verdict in record.verdicts:
        found = verdict.agreement
        perplexities = (f"{found.perplexity:.3f}", f"{found.reference_perplexity:.3f}")
        apart = f"{found.difference:+.3%} ± {found.error:.3%}"
        divergences = (f"{found.divergence_mean:.1e}", f"{found.divergence_p99:.1e}")
        ends = (f"{found.same_greedy:.1%}", *divergences, "ok" if found.within(record.limit) else "TOO FAR")
        rows.append([f"{verdict.case}, {verdict.work}", f"{found.positions:,}", *perplexities, apart, *ends])
    columns = ("case", "tokens", "ours", "reference", "apart", "same", "KL mean", "KL p99", "")
    title = f"perplexity beside transformers' in float32, at most {record.limit:.2%} apart"
    caption = "same: share of positions with the same likeliest token; KL: nats, at least"
    console.print(table(columns, rows, title=title, caption=caption))
    return 0 if all(verdict.agreement.within(record.limit) for verdict in record.verdicts) else 1
