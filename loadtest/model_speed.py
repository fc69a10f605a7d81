"""A model's steps, timed in one process and put beside what the machine and transformers can do.

    stentor bench model loadtest/configs/llama-3.1-8b --decode 1 --decode 256 --prefill 8192

Weights are made up (only ``config.json`` is needed). Decode runs so many streams for some steps after a short
prompt each; its limit is reading all weights once a step and every key and value. On CUDA the share of the time
in which no kernel ran is measured by torch's profiler. ``--peer`` runs transformers on the same shapes,
in this process and after ours: a static cache, compiled, scaled dot-product attention.
"""

import argparse
import gc
import random
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.model_config.decoder_config import DecoderConfig
from stentor.protocols.ipc.config import WorkerConfig

from .kernels.timing import Ceilings, machine, measure_ceilings
from .local_engine import LocalEngine, StepTime
from .record import Record
from .tool import make_parser, run_tool, table

PROMPT = 64
"""Tokens of each prompt before decode steps."""


@dataclass(frozen=True)
class Figure:
    """One shape. ``limit`` is what the ceilings allow: memory for decode, products for prefill."""

    work: str
    side: str
    tokens_per_second: float
    milliseconds: float
    limit_milliseconds: float
    share: float
    idle: float | None = None
    """Share of the device's time between the first and last kernel in which none ran."""


class ModelSpeed(Record, frozen=True, kw_only=True):
    """What ``stentor bench model`` saves."""

    kind: Literal["model speed"] = "model speed"
    ceilings: Ceilings
    figures: list[Figure]


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, print_figures)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> ModelSpeed:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceilings = measure_ceilings(device)
    figures = list(measure_ours(arguments, device, ceilings, Console()))
    if arguments.peer:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        from .peers.transformers_compiled import measure_transformers  # late: transformers takes seconds

        for work, batch, milliseconds in measure_transformers(
            arguments.model, device, arguments.decode, arguments.prefill, arguments.steps, PROMPT
        ):
            ours = next(figure for figure in figures if figure.work == work)
            figures.append(_figure(work, "transformers", batch, milliseconds, ours.limit_milliseconds))
    return ModelSpeed(ceilings=ceilings, figures=figures, **{**about, "machine": machine(device)})


def measure_ours(
    arguments: argparse.Namespace, device: torch.device, ceilings: Ceilings, console: Console
) -> Iterable[Figure]:
    """Loads once, then times each shape."""
    longest = max([PROMPT + arguments.steps, *arguments.prefill]) + 1
    config = WorkerConfig(
        model=str(arguments.model),
        load_format="dummy",
        device="cuda" if device.type == "cuda" else "cpu",
        dtype=arguments.dtype,
        max_model_len=longest,
        max_num_seqs=max([1, *arguments.decode]),
        max_num_batched_tokens=max([512, *arguments.prefill]),
        block_size=arguments.block_size,
        quantization=arguments.quantization,
        kv_cache_memory=arguments.kv_cache_memory,
        cuda_graph_sizes=tuple(arguments.decode),
        cuda_graphs=not arguments.no_graphs,
    )
    with console.status("loading"):
        engine = LocalEngine(config, lambda phase, done, total: None)
        engine.capture_all()
    for line in engine.ready.memory:
        console.print(f"{line.what}: {line.bytes / 2**30:.2f} GiB, {line.note}")
    weights = next(line.bytes for line in engine.ready.memory if line.what == "weights")
    model = open_checkpoint(arguments.model, "dummy").decoder
    for batch in arguments.decode:
        yield _decode(engine, model, batch, arguments.steps, weights, ceilings, device)
    for length in arguments.prefill:
        yield _prefill(engine, model, length, ceilings)


def _decode(
    engine: LocalEngine,
    model: DecoderConfig,
    batch: int,
    steps: int,
    weights: int,
    ceilings: Ceilings,
    device: torch.device,
) -> Figure:
    def go() -> list[StepTime]:
        for _ in range(batch):
            engine.submit(_prompt(model, PROMPT), steps)
        return [step for step in engine.run() if step.rows == step.tokens == batch]

    go()
    times = go()
    median = statistics.median(step.seconds for step in times)
    per_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * 2
    table = model.vocab_size * model.hidden_size * 2
    # the embedding table is not read, a few rows of it are
    read = weights - (0 if model.tie_embeddings else table) + batch * (PROMPT + steps / 2) * per_token
    idle = _idle_share(go) if device.type == "cuda" else None
    limit = 1e3 * read / ceilings.bytes_per_second
    return _figure(f"decode of {batch}", "stentor", batch, 1e3 * median, limit, idle)


def _prefill(engine: LocalEngine, model: DecoderConfig, length: int, ceilings: Ceilings) -> Figure:
    seconds = []
    for _ in range(4):
        engine.submit(_prompt(model, length), 1)
        seconds.append(sum(step.seconds for step in engine.run()))
    return _figure(
        f"prefill of {length}",
        "stentor",
        length,
        1e3 * statistics.median(seconds[1:]),
        1e3 * _prefill_flops(model, length) / ceilings.flops_per_second,
    )


def _prefill_flops(model: DecoderConfig, tokens: int) -> float:
    query, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    products = model.hidden_size * (2 * query + 2 * kv + 3 * model.intermediate_size)
    attention = 4 * query * (tokens + 1) / 2
    return tokens * model.num_layers * (2 * products + attention)


def _idle_share(go: Callable[[], object]) -> float:
    """Of the span from first to last kernel, what lies under none."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        go()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end) for event in profile.events() if event.device_type.name == "CUDA"
    )
    # the second half: prompts are done by then
    spans = spans[len(spans) // 2 :]
    idle, reached = 0.0, spans[0][0]
    for begin, end in spans:
        idle += max(0.0, begin - reached)
        reached = max(reached, end)
    return float(idle / (reached - spans[0][0]))


def _figure(work: str, side: str, tokens: int, milliseconds: float, limit: float, idle: float | None = None) -> Figure:
    return Figure(work, side, 1e3 * tokens / milliseconds, milliseconds, limit, limit / milliseconds, idle)


def _prompt(model: DecoderConfig, length: int) -> list[int]:
    return random.choices(range(model.vocab_size), k=length)


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
        ]
        for each in record.figures
    ]
    columns = ("work", "side", "tokens/s", "ms a step", "limit ms", "share of limit", "idle")
    console.print(table(columns, rows, left=2))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("model", "Times a model's steps in one process.")
    parser.add_argument("model", type=Path, help="a folder with config.json")
    parser.add_argument("--decode", type=int, action="append", default=[], metavar="STREAMS")
    parser.add_argument("--prefill", type=int, action="append", default=[], metavar="TOKENS")
    parser.add_argument("--steps", type=int, default=128, help="decode steps of each stream")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--quantization", default="none", choices=("none", "fp8", "int8"))
    parser.add_argument("--kv-cache-memory", type=int, help="bytes; otherwise what is left")
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--peer", action="store_true", help="transformers too, in the same run")
    return parser
