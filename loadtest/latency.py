"""``stentor bench latency``: one batch of requests at a time through an engine, without a server.

    stentor bench latency --batch-size 8 --input 128 --output 128

All requests of a batch are sent at once. *Prefill* is the time until every one of them has its first token; the
gaps *per token* are those after that, when the batch does nothing but decode.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.table import Table

from .offline import Answer, run_command, running_engine
from .record import FORMAT, Spread, now_iso
from .serving.machine import describe_machine
from .serving.measure import spread
from .worker_options import add_worker_options, at_least, describe, worker_config

LEAST_SEQS = 128
"""Sequences that a worker runs at once on any device unless it is told otherwise."""


class Iteration(msgspec.Struct, frozen=True):
    """One batch, in seconds."""

    prefill_s: float
    gaps_s: list[float]
    """Between tokens, of every request, once all had their first."""
    total_s: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """What ``stentor bench latency`` saves. Every :class:`.record.Spread` is in milliseconds."""

    format: int = FORMAT
    kind: Literal["latency"] = "latency"
    started_at: str
    command: list[str] = []
    machine: dict[str, Any] = {}
    worker: dict[str, Any] = {}
    batch_size: int
    input: int
    output: int
    prefill: Spread
    per_token: Spread
    total: Spread
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    """Of the whole batch, in the median."""
    iterations: list[Iteration] = []


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("latency", _parser(), argv, measure, print_result)


async def measure(arguments: argparse.Namespace, given: list[str], console: Console) -> Latency:
    """Loads the model, warms up, and times every iteration."""
    started = now_iso()
    batch = arguments.batch_size
    config = worker_config(arguments)
    if not config.max_num_seqs and batch > LEAST_SEQS:
        config = worker_config(arguments, max_num_seqs=batch)
    iterations: list[Iteration] = []
    async with running_engine(config, console, config.seed) as engine:
        with console.status("warming up") as status:
            for number in range(-arguments.warmup, arguments.iterations):
                if number >= 0:
                    status.update(f"iteration {number + 1} of {arguments.iterations}")
                answers = await engine.run([(arguments.input, arguments.output)] * batch)
                if number >= 0:
                    iterations.append(read_iteration(answers))
    prefill = spread([each.prefill_s for each in iterations])
    per_token = spread([gap for each in iterations for gap in each.gaps_s])
    return Latency(
        started_at=started,
        command=["stentor", "bench", "latency", *given],
        machine=describe_machine(),
        worker=describe(config),
        batch_size=batch,
        input=arguments.input,
        output=arguments.output,
        prefill=prefill,
        per_token=per_token,
        total=spread([each.total_s for each in iterations]),
        prefill_tokens_per_s=1e3 * batch * arguments.input / prefill.p50,
        decode_tokens_per_s=1e3 * batch / per_token.p50 if per_token.count else 0.0,
        iterations=iterations,
    )


def read_iteration(answers: Sequence[Answer]) -> Iteration:
    """What one batch took."""
    sent = min(answer.sent for answer in answers)
    prefilled = max(answer.arrivals[0] for answer in answers)
    gaps = [
        late - early
        for answer in answers
        for early, late in zip(answer.arrivals, answer.arrivals[1:], strict=False)
        if early >= prefilled
    ]
    return Iteration(prefilled - sent, gaps, max(answer.ended for answer in answers) - sent)


def print_result(console: Console, result: Latency) -> None:
    table = Table(
        title=f"{result.batch_size} at once, {result.input} tokens in, {result.output} out; "
        f"{len(result.iterations)} iterations",
        caption=f"prefill {result.prefill_tokens_per_s:,.0f} tokens/s, decode {result.decode_tokens_per_s:,.0f} "
        "tokens/s, by the medians",
    )
    table.add_column("milliseconds")
    for column in ("mean", "p50", "p90", "p99", "max", "samples"):
        table.add_column(column, justify="right")
    for name, each in (
        ("prefill of the batch", result.prefill),
        ("per token after it", result.per_token),
        ("whole batch", result.total),
    ):
        figures = (f"{value:,.2f}" for value in (each.mean, each.p50, each.p90, each.p99, each.max))
        table.add_row(name, *figures, str(each.count))
    console.print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stentor bench latency",
        description="Latency of one batch at a time through an engine, without a server: prefill and time per token.",
    )
    parser.add_argument("--batch-size", type=at_least(1), default=1, metavar="N", help="requests sent at once (1)")
    parser.add_argument("--input", type=at_least(1), default=128, metavar="TOKENS", help="of each prompt (128)")
    parser.add_argument("--output", type=at_least(1), default=128, metavar="TOKENS", help="of each answer (128)")
    parser.add_argument("--warmup", type=at_least(0), default=2, metavar="N", help="batches that are not counted (2)")
    parser.add_argument("--iterations", type=at_least(1), default=10, metavar="N", help="batches that are (10)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the figures and every iteration here")
    add_worker_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
