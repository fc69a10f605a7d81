"""When requests begin: by how many run at once, or by a rate, in one stage or in several."""

import math
from collections.abc import Iterator
from itertools import repeat
from typing import Final

import msgspec
import numpy as np

RAMP_HELP: Final = "concurrency:FROM:TO:STEPS, rate:FROM:TO:STEPS, or a list as in concurrency:1,2,4,8"


class ArrivalError(ValueError):
    """Arrivals that contradict one another; the message is one line."""


class Stage(msgspec.Struct, frozen=True):
    """A stretch of a run: ``concurrency`` users each ask one thing after the other, or sessions begin at ``rate`` a
    second."""

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
    scale = 1.0 / (rate * burstiness)
    while True:
        yield from rng.gamma(burstiness, scale, 256).tolist()


def parse_ramp(text: str) -> tuple[str, list[float]]:
    """``concurrency`` or ``rate``, and the values of its steps. Raises :class:`ArrivalError`."""
    axis, *words = text.split(":")
    try:
        if axis not in ("concurrency", "rate"):
            raise ValueError
        if len(words) == 1:
            values = [float(word) for word in words[0].split(",")]
        else:
            low, high, steps = float(words[0]), float(words[1]), int(words[2])
            values = [float(value) for value in np.linspace(low, high, steps)] if len(words) == 3 and steps > 1 else []
        if axis == "concurrency":
            values = [float(round(value)) for value in values]
        if not values or not all(math.isfinite(value) and value > 0 for value in values):
            raise ValueError
    except (ValueError, IndexError, OverflowError):  # the last: infinity has no nearest whole number
        raise ArrivalError(f"{text} is no ramp: expected {RAMP_HELP}, all above 0, at least two steps") from None
    return axis, values


def plan(
    *,
    concurrency: int | None,
    rate: float | None,
    burstiness: float,
    ramp: str | None,
    requests: int | None,
    seconds: float | None,
) -> list[Stage]:
    """The stages of a run; requests and seconds are those of the whole run, shared out evenly.

    Raises :class:`ArrivalError` where more than one way to arrive is asked for.
    """
    if sum(way is not None for way in (concurrency, rate, ramp)) > 1:
        raise ArrivalError("--concurrency, --rate and --ramp exclude one another: give one")
    if ramp is None:
        return [Stage("", None if rate else concurrency or 1, rate, burstiness, requests, seconds)]
    axis, values = parse_ramp(ramp)
    if requests is not None and requests < len(values):
        raise ArrivalError(f"--requests {requests} is too few for {len(values)} steps of the ramp")
    return [
        Stage(
            name=f"{axis}={value:g}",
            concurrency=int(value) if axis == "concurrency" else None,
            rate=value if axis == "rate" else None,
            burstiness=burstiness,
            requests=share,
            seconds=seconds / len(values) if seconds is not None else None,
        )
        for value, share in zip(values, _shares(requests, len(values)), strict=True)
    ]


def _shares(total: int | None, parts: int) -> list[int | None]:
    if total is None:
        return [None] * parts
    return [total // parts + (index < total % parts) for index in range(parts)]
