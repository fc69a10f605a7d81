"""``stentor bench throughput``: many requests at once through an engine, without a server.

    stentor bench throughput --requests 256 --input-tokens uniform:64:256 --output-tokens 128

Every request is sent at the start of a round, which lasts until the last one has ended; rates are over that time.
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
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


class Round(msgspec.Struct, frozen=True):
    """All requests once."""

    seconds: float
    prompt_tokens: int
    output_tokens: int


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
    rounds: list[Round]


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, offline(measure), print_result, CheckpointError)


async def measure(arguments: argparse.Namespace, about: dict[str, Any]) -> Throughput:
    """Loads the model, warms up, and times every round. All rounds have requests of the same lengths."""
    prompts, outputs = parse_lengths(arguments.input_tokens), parse_lengths(arguments.output_tokens)
    config = worker_config(arguments)
    lengths = draw_lengths(arguments.requests, prompts, outputs, config.seed)
    async with running_engine(config) as engine:
        await engine.run([(prompt, min(out, _WARMUP_OUTPUT)) for prompt, out in lengths[:_WARMUP_REQUESTS]])
        rounds = [read_round(lengths, await engine.run(lengths)) for _ in range(arguments.rounds)]

    def rate(counts: Sequence[int]) -> float:
        return statistics.median(count / each.seconds for count, each in zip(counts, rounds, strict=True))

    return Throughput(
        **about,
        worker=describe(config),
        requests=arguments.requests,
        input=arguments.input_tokens,
        output=arguments.output_tokens,
        prompt_tokens_per_s=rate([each.prompt_tokens for each in rounds]),
        output_tokens_per_s=rate([each.output_tokens for each in rounds]),
        total_tokens_per_s=rate([each.prompt_tokens + each.output_tokens for each in rounds]),
        requests_per_s=rate([arguments.requests] * len(rounds)),
        rounds=rounds,
    )


def draw_lengths(requests: int, prompts: Lengths, outputs: Lengths, seed: int) -> list[tuple[int, int]]:
    """(prompt, output) tokens of each request."""
    rng = np.random.default_rng(seed)
    return [(whole(prompts, rng), whole(outputs, rng)) for _ in range(requests)]


def read_round(lengths: Sequence[tuple[int, int]], answers: Sequence[Answer]) -> Round:
    """What a round came to, from the first request that was sent to the last that ended."""
    seconds = max(answer.ended for answer in answers) - min(answer.sent for answer in answers)
    return Round(seconds, sum(prompt for prompt, _ in lengths), sum(answer.tokens for answer in answers))


def print_result(console: Console, result: Throughput) -> None:
    row = [
        f"{statistics.median(each.seconds for each in result.rounds):,.2f}",
        f"{result.prompt_tokens_per_s:,.0f}",
        f"{result.output_tokens_per_s:,.0f}",
        f"{result.total_tokens_per_s:,.0f}",
        f"{result.requests_per_s:,.2f}",
    ]
    columns = ("seconds", "prompt tokens/s", "output tokens/s", "total tokens/s", "requests/s")
    asked = f"{result.requests} requests, {result.input} tokens in, {result.output} out"
    console.print(table(columns, [row], left=0, title=f"{asked}; median of {len(result.rounds)} rounds"))


def _parser() -> argparse.ArgumentParser:
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
    return parser
