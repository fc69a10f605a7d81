"""How long streams stand still when a worker or an engine is killed under them.

    stentor bench recovery --streams 8 --kills 10 -- --dtype float32

A real server serves streams without end. When all of them flow, one of its processes is sent SIGKILL, again and again.
A pause is the time between two tokens of one stream. A stream's recovery is the time from the kill to the end of the
longest pause about then (tokens that were on their way still come); that of a kill is the longest of its streams'.
"""

import argparse
import asyncio
import itertools
import os
import random
import signal
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console

from stentor.engine.loading.download.hub import DEFAULT_MODEL

from .client import STREAMED, StreamError, complete
from .processes import named
from .record import Record
from .server_process import ServerProcess
from .tool import ToolError, add_flag, at_least, make_parser, run_tool, table

_NAME: Final = "recovery"
_FLOWING: Final = 3
"""Reads with tokens of every stream since the last kill, before the next."""
_PATIENCE: Final = 60.0
_POLL_SECONDS: Final = 0.005
_ON_THE_WAY: Final = 0.1
"""Seconds after a kill for which tokens come that were drawn before it."""
_MOST_WAIT: Final = 0.5
"""Seconds, at most, between streams that flow and the kill: it shall meet any moment of a step."""


class Load:
    """Streams that follow one another, as many at a time as there are lanes."""

    def __init__(self, port: int, tokens: int, model: str = _NAME) -> None:
        self._port = port
        self._tokens = tokens
        self._model = model
        self.streams: list[list[float]] = []
        """When output came, of all."""
        self.now: dict[int, list[float]] = {}
        """Of the stream that flows in each lane."""
        self.failures: list[str] = []

    async def lane(self, number: int) -> None:
        while True:
            arrivals = self.now[number] = []
            self.streams.append(arrivals)
            body = {
                **STREAMED,
                "model": self._model,
                "prompt": f"Stream {number} tells a tale of {len(self.streams)} travellers.",
                "max_tokens": self._tokens,
                "ignore_eos": True,
                "seed": number,
                "temperature": 0 if number % 2 else 1,
            }
            try:
                answer = await complete(self._port, body, arrivals=arrivals)
                if answer.tokens != self._tokens:
                    self.failures.append(f"{answer.tokens} tokens came of {self._tokens}")
            except StreamError as error:
                self.failures.append(str(error))
                await asyncio.sleep(0.1)

    @asynccontextmanager
    async def lanes(self, count: int) -> AsyncIterator[None]:
        """So many streams flow for as long as the block lasts."""
        tasks = [asyncio.create_task(self.lane(number)) for number in range(count)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def flows_since(self, moment: float) -> None:
        """Waits until every lane has had tokens a few times since. Raises TimeoutError."""
        async with asyncio.timeout(_PATIENCE):
            while not all(len({at for at in seen if at > moment}) >= _FLOWING for seen in self.now.values() or [[]]):
                await asyncio.sleep(_POLL_SECONDS)


@dataclass(frozen=True)
class Recoveries:
    """What kills of one kind of process did, in seconds."""

    victim: str
    each: Sequence[float]
    """By kill."""
    longest_pause: float
    undisturbed: float
    """The median pause between tokens when nothing is killed."""
    failures: Sequence[str]


class Recovery(Record, frozen=True, kw_only=True, tag="recovery"):
    streams: int
    measured: list[Recoveries]


async def measure(server: ServerProcess, victim: str, streams: int, kills: int, tokens: int) -> Recoveries:
    """Raises TimeoutError where streams do not flow again."""
    load = Load(server.port, tokens)
    draw = random.Random(victim)
    moments = [0.0]
    async with load.lanes(streams):
        for _ in range(kills):
            await load.flows_since(moments[-1])
            await asyncio.sleep(draw.uniform(0.0, _MOST_WAIT))
            (pid,) = named(server.pid, f"stentor-{victim}")
            moments.append(time.perf_counter())
            os.kill(pid, signal.SIGKILL)
        await load.flows_since(moments[-1])
    arrivals = [sorted(set(each)) for each in load.streams]  # chunks that one read brought count as one
    pauses = [after - before for each in arrivals for before, after in itertools.pairwise(each)]
    return Recoveries(
        victim,
        [recovery(arrivals, moment) for moment in moments[1:]],
        max(pauses),
        statistics.median(pauses),
        load.failures,
    )


def recovery(arrivals: Sequence[Sequence[float]], moment: float) -> float:
    """Seconds from ``moment`` to the end of the longest pause that begins before it or soon after, in the stream that
    waits most. ``arrivals`` are the moments at which each stream had tokens."""
    longest = 0.0
    for times in arrivals:
        pauses = [
            (after - before, after)
            for before, after in itertools.pairwise(times)
            if after > moment and before < moment + _ON_THE_WAY
        ]
        if pauses:
            longest = max(longest, max(pauses)[1] - moment)
    return longest


def show(console: Console, record: Recovery) -> int:
    rows = []
    for each in record.measured:
        seconds = (statistics.median(each.each), max(each.each), each.longest_pause, each.undisturbed)
        figures = [f"{figure:.3f}" for figure in seconds]
        rows.append([each.victim, str(len(each.each)), *figures, str(len(each.failures))])
    columns = ("killed", "kills", "median", "worst", "longest pause", "usual pause", "streams lost")
    console.print(table(columns, rows, title=f"seconds until {record.streams} streams go on after a SIGKILL"))
    for each in record.measured:
        for failure in each.failures:
            console.print(f"{each.victim}: {failure}", markup=False)
    return int(any(each.failures for each in record.measured))


def main(argv: list[str]) -> int:
    """Exit code: 0 where no stream was lost, else 1."""
    parser = make_parser(
        "recovery",
        "Time for which streams stand still when a worker or an engine is killed.",
        epilog="What follows -- goes to `stentor serve` as it is.",
    )
    number = at_least(1)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as of `stentor serve` (%(default)s)")
    parser.add_argument("--streams", type=number, default=8, metavar="N", help="at a time (8)")
    parser.add_argument("--kills", type=number, default=10, metavar="N", help="of each kind of process (10)")
    add_flag(parser, "--output-tokens", "--tokens", type=number, default=400, metavar="N", help="of one stream (400)")
    parser.add_argument("--only", choices=("worker", "engine"), help="kill processes of one kind")
    parser.add_argument("serve", nargs="*", metavar="OPTION", help="for `stentor serve`, after --")
    return run_tool(parser, argv, _measure, show)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> Recovery:
    measured = []
    with ServerProcess([arguments.model, "--served-model-name", _NAME, *arguments.serve]) as server:
        for victim in [arguments.only] if arguments.only else ["worker", "engine"]:
            try:
                work = measure(server, victim, arguments.streams, arguments.kills, arguments.output_tokens)
                measured.append(asyncio.run(work))
            except TimeoutError:
                raise ToolError(f"streams do not go on after the {victim} was killed:\n{server.output()}") from None
    return Recovery(streams=arguments.streams, measured=measured, **about)
