"""From requests to the numbers of a plot: distributions, rates and counts over time. Seconds in, milliseconds out."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..record import RequestRecord

Point = tuple[float, float]
Values = NDArray[np.float64]
MEASURES: Final = ("ttft", "itl", "tpot", "e2e")
_CURVE: Final = 240
"""Points of a distribution, half of them in the upper tenth, where latencies are judged."""
DOTS: Final = 2_000
"""Points of a plot, at most."""


def latencies(requests: Sequence[RequestRecord], measure: str) -> Values:
    """Every value of ``ttft``, ``itl``, ``tpot`` or ``e2e`` in milliseconds; of completed requests alone."""
    done = [request for request in requests if request.error is None]
    if measure == "itl":
        return 1e3 * np.array([gap for request in done for gap in request.itl], dtype=np.float64)
    take: Callable[[RequestRecord], float | None] = {
        "ttft": lambda request: request.ttft,
        "tpot": lambda request: request.tpot,
        "e2e": lambda request: request.e2e,
    }[measure]
    return 1e3 * np.array([value for request in done if (value := take(request)) is not None], dtype=np.float64)


def cumulative(values: Values) -> list[Point]:
    """The CDF as (value, share in percent) steps; many values are thinned at their quantiles."""
    ordered = np.sort(values)
    if not len(ordered):
        return []
    if len(ordered) <= _CURVE:
        shares = np.arange(1, len(ordered) + 1) / len(ordered)
    else:
        shares = np.concatenate([np.linspace(0, 0.9, _CURVE // 2, endpoint=False), np.linspace(0.9, 1, _CURVE // 2)])
        ordered = ordered[np.maximum(np.ceil(shares * len(ordered)).astype(int) - 1, 0)]
    return [(float(ordered[0]), 0.0)] + [(float(v), float(100 * s)) for v, s in zip(ordered, shares, strict=True)]


def wide(values: Values) -> bool:
    """Whether a logarithmic axis shows the values better: the bulk spans more than a factor of eight."""
    positive = values[values > 0]
    if len(positive) < 2:
        return False
    low, high = np.quantile(positive, [0.02, 0.995])
    return bool(high > 8 * low)


def above_floor(values: Values) -> Values:
    """Values as a logarithmic axis shows them: those far below the median, such as 0, at its left end."""
    positive = values[values > 0]
    return np.maximum(values, float(np.median(positive)) / 50) if len(positive) else values


def gaps_over_time(requests: Sequence[RequestRecord]) -> tuple[Values, Values]:
    """When each gap between two chunks ended (seconds since the run's start), and how long it was (ms)."""
    times, gaps = [], []
    for request in requests:
        if request.ttft is not None and request.itl:
            each = np.array(request.itl)
            times.append(request.start + request.ttft + np.cumsum(each))
            gaps.append(1e3 * each)
    empty = np.zeros(0)
    return (np.concatenate(times), np.concatenate(gaps)) if times else (empty, empty)


def percentile_over_time(times: Values, values: Values, edges: Values, percentile: float) -> list[Point]:
    """A percentile of the values in each slice of time, at its middle; slices with nothing in them are left out."""
    slices = np.digitize(times, edges) - 1
    order = np.argsort(slices, kind="stable")
    starts = np.searchsorted(slices[order], np.arange(len(edges)))
    points = []
    for index in range(len(edges) - 1):
        within = values[order[starts[index] : starts[index + 1]]]
        if len(within):
            middle = float(edges[index] + edges[index + 1]) / 2
            points.append((middle, float(np.percentile(within, percentile))))
    return points


def output_rate(requests: Sequence[RequestRecord], edges: Values) -> list[Point]:
    """Output tokens a second in each slice of time, at its middle, by the arrival of the chunks that held them."""
    times, tokens = [np.zeros(0)], [np.zeros(0)]
    for request in requests:
        if request.ttft is None:
            continue
        first = max(request.output_tokens - sum(request.chunk_tokens), 0)
        arrivals = request.start + request.ttft + np.cumsum([0.0, *request.itl])
        times.append(arrivals)
        tokens.append(np.array([first, *request.chunk_tokens], dtype=np.float64))
    counts, _ = np.histogram(np.concatenate(times), edges, weights=np.concatenate(tokens))
    widths = np.diff(edges)
    middles = (edges[:-1] + edges[1:]) / 2
    return list(zip(middles.tolist(), (counts / widths).tolist(), strict=True))


def in_flight(requests: Sequence[RequestRecord]) -> list[Point]:
    """How many requests were sent and not yet answered, from each moment at which that changed."""
    moments = [(request.start, 1) for request in requests] + [(request.start + request.e2e, -1) for request in requests]
    points: list[Point] = []
    count = 0
    for moment, change in sorted(moments):
        count += change
        if points and points[-1][0] == moment:
            points.pop()
        points.append((moment, float(count)))
    return thin(points, DOTS)


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most ``most`` of the points, evenly chosen, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[index] for index in np.linspace(0, len(points) - 1, most).astype(int)]


def time_edges(seconds: float, slices: int = 48) -> Values:
    """Slices of a run, none shorter than a fifth of a second."""
    return np.linspace(0, max(seconds, 0.1), max(min(slices, int(seconds / 0.2)), 1) + 1)


def duration(requests: Sequence[RequestRecord]) -> float:
    """Seconds until the last request ended."""
    return max((request.start + request.e2e for request in requests), default=0.0)
