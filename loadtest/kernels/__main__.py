"""Times every operation on the shapes of a model.

    python -P -m stentor.loadtest.kernels 64q1kv4k q8k --model loadtest/configs/llama-3.1-8b

A batch is written as ``8q1kv4k`` (see :mod:`.spec`). Without a GPU the CPU's kernels are timed.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.decoder_config import ConfigError
from stentor.engine.model_config.hf_config import decoder_config_from_hf

from .cases import FP8, OPERATIONS, Setting
from .report import Result, machine, make_result, print_table, write_csv, write_json
from .spec import BatchSpec, SpecError, parse_spec
from .timing import Ceilings, measure_ceilings, time_call

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_BATCHES = ("q1kv4k", "64q1kv4k", "256q1kv1k", "q2k", "q8k", "64q1kv4k_q512kv8k")
WIDE = 180
"""Columns of a table that goes to a file."""
CONFIGS = Path(__file__).parent.parent / "configs"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    device = torch.device(arguments.device)
    try:
        specs = [parse_spec(text) for text in arguments.batches or DEFAULT_BATCHES]
        model = decoder_config_from_hf(read_json(arguments.model / "config.json"))
    except (SpecError, ConfigError, CheckpointError) as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 2
    dtype = DTYPES[arguments.dtype]
    on = Setting(
        model, device, dtype, FP8 if arguments.kv_dtype == "fp8" else dtype, arguments.block_size, arguments.variant
    )
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    ceilings = measure_ceilings(device)
    results = list(run(specs, arguments.operation or list(OPERATIONS), on, ceilings, arguments.seconds, console))
    print_table(console, results, ceilings)
    about = {"machine": machine(device), "command": " ".join(sys.argv), "model": model.architecture}
    if arguments.json:
        write_json(arguments.json, results, ceilings, about)
    if arguments.csv:
        write_csv(arguments.csv, results)
    return 0


def run(
    specs: Sequence[BatchSpec],
    operations: Sequence[str],
    on: Setting,
    ceilings: Ceilings,
    seconds: float,
    console: Console,
) -> Iterator[Result]:
    """Times each operation on each batch; one that cannot run says why and is passed over."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(specs) * len(operations))
        for operation in operations:
            for spec in specs:
                progress.update(task, description=f"{operation} {spec.text}")
                try:
                    yield from _measure(operation, spec, on, ceilings, seconds)
                except (ValueError, NotImplementedError, torch.OutOfMemoryError, RuntimeError) as error:
                    console.print(f"{operation} {spec.text}: not timed: {' '.join(str(error).split())[:200]}")
                progress.advance(task)
                if on.device.type == "cuda":
                    torch.cuda.empty_cache()


def _measure(operation: str, spec: BatchSpec, on: Setting, ceilings: Ceilings, seconds: float) -> Iterator[Result]:
    with torch.inference_mode():
        for case in OPERATIONS[operation](spec, on):
            timing = time_call(case.run, on.device, seconds=seconds)
            labels = {
                "operation": operation,
                "batch": spec.text,
                "shape": case.shape,
                "dtype": str(on.dtype).removeprefix("torch."),
                "variant": case.variant,
                "settings": case.settings,
            }
            yield make_result(labels, timing, case.bytes, case.flops, ceilings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kernels", description="Times single operations.")
    parser.add_argument("batches", nargs="*", metavar="BATCH", help=f"such as 8q1kv4k ({' '.join(DEFAULT_BATCHES)})")
    parser.add_argument("--operation", action="append", choices=OPERATIONS, help="may be repeated; otherwise all")
    parser.add_argument("--model", type=Path, default=CONFIGS / "llama-3.1-8b", help="a folder with config.json")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--kv-dtype", choices=("auto", "fp8"), default="auto")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--variant", choices=("auto", "triton", "native", "reference"), default="auto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.2, help="spent on each case, about")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--csv", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
