"""``stentor bench gpu-smoke``: the first minutes on a machine with a GPU, against one deadline.

    stentor bench gpu-smoke --output OUT --seconds 240 --weights SmolLM2.gguf

What failed the last time runs before all. What shows whether it works runs then, side by side: every kernel's tests,
tiny models beside the CPU. What is timed or takes the GPU's memory runs after that, one after the other: a server that
is asked and whose worker is killed, steps, operations, a load, then steps and the killed worker with
``--batch-invariant``. Every test and figure is a line of ``rows.jsonl`` as soon as it is known, and what each check
printed is ``NAME.log``; a run that was cut short goes on with ``--done`` and the rows that it left.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stentor.kernels.precompiled import VARIABLE

from ..series import CONFIGS
from ..tool import FAILED, at_least
from . import rows

_ROWS: Final = "stentor.loadtest.gpu.pytest_rows"
_PYTEST: Final = ("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "-p", _ROWS)
_ROOT: Final = Path(__file__).resolve().parents[2]
_EARLIER: Final = max((_ROOT / "loadtest" / "results").glob("*-gpu-smoke-*.jsonl"), default=None)
"""The latest that is kept."""
_ENDING: Final = 5.0
"""Seconds before the deadline in which nothing is started."""


@dataclass(frozen=True)
class Check:
    """A module that is run with arguments, and ended after so many seconds."""

    name: str
    command: tuple[str, ...]
    seconds: float
    alone: bool = False
    """It is timed, or takes the GPU's memory: nothing runs beside it."""
    environment: tuple[tuple[str, str], ...] = ()


class Running:
    """A check's process, all of whose children end with it."""

    def __init__(self, check: Check, output: Path, seconds: float) -> None:
        self.check = check
        self.began = time.monotonic()
        self._ends = self.began + seconds
        self._log = (output / f"{check.name}.log").open("wb")
        command = [sys.executable, "-P", "-m", *check.command]
        # many tests side by side, each with a thread for every core, would wait for each other
        threads = {} if check.alone else {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**os.environ, **threads, **dict(check.environment)},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self) -> str:
        """How it ended, in words."""
        try:
            code = self._process.wait(max(0.0, self._ends - time.monotonic()))
            ended = "ok" if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            ended = f"ended after {time.monotonic() - self.began:.0f} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        return ended


def run(checks: Iterable[Check], output: Path, deadline: float, done: set[str]) -> dict[str, str]:
    """How each ended, by name. ``deadline`` is of ``time.monotonic()``."""
    ended: dict[str, str] = {}
    file = output / "rows.jsonl"
    due = [check for check in checks if check.name not in done]

    def finish(running: Running) -> None:
        name = running.check.name
        ended[name] = running.wait()
        taken = time.monotonic() - running.began
        rows.append(file, {"check": name, "ended": ended[name], "seconds": round(taken, 1)})
        print(f"{name}: {ended[name]}, {taken:.1f} s", flush=True)

    def start(check: Check) -> Running | None:
        left = deadline - time.monotonic()
        if left < _ENDING:
            ended[check.name] = "no time was left"
            return None
        return Running(check, output, min(check.seconds, left))

    together = [start(check) for check in due if not check.alone]
    for running in together:
        if running is not None:
            finish(running)
    for check in due:
        if check.alone and (running := start(check)) is not None:
            finish(running)
    return ended


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
    return (_ROOT / file).is_file() and f"def {function}(" in (_ROOT / file).read_text(encoding="utf-8")


def _tests(workers: int) -> tuple[str, ...]:
    """Before the marks of those that run."""
    return (*_PYTEST, *(("-n", str(workers)) if workers > 1 else ()), "-m")


def checks(weights: Path | None, output: Path, workers: int) -> list[Check]:
    """In the order in which they are started."""
    llama = CONFIGS / "llama-3.1-8b"
    to = ("--rows", str(output / "rows.jsonl"))
    tests = _tests(workers)
    bench, serving = "stentor.loadtest.bench", "stentor.loadtest.gpu.serving"
    steps = "--decode 1 --decode 64 --decode 256 --mixed 64:64 --mixed 64:512 --prefill 512 --prefill 8192"
    exact = "--decode 1 --decode 64 --prefill 512 --prefill 8192"
    batches = "64q1kv4k q8k q1kv4k 64q1kv4k_q512kv8k --seconds 0.05"
    served = ("--weights", str(weights.resolve())) if weights else ()
    kernels = os.environ.get(VARIABLE)
    compiled = [Check("compiled kernels", ("stentor.kernels.precompiled", kernels), 60)] if kernels else []
    return [
        Check("machine", ("stentor.server.main.cli", "env"), 60),
        *compiled,
        Check("kernels", (*tests, "gpu or triton", "tests/kernels"), 150),
        Check("models", (*tests, "gpu and not alone", "tests/gpu"), 150),
        Check("memory", (*_PYTEST, "-m", "gpu and alone", "tests/gpu"), 60, alone=True),
        Check("server", (serving, "check", *served, *to), 120, alone=True),
        Check("steps", (bench, "model", str(llama), *steps.split(), *to), 90, alone=True),
        Check("operations", (bench, "kernels", *batches.split(), "--model", str(llama), *to), 120, alone=True),
        Check("load", (serving, "load", "--model", str(llama), *to), 120, alone=True),
        Check("exact steps", (bench, "model", str(llama), "--batch-invariant", *exact.split(), *to), 60, alone=True),
        Check("exact server", (serving, "check", "--batch-invariant", *served, *to), 120, alone=True),
    ]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="stentor bench gpu-smoke", description="The first minutes on a GPU.")
    parser.add_argument("--output", type=Path, default=Path("gpu-smoke"), metavar="FOLDER", help="rows and logs")
    parser.add_argument("--seconds", type=at_least(10), default=600, metavar="S", help="in all (600)")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="a GGUF file to serve, beside models made up")
    parser.add_argument("--done", type=Path, metavar="FILE", help="rows of earlier runs: what is ok there is left out")
    parser.add_argument(
        "--failed", type=Path, default=_EARLIER, metavar="FILE", help="rows of a run whose failed tests come first"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="may be repeated")
    parser.add_argument("--workers", type=at_least(1), default=7, metavar="N", help="processes of each suite (7)")
    given = parser.parse_args(argv)
    deadline = time.monotonic() + given.seconds
    output: Path = given.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    os.environ["TEST_ROWS"] = str(output / "rows.jsonl")
    done: set[str] = set()
    if given.done is not None:
        os.environ["TEST_ROWS_DONE"] = str(given.done.resolve())
        done = {row["check"] for row in rows.read(given.done) if row.get("ended") == "ok"}
    first, others = failed_before(given.failed, given.workers), checks(given.weights, output, given.workers)
    ended: dict[str, str] = {}
    for some in (first, others):
        chosen = [check for check in some if check.name in (given.only or [check.name])]
        ended |= run(chosen, output, deadline, done)
    for name, how in ended.items():
        if how != "ok":
            print(f"{name}: {how}; see {output / name}.log")
    _summarise(output / "rows.jsonl")
    return 0 if all(how == "ok" for how in ended.values()) else FAILED


def _summarise(file: Path) -> None:
    """Tests by outcome, failures by name."""
    outcomes = {row["test"]: row["outcome"] for row in rows.read(file) if "test" in row}
    counts = {outcome: list(outcomes.values()).count(outcome) for outcome in sorted(set(outcomes.values()))}
    print("tests: " + (", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "none"))
    for test, outcome in outcomes.items():
        if outcome == "failed":
            print(f"  failed: {test}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
