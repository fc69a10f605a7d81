"""How much the load client itself can take, in CPU seconds of its process a chunk."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console

from ..tool import table
from .api import APIS
from .arrivals import Stage
from .driver import Load
from .http import Address
from .lengths import constant
from .run import measure
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
    *(Case(f"{api}, as fast as it can", api, 32, 32_000, None) for api in APIS),
    *(Case(f"{api}, a chunk a write", api, 256, 800, PACED) for api in APIS),
)


class Cost(msgspec.Struct, frozen=True):
    chunks: int
    reads: int
    """Reads that brought output, one stream's each."""
    cpu_seconds: float


def self_test(console: Console, cases: tuple[Case, ...] = CASES) -> int:
    """Prints a table of every case."""
    rows = []
    for case in cases:
        cost = run_case(case)
        each = f"{cost.cpu_seconds / cost.chunks * 1e6:.2f}", f"{cost.chunks / cost.cpu_seconds:,.0f}"
        rows.append([case.title, f"{cost.chunks:,}", f"{cost.chunks / cost.reads:.1f}", *each])
    columns = ["server", "chunks", "chunks a read", "µs of CPU a chunk", "chunks (tokens) a CPU second"]
    console.print(table(columns, rows, title="this client, on one core", box=SIMPLE_HEAD))
    return 0


def run_case(case: Case) -> Cost:
    """The load client against a server in a process of its own."""
    with firehose(case.rate) as port:
        load = Load(
            address=Address("http", "127.0.0.1", port),
            api=APIS[case.api],
            workload=Random(0, constant(8), constant(case.chunks), constant(1), constant(0)),
            stages=[Stage(concurrency=case.streams, requests=case.streams)],
            warmup=1,
        )
        result = measure(load).result
    gaps = [gap for request in result.requests for gap in (1.0, *request.itl)]
    return Cost(len(gaps), sum(gap > 0 for gap in gaps), result.client_seconds)


@contextlib.contextmanager
def firehose(rate: float | None) -> Iterator[int]:
    """The port of a server of made-up streams, for as long as the block lasts."""
    arguments = [] if rate is None else [str(rate)]
    command = [sys.executable, "-P", "-m", "stentor.loadtest.serving.firehose", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            yield int(child.stdout.readline())
        finally:
            child.kill()  # it holds nothing that wants an end in good order
