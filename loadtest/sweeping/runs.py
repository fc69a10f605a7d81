"""A sweep's values and runs, in their order: each is measured once, kept in a folder, and found again the next time.

FOLDER/plan.json            what every run has in common; another plan does not go on here
FOLDER/runs/TARGET/VALUE.ROUND.json
FOLDER/sweep.json           of one target, or sweep-TARGET.json of several
FOLDER/sweep.html
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote
from zlib import crc32

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape

from ..record import Result, Sweep, SweepPoint, load_result, save_record
from ..report.figures import figures_of, medians, number, show_value
from ..tool import ToolError, UsageError

Value = float | str
VALUES_HELP: Final = "1,2,4 names them; 1:16:x2 doubles from 1 to 16; 10:50:10 adds 10"
_MOST_VALUES: Final = 1_000
_SEED_BITS: Final = 0x7FFFFFFF
_NOBODY: Final = {"connection"}
"""Kinds of errors that measure no server. A run of others alone is kept: the server failed under the load."""
_UP: Final = 4096
_DOWN: Final = 64
"""How many times its start a search goes up, and what part of it down."""
_PRECISION: Final = 1.05
"""How far the ends of a search may be apart when it is over, as a ratio."""
SHARE: Final = 0.95
"""Of requests that must keep the limits at a rate that holds."""


class Target(NamedTuple):
    """One server of a sweep."""

    name: str
    url: str


class Search:
    """One search, told what each rate did.

    ``low`` is the highest rate that held and ``high`` the lowest that did not. It ends when they are 5 percent apart,
    or when nothing up to 4,096 times the start fails, or down to a 64th of it holds.
    """

    def __init__(self, start: float) -> None:
        self.low: float | None = None
        self.high: float | None = None
        self._start = start

    def next_rate(self) -> float | None:
        """What to try, of three digits; None when the search is over."""
        low, high = self.low, self.high
        if low is not None and high is not None:
            rate = math.sqrt(low * high) if high > _PRECISION * low else low
        else:
            rate = 2 * low if low is not None else high / 2 if high is not None else self._start
        rate = float(f"{rate:.3g}")
        within = self._start / _DOWN <= rate <= self._start * _UP
        return rate if within and rate not in (low, high) else None

    def tell(self, rate: float, held: bool) -> None:
        """What a rate did. One that held above one that did not is noise, and is believed no more than that one."""
        if held and (self.high is None or rate < self.high):
            self.low = rate if self.low is None else max(self.low, rate)
        elif not held and (self.low is None or rate > self.low):
            self.high = rate if self.high is None else min(self.high, rate)


def parse_axis(name: str, text: str) -> tuple[str, list[Value]]:
    """The parameter's name, without dashes in front, and its values: ``1,2,4``, ``1:16:x2``, ``10:50:10`` or words.

    Numbers come as numbers. Raises :class:`..tool.UsageError`.
    """
    bare = name.removeprefix("--").replace("_", "-")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", bare):
        raise UsageError(f"--axis {name}: expected the name of an option of `stentor bench serve`, such as concurrency")
    low, *rest = (_finite(part) for part in text.split(":"))
    if low is not None and len(rest) == 2 and rest[0] is not None:
        return bare, list(_range(text, low, rest[0]))
    words = [word.strip() for word in text.split(",")]
    if not all(words) or len(set(words)) < len(words):
        raise UsageError(f"--axis values {text!r}: expected each once, between single commas ({VALUES_HELP})")
    numbers = [number for word in words if (number := _finite(word)) is not None]
    return bare, [*(numbers if len(numbers) == len(words) else words)]


def _range(text: str, low: float, high: float) -> list[float]:
    step = text.rpartition(":")[2]
    growing = step.startswith("x")
    size = _finite(step.removeprefix("x"))
    if size is None or high < low or size <= growing or (growing and low <= 0):
        raise UsageError(f"--axis values {text!r}: expected LOW:HIGH:xFACTOR or LOW:HIGH:STEP, upwards")
    found = [low]
    while (following := found[-1] * size if growing else low + len(found) * size) <= high * (1 + 1e-9):
        found.append(float(f"{following:.12g}"))
        if len(found) > _MOST_VALUES:
            raise UsageError(f"--axis values {text!r}: more than {_MOST_VALUES} of them")
    return found


def _finite(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@dataclass
class Runs:
    """How runs are made. Nothing is written before :meth:`open`."""

    folder: Path
    axis: str
    values: Sequence[Value]
    """None of them where a search chooses."""
    targets: Sequence[Target]
    options: Sequence[str]
    plan: Mapping[str, str]
    """What all runs of the folder share. Values and repeats are not in it: a sweep may be widened."""
    seed: int
    """What serve's own would be."""
    repeats: int
    cooldown: float
    requests_each: int | None
    """Requests for each concurrent user, where the axis is concurrency."""
    measure: Callable[[Sequence[str]], Result]
    """Runs ``stentor bench serve`` once. Raises :class:`..tool.ToolError` and KeyboardInterrupt."""
    console: Console
    _tried: dict[str, dict[Value, None]] = field(default_factory=dict, init=False)
    """The values of each target that were run or found, in their order."""
    _found: int = field(default=0, init=False)
    _made: int = field(default=0, init=False)

    def open(self) -> None:
        """Makes the folder ours. Raises :class:`..tool.UsageError` where it belongs to another plan."""
        path = self.folder / "plan.json"
        if path.is_file():
            return self._check(path)
        if (self.folder / "runs").exists():
            raise UsageError(f"{self.folder} holds runs and no plan.json: name another folder by --out")
        self.folder.mkdir(parents=True, exist_ok=True)
        return save_record(self.plan, path)

    def sweep(self) -> None:
        """Every repeat of every value. At each repeat the targets take turns, so that what changes meets them all."""
        for value in self.values:
            for repeat in range(self.repeats):
                for target in self.targets:
                    self._run(target, value, repeat)

    def saturate(self, start: float) -> dict[str, Search]:
        """For each target a search for the highest rate that keeps the limits; they take turns too."""
        searches = {target.name: Search(start) for target in self.targets}
        while tried := [(one, rate) for one in self.targets if (rate := searches[one.name].next_rate()) is not None]:
            done: dict[str, list[Result]] = {}
            for repeat in range(self.repeats):
                for target, rate in tried:
                    done.setdefault(target.name, []).append(self._run(target, rate, repeat))
            for target, rate in tried:
                kept = medians([figures_of(result.summary) for result in done[target.name]])
                searches[target.name].tell(rate, kept.get("goodput_share", 0.0) >= SHARE)
        return searches

    def gather(self, target: Target, command: Sequence[str]) -> Sweep:
        """The runs there are, as one sweep: a point each, so that one value has as many points as repeats."""
        points = [
            SweepPoint(value, replace(load_result(path), requests=[]))
            for value in self.values or self._tried.get(target.name, {})
            for repeat in range(self.repeats)
            if (path := self._path(target, value, repeat)).is_file()
        ]
        began = min((point.result.started_at for point in points), default="")
        return Sweep(name=target.name, started_at=began, command=list(command), axis=self.axis, points=points)

    def _run(self, target: Target, value: Value, repeat: int) -> Result:
        """One run, or what it left the last time."""
        path = self._path(target, value, repeat)
        if path.is_file():
            self._found += 1
            result = load_result(path)
        else:
            if self._made and self.cooldown:
                time.sleep(self.cooldown)
            self._announce(target, value, repeat)
            result = self.measure(list(self._options_of(target, value, repeat)))
            if set(result.summary.errors_by_kind) <= _NOBODY and not result.summary.completed:
                kinds = ", ".join(result.summary.errors_by_kind) or "no request was sent"
                where = f"{self.axis}={show_value(value)} at {target.name}"
                raise ToolError(f"no request of {where} was answered ({kinds}): nothing of this run is kept")
            path.parent.mkdir(parents=True, exist_ok=True)
            save_record(result, path)
            self._made += 1
            self._tell(result)
        self._tried.setdefault(target.name, {})[value] = None
        return result

    def _options_of(self, target: Target, value: Value, repeat: int) -> Iterator[str]:
        """What a run is asked with. Targets share the seed of a value's repeat, and no other run has it: prompts that
        come again would be answered from a prefix cache."""
        yield from self.options
        yield from (f"--url={target.url}", f"--name={target.name}")
        if self.axis != "seed":
            mixed = crc32(f"{self.seed}/{self.axis}={show_value(value)}/{repeat}".encode())
            yield f"--seed={mixed & _SEED_BITS}"
        if self.requests_each is not None and isinstance(value, float):
            yield f"--requests={round(self.requests_each * value)}"
        yield f"--{self.axis}={show_value(value)}"

    def _path(self, target: Target, value: Value, repeat: int) -> Path:
        return self.folder / "runs" / quote(target.name, safe="") / f"{quote(show_value(value), safe='')}.{repeat}.json"

    def _check(self, path: Path) -> None:
        try:
            there = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except msgspec.DecodeError as error:
            raise UsageError(f"{path} is no plan of a sweep ({error}): name another folder by --out") from None
        for name, now in self.plan.items():
            if (before := there.get(name)) != now:
                raise UsageError(
                    f"{self.folder} was begun by another command ({name}: {before or 'none'}, now {now or 'none'}): "
                    "repeat that one, remove what it holds, or name another folder by --out"
                )

    def _announce(self, target: Target, value: Value, repeat: int) -> None:
        if self._found and not self._made:
            self.console.print(f"[dim]{self._found} runs are there already[/]")
        of = f"/{len(self.values) * self.repeats * len(self.targets)}" if self.values else ""
        what = escape(f"{self.axis}={show_value(value)} on {target.name}")
        which = f", {repeat + 1} of {self.repeats}" if self.repeats > 1 else ""
        line = f"[bold]{self._found + self._made + 1}{of}[/] {what}{which}"
        self.console.print(line, end="\n" if self.console.is_terminal else " ", highlight=False, soft_wrap=True)

    def _tell(self, result: Result) -> None:
        summary = result.summary
        errors = f", [red]{summary.errors} errors[/]" if summary.errors else ""
        good = f", {summary.goodput_share:.1%} within limits" if summary.goodput_share is not None else ""
        self.console.print(
            f"  {number(summary.output_tokens_per_s)} tokens/s, TTFT p50 {number(summary.ttft.p50)} ms, "
            f"ITL p50 {number(summary.itl.p50)} p99 {number(summary.itl.p99)} ms{good}{errors}",
            highlight=False,
        )
