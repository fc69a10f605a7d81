"""The plots of runs of ``stentor bench serve``, each by its name. Several runs lie over one another."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ..record import RequestRecord, Result
from .measures import (
    MEASURES,
    Values,
    above_floor,
    cumulative,
    duration,
    gaps_over_time,
    histogram,
    in_flight,
    latencies,
    output_rate,
    percentile_over_time,
    thin,
    time_edges,
    wide,
)
from .plot import Axis, Bars, Dots, Heat, Line, Mark, Plot, Rule, Steps

_SECONDS: Final = "seconds since the start"
_DOTS: Final = 2_000
_MEANING: Final = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "tpot": "time per output token",
    "e2e": "end-to-end time",
}


def result_plots(results: Sequence[Result]) -> list[Plot]:
    """Every plot that the results have data for."""
    return [plot for make in RESULT_PLOTS.values() if not (plot := make(results)).empty]


def _label(result: Result, index: int, results: Sequence[Result]) -> str:
    twins = sum(other.name == result.name for other in results) > 1
    return f"{result.name} ({index + 1})" if twins else result.name


def _distribution(measure: str) -> Callable[[Sequence[Result]], Plot]:
    def make(results: Sequence[Result]) -> Plot:
        values = [latencies(result.requests, measure) for result in results]
        log = any(wide(each) for each in values)
        marks: list[Mark] = [
            Steps(_label(result, index, results), cumulative(above_floor(each) if log else each), index)
            for index, (result, each) in enumerate(zip(results, values, strict=True))
        ]
        marks += _limits(results, measure, upright=True)
        axis = Axis("ms", log=log)
        title = f"{measure.upper()}: {_MEANING[measure]}"
        about = f"Share of {'gaps' if measure == 'itl' else 'requests'} at or below each {_MEANING[measure]}."
        if log and any(len(each) and above_floor(each).min() > each.min() for each in values):
            about += " Those below a fiftieth of the median stand at the left end."
        return Plot(f"{measure}-cdf", title, axis, Axis("% at or below", low=0, high=100), marks, about)

    return make


def _histogram(measure: str) -> Callable[[Sequence[Result]], Plot]:
    def make(results: Sequence[Result]) -> Plot:
        values = [latencies(result.requests, measure) for result in results]
        log = any(wide(each) for each in values)
        marks: list[Mark] = []
        for index, (result, each) in enumerate(zip(results, values, strict=True)):
            edges, shares = histogram(above_floor(each) if log else each, log)
            if edges:
                marks.append(Bars(_label(result, index, results), edges, shares, index))
        marks += _limits(results, measure, upright=True)
        about = f"How often each {_MEANING[measure]} was seen."
        axes = Axis("ms", log=log), Axis("% of all", low=0)
        return Plot(f"{measure}-histogram", f"{measure.upper()}, how often", *axes, marks, about)

    return make


def itl_over_time(results: Sequence[Result]) -> Plot:
    """Median and 99th percentile in slices of time; for a single run above how many gaps fell where."""
    marks: list[Mark] = []
    log = False
    for index, result in enumerate(results):
        times, gaps = gaps_over_time(result.requests)
        if not len(gaps):
            continue
        log = log or wide(gaps)
        edges = time_edges(duration(result.requests))
        gaps = above_floor(gaps) if log else gaps
        label = f"{_label(result, index, results)} " if len(results) > 1 else ""
        if len(results) == 1:
            marks.append(_heat(times, gaps, edges, log))
        colour = index + (len(results) == 1)
        marks.append(Line(f"{label}p50", percentile_over_time(times, gaps, edges, 50), colour))
        marks.append(Line(f"{label}p99", percentile_over_time(times, gaps, edges, 99), colour, dashed=True))
    marks += _limits(results, "itl", upright=False)
    about = "Time between successive chunks of output, by when they came."
    return Plot("itl-time", "ITL over the run", Axis(_SECONDS, low=0), Axis("ms", log=log), marks, about)


def throughput_over_time(results: Sequence[Result]) -> Plot:
    marks = [
        Line(_label(result, index, results), output_rate(result.requests, time_edges(duration(result.requests))), index)
        for index, result in enumerate(results)
        if any(request.ttft is not None for request in result.requests)
    ]
    about = "Output tokens that arrived in each slice of time."
    return Plot("throughput", "Output tokens a second", Axis(_SECONDS, low=0), Axis("tokens/s", low=0), marks, about)


def concurrency_over_time(results: Sequence[Result]) -> Plot:
    marks = [
        Steps(_label(result, index, results), in_flight(result.requests), index) for index, result in enumerate(results)
    ]
    about = "Requests that were sent and had no full answer yet."
    return Plot("in-flight", "Requests in flight", Axis(_SECONDS, low=0), Axis("requests", low=0), marks, about)


def ttft_by_prompt(results: Sequence[Result]) -> Plot:
    marks: list[Mark] = []
    for index, result in enumerate(results):
        points = [
            (float(request.prompt_tokens), 1e3 * request.ttft)
            for request in result.requests
            if request.ttft is not None and request.error is None
        ]
        marks.append(Dots(_label(result, index, results), thin(points, _DOTS), index))
    marks += _limits(results, "ttft", upright=False)
    lengths = np.array([x for mark in marks if isinstance(mark, Dots) for x, _ in mark.points])
    times = np.array([y for mark in marks if isinstance(mark, Dots) for _, y in mark.points])
    log = wide(lengths)
    axes = Axis("prompt tokens", log=log, low=None if log else 0), Axis("ms", log=wide(times))
    return Plot("ttft-prompt", "TTFT against prompt length", *axes, marks, "One dot a request.")


def send_delay(results: Sequence[Result]) -> Plot:
    """How late requests left against their schedule: whether the client kept up."""
    marks = [
        Dots(_label(result, index, results), thin(_delays(result.requests), _DOTS), index)
        for index, result in enumerate(results)
        if any(delay > 1 for _, delay in _delays(result.requests))
    ]
    about = "How long after its scheduled moment each request was sent; high values say that the client was late."
    return Plot("send-delay", "Sent behind schedule", Axis(_SECONDS, low=0), Axis("ms", low=0), marks, about)


def errors_over_time(results: Sequence[Result]) -> Plot:
    kinds = sorted({kind for result in results for request in result.requests if (kind := request.error_kind)})
    marks = [
        Dots(
            kind,
            thin(
                [
                    (request.start + request.e2e, request.e2e)
                    for result in results
                    for request in result.requests
                    if request.error_kind == kind
                ],
                _DOTS,
            ),
            index,
            cross=True,
        )
        for index, kind in enumerate(kinds)
    ]
    about = "When requests failed, and how long each had taken until then."
    return Plot("errors", "Errors", Axis(_SECONDS, low=0), Axis("s until failure", low=0), marks, about)


def _delays(requests: Sequence[RequestRecord]) -> list[tuple[float, float]]:
    return [(request.start, 1e3 * max(request.start - request.scheduled, 0.0)) for request in requests]


def _limits(results: Sequence[Result], measure: str, upright: bool) -> list[Mark]:
    found = sorted({result.limits[measure] for result in results if measure in result.limits})
    return [Rule(f"limit {limit:g} ms", limit, upright) for limit in found]


def _heat(times: Values, gaps: Values, edges: Values, log: bool) -> Heat:
    low, high = float(gaps.min()), float(gaps.max())
    if high <= low:
        high = low * 1.1 or 1.0
    rows = np.geomspace(low, high, 25) if log else np.linspace(low, high, 25)
    counts, _, _ = np.histogram2d(times, gaps, (edges, rows))
    return Heat("gaps", edges.tolist(), rows.tolist(), counts.tolist())


RESULT_PLOTS: Final[dict[str, Callable[[Sequence[Result]], Plot]]] = {
    **{f"{measure}-cdf": _distribution(measure) for measure in MEASURES},
    "itl-time": itl_over_time,
    "throughput": throughput_over_time,
    "in-flight": concurrency_over_time,
    "ttft-prompt": ttft_by_prompt,
    **{f"{measure}-histogram": _histogram(measure) for measure in ("ttft", "itl")},
    "send-delay": send_delay,
    "errors": errors_over_time,
}
"""By the name that ``--svg`` takes, in the order of the page."""
