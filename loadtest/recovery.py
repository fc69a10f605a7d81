"""How long streams stand still when a worker or an engine is killed under them.

    python -P -m stentor.loadtest.recovery --streams 8 --kills 10 -- --dtype float32

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
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.table import Table

from stentor.engine.loading.hub import DEFAULT_MODEL

from .client import RequestFailed, Stream, stream_completion
from .offline import wide_console
from .processes import named
from .server_process import ServerProcess
from .worker_options import at_least

_HOST: Final = "127.0.0.1"
_NAME: Final = "recovery"
_FLOWING: Final = 3
"""Reads with tokens of every stream since the last kill, before the next."""
_PATIENCE: Final = 60.0
_POLL_SECONDS: Final = 0.005
_ON_THE_WAY: Final = 0.1
"""Seconds after a kill for which tokens come that were drawn before it."""
_MOST_WAIT: Final = 0.5
"""Seconds, at most, between streams that flow and the kill: it shall meet any moment of a step."""


@dataclass
class Load:
    """Streams that follow one another, as many at a time as there are lanes."""

    port: int
    tokens: int
    done: list[Stream] = field(default_factory=list)
    now: list[Stream] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def lane(self, number: int) -> None:
        self.now.append(Stream(time.perf_counter()))
        while True:
            stream = self.now[number] = Stream(time.perf_counter())
            prompt = f"Stream {number} tells a tale of {len(self.done)} travellers."
            body = {
                "model": _NAME,
                "prompt": prompt,
                "max_tokens": self.tokens,
                "ignore_eos": True,
                "seed": number,
                "temperature": 0 if number % 2 else 1,
            }
            try:
                await stream_completion(_HOST, self.port, body, stream=stream)
                if stream.tokens != self.tokens:
                    self.failures.append(f"{stream.tokens} tokens came of {self.tokens}")
            except (RequestFailed, OSError) as error:
                self.failures.append(str(error))
                await asyncio.sleep(0.1)
            self.done.append(stream)

    def flows_since(self, moment: float) -> bool:
        """Whether every lane has had tokens a few times since."""
        return all(sum(at > moment for at, _ in stream.arrivals) >= _FLOWING for stream in self.now)

    @property
    def streams(self) -> list[Stream]:
        return [*self.done, *self.now]


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


async def measure(server: ServerProcess, victim: str, streams: int, kills: int, tokens: int) -> Recoveries:
    """Raises TimeoutError where streams do not flow again."""
    load = Load(server.port, tokens)
    lanes = [asyncio.create_task(load.lane(number)) for number in range(streams)]
    draw = random.Random(victim)
    moments: list[float] = []
    try:
        for _ in range(kills):
            await _until_it_flows(load, moments[-1] if moments else 0.0)
            await asyncio.sleep(draw.uniform(0.0, _MOST_WAIT))
            (pid,) = named(server.pid, f"stentor-{victim}")
            moments.append(time.perf_counter())
            os.kill(pid, signal.SIGKILL)
        await _until_it_flows(load, moments[-1])
    finally:
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)
    arrivals = [[at for at, _ in stream.arrivals] for stream in load.streams]
    pauses = [after - before for each in arrivals for before, after in itertools.pairwise(each)]
    return Recoveries(
        victim,
        [recovery(arrivals, moment) for moment in moments],
        max(pauses),
        statistics.median(pauses),
        load.failures,
    )


async def _until_it_flows(load: Load, since: float) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not load.now or not load.flows_since(since):
            await asyncio.sleep(_POLL_SECONDS)


def recovery(arrivals: Sequence[Sequence[float]], moment: float) -> float:
    """Seconds from ``moment`` to the end of the longest pause that begins before it or soon after.

    In the stream that waits most.

    ``arrivals`` are the moments at which each stream had tokens.
    """
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


def print_recoveries(console: Console, measured: Sequence[Recoveries], streams: int) -> None:
    table = Table(title=f"seconds until {streams} streams go on after a SIGKILL", title_justify="left")
    for column in ("killed", "kills", "median", "worst", "longest pause", "usual pause", "streams lost"):
        table.add_column(column, justify="left" if column == "killed" else "right")
    for each in measured:
        table.add_row(
            each.victim,
            str(len(each.each)),
            f"{statistics.median(each.each):.3f}",
            f"{max(each.each):.3f}",
            f"{each.longest_pause:.3f}",
            f"{each.undisturbed:.3f}",
            str(len(each.failures)),
        )
    console.print(table)
    for each in measured:
        for failure in each.failures:
            console.print(f"{each.victim}: {failure}", markup=False)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    victims = [arguments.only] if arguments.only else ["worker", "engine"]
    measured = []
    with ServerProcess([arguments.model, "--served-model-name", _NAME, *arguments.serve]) as server:
        for victim in victims:
            try:
                measured.append(
                    asyncio.run(measure(server, victim, arguments.streams, arguments.kills, arguments.tokens))
                )
            except TimeoutError:
                print(f"streams do not go on after the {victim} was killed:\n{server.output()}", file=sys.stderr)
                return 1
    print_recoveries(wide_console(), measured, arguments.streams)
    return int(any(each.failures for each in measured))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -P -m stentor.loadtest.recovery",
        description="Time for which streams stand still when a worker or an engine is killed.",
        epilog="What follows -- goes to `stentor serve` as it is.",
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as of `stentor serve` (%(default)s)")
    parser.add_argument("--streams", type=at_least(1), default=8, metavar="N", help="at a time (8)")
    parser.add_argument("--kills", type=at_least(1), default=10, metavar="N", help="of each kind of process (10)")
    parser.add_argument("--tokens", type=at_least(1), default=400, metavar="N", help="of one stream (400)")
    parser.add_argument("--only", choices=("worker", "engine"), help="kill processes of one kind")
    parser.add_argument("serve", nargs="*", metavar="OPTION", help="for `stentor serve`, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
