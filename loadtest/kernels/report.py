"""Results of kernel benchmarks as a table, JSON and CSV."""

import csv
import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .timing import Ceilings, Timing


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
    gigabytes: float
    gigaflops: float
    share: float
    bound: str


def make_result(labels: dict[str, str], timing: Timing, bytes_moved: float, flops: float, ceilings: Ceilings) -> Result:
    """Puts a time beside what the bytes and operations would take at the ceilings."""
    by_bytes = bytes_moved / ceilings.bytes_per_second
    by_flops = flops / ceilings.flops_per_second
    return Result(
        **labels,
        microseconds=1e6 * timing.median,
        low=1e6 * timing.low,
        high=1e6 * timing.high,
        calls=timing.calls,
        gigabytes=bytes_moved / 1e9,
        gigaflops=flops / 1e9,
        share=max(by_bytes, by_flops) / timing.median,
        bound="memory" if by_bytes >= by_flops else "arithmetic",
    )


def machine(device: torch.device) -> dict[str, str]:
    """What was measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    threads = {} if device.type == "cuda" else {"threads": str(torch.get_num_threads())}
    return {"device": name, "torch": torch.__version__, "python": platform.python_version(), **threads}


def print_table(console: Console, results: Iterable[Result], ceilings: Ceilings) -> None:
    table = Table(
        caption=f"share of {ceilings.bytes_per_second / 1e9:,.0f} GB/s copied and "
        f"{ceilings.flops_per_second / 1e12:,.2f} TFLOP/s of bfloat16 products, both measured in this run"
    )
    for name in ("operation", "batch", "shape", "variant", "settings"):
        table.add_column(name)
    for name in ("µs", "middle half", "GB/s", "TFLOP/s", "share", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    for r in results:
        seconds = r.microseconds / 1e6
        table.add_row(
            r.operation,
            r.batch,
            r.shape,
            r.variant,
            r.settings,
            f"{r.microseconds:,.1f}",
            f"{r.low:,.1f} to {r.high:,.1f}",
            f"{r.gigabytes / seconds:,.0f}",
            f"{r.gigaflops / 1e3 / seconds:,.2f}",
            f"{r.share:.0%}",
            r.bound,
        )
    console.print(table)


def write_json(path: Path, results: Sequence[Result], ceilings: Ceilings, about: dict[str, Any]) -> None:
    """``about`` names the machine and the command."""
    content = {**about, "ceilings": asdict(ceilings), "results": [asdict(result) for result in results]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def write_csv(path: Path, results: Sequence[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(Result.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(asdict(result) for result in results)
