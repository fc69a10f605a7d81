"""The run itself: every side started and weighed alone, then all of them up, and one at a time under load."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from ..client import StreamError, complete
from ..server_process import free_port
from ..tool import table, wide_console
from .figures import (
    START,
    Column,
    Measure,
    Round,
    Settings,
    SidesRecord,
    grids,
    is_prefill,
    prefill_round,
    remarks,
    streams_round,
)
from .places import installed
from .prompts import Words
from .running import Server, ServerError, shown
from .sides import Room, Side

Say = Callable[[str], None]
Ask = Callable[[Server, str, int], Round]
"""(server, shape, number of the round) → what came of it; round 0 warms up."""

WIDE: Final = 200
"""Columns of tables that go to a file."""

REST_SECONDS: Final = 0.3
"""How long idleness is watched before each measurement."""
REST_LIMIT: Final = 6.0
"""How long is waited for it: some thread pools and queues wait busily for seconds after work."""
SPINNING: Final = 0.05
"""Cores' worth of CPU time from which a server is not idle."""
SLOW_START: Final = 30.0
"""Seconds from which a start is not repeated."""


@dataclass
class Entry:
    server: Server
    column: Column

    @property
    def live(self) -> bool:
        return self.column.failed is None


def entry_of(side: Side, weights: Path, room: Room) -> Entry:
    server = Server(side, weights, free_port(), room)
    files = [weights] if weights.is_file() else list(weights.glob("*.safetensors"))
    return Entry(
        server,
        Column(
            name=side.name,
            peer=side.peer,
            bits=side.bits,
            version=installed(side.peer) or "",
            command=server.command,
            weights=shown(str(weights)),
            weight_bytes=sum(file.stat().st_size for file in files),
        ),
    )


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Within, SIGTERM raises KeyboardInterrupt: servers must not outlive this process."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def weigh_starts(entries: Sequence[Entry], settings: Settings, words: Words, say: Say) -> None:
    """Start and weigh each side while no other is up: memory that servers share would otherwise be split."""
    for entry in entries:
        found: list[Round] = []
        entry.column.rounds[START] = found
        try:
            for number in range(settings.starts):
                say(f"{entry.column.name}: start {number + 1} of {settings.starts}")
                seconds = entry.server.start(words)
                found.append({"ready_s": seconds, "memory_mib": entry.server.memory() / 2**20})
                entry.server.stop()
                if seconds > SLOW_START:
                    break
        except (ServerError, OSError) as error:
            fail(entry, error)


def start_all(entries: Sequence[Entry], words: Words, say: Say) -> None:
    """Start every side; all stay up."""
    for entry in entries:
        say(f"{entry.column.name}: starting")
        try:
            entry.server.start(words)
        except (ServerError, OSError) as error:
            fail(entry, error)


def run_rounds(entries: Sequence[Entry], settings: Settings, words: Words, say: Say) -> None:
    """Streams and prompts of every shape, the same for all sides."""
    take_turns(entries, settings.shapes, settings.rounds, partial(_ask, settings, words), say)


def take_turns(entries: Sequence[Entry], shapes: Sequence[str], rounds: int, ask: Ask, say: Say) -> None:
    """A B A B: in every round each shape goes through all sides. Round 0 warms up, and is left out."""
    for number in range(rounds + 1):
        for shape in shapes:
            for entry in entries:
                if not entry.live or (shape != "1" and not is_prefill(shape) and not entry.server.side.parallel):
                    continue
                what = "a long prompt twice" if is_prefill(shape) else f"{shape} at once"
                say(f"{f'round {number}' if number else 'warm-up'}: {entry.column.name}, {what}")
                others = [other.server for other in entries if other is not entry and other.live]
                rest(others)
                disturbance = Disturbance(entry.server, others)
                try:
                    figures = ask(entry.server, shape, number)
                except (ServerError, StreamError, OSError) as error:
                    fail(entry, error)
                    continue
                figures.update(disturbance.figures())
                if number:
                    entry.column.rounds.setdefault(shape, []).append(figures)


def _ask(settings: Settings, words: Words, server: Server, shape: str, number: int) -> Round:
    output = settings.output if number else min(16, settings.output)
    rng = random.Random(f"{settings.seed} {number} {shape}")
    return asyncio.run(_load(server, shape, settings, output, words, rng))


async def _load(server: Server, shape: str, settings: Settings, output: int, words: Words, rng: random.Random) -> Round:
    prompt, long = settings.prompt_of(shape), is_prefill(shape)
    streams, output = (1, 1) if long else (int(shape), output)
    bodies = [server.side.body(server.weights, words.prompt(prompt, rng), output) for _ in range(streams)]
    answers = await asyncio.gather(*(complete(server.port, body) for body in bodies))
    if long:
        answers.append(await complete(server.port, bodies[0]))
    for answer in answers:
        if (answer.prompt_tokens, answer.tokens) != (prompt, output):
            # a server that did other work than was asked for is not compared
            raise StreamError(
                f"it counts {answer.prompt_tokens} tokens in and {answer.tokens} out, expected {prompt} and {output}"
            )
    return prefill_round(*answers) if long else streams_round(answers)


def rest(others: Sequence[Server]) -> None:
    """Waits until only the side in turn computes; :class:`Disturbance` names a server that does not stop."""
    limit = time.monotonic() + REST_LIMIT
    while time.monotonic() < limit:
        before = [other.cpu() for other in others]
        time.sleep(REST_SECONDS)
        if all(other.cpu() - used <= SPINNING * REST_SECONDS for other, used in zip(others, before, strict=True)):
            return


def fail(entry: Entry, error: Exception) -> None:
    """It is measured no more, and why is told."""
    entry.column.failed = " ".join(str(error).split())[:400]
    entry.server.stop()


_BUSY: Final = (1, 2, 3, 6, 7, 8)
"""Columns of /proc/stat's first line: user, nice, system, irq, softirq, steal (proc_stat(5))."""


class Disturbance:
    """CPU time, from when it is made, of all but the measured server and this client."""

    def __init__(self, measured: Server, others: Sequence[Server]) -> None:
        self._measured = measured
        self._others = others
        self._began = time.monotonic()
        self._before = self._now()

    def figures(self) -> Round:
        """Cores' worth of CPU time since: ``others_cores`` of servers that should be idle, ``strangers_cores`` of
        processes that are not of this run.
        """
        seconds = time.monotonic() - self._began
        busy, ours, others = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return {"others_cores": others / seconds, "strangers_cores": max(0.0, busy - ours - others) / seconds}

    def _now(self) -> tuple[float, float, float]:
        times = os.times()
        ours = self._measured.cpu() + times.user + times.system
        return busy_seconds(), ours, sum(server.cpu() for server in self._others)


def busy_seconds() -> float:
    """CPU seconds that the machine has computed since it started, over all cores."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(int(fields[number]) for number in _BUSY) / os.sysconf("SC_CLK_TCK")


def show_sides(title: str, report: SidesRecord, rows: Sequence[Measure]) -> int:
    """Prints medians, ratios, what to doubt and how each was started; 1 where a side failed, or none was measured."""
    console: Console = wide_console(WIDE)
    console.print(title, highlight=False)
    for columns, cells in grids(report.columns, rows, "[bold]{}[/bold]"):
        console.print(table(columns, cells))
    commands = [f"  {column.name}: {column.command}" for column in report.columns]
    for line in [*remarks(report), "How each was started:", *commands]:
        console.print(line, highlight=False, soft_wrap=True)
    return 1 if not report.columns or any(column.failed for column in report.columns) else 0
