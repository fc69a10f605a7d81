"""Times every operation on the shapes of a model.

    stentor bench kernels 64q1kv4k q8k --model loadtest/configs/llama-3.1-8b

A batch is written as ``8q1kv4k`` (see :mod:`.spec`). Without a GPU the CPU's kernels are timed.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.kernels.tuning.timing import Call, Ceilings, machine, measure_ceilings, rotated, time_call

from ..gpu.rows import append
from ..record import Record
from ..series import CONFIGS
from ..tool import UsageError, make_parser, run_tool, table
from .cases import FP8, INT8, OPERATIONS, Maker, Setting
from .spec import BatchSpec, parse_spec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_BATCHES = ("q1kv4k", "64q1kv4k", "256q1kv1k", "q2k", "q8k", "64q1kv4k_q512kv8k")


@dataclass(frozen=True)
class Result:
    """One operation on one batch. ``share``: of the ceiling that binds it, 1 being all of it."""

    operation: str
    batch: str
    shape: str
    dtype: str
    variant: str
    settings: str
    microseconds: float
    low: float
    high: float
    calls: int
    host_microseconds: float
    """What one call takes the thread that makes it; on a CPU that is the call."""
    gigabytes: float
    gigaflops: float
    share: float
    bound: str


class Kernels(Record, frozen=True, kw_only=True, tag="kernels"):
    model: str
    ceilings: Ceilings
    results: list[Result]


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, print_results)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> Kernels:
    device = torch.device(arguments.device)
    try:
        specs = [parse_spec(text) for text in arguments.batches or DEFAULT_BATCHES]
        model = model_spec_from_hf(read_json(arguments.model / "config.json"))
    except (ConfigError, CheckpointError) as error:
        raise UsageError(str(error)) from None
    dtype = DTYPES[arguments.dtype]
    kv_dtype = {"fp8": FP8, "int8": INT8}.get(arguments.kv_dtype, dtype)
    on = Setting(model, device, dtype, kv_dtype, arguments.block_size, arguments.variant)
    ceilings = measure_ceilings(device)
    results = []
    for result in run(specs, arguments.operation or list(OPERATIONS), on, ceilings, arguments.seconds):
        results.append(result)
        if arguments.rows is not None:
            append(arguments.rows, asdict(result))
    about["machine"] = machine(device)
    return Kernels(model=model.architecture, ceilings=ceilings, results=results, **about)


def run(
    specs: Sequence[BatchSpec], operations: Sequence[str], on: Setting, ceilings: Ceilings, seconds: float
) -> Iterator[Result]:
    """Times each operation on each batch; one that cannot run says why and is passed over."""
    for operation in operations:
        for spec in specs:
            try:
                yield from _time(operation, spec, on, ceilings, seconds)
            except (ValueError, NotImplementedError, torch.OutOfMemoryError, RuntimeError) as error:
                why = " ".join(str(error).split())[:200]
                print(f"{operation} {spec.text}: not timed: {why}", file=sys.stderr, flush=True)
            if on.device.type == "cuda":
                torch.cuda.empty_cache()


def _time(operation: str, spec: BatchSpec, on: Setting, ceilings: Ceilings, seconds: float) -> Iterator[Result]:
    """Puts the time of each case beside what its bytes and operations would take at the ceilings."""
    make = OPERATIONS[operation]
    with torch.inference_mode():
        for number, case in enumerate(make(spec, on)):
            calls = rotated(partial(_call, make, spec, on, number), on.device)
            timing = time_call(calls, on.device, seconds=seconds)
            by_bytes = case.bytes / ceilings.bytes_per_second
            by_flops = case.flops / ceilings.flops_per_second
            yield Result(
                operation=operation,
                batch=spec.text,
                shape=case.shape,
                dtype=str(on.dtype).removeprefix("torch."),
                variant=case.variant,
                settings=case.settings,
                microseconds=1e6 * timing.median,
                low=1e6 * timing.low,
                high=1e6 * timing.high,
                calls=timing.calls,
                host_microseconds=1e6 * timing.host,
                gigabytes=case.bytes / 1e9,
                gigaflops=case.flops / 1e9,
                share=max(by_bytes, by_flops) / timing.median,
                bound="memory" if by_bytes >= by_flops else "arithmetic",
            )


def _call(make: Maker, spec: BatchSpec, on: Setting, number: int) -> Call:
    """That of a case, on operands of its own."""
    return next(islice(make(spec, on), number, None)).run


def print_results(console: Console, record: Kernels) -> None:
    ceilings = record.ceilings
    rows = [
        [
            *(r.operation, r.batch, r.shape, r.variant, r.settings),
            f"{r.microseconds:,.1f}",
            f"{r.low:,.1f} to {r.high:,.1f}",
            f"{r.host_microseconds:,.1f}",
            f"{1e6 * r.gigabytes / r.microseconds:,.0f}",
            f"{1e3 * r.gigaflops / r.microseconds:,.2f}",
            f"{r.share:.0%}",
            r.bound,
        ]
        for r in record.results
    ]
    words = ("operation", "batch", "shape", "variant", "settings")
    numbers = ("µs", "middle half", "host µs", "GB/s", "TFLOP/s", "share", "bound")
    caption = (
        f"share of {ceilings.bytes_per_second / 1e9:,.0f} GB/s copied and "
        f"{ceilings.flops_per_second / 1e12:,.2f} TFLOP/s of bfloat16 products, both measured in this run"
    )
    console.print(table([*words, *numbers], rows, left=len(words), caption=caption))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("kernels", "Times single operations.")
    parser.add_argument("batches", nargs="*", metavar="BATCH", help=f"such as 8q1kv4k ({' '.join(DEFAULT_BATCHES)})")
    parser.add_argument("--operation", action="append", choices=OPERATIONS, help="may be repeated; otherwise all")
    parser.add_argument("--model", type=Path, default=CONFIGS / "llama-3.1-8b", help="a folder with config.json")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--kv-dtype", choices=("auto", "fp8", "int8"), default="auto")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--variant", choices=("auto", "triton", "native", "reference"), default="auto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="add each result here, as a line of JSON, at once")
    parser.add_argument("--seconds", type=float, default=0.2, help="spent on each case, about")
    return parser
