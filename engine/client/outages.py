"""Tracks losses of processes under a client, with their duration and counters; and the heartbeat that detects a
hang."""

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import zip_longest
from typing import Any, Final, Literal, NamedTuple

import anyio
import msgspec

from stentor.protocols.ipc.actors import GAUGES, NO_STATS, Stats
from stentor.protocols.ipc.config import process_name
from stentor.protocols.ipc.histograms import Histogram, summed

from ..processes.silence import Silence

logger = logging.getLogger(__name__)

LostProcess = Literal["engine", "worker"]
RecoveryObserver = Callable[[LostProcess, float], None]
_COUNTERS: Final = tuple(name for name in Stats.__struct_fields__ if name not in GAUGES)


class _Outage(NamedTuple):
    process: LostProcess
    why: str
    began: float
    """Seconds of ``time.monotonic()``."""


class Outages:
    """Outages, from a loss to the ``EngineReady`` that ends it: logged, timed and counted."""

    def __init__(self, model: str = "") -> None:
        """``model`` names the model in logs if there are several."""
        self._model = model
        self._now: _Outage | None = None
        self._observer: RecoveryObserver | None = None
        self._stats = NO_STATS
        self._settled = NO_STATS
        """Counters of lost engines."""

    @property
    def why(self) -> str | None:
        """Why no step can run at present; None if steps can run."""
        return None if self._now is None else self._now.why

    @property
    def stats(self) -> Stats:
        """The latest gauges; counters continue across lost engines."""
        return add_counters(self._stats, self._settled)

    def observe(self, stats: Stats) -> None:
        self._stats = stats

    def watch(self, observer: RecoveryObserver) -> None:
        """Call ``observer`` after each recovery, with the lost process and the seconds."""
        self._observer = observer

    def begin(self, process: LostProcess, why: str, waiting: int) -> None:
        """Begin an outage under ``waiting`` requests. Repeating it with the same reason changes nothing."""
        if self._now is not None and self._now.why == why:
            return
        if process == "engine":  # the engine itself logs the loss of a worker
            logger.warning("%s; %d requests wait", f"{self._model}: {why}" if self._model else why, waiting)
            self._settle()
        if self._now is None:
            self._now = _Outage(process, why, time.monotonic())
        else:
            lost: LostProcess = "engine" if "engine" in (process, self._now.process) else "worker"
            self._now = self._now._replace(process=lost, why=why)

    def end(self, live: int) -> None:
        """End the outage, if there is one; ``live`` requests continue."""
        outage, self._now = self._now, None
        if outage is None:
            return
        seconds = time.monotonic() - outage.began
        lost = process_name(outage.process, self._model)
        logger.info("the %s is back after %.2f s; %d requests go on", lost, seconds, live)
        if self._observer is not None:
            self._observer(outage.process, seconds)

    def excuse(self) -> None:
        """Forget the outage: no step would run anyway."""
        self._now = None

    def count_watchdog_kill(self) -> None:
        self._settled = msgspec.structs.replace(self._settled, watchdog_kills=self._settled.watchdog_kills + 1)

    def count_poisoned(self) -> None:
        self._settled = msgspec.structs.replace(self._settled, poisoned=self._settled.poisoned + 1)

    def count_recovered(self, requests: int) -> None:
        self._settled = msgspec.structs.replace(self._settled, recovered=self._settled.recovered + requests)

    def give_up(self) -> None:
        """Forget the outage: there will be no other engine, and nothing runs."""
        self.excuse()
        self._settle()

    def _settle(self) -> None:
        """Keep the counters of an engine that is gone, and none of its gauges."""
        self._settled = add_counters(NO_STATS, self._stats, self._settled)
        self._stats = NO_STATS


def add_counters(stats: Stats, *more: Stats) -> Stats:
    """The gauges of ``stats``, and the sums of all counters."""
    every = (stats, *more)
    return msgspec.structs.replace(stats, **{name: _sum([getattr(each, name) for each in every]) for name in _COUNTERS})


def _sum(counts: list[Any]) -> int | list[int] | Histogram:
    """The sum of a counter's values, of one type: numbers, numbers by position, or histograms with the same bounds."""
    match counts[0]:
        case Histogram():
            return summed(*counts)
        case list():
            return [sum(at) for at in zip_longest(*counts, fillvalue=0)]
        case _:
            total: int = sum(counts)
            return total


_TICK_SECONDS = 1.0
_TICKS = 8
"""Least number of ticks of a limit."""
START_SECONDS = 60.0
"""Longest silence of an engine that starts: its imports take a second of CPU time, and then it answers."""


class Heartbeat:
    """Detects an engine that hangs: one that stays silent although it is pinged.

    It is pinged only while it has requests, so that an idle server sleeps. Silence is counted in ticks, not by a clock:
    if this process itself was stopped, that counts as one tick.
    """

    def __init__(self, limit: float, patience: float = 1.0) -> None:
        """``limit``: seconds of silence; 0: no limit. ``patience`` multiplies the limit of a start."""
        self._limit = limit
        self._patience = patience
        self._tick = min(_TICK_SECONDS, limit / _TICKS)
        self._beats = 0
        self._busy = asyncio.Event()

    def beat(self) -> None:
        """Record a message of the engine."""
        self._beats += 1

    def wake(self) -> None:
        """Resume watching, after a request has come."""
        self._busy.set()

    async def starts(
        self, is_starting: Callable[[], bool], ask: Callable[[], None], cpu_seconds: Callable[[], float]
    ) -> bool:
        """Return once a pinged engine no longer ``is_starting``, or False once it has been silent for too long.

        Time in which the engine is starved of CPU counts a tenth at least.
        """
        if not self._limit:
            await anyio.sleep_forever()
        silence, beats = Silence(cpu_seconds, 2 * _TICK_SECONDS), self._beats
        while is_starting():
            if silence.seconds >= START_SECONDS * self._patience:
                return False
            ask()
            await anyio.sleep(self._tick)
            if self._beats != beats:
                beats = self._beats
                silence.end()
            else:
                silence.look()
        return True

    async def stopped(self, busy: Callable[[], bool], ask: Callable[[], None]) -> None:
        """Return once the engine, though ``busy`` and asked, has been silent for too long."""
        if not self._limit:
            await anyio.sleep_forever()
        silence, beats = 0.0, self._beats
        while silence < self._limit:
            await anyio.sleep(self._tick)
            if self._beats != beats:
                silence, beats = 0.0, self._beats
            elif busy():
                silence += self._tick
                ask()
            else:
                self._busy.clear()
                await self._busy.wait()
                silence = 0.0
