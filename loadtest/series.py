"""``stentor bench grid`` and ``gpu``: benchmarks one after the other.

    stentor bench grid --vary block-size=16,32,64 --vary kv-dtype=auto,fp8 \\
        --csv grid.csv kernels 64q1kv4k --operation attention
    stentor bench gpu --output loadtest/results

Each run is a process of its own, so that none finds the memory of another taken. ``grid`` runs one benchmark for every
combination of parameters, and joins the results in one CSV; what follows the benchmark's name goes to it as it is.
``gpu`` runs every GPU benchmark (``make gpu-bench``). Its files are named after the GPU and the month, and each names
the command that made it. A benchmark that fails or takes too long is named at the end, and the others run all the same.
"""

import argparse
import csv
import datetime
import itertools
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from stentor.kernels.tuning import tuning_name

from .tool import FAILED, add_flag, complain

CONFIGS: Final = Path(__file__).parent / "configs"
ROWS: Final = {"kernels": "results", "model": "figures"}
"""Benchmarks of a grid, and where the rows lie in the JSON that they write."""


def _bench(arguments: Sequence[str], save: Path, seconds: float | None = None) -> int:
    """The exit code of ``stentor bench``. Raises ``subprocess.TimeoutExpired`` after so many seconds."""
    command = [sys.executable, "-P", "-m", "stentor.loadtest.bench", *arguments, "--save", str(save)]
    return subprocess.run(command, timeout=seconds, check=False).returncode


def grid(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="stentor bench grid", description="Varies parameters of a benchmark.")
    parser.add_argument(
        "--vary", action="append", required=True, type=_parameter, metavar="NAME=VALUE,…", help="may be repeated"
    )
    add_flag(parser, "--csv", "--output", type=Path, default=Path("grid.csv"), metavar="FILE", help="written anew")
    parser.add_argument("benchmark", choices=ROWS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for the benchmark")
    given = parser.parse_args(argv)
    failed = 0
    with given.csv.open("w", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for combination in combine(given.vary):
            print(" ".join(f"{name}={value}" for name, value in combination.items()), flush=True)
            rows = run(given.benchmark, given.arguments, combination)
            failed += not rows
            for row in rows:
                if writer is None:
                    writer = csv.DictWriter(file, list({**combination, **row}))
                    writer.writeheader()
                writer.writerow({**combination, **row})
            file.flush()
    return 1 if failed else 0


def _parameter(text: str) -> tuple[str, list[str]]:
    name, _, listed = text.partition("=")
    values = [value for value in listed.split(",") if value]
    if not name or not values:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE,VALUE")
    return name, values


def combine(vary: Sequence[tuple[str, Sequence[str]]]) -> Iterator[dict[str, str]]:
    """Every combination of parameters, the last one varying fastest."""
    names, values = zip(*vary, strict=True)
    for chosen in itertools.product(*values):
        yield dict(zip(names, chosen, strict=True))


def run(benchmark: str, arguments: Sequence[str], combination: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows that one run wrote; none where it failed."""
    flags = [part for name, value in combination.items() for part in (f"--{name}", value)]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        failed = _bench([benchmark, *arguments, *flags], result)
        rows: list[dict[str, Any]] = [] if failed else json.loads(result.read_text())[ROWS[benchmark]]
        return rows


class Benchmark(NamedTuple):
    """A command line of ``stentor bench``, without the options that say where results go."""

    name: str
    command: str
    seconds: int
    """It is ended after these."""

    @property
    def arguments(self) -> list[str]:
        return [str(CONFIGS / word[1:]) if word.startswith("@") else word for word in shlex.split(self.command)]


BENCHMARKS: Final = (
    Benchmark(
        "kernels", "kernels q1kv4k 64q1kv4k 256q1kv1k q8k 4q512kv8k 64q1kv4k_q512kv8k --model @llama-3.1-8b", 240
    ),
    Benchmark(
        "kernels-fp8-cache",
        "kernels 64q1kv4k q8k --operation attention --operation rotate_and_write --kv-dtype fp8 --model @llama-3.1-8b",
        60,
    ),
    Benchmark("llama-3.1-8b", "model @llama-3.1-8b --decode 1 --decode 64 --decode 256 --prefill 8192", 150),
    Benchmark("llama-3.1-8b-fp8", "model @llama-3.1-8b --decode 1 --decode 64 --quantization fp8", 150),
    Benchmark("llama-3.1-8b-peer", "model @llama-3.1-8b --decode 1 --decode 256 --prefill 8192 --peer", 420),
    *(
        Benchmark(
            f"kernels-block-{size}",
            f"kernels 64q1kv4k q8k --operation attention --block-size {size} --model @llama-3.1-8b",
            60,
        )
        for size in (16, 32, 128)
    ),
    Benchmark("kernels-qwen3-32b", "kernels q1kv4k 64q1kv4k q8k --model @qwen3-32b", 200),
)
"""In the order of what matters most, should the time run out. ``@`` is the folder of configurations."""


def gpu(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="stentor bench gpu", description="Runs every GPU benchmark.")
    parser.add_argument("--output", type=Path, default=Path("loadtest/results"), metavar="FOLDER")
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=f"may be repeated: {', '.join(names)}; or all"
    )
    arguments = parser.parse_args(argv)
    name = tuning_name()
    if name is None:
        return complain(parser.prog, "there is no CUDA device here", FAILED)
    month = f"{datetime.date.today():%Y-%m}"
    failed = []
    for benchmark in BENCHMARKS:
        if benchmark.name in (arguments.only or names):
            print(f"==> {benchmark.name}", flush=True)
            if (why := _run_one(benchmark, arguments.output / f"{month}-{name}-{benchmark.name}")) is not None:
                failed.append(f"{benchmark.name}: {why}")
    for line in failed:
        print(f"failed: {line}")
    return 1 if failed else 0


def _run_one(benchmark: Benchmark, output: Path) -> str | None:
    """Runs one, whose file begins with ``output``; returns what went wrong."""
    try:
        status = _bench(benchmark.arguments, Path(f"{output}.json"), benchmark.seconds)
    except subprocess.TimeoutExpired:
        return f"it took more than {benchmark.seconds} seconds"
    return None if status == 0 else f"it ended with {status}"
