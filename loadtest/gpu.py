"""Every GPU benchmark in one run, each in a process of its own: ``make gpu-bench``.

    python -P -m stentor.loadtest.gpu --output loadtest/results

Files are named after the GPU and the month, and each names the command that made it. A benchmark that fails or
takes too long is named at the end, and the others run all the same.
"""

import argparse
import datetime
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from stentor.kernels.tuning import tuning_name

CONFIGS = Path(__file__).parent / "configs"
LLAMA, QWEN = CONFIGS / "llama-3.1-8b", CONFIGS / "qwen3-32b"


@dataclass(frozen=True)
class Benchmark:
    """A command of ``stentor bench`` and its arguments, without those that say where results go."""

    name: str
    command: str
    arguments: tuple[str, ...]
    seconds: int
    """It is ended after these."""
    writes_csv: bool = False


def benchmarks() -> Iterator[Benchmark]:
    """In the order of what matters most, should the time run out."""
    llama = ("--model", str(LLAMA))
    yield Benchmark(
        "kernels",
        "kernels",
        ("q1kv4k", "64q1kv4k", "256q1kv1k", "q8k", "4q512kv8k", "64q1kv4k_q512kv8k", *llama),
        240,
        writes_csv=True,
    )
    yield Benchmark(
        "kernels-fp8-cache",
        "kernels",
        ("64q1kv4k", "q8k", "--operation", "attention", "--operation", "rotate_and_write", "--kv-dtype", "fp8", *llama),
        60,
        writes_csv=True,
    )
    yield Benchmark(
        "llama-3.1-8b",
        "model",
        (str(LLAMA), "--decode", "1", "--decode", "64", "--decode", "256", "--prefill", "8192"),
        150,
    )
    yield Benchmark(
        "llama-3.1-8b-fp8",
        "model",
        (str(LLAMA), "--decode", "1", "--decode", "64", "--quantization", "fp8"),
        150,
    )
    yield Benchmark(
        "llama-3.1-8b-peer",
        "model",
        (str(LLAMA), "--decode", "1", "--decode", "256", "--prefill", "8192", "--peer"),
        420,
    )
    for size in (16, 32, 128):
        yield Benchmark(
            f"kernels-block-{size}",
            "kernels",
            ("64q1kv4k", "q8k", "--operation", "attention", "--block-size", str(size), *llama),
            60,
        )
    yield Benchmark("kernels-qwen3-32b", "kernels", ("q1kv4k", "64q1kv4k", "q8k", "--model", str(QWEN)), 200)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stentor bench gpu", description="Runs every GPU benchmark.")
    parser.add_argument("--output", type=Path, default=Path("loadtest/results"), metavar="FOLDER")
    parser.add_argument("--only", action="append", metavar="NAME", help="may be repeated; otherwise all")
    arguments = parser.parse_args(argv)
    gpu = tuning_name()
    if gpu is None:
        print("gpu: there is no CUDA device here", file=sys.stderr)
        return 1
    known = list(benchmarks())
    names = [benchmark.name for benchmark in known]
    unknown = set(arguments.only or ()) - set(names)
    if unknown:
        print(f"gpu: no benchmark {', '.join(sorted(unknown))}; expected {', '.join(names)}", file=sys.stderr)
        return 2
    console = Console()
    month = f"{datetime.date.today():%Y-%m}"
    failed = []
    for benchmark in known:
        if arguments.only and benchmark.name not in arguments.only:
            continue
        console.rule(benchmark.name)
        if (why := run(benchmark, arguments.output / f"{month}-{gpu}-{benchmark.name}")) is not None:
            failed.append(f"{benchmark.name}: {why}")
    for line in failed:
        console.print(f"failed: {line}")
    return 1 if failed else 0


def run(benchmark: Benchmark, output: Path) -> str | None:
    """Runs one, whose files begin with ``output``; returns what went wrong."""
    files = ["--save", f"{output}.json", *(("--csv", f"{output}.csv") if benchmark.writes_csv else ())]
    command = [sys.executable, "-P", "-m", "stentor.loadtest.bench", benchmark.command, *benchmark.arguments, *files]
    try:
        done = subprocess.run(command, timeout=benchmark.seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"it took more than {benchmark.seconds} seconds"
    return None if done.returncode == 0 else f"it ended with {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
