"""What was lost under a client, since when, and what it had counted; and the heartbeat of an engine that may hang."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from itertools import zip_longest
from typing import Literal, NamedTuple

import anyio
import msgspec

from stentor.protocols.ipc.actors import Stats
from stentor.protocols.ipc.config import process_name

logger = logging.getLogger(__name__)

LostProcess = Literal["engine", "worker"]
Observer = Callable[[LostProcess, float], None]

NO_STATS = Stats(0, 0, 0.0, 0, 0, 0, 0, 0)


class _Outage(NamedTuple):
    process: LostProcess
    why: str
    began: float
    """``time.monotonic()``"""


class Outages:
    """From each loss to the ``EngineReady`` that ends it: logged, timed and counted."""

    def __init__(self, model: str = "") -> None:
        """``model`` tells one of several apart in logs."""
        self._model = model
        self._now: _Outage | None = None
        self._observer: Observer | None = None
        self._stats = NO_STATS
        self._settled = NO_STATS
        """What engines that were lost have counted."""

    @property
    def why(self) -> str | None:
        """Why no step can run at present."""
        return None if self._now is None else self._now.why

    @property
    def stats(self) -> Stats:
        """The latest gauges; counters go on where those of an engine that was lost have ended."""
        return _add_counters(self._stats, self._settled)

    def observe(self, stats: Stats) -> None:
        self._stats = stats

    def watch(self, observer: Observer) -> None:
        """Has ``observer`` called after each recovery, with what had been lost and for how many seconds."""
        self._observer = observer

    def begin(self, process: LostProcess, why: str, waiting: int) -> None:
        """``waiting`` requests have lost the process under them. To say it again changes nothing."""
        if self._now is not None and self._now.why == why:
            return
        if process == "engine":  # of a worker's loss the engine tells itself
            logger.warning("%s; %d requests wait", f"{self._model}: {why}" if self._model else why, waiting)
            self._settled = _add_counters(NO_STATS, self._stats, self._settled)
            self._stats = NO_STATS
        if self._now is None:
            self._now = _Outage(process, why, time.monotonic())
        else:
            lost: LostProcess = "engine" if "engine" in (process, self._now.process) else "worker"
            self._now = self._now._replace(process=lost, why=why)

    def end(self, live: int) -> None:
        """An engine is ready, and goes on with so many requests; nothing need have been lost."""
        outage, self._now = self._now, None
        if outage is None:
            return
        seconds = time.monotonic() - outage.began
        lost = process_name(outage.process, self._model)
        logger.info("the %s is back after %.2f s; %d requests go on", lost, seconds, live)
        if self._observer is not None:
            self._observer(outage.process, seconds)

    def count_watchdog_kill(self) -> None:
        self._settled = msgspec.structs.replace(self._settled, watchdog_kills=self._settled.watchdog_kills + 1)

    def count_poisoned(self) -> None:
        self._settled = msgspec.structs.replace(self._settled, poisoned=self._settled.poisoned + 1)

    def count_recovered(self, requests: int) -> None:
        self._settled = msgspec.structs.replace(self._settled, recovered=self._settled.recovered + requests)

    def give_up(self) -> None:
        """No more engine comes."""
        self._now = None


def _add_counters(stats: Stats, *more: Stats) -> Stats:
    """The gauges of the first, and counters of all."""
    every = (stats, *more)
    return msgspec.structs.replace(
        stats,
        preemptions=sum(each.preemptions for each in every),
        prefix_queries=sum(each.prefix_queries for each in every),
        prefix_hits=sum(each.prefix_hits for each in every),
        steps=sum(each.steps for each in every),
        worker_restarts=sum(each.worker_restarts for each in every),
        recovered=sum(each.recovered for each in every),
        watchdog_kills=sum(each.watchdog_kills for each in every),
        poisoned=sum(each.poisoned for each in every),
        prompt_computed=sum(each.prompt_computed for each in every),
        host_queries=sum(each.host_queries for each in every),
        host_hits=sum(each.host_hits for each in every),
        host_stored_bytes=sum(each.host_stored_bytes for each in every),
        host_loaded_bytes=sum(each.host_loaded_bytes for each in every),
        num_drafts=sum(each.num_drafts for each in every),
        num_draft_tokens=sum(each.num_draft_tokens for each in every),
        accepted_by_position=[sum(at) for at in zip_longest(*(e.accepted_by_position for e in every), fillvalue=0)],
    )


_TICK_SECONDS = 1.0
_TICKS = 8
"""That a shorter limit is divided into."""


class Heartbeat:
    """Asks an engine that has said nothing for a while to say something; one that stays silent hangs.

    It is only asked while it has requests, so that an idle server sleeps. Silence is counted in ticks rather than
    read from a clock: if this process stood still itself, that is one tick and no more.
    """

    def __init__(self, limit: float, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        """``limit``: seconds of silence; 0 is for ever."""
        self._limit = limit
        self._sleep = sleep
        self._beats = 0
        self._busy = asyncio.Event()

    def beat(self) -> None:
        """The engine has said something."""
        self._beats += 1

    def wake(self) -> None:
        """There may be requests again."""
        self._busy.set()

    async def stopped(self, busy: Callable[[], bool], ask: Callable[[], None]) -> None:
        """Returns once the engine is ``busy`` and has been silent too long though it was asked."""
        if not self._limit:
            await anyio.sleep_forever()
        tick = min(_TICK_SECONDS, self._limit / _TICKS)
        silence, beats = 0.0, self._beats
        while silence < self._limit:
            await self._sleep(tick)
            if self._beats != beats:
                silence, beats = 0.0, self._beats
            elif busy():
                silence += tick
                ask()
            else:
                self._busy.clear()
                await self._busy.wait()
                silence = 0.0
