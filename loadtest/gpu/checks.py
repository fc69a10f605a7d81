"""What is run on a machine with a GPU: the first minutes, every test, every benchmark."""

import datetime
import math
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from stentor.kernels.launching.precompiled import VARIABLE

from ..series import CONFIGS
from . import rows

ROOT: Final = Path(__file__).resolve().parents[2]
_ROWS: Final = "stentor.loadtest.gpu.pytest_rows"
_PYTEST: Final = ("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "-p", _ROWS)
_BENCH: Final = "stentor.loadtest.bench"


@dataclass(frozen=True)
class Check:
    """A module that is run with arguments, and ended after so many seconds, or at the deadline."""

    name: str
    command: tuple[str, ...]
    seconds: float
    alone: bool = False
    """It is timed, or takes the GPU's memory: nothing runs beside it."""
    environment: tuple[tuple[str, str], ...] = ()


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


def failed_before(earlier: Path | None, workers: int) -> list[Check]:
    """The tests that failed in an earlier run, if any did: of those functions that there still are, since all others of
    their files would be collected first."""
    if earlier is None:
        return []
    found = sorted(filter(_is_there, {test.partition("[")[0] for test in rows.failed(earlier)}))
    if not found:
        return []
    command = (*_tests(workers), "(gpu or triton) and not alone", "--all-kernels", *found)
    return [Check("failed before", command, 90, environment=(("TEST_ROWS_FAILED", str(earlier.absolute())),))]


def _is_there(test: str) -> bool:
    """``FILE::FUNCTION``; pytest runs nothing at all where one of several is not."""
    file, _, function = test.partition("::")
    return (ROOT / file).is_file() and f"def {function}(" in (ROOT / file).read_text(encoding="utf-8")


def _tests(workers: int) -> tuple[str, ...]:
    """Before the marks of those that run."""
    return (*_PYTEST, *(("-n", str(workers)) if workers > 1 else ()), "-m")


def first_minutes(weights: Path | None, output: Path, workers: int) -> list[Check]:
    """In the order in which they are started. What shows whether it works comes first, side by side: kernels' tests,
    tiny models beside the CPU. Behind it a server whose worker is killed, steps, operations, a load; then steps and the
    killed worker with ``--batch-invariant``."""
    llama = CONFIGS / "llama-3.1-8b"
    to = ("--rows", str(output / "rows.jsonl"))
    tests = _tests(workers)
    serving = "stentor.loadtest.gpu.serving"
    steps = "--decode 1 --decode 64 --decode 256 --mixed 64:64 --mixed 64:512 --prefill 512 --prefill 8192"
    exact = "--decode 1 --decode 64 --prefill 512 --prefill 8192"
    batches = "64q1kv4k q8k q1kv4k 64q1kv4k_q512kv8k --seconds 0.05"
    served = ("--weights", str(weights.resolve())) if weights else ()
    kernels = os.environ.get(VARIABLE)
    compiled = [Check("compiled kernels", ("stentor.kernels.launching.precompiled", kernels), 60)] if kernels else []
    return [
        Check("machine", ("stentor.server.main.cli", "env"), 60),
        *compiled,
        Check("kernels", (*tests, "gpu or triton", "tests/kernels"), 150),
        Check("models", (*tests, "gpu and not alone", "tests/gpu"), 150),
        Check("memory", (*_PYTEST, "-m", "gpu and alone", "tests/gpu"), 60, alone=True),
        Check("server", (serving, "check", *served, *to), 120, alone=True),
        Check("steps", (_BENCH, "model", str(llama), *steps.split(), *to), 90, alone=True),
        Check("operations", (_BENCH, "kernels", *batches.split(), "--model", str(llama), *to), 120, alone=True),
        Check("load", (serving, "load", "--model", str(llama), *to), 120, alone=True),
        Check("exact steps", (_BENCH, "model", str(llama), "--batch-invariant", *exact.split(), *to), 60, alone=True),
        Check("exact server", (serving, "check", "--batch-invariant", *served, *to), 120, alone=True),
    ]


def every_test(workers: int) -> list[Check]:
    """All cases of kernels, and of models; those that have passed by ``TEST_ROWS_DONE`` are left out one by one."""
    tests = _tests(workers)
    return [
        Check("all kernels", (*tests, "gpu or triton", "--all-kernels", "tests/kernels"), math.inf),
        Check("all models", (*tests, "gpu and not alone", "tests/gpu"), math.inf),
        Check("all memory", (*_PYTEST, "-m", "gpu and alone", "tests/gpu"), math.inf, alone=True),
    ]


def benchmarks(output: Path) -> list[Check]:
    """Each leaves a record beside its rows, named after the month."""
    to = ("--rows", str(output / "rows.jsonl"), "--save")
    month = f"{datetime.date.today():%Y-%m}"
    return [
        Check(
            f"bench {each.name}",
            (_BENCH, *each.arguments, *to, str(output / f"{month}-gpu-{each.name}.json")),
            each.seconds,
            alone=True,
        )
        for each in BENCHMARKS
    ]
