"""When requests begin: by how many run at once, or by a rate, in one stage or in several."""

import math
from collections.abc import Iterator
from itertools import repeat
from typing import Final

import msgspec
import numpy as np

from ..tool import UsageError

RAMP_HELP: Final = "concurrency:FROM:TO:STEPS, rate:FROM:TO:STEPS, or a list as in concurrency:1,2,4,8"


class Stage(msgspec.Struct, frozen=True):
    """A stretch of a run: ``concurrency`` users with one request after the other, or sessions at ``rate`` a second."""

    name: str = ""
    concurrency: int | None = None
    rate: float | None = None
    burstiness: float = 1.0
    """Shape of the gamma distribution of gaps: 1 is Poisson, below comes in bursts, infinite is a metronome."""
    requests: int | None = None
    seconds: float | None = None


def gaps(rng: np.random.Generator, rate: float, burstiness: float) -> Iterator[float]:
    """Seconds between arrivals, without end: gamma with mean 1 / rate and coefficient of variation
    1 / sqrt(burstiness)."""
    if math.isinf(burstiness):
        yield from repeat(1.0 / rate)
    while True:
        yield from rng.gamma(burstiness, 1.0 / (rate * burstiness), 256).tolist()


def parse_ramp(text: str) -> tuple[str, list[float]]:
    """``concurrency`` or ``rate``, and the values of its steps. Raises :class:`..tool.UsageError`."""
    axis, *words = text.split(":")
    try:
        match words:
            case [listed]:
                values = [float(word) for word in listed.split(",")]
            case [low, high, steps]:
                values = np.linspace(float(low), float(high), int(steps)).tolist() if int(steps) > 1 else []
            case _:
                values = []
        if axis == "concurrency":
            values = [float(round(value)) for value in values]
    except (ValueError, OverflowError):  # the last: infinity has no nearest whole number
        values = []
    if axis not in ("concurrency", "rate") or not values or not all(0 < value < math.inf for value in values):
        raise UsageError(f"{text} is no ramp: expected {RAMP_HELP}, all above 0, at least two steps")
    return axis, values


def plan(
    *,
    concurrency: int | None = None,
    rate: float | None = None,
    burstiness: float = 1.0,
    ramp: str | None = None,
    requests: int | None = None,
    seconds: float | None = None,
) -> list[Stage]:
    """The stages of a run; requests and seconds are those of the whole run, shared out evenly.

    Raises :class:`..tool.UsageError` where more than one way to arrive is asked for.
    """
    if sum(way is not None for way in (concurrency, rate, ramp)) > 1:
        raise UsageError("--concurrency, --rate and --ramp exclude one another: give one")
    if ramp is None:
        return [Stage("", None if rate else concurrency or 1, rate, burstiness, requests, seconds)]
    axis, values = parse_ramp(ramp)
    steps = len(values)
    if requests is not None and requests < steps:
        raise UsageError(f"--requests {requests} is too few for {steps} steps of the ramp")
    return [
        Stage(
            name=f"{axis}={value:g}",
            concurrency=int(value) if axis == "concurrency" else None,
            rate=value if axis == "rate" else None,
            burstiness=burstiness,
            requests=None if requests is None else requests // steps + (index < requests % steps),
            seconds=None if seconds is None else seconds / steps,
        )
        for index, value in enumerate(values)
    ]
