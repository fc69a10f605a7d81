"""``stentor bench latency``: one batch of requests at a time through an engine, without a server.

    stentor bench latency --batch-size 8 --input-tokens 128 --output-tokens 128

All requests of a batch are sent at once. *Prefill* is the time until every one of them has its first token; the
gaps *per token* are those after that, when the batch does nothing but decode.
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
from rich.console import Console

from stentor.engine.loading.errors import CheckpointError

from .offline import Answer, offline, running_engine
from .record import Record, Spread
from .serving.measure import spread
from .tool import add_flag, at_least, make_parser, run_tool, table
from .worker_options import add_worker_options, describe, worker_config

LEAST_SEQS = 128
"""Sequences that a worker runs at once on any device unless it is told otherwise."""


class Iteration(msgspec.Struct, frozen=True):
    """One batch, in seconds."""

    prefill_s: float
    gaps_s: list[float]
    """Between tokens, of every request, once all had their first."""
    total_s: float


class Latency(Record, frozen=True, kw_only=True):
    """What ``stentor bench latency`` saves. Every :class:`.record.Spread` is in milliseconds."""

    kind: Literal["latency"] = "latency"
    worker: dict[str, Any]
    batch_size: int
    input: int
    output: int
    prefill: Spread
    per_token: Spread
    total: Spread
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    """Of the whole batch, in the median."""
    iterations: list[Iteration]


def main(argv: list[str]) -> int:
    parser = make_parser(
        "latency",
        "Latency of one batch at a time through an engine, without a server: prefill and time per token.",
        older_save=(),
    )
    number = at_least(1)
    parser.add_argument("--batch-size", type=number, default=1, metavar="N", help="requests sent at once (1)")
    add_flag(parser, "--input-tokens", "--input", type=number, default=128, metavar="N", help="of each prompt (128)")
    add_flag(parser, "--output-tokens", "--output", type=number, default=128, metavar="N", help="of each answer (128)")
    parser.add_argument("--warmup", type=at_least(0), default=2, metavar="N", help="batches that are not counted (2)")
    parser.add_argument("--iterations", type=number, default=10, metavar="N", help="batches that are (10)")
    add_worker_options(parser)
    return run_tool(parser, argv, offline(measure), print_result, CheckpointError)


async def measure(arguments: argparse.Namespace, about: dict[str, Any]) -> Latency:
    """Loads the model, warms up, and times every iteration."""
    batch, lengths = arguments.batch_size, (arguments.input_tokens, arguments.output_tokens)
    config = worker_config(arguments)
    if not config.max_num_seqs and batch > LEAST_SEQS:
        config = worker_config(arguments, max_num_seqs=batch)
    async with running_engine(config) as engine:
        for _ in range(arguments.warmup):
            await engine.run([lengths] * batch)
        found = [read_iteration(await engine.run([lengths] * batch)) for _ in range(arguments.iterations)]
    prefill = spread([each.prefill_s for each in found])
    per_token = spread([gap for each in found for gap in each.gaps_s])
    return Latency(
        **about,
        worker=describe(config),
        batch_size=batch,
        input=arguments.input_tokens,
        output=arguments.output_tokens,
        prefill=prefill,
        per_token=per_token,
        total=spread([each.total_s for each in found]),
        prefill_tokens_per_s=1e3 * batch * arguments.input_tokens / prefill.p50,
        decode_tokens_per_s=1e3 * batch / per_token.p50 if per_token.count else 0.0,
        iterations=found,
    )


def read_iteration(answers: Sequence[Answer]) -> Iteration:
    """What one batch took."""
    sent = min(answer.sent for answer in answers)
    prefilled = max(answer.arrivals[0] for answer in answers)
    pairs = [pair for answer in answers for pair in pairwise(answer.arrivals)]
    gaps = [late - early for early, late in pairs if early >= prefilled]
    return Iteration(prefilled - sent, gaps, max(answer.ended for answer in answers) - sent)


def print_result(console: Console, result: Latency) -> None:
    spreads = {
        "prefill of the batch": result.prefill,
        "per token after it": result.per_token,
        "whole batch": result.total,
    }
    rows = [
        [name, *(f"{value:,.2f}" for value in (each.mean, each.p50, each.p90, each.p99, each.max)), str(each.count)]
        for name, each in spreads.items()
    ]
    asked = f"{result.batch_size} at once, {result.input} tokens in, {result.output} out"
    rates = f"prefill {result.prefill_tokens_per_s:,.0f} tokens/s, decode {result.decode_tokens_per_s:,.0f} tokens/s"
    columns = ("milliseconds", "mean", "p50", "p90", "p99", "max", "samples")
    console.print(
        table(columns, rows, title=f"{asked}; {len(result.iterations)} iterations", caption=f"{rates}, by the medians")
    )
