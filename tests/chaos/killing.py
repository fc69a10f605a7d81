"""Streams that follow one another, while the processes that serve them are killed."""

import asyncio
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from stentor.loadtest.processes import alive, named
from stentor.loadtest.serving.http import HttpClient, parse_address
from stentor.tests.chaos.streams import TokenStream

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
SILENCE: Final = 180.0
"""Seconds for which a stream may stand still before it is taken for lost."""
_FLOWING: Final = 1
"""Reads with tokens of every stream since the last kill, before the next."""
_PATIENCE: Final = 150.0
_POLL_SECONDS: Final = 0.01
_MOST_WAIT: Final = 0.5
"""Seconds, at most, between streams that flow and the kill: it shall meet any moment of a step."""
_TOO_SOON: Final = 0.25
"""Share of kills that do not wait until streams flow again: they meet the one that starts in place of the last."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """One way to disturb."""

    name: str
    process: str
    signal: signal.Signals


WORKER_KILLED: Final = Kind("worker, SIGKILL", "worker", signal.SIGKILL)
ENGINE_KILLED: Final = Kind("engine, SIGKILL", "engine", signal.SIGKILL)
WORKER_STOPPED: Final = Kind("worker, SIGSTOP", "worker", signal.SIGSTOP)


@dataclass(frozen=True)
class Kill:
    kind: Kind
    moment: float
    """By ``time.perf_counter()``."""


@dataclass
class Asked:
    """A request and what came of it."""

    number: int
    """Of its body."""
    stream: TokenStream


@dataclass
class Lanes:
    """Runs one stream in each lane at a time; a lane whose stream has ended takes the next body."""

    port: int
    bodies: Sequence[dict[str, Any]]
    width: int
    done: list[Asked] = field(default_factory=list)
    now: list[TokenStream] = field(default_factory=list)
    ending: bool = False

    async def run_once(self) -> None:
        """Every body once."""
        await self._run(iter(range(len(self.bodies))))

    async def run_until_ending(self) -> None:
        """The bodies again and again; when ``ending`` is set the streams that live still go to their end."""
        await self._run(itertools.cycle(range(len(self.bodies))))

    def flow_since(self, moment: float) -> bool:
        """Whether every lane has had tokens a few times since."""
        return len(self.now) == self.width and all(
            len(stream.arrivals) >= _FLOWING and stream.arrivals[-_FLOWING] > moment for stream in self.now
        )

    async def _run(self, numbers: "itertools.cycle[int] | Any") -> None:
        client = HttpClient(parse_address(f"http://127.0.0.1:{self.port}"), {}, SILENCE)
        self.now = [TokenStream() for _ in range(self.width)]
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in range(self.width):
                    tasks.create_task(self._lane(lane, client, numbers))
        finally:
            client.close()

    async def _lane(self, lane: int, client: HttpClient, numbers: Any) -> None:
        for number in numbers:
            if self.ending:
                return
            body = self.bodies[number]
            stream = self.now[lane] = TokenStream(body.get("n", 1))
            await client.post(CHAT if "messages" in body else COMPLETIONS, msgspec.json.encode(body), stream)
            self.done.append(Asked(number, stream))


async def disturb(lanes: Lanes, server: int, kills: Sequence[Kind], draw: random.Random, note: Note) -> list[Kill]:
    """Each of ``kills`` in turn, at random moments; returns when every stream flows again.

    Raises TimeoutError where streams do not flow again, or there is nobody to kill.
    """
    done: list[Kill] = []
    for kind in kills:
        if not done or draw.random() >= _TOO_SOON or kind.signal is signal.SIGSTOP:
            await _until(lambda: lanes.flow_since(done[-1].moment if done else 0.0), f"streams flow before {kind.name}")
        await asyncio.sleep(draw.uniform(0.0, _MOST_WAIT))
        name = f"stentor-{kind.process}"
        await _until(lambda name=name: len(named(server, name)) == 1, f"there is one {name}")  # type: ignore[misc]
        (pid,) = named(server, name)
        done.append(Kill(kind, time.perf_counter()))
        os.kill(pid, kind.signal)
        note(f"{kind.name}: {len(done)} of {len(kills)}, {len(lanes.done)} streams have ended")
        await _until(lambda pid=pid: not alive(pid), f"process {pid} ends")  # type: ignore[misc]
    await _until(lambda: lanes.flow_since(done[-1].moment), "streams flow after the last kill")
    return done


async def _until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            while not condition():
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"not within {_PATIENCE:g} s: {what}") from None
