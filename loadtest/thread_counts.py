"""Whether the threads that a worker takes by itself are as fast as any other number: in turn, in one process."""

import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from rich.console import Console

from stentor.kernels import native

from .record import Record
from .step_runs import StepRunner
from .tool import ToolError, table

CONTEXT: Final = 128
ROWS: Final = (1, 8)
PROMPT: Final = 512
SLOWER: Final = 1.05
"""Times the fastest that the worker's own choice may take."""


class ThreadSteps(msgspec.Struct, frozen=True):
    """One shape of step."""

    work: str
    milliseconds: dict[int, float]
    """By number of threads, the median of all rounds."""

    def share(self, own: int) -> float:
        """What ``own`` threads take, over what the fastest number takes."""
        return self.milliseconds[own] / min(self.milliseconds.values())


class ThreadCounts(Record, frozen=True, kw_only=True, tag="thread counts"):
    worker: dict[str, Any]
    march: str
    """That the kernels were compiled for."""
    notes: list[str]
    own: int
    """Threads that the worker took by itself."""
    steps: list[ThreadSteps]


def time_counts(runner: StepRunner, counts: Sequence[int], rounds: int, seconds: float) -> list[ThreadSteps]:
    """Decode steps and a prefill, each with the threads at hand and with ``counts``, in an order drawn anew each round.

    Raises ToolError where threads are torch's.
    """
    if native.library() is None:
        raise ToolError(f"threads are torch's: {native.unavailable_reason()}")
    works: dict[str, Callable[[], float]] = {
        f"decode of {rows}": partial(_decode, runner, rows, seconds) for rows in ROWS
    }
    works[f"prefill of {PROMPT}"] = lambda: runner.prefill(PROMPT, 0, 1).median
    own = native.threads()
    draw, order = random.Random(0), list(dict.fromkeys([own, *counts]))
    times: dict[str, dict[int, list[float]]] = {work: {count: [] for count in order} for work in works}
    try:
        for _ in range(rounds):
            draw.shuffle(order)
            for work, go in works.items():
                for count in order:
                    native.set_threads(count)
                    times[work][count].append(go())
    finally:
        native.set_threads(own)
    return [
        ThreadSteps(work, {count: 1e3 * statistics.median(found) for count, found in sorted(by_count.items())})
        for work, by_count in times.items()
    ]


def print_counts(console: Console, record: ThreadCounts) -> int:
    """Returns 1 where the worker's own choice is too slow."""
    counts = list(record.steps[0].milliseconds)
    rows = [
        [each.work, *(f"{each.milliseconds[count]:,.2f}" for count in counts), f"{each.share(record.own):.3f}"]
        for each in record.steps
    ]
    columns = ("ms a step", *(f"{count} threads" for count in counts), f"{record.own} over the fastest")
    console.print(table(columns, rows, caption="; ".join(record.notes)))
    return int(any(each.share(record.own) > SLOWER for each in record.steps))


def _decode(runner: StepRunner, rows: int, seconds: float) -> float:
    return runner.decode(rows, CONTEXT, seconds=seconds).median
