"""``stentor bench throughput``: many requests at once through an engine, without a server.

    stentor bench throughput --requests 256 --input-tokens uniform:64:256 --output-tokens 128

Every request is sent at the start of a round, which lasts until the last one has ended; rates are over that time.
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from rich.console import Console

from stentor.engine.loading.errors import CheckpointError

from .offline import Answer, offline, running_engine
from .record import Record
from .serving.lengths import LENGTHS_HELP, Lengths, parse_lengths, whole
from .tool import add_flag, at_least, make_parser, run_tool, table
from .worker_options import add_worker_options, describe, worker_config

_WARMUP_REQUESTS = 4
_WARMUP_OUTPUT = 16


class Throughput(Record, frozen=True, kw_only=True):
    """What ``stentor bench throughput`` saves. Rates are medians over the rounds, a second."""

    kind: Literal["throughput"] = "throughput"
    worker: dict[str, Any]
    requests: int
    input: str
    """As it was asked for: a number of tokens, or their distribution."""
    output: str
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    seconds: list[float]
    """Of each round."""
    prompt_tokens: int
    """Of one round, as the next."""
    output_tokens: int


def main(argv: list[str]) -> int:
    parser = make_parser(
        "throughput",
        "Tokens a second of many requests sent at once through an engine, without a server.",
        older_save=(),
    )
    parser.add_argument("--requests", type=at_least(1), default=64, metavar="N", help="in each round (64)")
    help_in = f"tokens of a prompt: {LENGTHS_HELP} (128)"
    add_flag(parser, "--input-tokens", "--input", default="128", metavar="LENGTHS", help=help_in)
    help_out = "tokens of an answer, likewise (128)"
    add_flag(parser, "--output-tokens", "--output", default="128", metavar="LENGTHS", help=help_out)
    parser.add_argument("--rounds", type=at_least(1), default=3, metavar="N", help="of which the median is told (3)")
    add_worker_options(parser)
    return run_tool(parser, argv, offline(measure), print_result, CheckpointError)


async def measure(arguments: argparse.Namespace, about: dict[str, Any]) -> Throughput:
    """Loads the model, warms up, and times every round. All rounds have requests of the same lengths."""
    prompts, outputs = parse_lengths(arguments.input_tokens), parse_lengths(arguments.output_tokens)
    config = worker_config(arguments)
    lengths = draw_lengths(arguments.requests, prompts, outputs, config.seed)
    async with running_engine(config) as engine:
        await engine.run([(prompt, min(out, _WARMUP_OUTPUT)) for prompt, out in lengths[:_WARMUP_REQUESTS]])
        rounds = [await engine.run(lengths) for _ in range(arguments.rounds)]
    seconds = [seconds_of(answers) for answers in rounds]
    prompt_tokens = sum(prompt for prompt, _ in lengths)
    output_tokens = sum(answer.tokens for answer in rounds[-1])
    rate = statistics.median(1 / each for each in seconds)
    return Throughput(
        **about,
        worker=describe(config),
        requests=arguments.requests,
        input=arguments.input_tokens,
        output=arguments.output_tokens,
        prompt_tokens_per_s=rate * prompt_tokens,
        output_tokens_per_s=rate * output_tokens,
        total_tokens_per_s=rate * (prompt_tokens + output_tokens),
        requests_per_s=rate * arguments.requests,
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )


def draw_lengths(requests: int, prompts: Lengths, outputs: Lengths, seed: int) -> list[tuple[int, int]]:
    """(prompt, output) tokens of each request."""
    rng = np.random.default_rng(seed)
    return [(whole(prompts, rng), whole(outputs, rng)) for _ in range(requests)]


def seconds_of(answers: Sequence[Answer]) -> float:
    """From the first request that was sent to the last that ended."""
    return max(answer.ended for answer in answers) - min(answer.sent for answer in answers)


def print_result(console: Console, result: Throughput) -> None:
    rates = (result.prompt_tokens_per_s, result.output_tokens_per_s, result.total_tokens_per_s)
    seconds = f"{statistics.median(result.seconds):,.2f}"
    row = [seconds, *(f"{rate:,.0f}" for rate in rates), f"{result.requests_per_s:,.2f}"]
    columns = ("seconds", "prompt tokens/s", "output tokens/s", "total tokens/s", "requests/s")
    asked = f"{result.requests} requests, {result.input} tokens in, {result.output} out"
    console.print(table(columns, [row], left=0, title=f"{asked}; median of {len(result.seconds)} rounds"))
