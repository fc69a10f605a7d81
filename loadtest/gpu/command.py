"""``stentor bench gpu``: what a machine with a GPU is for, against one deadline.

    stentor bench gpu smoke tests bench --output OUT --seconds 240 --weights SmolLM2.gguf

First it says which packages are missing. The parts (:mod:`.checks`) run one after the other; of a part, first what may
run side by side, then what is timed or takes the GPU's memory. Every test and figure is a line of ``rows.jsonl`` as
soon as it is known, and what each check printed is ``NAME.log``; a run that was cut short goes on with ``--done`` and
the rows that it left.
"""

import argparse
import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from ..tool import FAILED, at_least, complain
from . import rows
from .checks import ROOT, Check, benchmarks, every_test, failed_before, first_minutes

_EARLIER: Final = max((ROOT / "loadtest" / "results").glob("*-gpu-smoke-*.jsonl"), default=None)
"""The latest that is kept."""
_ENDING: Final = 5.0
"""Seconds before the deadline in which nothing is started."""
_PARTS: Final = ("smoke", "tests", "bench")


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
            cwd=ROOT,
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


def missing() -> list[str]:
    """Packages that a server needs and that are not installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [name for name in (Requirement(each).name for each in project["dependencies"]) if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="stentor bench gpu", description="What a machine with a GPU is for.")
    parser.add_argument(
        "parts",
        nargs="*",
        choices=_PARTS,
        default="smoke",  # no list: argparse would look for it among the choices
        help="smoke: the first minutes, which are the default; tests: every test; bench: every benchmark",
    )
    parser.add_argument("--output", type=Path, default=Path("gpu-smoke"), metavar="FOLDER", help="rows, logs, records")
    parser.add_argument("--seconds", type=at_least(10), default=600, metavar="S", help="in all (600)")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="a GGUF file to serve, beside models made up")
    parser.add_argument("--done", type=Path, metavar="FILE", help="rows of earlier runs: what is ok there is left out")
    parser.add_argument(
        "--failed", type=Path, default=_EARLIER, metavar="FILE", help="rows of a run whose failed tests come first"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="may be repeated")
    parser.add_argument("--workers", type=at_least(1), default=7, metavar="N", help="processes of each suite (7)")
    given = parser.parse_args(argv)
    parts: str | list[str] = given.parts
    deadline = time.monotonic() + given.seconds
    if lacking := missing():
        print(f"not installed: {', '.join(lacking)}; what needs them fails (see make gpu-wheels)", flush=True)
    import torch  # late: what is missing is said first

    if not torch.cuda.device_count():
        return complain(parser.prog, "there is no CUDA device here", FAILED)
    output: Path = given.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    os.environ["TEST_ROWS"] = str(output / "rows.jsonl")
    done: set[str] = set()
    if given.done is not None:
        os.environ["TEST_ROWS_DONE"] = str(given.done.resolve())
        done = {row["check"] for row in rows.read(given.done) if row.get("ended") == "ok"}
    due: list[list[Check]] = []
    if "smoke" in parts:
        due += failed_before(given.failed, given.workers), first_minutes(given.weights, output, given.workers)
    if "tests" in parts:
        due.append(every_test(given.workers))
    if "bench" in parts:
        due.append(benchmarks(output))
    ended: dict[str, str] = {}
    for some in due:
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
