"""``stentor bench latency`` and ``throughput``: an engine and its worker without a server.

    stentor bench latency --batch-size 8 --input-tokens 128 --output-tokens 128
    stentor bench throughput --requests 256 --input-tokens uniform:64:256 --output-tokens 128

The processes and channels are those of ``stentor serve``; HTTP, tokenizer and text are left out. All requests of a
batch, or of a round, are sent at once. Of a batch, *prefill* is the time until every request has its first token; the
gaps *per token* are those after that, when the batch does nothing but decode. A round lasts until its last request has
ended; rates are over that time.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
from rich.console import Console

from stentor.engine.client.client import EngineClient
from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.client.request import EngineRequest
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.processes.exception_groups import first_cause
from stentor.protocols.ipc.actors import Finished, Progress, SequenceTokens
from stentor.protocols.ipc.config import EngineConfig, RecoveryConfig, SchedulerConfig, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams

from .client import Answer, seconds_of
from .record import Record, Spread
from .serving.lengths import LENGTHS_HELP, Lengths, parse_lengths, whole
from .serving.measure import spread
from .tool import ToolError, add_flag, at_least, make_parser, run_tool, table
from .worker_options import add_worker_options, describe, worker_config

LEAST_SEQS = 128
"""Sequences that a worker runs at once on any device unless it is told otherwise."""
_WARMUP_REQUESTS = 4
_WARMUP_OUTPUT = 16

Round = Sequence[tuple[int, int]]
"""(prompt, output) tokens of each request."""


async def _ask(client: EngineClient, prompt: list[int], output: int) -> Answer:
    sent, arrivals, tokens = time.perf_counter(), list[float](), 0
    try:
        stream = client.submit(EngineRequest(prompt, SamplingParams(max_tokens=output, temperature=0.0), [0]))
    except EngineUnavailable as error:
        raise ToolError(f"the engine takes no more requests: {error}") from error
    async for events in stream:
        now = time.perf_counter()
        for event in events:
            if isinstance(event, SequenceTokens):
                arrivals.append(now)
                tokens += len(event.tokens)
            elif isinstance(event, Finished) and event.reason != "length":
                raise ToolError(f"a request of {len(prompt)} tokens ended with {event.reason}: {event.message}")
    return Answer(sent, arrivals, len(prompt), tokens)


async def _run_rounds(config: WorkerConfig, vocab_size: int, rounds: Sequence[Round]) -> list[list[Answer]]:
    draw, found = random.Random(config.seed), list[list[Answer]]()
    once = RecoveryConfig(max_engine_deaths=1, max_worker_deaths=1)  # what was recovered from is no measurement
    with Console(stderr=True).status("starting the engine") as status:

        def show(progress: Progress) -> None:
            status.update(f"{progress.phase} {progress.done / max(progress.total, 1):.0%}")

        client = EngineClient(EngineConfig(config, SchedulerConfig(prefix_cache=False), once), show)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run)
            try:
                await client.wait_started()
                status.stop()
                for lengths in rounds:
                    prompts = [[draw.randrange(vocab_size) for _ in range(prompt)] for prompt, _ in lengths]
                    asked = [_ask(client, prompt, output) for prompt, (_, output) in zip(prompts, lengths, strict=True)]
                    found.append(await asyncio.gather(*asked))
            except EngineUnavailable as error:
                raise ToolError(str(error)) from error
            finally:
                tasks.cancel_scope.cancel()
    return found


def run_rounds(config: WorkerConfig, rounds: Sequence[Round]) -> list[list[Answer]]:
    """Starts an engine, and sends it greedy requests of random tokens, those of each round all at once.

    Raises :class:`ToolError` where it cannot start or ends, or a request is refused or ends before its length, and
    :class:`stentor.engine.loading.errors.CheckpointError` for a model that cannot be used.
    """
    vocab_size = open_checkpoint(Path(config.model), config.load_format).config.vocab_size
    failure: BaseException
    try:
        return anyio.run(_run_rounds, config, vocab_size, rounds, backend_options={"use_uvloop": True})
    except* Exception as group:
        failure = first_cause(group)
    raise failure


class Iteration(msgspec.Struct, frozen=True):
    """One batch, in seconds."""

    prefill_s: float
    gaps_s: list[float]
    """Between tokens, of every request, once all had their first."""
    total_s: float


class Latency(Record, frozen=True, kw_only=True, tag="latency"):
    """What ``stentor bench latency`` saves. Every :class:`.record.Spread` is in milliseconds."""

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


def latency(argv: list[str]) -> int:
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
    return run_tool(parser, argv, measure_latency, print_latency, CheckpointError)


def measure_latency(arguments: argparse.Namespace, about: dict[str, Any]) -> Latency:
    """Loads the model, warms up, and times every iteration."""
    batch = arguments.batch_size
    config = worker_config(arguments)
    if not config.max_num_seqs and batch > LEAST_SEQS:
        config = worker_config(arguments, max_num_seqs=batch)
    lengths = [(arguments.input_tokens, arguments.output_tokens)] * batch
    answers = run_rounds(config, [lengths] * (arguments.warmup + arguments.iterations))
    found = [read_iteration(each) for each in answers[arguments.warmup :]]
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
    began = min(answer.began for answer in answers)
    prefilled = max(answer.arrivals[0] for answer in answers)
    pairs = [pair for answer in answers for pair in pairwise(answer.arrivals)]
    gaps = [late - early for early, late in pairs if early >= prefilled]
    return Iteration(prefilled - began, gaps, max(answer.ended for answer in answers) - began)


def print_latency(console: Console, result: Latency) -> None:
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


class Throughput(Record, frozen=True, kw_only=True, tag="throughput"):
    """What ``stentor bench throughput`` saves. Rates are medians over the rounds, a second."""

    worker: dict[str, Any]
    requests: int
    input: str
    """The requested number of tokens, or their distribution."""
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


def throughput(argv: list[str]) -> int:
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
    return run_tool(parser, argv, measure_throughput, print_throughput, CheckpointError)


def measure_throughput(arguments: argparse.Namespace, about: dict[str, Any]) -> Throughput:
    """Loads the model, warms up, and times every round. All rounds have requests of the same lengths."""
    prompts, outputs = parse_lengths(arguments.input_tokens), parse_lengths(arguments.output_tokens)
    config = worker_config(arguments)
    lengths = draw_lengths(arguments.requests, prompts, outputs, config.seed)
    warmup = [(prompt, min(out, _WARMUP_OUTPUT)) for prompt, out in lengths[:_WARMUP_REQUESTS]]
    _, *rounds = run_rounds(config, [warmup, *[lengths] * arguments.rounds])
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


def print_throughput(console: Console, result: Throughput) -> None:
    rates = (result.prompt_tokens_per_s, result.output_tokens_per_s, result.total_tokens_per_s)
    seconds = f"{statistics.median(result.seconds):,.2f}"
    row = [seconds, *(f"{rate:,.0f}" for rate in rates), f"{result.requests_per_s:,.2f}"]
    columns = ("seconds", "prompt tokens/s", "output tokens/s", "total tokens/s", "requests/s")
    asked = f"{result.requests} requests, {result.input} tokens in, {result.output} out"
    console.print(table(columns, [row], left=0, title=f"{asked}; median of {len(result.seconds)} rounds"))
