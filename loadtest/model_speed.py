"""A model's steps, timed in one process and put beside what the machine and transformers can do.

    stentor bench model loadtest/configs/llama-3.1-8b --decode 1 --decode 256 --prefill 8192

Weights are made up (only ``config.json`` is needed). Decode runs so many streams for some steps after a short
context each; its limit is reading all weights once a step and every key and value, or the products of many streams.
On CUDA the share of the time in which no kernel ran is measured by torch's profiler. ``--peer`` runs transformers on
the same shapes, in this process and after ours: a static cache, compiled, scaled dot-product attention.
"""

import argparse
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.worker.setup.setup import set_up
from stentor.kernels.tuning.timing import Ceilings, Timing, machine, measure_ceilings

from .gpu.rows import append
from .record import Record
from .step_runs import StepRunner, decode_bytes, decode_length, mixed_length, mixed_steps
from .tool import make_parser, run_tool, table
from .worker_options import add_worker_options, worker_config

PROMPT = 64
"""Tokens before decode steps."""
_PREFILLS = 3
_PROFILED = 8
"""Steps that the profiler looks at."""
_KERNELS, _NAME = 12, 60
"""How many kernels are named, and in how many characters."""


@dataclass(frozen=True)
class Figure:
    """One shape. ``limit`` is what the ceilings allow: memory or products for decode, products for prefill."""

    work: str
    side: str
    tokens_per_second: float
    milliseconds: float
    limit_milliseconds: float
    share: float
    idle: float | None = None
    """Share of the device's time between the first and last kernel in which none ran."""
    host_milliseconds: float | None = None
    """What queueing the step takes the worker's thread; None for a peer."""
    kernels: dict[str, float] = field(default_factory=dict)
    """Shares of that time, of those that take most."""


class ModelSpeed(Record, frozen=True, kw_only=True, tag="model speed"):
    ceilings: Ceilings
    figures: list[Figure]


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, print_figures)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> ModelSpeed:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceilings = measure_ceilings(device)
    if arguments.rows is not None:
        append(arguments.rows, {"ceilings": asdict(ceilings)})
    figures = []
    for figure in measure_ours(arguments, device, ceilings):
        figures.append(figure)
        if arguments.rows is not None:
            append(arguments.rows, asdict(figure))
    if arguments.peer:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        from .peers.transformers_compiled import measure_transformers  # late: transformers takes seconds

        for work, batch, milliseconds in measure_transformers(
            arguments.model, device, arguments.decode, arguments.prefill, arguments.steps, PROMPT
        ):
            ours = next(figure for figure in figures if figure.work == work)
            limit = ours.limit_milliseconds
            speed, share = 1e3 * batch / milliseconds, limit / milliseconds
            figures.append(Figure(work, "transformers", speed, milliseconds, limit, share))
            if arguments.rows is not None:
                append(arguments.rows, asdict(figures[-1]))
    return ModelSpeed(ceilings=ceilings, figures=figures, **{**about, "machine": machine(device)})


def measure_ours(arguments: argparse.Namespace, device: torch.device, ceilings: Ceilings) -> Iterable[Figure]:
    """Loads once, then times each shape."""
    model = open_checkpoint(arguments.model, "dummy").decoder
    length = decode_length(PROMPT, arguments.steps)
    rows = max([1, *arguments.decode, *(batch + 1 for batch, _ in arguments.mixed)])
    prompts = [mixed_length(tokens) for _, tokens in arguments.mixed]
    config = worker_config(
        arguments,
        device="cuda" if device.type == "cuda" else "cpu",
        max_model_len=max([length, *arguments.prefill, *prompts]) + 1,
        max_num_seqs=rows,
        max_num_batched_tokens=max([512, *arguments.prefill, *map(sum, arguments.mixed)]),
        cuda_graph_sizes=tuple(arguments.decode),
        cuda_graphs=not arguments.no_graphs,
    )
    began = time.perf_counter()
    setup = set_up(config, partial(_tell, began))
    print(f"ready after {time.perf_counter() - began:.1f} s")
    for line in setup.ready.memory:
        print(f"{line.what}: {line.bytes / 2**30:.2f} GiB, {line.note}")
    runner = StepRunner(setup, model, rows * (length + arguments.block_size) + max([0, *prompts]), seed=0)
    began = time.perf_counter()
    runner.capture_all()
    print(f"graphs captured in {time.perf_counter() - began:.1f} s")
    runner.fill()
    side = "stentor, batch-invariant" if config.batch_invariant else "stentor"
    for batch in arguments.decode:
        context = PROMPT + arguments.steps / 2
        reading = decode_bytes(setup.ready, model, batch, context) / ceilings.bytes_per_second
        products = batch * model.flops(1, round(context), sampled=1) / ceilings.flops_per_second
        go = partial(runner.decode, batch, PROMPT)
        yield _timed(f"decode of {batch}", batch, max(reading, products), device, go, arguments.steps, side)
    for batch, tokens in arguments.mixed:
        steps = mixed_steps(tokens)
        reading = decode_bytes(setup.ready, model, batch, PROMPT + steps / 2) / ceilings.bytes_per_second
        products = model.flops(batch + tokens, tokens * steps // 2, sampled=batch) / ceilings.flops_per_second
        work, go = f"decode of {batch} with {tokens} of a prompt", partial(runner.mixed, batch, PROMPT, tokens)
        yield _timed(work, batch + tokens, max(reading, products), device, go, steps, side)
    for tokens in arguments.prefill:
        limit = model.flops(tokens, 0, sampled=1) / ceilings.flops_per_second
        go = partial(runner.prefill, tokens, 0)
        yield _timed(f"prefill of {tokens}", tokens, limit, device, go, _PREFILLS, side)


def _tell(began: float, phase: str, done: int, total: int) -> None:
    """Says when each phase of starting begins and ends."""
    if done in (0, total):
        print(f"{time.perf_counter() - began:6.1f} s  {phase}{'' if done == 0 else ': done'}", flush=True)


def _timed(
    work: str, tokens: int, limit: float, device: torch.device, go: Callable[[int], Timing], steps: int, side: str
) -> Figure:
    taken = go(steps)
    figure = Figure(
        work=work,
        side=side,
        tokens_per_second=tokens / taken.median,
        milliseconds=1e3 * taken.median,
        limit_milliseconds=1e3 * limit,
        share=limit / taken.median,
        host_milliseconds=1e3 * taken.host,
    )
    if device.type != "cuda":
        return figure
    idle, kernels = _profiled(partial(go, min(steps, _PROFILED)))
    return replace(figure, idle=idle, kernels=kernels)


def _profiled(go: Callable[[], object]) -> tuple[float, dict[str, float]]:
    """Of the span from first to last kernel the share that lies under none, and the shares of the kernels that take
    most. The second half counts: all rows have entered by then."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        go()
        torch.cuda.synchronize()
    assert profile.profiler is not None
    found = profile.profiler.kineto_results.events()  # profile.events() would make an object of each, for seconds
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
        for event in found
        if event.device_type().name == "CUDA"
    )
    spans = spans[len(spans) // 2 :]
    idle, reached = 0.0, spans[0][0]
    taken: Counter[str] = Counter()
    for begin, end, name in spans:
        idle += max(0.0, begin - reached)
        reached = max(reached, end)
        taken[name[:_NAME]] += end - begin
    whole = reached - spans[0][0]
    return idle / whole, {name: round(each / whole, 4) for name, each in taken.most_common(_KERNELS)}


def print_figures(console: Console, record: ModelSpeed) -> None:
    rows = [
        [
            each.work,
            each.side,
            f"{each.tokens_per_second:,.0f}",
            f"{each.milliseconds:.2f}",
            f"{each.limit_milliseconds:.2f}",
            f"{each.share:.0%}",
            "" if each.idle is None else f"{each.idle:.1%}",
            "" if each.host_milliseconds is None else f"{each.host_milliseconds:.2f}",
        ]
        for each in record.figures
    ]
    columns = ("work", "side", "tokens/s", "ms a step", "limit ms", "share of limit", "idle", "host ms")
    console.print(table(columns, rows, left=2))


def _mixed(text: str) -> tuple[int, int]:
    streams, _, tokens = text.partition(":")
    if not (streams.isdecimal() and tokens.isdecimal() and int(streams) and int(tokens)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected STREAMS:TOKENS, such as 64:512")
    return int(streams), int(tokens)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("model", "Times a model's steps in one process.")
    parser.add_argument("model", type=Path, help="a folder with config.json")
    parser.add_argument("--decode", type=int, action="append", default=[], metavar="STREAMS")
    parser.add_argument("--prefill", type=int, action="append", default=[], metavar="TOKENS")
    parser.add_argument(
        "--mixed", type=_mixed, action="append", default=[], metavar="STREAMS:TOKENS", help="and so many of a prompt"
    )
    parser.add_argument("--steps", type=int, default=128, help="decode steps of each stream")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="add each figure here, as a line of JSON, at once")
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--peer", action="store_true", help="transformers too, in the same run")
    add_worker_options(parser, without=("model", "device", "max-model-len", "max-num-seqs", "max-num-batched-tokens"))
    parser.set_defaults(load_format="dummy", dtype="bfloat16", quantization="none", block_size=64)
    return parser
