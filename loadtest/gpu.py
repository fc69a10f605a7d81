"""Every GPU benchmark in one run, each in a process of its own: ``make gpu-bench``.

    python -P -m stentor.loadtest.gpu --output loadtest/results

Files are named after the GPU and the month, and each names the command that made it. A benchmark that fails or
takes too long is named at the end, and the others run all the same.
"""

import argparse
import datetime
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from stentor.kernels.tuning import tuning_name

CONFIGS: Final = Path(__file__).parent / "configs"


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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stentor bench gpu", description="Runs every GPU benchmark.")
    parser.add_argument("--output", type=Path, default=Path("loadtest/results"), metavar="FOLDER")
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=f"may be repeated: {', '.join(names)}; or all"
    )
    arguments = parser.parse_args(argv)
    gpu = tuning_name()
    if gpu is None:
        print("gpu: there is no CUDA device here", file=sys.stderr)
        return 1
    month = f"{datetime.date.today():%Y-%m}"
    failed = []
    for benchmark in BENCHMARKS:
        if benchmark.name in (arguments.only or names):
            print(f"==> {benchmark.name}", flush=True)
            if (why := run(benchmark, arguments.output / f"{month}-{gpu}-{benchmark.name}")) is not None:
                failed.append(f"{benchmark.name}: {why}")
    for line in failed:
        print(f"failed: {line}")
    return 1 if failed else 0


def run(benchmark: Benchmark, output: Path) -> str | None:
    """Runs one, whose file begins with ``output``; returns what went wrong."""
    command = [sys.executable, "-P", "-m", "stentor.loadtest.bench", *benchmark.arguments, "--save", f"{output}.json"]
    try:
        done = subprocess.run(command, timeout=benchmark.seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"it took more than {benchmark.seconds} seconds"
    return None if done.returncode == 0 else f"it ended with {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
