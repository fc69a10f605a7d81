"""How much the load client itself can take, in CPU seconds of its process a chunk."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .address import Address
from .api import APIS
from .arrivals import Stage
from .lengths import Constant
from .run import Load, measure
from .workload import Random

PACED: Final = 60_000
"""Chunks a second of the paced server, in all: most come in a read of their own, as from a busy engine."""


class Case(msgspec.Struct, frozen=True):
    """Streams of so many chunks, and the rate at which all of them together come; None is as fast as they are taken."""

    title: str
    api: str
    streams: int
    chunks: int
    rate: float | None


CASES: Final = (
    Case("completions, as fast as it can", "completions", 32, 32_000, None),
    Case("chat, as fast as it can", "chat", 32, 32_000, None),
    Case("completions, a chunk a write", "completions", 256, 800, PACED),
    Case("chat, a chunk a write", "chat", 256, 800, PACED),
)


class Cost(msgspec.Struct, frozen=True):
    """What a case took."""

    chunks: int
    reads: int
    """Reads that brought output, one stream's each."""
    cpu_seconds: float
    seconds: float

    @property
    def chunks_a_cpu_second(self) -> float:
        return self.chunks / self.cpu_seconds


def self_test(console: Console, cases: tuple[Case, ...] = CASES) -> int:
    """Prints a table of every case."""
    table = Table(box=SIMPLE_HEAD, title="this client, on one core", title_justify="left")
    for title in ("server", "chunks", "chunks a read", "µs of CPU a chunk", "chunks (tokens) a CPU second"):
        table.add_column(title, justify="left" if title == "server" else "right")
    for case in cases:
        cost = run_case(case)
        table.add_row(
            case.title,
            f"{cost.chunks:,}",
            f"{cost.chunks / cost.reads:.1f}",
            f"{cost.cpu_seconds / cost.chunks * 1e6:.2f}",
            f"{cost.chunks_a_cpu_second:,.0f}",
        )
    console.print(table)
    return 0


def run_case(case: Case) -> Cost:
    """The load client against a server in a process of its own."""
    with _firehose(case.rate) as port:
        load = Load(
            address=Address("http", "127.0.0.1", port),
            api=APIS[case.api],
            workload=Random(0, Constant(8), Constant(case.chunks), Constant(1), Constant(0)),
            stages=[Stage(concurrency=case.streams, requests=case.streams)],
            warmup=1,
        )
        result = measure(load).result
    gaps = [gap for request in result.requests for gap in request.itl]
    return Cost(
        chunks=len(gaps) + len(result.requests),
        reads=sum(gap > 0 for gap in gaps) + len(result.requests),
        cpu_seconds=result.client_seconds,
        seconds=result.summary.seconds,
    )


@contextlib.contextmanager
def _firehose(rate: float | None) -> Iterator[int]:
    arguments = [] if rate is None else [str(rate)]
    command = [sys.executable, "-P", "-m", "stentor.loadtest.serving.firehose", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        try:
            yield int(child.stdout.readline())
        finally:
            child.kill()  # it holds nothing that wants an end in good order
