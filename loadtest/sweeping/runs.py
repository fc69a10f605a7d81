"""The runs of a sweep, in their order: each is measured once, kept, and found again the next time."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from zlib import crc32

from ..record import Result
from ..report.figures import figures_of, medians, show_value
from .axis import Value
from .store import Store, Target

_SEED_BITS: Final = 0x7FFFFFFF
_NOBODY: Final = {"connection"}
"""Kinds of errors that measure no server. A run of others alone is kept: the server failed under the load."""


class RunError(Exception):
    """A run that gave nothing to keep; the message is one line for the operator."""


class Interrupted(Exception):
    """The operator ended a run."""


class Measure(Protocol):
    """Runs ``stentor bench serve`` once. Raises :class:`RunError` and :class:`Interrupted`."""

    def __call__(self, options: Sequence[str]) -> Result: ...


_DIGITS: Final = 3
_UP: Final = 4096
_DOWN: Final = 64
"""How many times its start a search goes up, and what part of it down."""


class Search:
    """One search, told what each rate did.

    ``low`` is the highest rate that held and ``high`` the lowest that did not. It ends when they are ``precision``
    apart (0.05: five percent), or when nothing up to 4,096 times the start fails, or down to a 64th of it holds.
    """

    def __init__(self, start: float, precision: float) -> None:
        self.low: float | None = None
        self.high: float | None = None
        self._start = start
        self._precision = precision

    def next_rate(self) -> float | None:
        """What to try; None when the search is over."""
        match self.low, self.high:
            case None, None:
                return self._start
            case float(low), None:
                rate = 2 * low
                return _round(rate) if rate <= self._start * _UP else None
            case None, float(high):
                rate = high / 2
                return _round(rate) if rate >= self._start / _DOWN else None
            case float(low), float(high):
                rate = _round(math.sqrt(low * high))
                return None if high <= low * (1 + self._precision) or not low < rate < high else rate
        raise AssertionError("unreachable")

    def tell(self, rate: float, held: bool) -> None:
        """What a rate did. One that held above one that did not is noise, and is believed no more than that one."""
        if held and (self.high is None or rate < self.high):
            self.low = rate if self.low is None else max(self.low, rate)
        elif not held and (self.low is None or rate > self.low):
            self.high = rate if self.high is None else min(self.high, rate)


def _round(rate: float) -> float:
    return float(f"{rate:.{_DIGITS}g}")


@dataclass(frozen=True)
class Run:
    """One run of a sweep; ``number`` counts the repeats of a value from 0."""

    target: Target
    value: Value
    number: int


class Watcher(Protocol):
    """Who is told how a sweep goes."""

    def begin(self, run: Run) -> None: ...

    def end(self, run: Run, result: Result, found: bool) -> None:
        """``found``: it was there already."""


@dataclass
class Runs:
    """How runs are made. ``seed`` is what serve's own would be; None leaves every run the same one."""

    store: Store
    measure: Measure
    watcher: Watcher
    options: Sequence[str]
    seed: int | None
    repeats: int
    cooldown: float
    requests_each: int | None = None
    """Requests for each concurrent user, where the axis is concurrency."""
    sleep: Callable[[float], None] = time.sleep
    tried: dict[str, dict[Value, None]] = field(default_factory=dict, init=False)
    """The values of each target that were run or found, in their order."""
    _rest: bool = field(default=False, init=False)

    def sweep(self, values: Sequence[Value]) -> None:
        """Every repeat of every value. At each repeat the targets take turns, so that what changes meets them all."""
        for value in values:
            for number in range(self.repeats):
                for target in self.store.plan.targets:
                    self.run(Run(target, value, number))

    def saturate(self, start: float, precision: float, share: float) -> dict[str, Search]:
        """For each target a search for the highest rate of which ``share`` keeps its limits; they take turns too."""
        searches = {target.name: Search(start, precision) for target in self.store.plan.targets}
        while tried := [
            (target, rate)
            for target in self.store.plan.targets
            if (rate := searches[target.name].next_rate()) is not None
        ]:
            done: dict[str, list[Result]] = {}
            for number in range(self.repeats):
                for target, rate in tried:
                    done.setdefault(target.name, []).append(self.run(Run(target, rate, number)))
            for target, rate in tried:
                kept = medians([figures_of(result.summary) for result in done[target.name]])
                searches[target.name].tell(rate, kept.get("goodput_share", 0.0) >= share)
        return searches

    def run(self, run: Run) -> Result:
        """One run, or what it left the last time."""
        result = self.store.load(run.target, run.value, run.number)
        if result is not None:
            self.tried.setdefault(run.target.name, {})[run.value] = None
            self.watcher.end(run, result, found=True)
            return result
        if self._rest and self.cooldown:
            self.sleep(self.cooldown)
        self._rest = True
        self.watcher.begin(run)
        result = self.measure(list(self.options_of(run)))
        if set(result.summary.errors_by_kind) <= _NOBODY and not result.summary.completed:
            kinds = ", ".join(result.summary.errors_by_kind) or "no request was sent"
            where = f"{self.store.plan.axis}={show_value(run.value)} at {run.target.name}"
            raise RunError(f"no request of {where} was answered ({kinds}): nothing of this run is kept")
        self.store.save(run.target, run.value, run.number, result)
        self.tried.setdefault(run.target.name, {})[run.value] = None
        self.watcher.end(run, result, found=False)
        return result

    def options_of(self, run: Run) -> Iterator[str]:
        """What a run is asked with. Targets share the seed of a value's repeat, and no other run has it: prompts that
        come again would be answered from a prefix cache."""
        axis = self.store.plan.axis
        yield from self.options
        yield from (f"--url={run.target.url}", f"--name={run.target.name}")
        if self.seed is not None:
            mixed = crc32(f"{self.seed}/{axis}={show_value(run.value)}/{run.number}".encode())
            yield f"--seed={mixed & _SEED_BITS}"
        if self.requests_each is not None and isinstance(run.value, float):
            yield f"--requests={round(self.requests_each * run.value)}"
        yield f"--{axis}={show_value(run.value)}"
