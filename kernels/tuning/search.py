"""Searches block sizes for this GPU: ``stentor tune``.

Each operation offers the shapes that matter and candidates for each (:class:`.Tunable`). Every candidate is compiled
and timed on a realistic call. The fastest whose result is right (:mod:`.check`) is written to a table that launchers
read. A candidate that does not compile, or whose launch fails, is skipped.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

from . import Tunable, Workload
from .check import difference
from .config import Config
from .table import load_table, overridden, table_path, tuning_name, untuned
from .timing import Call, Timing, rotated, time_call

Measure = Callable[[Sequence[Call], torch.device], Timing]

_QUICKLY: Measure = partial(time_call, seconds=0.05)
_MOST_JOBS = 16
"""The most compile jobs: each holds its own workload on the GPU, 1 to 2 GiB."""
SWITCH_GAIN = 0.02
"""A config replaces the current one only if it is faster by more than this share: less is noise."""


_MODULES = (
    "norm.tunables",
    "activation.tunables",
    "embedding.tunables",
    "kv_cache.tunables",
    "rotate_and_write.tunables",
    "linear.triton_gemv",
    "linear.triton_skinny",
    "linear.triton_fixed",
    "linear_normed.tunables",
    "launching.dependent",
    "linear_fp8.triton_gemv",
    "linear_fp8.triton_skinny",
    "linear_fp8.triton_tiles",
    "linear_w4.tunables",
    "linear_gguf.tunables",
    "linear_coded.tunables",
    "low_rank.tunables",
    "moe.tunables",
    "attention.decode_tunables",
    "attention.prefill_tunables",
    "latent_attention.tunables",
    "sparse_index.tunables",
    "varlen_attention.tunables",
    "causal_conv.tunables",
    "gated_delta.tunables",
    "mamba2.tunables",
    "selective_scan.tunables",
    "sampling.tunables",
)
"""The modules of :mod:`stentor.kernels` with kernels that have block sizes to search. Each has ``tunables() ->
list[Tunable]``; all import Triton."""


@dataclass(frozen=True)
class Outcome:
    """The search's result for one kernel at one shape."""

    tunable: Tunable
    best: Config | None
    """None if no candidate is faster than the launcher's default."""
    seconds: float
    untuned_seconds: float | None
    """Seconds with the launcher's default; None if that does not run."""
    failed: int


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="stentor tune", description="Searches the block sizes of GPU kernels and keeps the fastest."
    )
    parser.add_argument("--only", metavar="WORDS", help="operations and keys that contain these words")
    parser.add_argument("--list", action="store_true", help="show what there is to tune")
    parser.add_argument("--output", type=Path, metavar="FILE", help="otherwise the table in the cache")
    jobs = min(_MOST_JOBS, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=jobs, metavar="N", help=f"processes that compile ({jobs})")
    parser.add_argument("--compile", type=_share, metavar="I/N", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    console = Console()
    chosen = [each for each in all_tunables() if matches(each, arguments.only)]
    if not chosen:
        print(f"{parser.prog}: no operation matches {arguments.only!r}; --list shows them", file=sys.stderr)
        return 2
    if arguments.list:
        for each in chosen:
            console.print(f"{each.operation} {each.key}: {len(each.candidates)} candidates")
        return 0
    name = tuning_name()
    if name is None:
        why = "there is no CUDA device here; block sizes are searched on the GPU that serves"
        print(f"{parser.prog}: {why}", file=sys.stderr)
        return 1
    if arguments.compile is not None:
        compile_share(chosen, torch.device("cuda"), *arguments.compile)
        return 0
    if arguments.jobs > 1:
        _compile_all(["--only", arguments.only] if arguments.only else [], arguments.jobs)
    outcomes = search(chosen, torch.device("cuda"), console)
    path = arguments.output or table_path(name)
    write_table(path, outcomes, load_table(name))
    print_outcomes(console, outcomes)
    console.print(f"written to {path}")
    return 0


def _share(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    return int(number), int(of)


def _compile_all(arguments: Sequence[str], jobs: int) -> None:
    """Fills Triton's cache on disk in parallel: compiling takes seconds per candidate, and a process compiles in one
    thread."""
    command = [sys.executable, "-P", "-m", "stentor.kernels.tuning.search", *arguments, "--compile"]
    running = [
        subprocess.Popen([*command, f"{job}/{jobs}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for job in range(jobs)
    ]
    for each in running:
        each.wait()  # one that failed has compiled less, and the search compiles the rest


def compile_share(tunables: Iterable[Tunable], device: torch.device, number: int, of: int) -> None:
    """Calls every ``of``-th candidate once, from ``number`` on; candidates that do not run are skipped."""
    place = 0
    for tunable in tunables:
        mine = [each for at, each in enumerate(tunable.candidates, place) if at % of == number]
        place += len(tunable.candidates)
        if not mine:
            continue
        call = tunable.workload(device)
        for candidate in mine:
            with overridden(tunable.operation, candidate):
                _time([call], device, _once)


def _once(calls: Sequence[Call], device: torch.device) -> Timing:
    calls[0]()
    return Timing(0.0, 0.0, 0.0, 1, 0.0, 0.0)


def all_tunables() -> list[Tunable]:
    """Returns all tunables in the order of tuning."""
    found: list[Tunable] = []
    for name in _MODULES:
        found += import_module(f"stentor.kernels.{name}").tunables()
    return found


def matches(tunable: Tunable, pattern: str | None) -> bool:
    """Whether operation or key contain every word of ``pattern``."""
    return all(word in f"{tunable.operation} {tunable.key}" for word in (pattern or "").split())


def search(
    tunables: Sequence[Tunable], device: torch.device, console: Console, measure: Measure = _QUICKLY
) -> list[Outcome]:
    """Times all candidates of each tunable; one whose candidates all fail is left out and reported."""
    outcomes: list[Outcome] = []
    for tunable in track(tunables, console=console, transient=True):
        outcome = _search_one(tunable, device, console, measure)
        if outcome is None:
            console.print(f"{tunable.operation} {tunable.key}: no candidate runs here")
        else:
            outcomes.append(outcome)
    return outcomes


def _search_one(tunable: Tunable, device: torch.device, console: Console, measure: Measure) -> Outcome | None:
    calls = rotated(partial(tunable.workload, device), device)
    with untuned():  # an older table's entry might not be beaten, and would then be dropped
        plain = _time(calls, device, measure)
    times: list[tuple[float, int]] = []
    for number, candidate in enumerate(tunable.candidates):
        with overridden(tunable.operation, candidate):
            taken = _time(calls, device, measure)
        if taken is not None:
            times.append((taken, number))
    failed = len(tunable.candidates) - len(times)
    if not times and plain is None:
        return None
    calls.clear()  # memory for the comparison
    most = float("inf") if plain is None else plain * (1 - SWITCH_GAIN)
    faster = sorted(each for each in times if each[0] <= most)
    best = _first_right(tunable, device, console, faster) if faster else None
    if best is not None:
        seconds, number = best
        return Outcome(tunable, tunable.candidates[number], seconds, plain, failed)
    return None if plain is None else Outcome(tunable, None, plain, plain, failed)


def _first_right(
    tunable: Tunable, device: torch.device, console: Console, faster: Sequence[tuple[float, int]]
) -> tuple[float, int] | None:
    """Returns the first of ``faster``, seconds and numbers of candidates, whose result is right; prints why those
    before it are refused."""
    name = f"{tunable.operation} {tunable.key}"
    try:
        with untuned():
            plain = _result(tunable.workload, device)
            expected = plain if tunable.definition is None else _result(tunable.definition, device)
    except Exception as error:  # as in :func:`_time`
        console.print(f"{name}: its result cannot be checked, so nothing is chosen: {error}", markup=False)
        return None
    if expected is not plain and (wrong := difference(expected, plain)) is not None:
        console.print(f"{name}: the default's result differs from the definition: {wrong}", markup=False)
    for seconds, number in faster:
        candidate = tunable.candidates[number]
        try:
            with overridden(tunable.operation, candidate):
                wrong = difference(expected, _result(tunable.workload, device))
        except Exception as error:
            wrong = f"it could not be compared: {error}"
        if wrong is None:
            return seconds, number
        console.print(f"{name}: {candidate.to_json()} is refused, its result is wrong here: {wrong}", markup=False)
    return None


def _result(workload: Workload, device: torch.device) -> object:
    """Returns what a call returns on tensors that are the same each time."""
    torch.manual_seed(0)
    return workload(device)()


def _time(calls: Sequence[Call], device: torch.device, measure: Measure) -> float | None:
    """Returns the seconds of a call; None if it does not run."""
    try:
        return measure(calls, device).median
    except Exception:  # the compiler and the driver each have errors of their own
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return None


def write_table(path: Path, outcomes: Iterable[Outcome], known: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
    """Writes the outcomes merged into the ``known`` entries, sorted, so that two files can be compared."""
    merged: dict[str, dict[str, Mapping[str, int]]] = {name: dict(entries) for name, entries in known.items()}
    for outcome in outcomes:
        entries = merged.setdefault(outcome.tunable.operation, {})
        if outcome.best is None:
            entries.pop(outcome.tunable.key, None)
        else:
            entries[outcome.tunable.key] = outcome.best.to_json()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n")


def print_outcomes(console: Console, outcomes: Iterable[Outcome]) -> None:
    table = Table(
        "operation", "key", "best", *(Column(name, justify="right") for name in ("µs", "untuned µs", "did not run"))
    )
    for each in outcomes:
        sizes = " ".join(f"{name}={size}" for name, size in each.best.to_json().items()) if each.best else "as it is"
        untuned = "does not run" if each.untuned_seconds is None else f"{1e6 * each.untuned_seconds:,.1f}"
        times = (f"{1e6 * each.seconds:,.1f}", untuned, str(each.failed))
        table.add_row(each.tunable.operation, each.tunable.key, sizes, *times)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
