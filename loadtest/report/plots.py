"""The plots of saved results, each by its name, drawn with matplotlib (the extra `plots`).

Several records of one kind lie over one another: several servers, or several versions of one.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from cycler import cycler
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from ..record import MEASURES, RequestRecord, Result, Startup, Steps, Sweep
from ..step_curves import curves
from .figures import phases_of, points_of, show_value

Values = NDArray[np.float64]
_COLOURS: Final = ("#2563eb", "#d9480f", "#0f8a5f", "#9333ea", "#b8860b", "#c2255c", "#0b7285", "#5c6370")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
_STYLE: Final[dict[Any, Any]] = {
    "axes.prop_cycle": cycler(color=_COLOURS, marker=_MARKERS),
    "axes.edgecolor": "#9aa3ae",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "grid.color": "#e3e6ea",
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "stentor",  # the same data, the same file
    "text.parse_math": False,  # names come from servers and users
}
_PIXELS_AN_INCH: Final = 96
"""Of CSS."""
_LETTER: Final = 6.0
_KEY: Final = 56
"""Pixels of an average letter of a legend, and of what stands beside its text."""
_ROW: Final = 13
"""Points of a row of it."""
_SECONDS: Final = "seconds since the start"
_TICKS: Final = 12
"""Up to how many values of a sweep's axis are its ticks."""
_DOTS: Final = 2_000
"""From how many on they are drawn as pixels."""


@dataclass(frozen=True)
class Plot:
    """``draw`` puts records on axes, and nothing where they hold nothing of it; ``about`` says what it shows."""

    title: str
    about: str
    draw: Callable[[Axes, Any], None]


def render(plots: Sequence[Plot], records: Sequence[Any], *, width: int, height: int) -> str | None:
    """An SVG of ``width`` x ``height`` pixels, two plots a row; None where the records hold nothing of any of them."""
    columns = min(2, len(plots))
    with rc_context(_STYLE):
        figure = Figure(figsize=(width / _PIXELS_AN_INCH, height / _PIXELS_AN_INCH))
        places = figure.subplots(-(-len(plots) // columns), columns, squeeze=False).flat
        for plot, axes in zip(plots, places, strict=False):
            plot.draw(axes, records)
            axes.set_title(plot.title, pad=_legend(axes, 0.8 * width / columns))
        if not any(axes.has_data() for axes in figure.axes):
            return None
        drawn = io.StringIO()
        about = " ".join(f"{plot.title}. {plot.about}" for plot in plots)
        figure.savefig(drawn, format="svg", metadata={"Title": about, "Date": None, "Creator": None})
    return drawn.getvalue()


def _legend(axes: Axes, room: float) -> float:
    """Keys above the axes, ``room`` pixels wide, where series need telling apart; returns their height in points."""
    labels = axes.get_legend_handles_labels()[1]
    if len(labels) < 2:
        return 6
    columns = max(1, min(len(labels), int(room / (_LETTER * max(map(len, labels)) + _KEY))))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, ncols=columns)
    return 8 + _ROW * -(-len(labels) // columns)


def _scale(axis: Axis, label: str, *, log: bool = False, zero: bool = False) -> None:
    """Names an axis, and makes it logarithmic with 1, 2 and 5 of each decade, or begin at 0."""
    name = "x" if axis is axis.axes.xaxis else "y"
    axis.axes.set(**{f"{name}label": label})
    if log:
        axis.axes.set(**{f"{name}scale": "log"})
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
    elif zero:
        axis.axes.set(**{f"{name}lim": (0, None)})
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def _labelled(results: Sequence[Result]) -> Iterator[tuple[str, Result]]:
    """Each run by its name; those of one name are numbered."""
    for index, result in enumerate(results):
        twins = sum(other.name == result.name for other in results) > 1
        yield f"{result.name} ({index + 1})" if twins else result.name, result


def latencies(requests: Sequence[RequestRecord], measure: str) -> Values:
    """Every value of ``ttft``, ``itl``, ``tpot`` or ``e2e`` in milliseconds; of completed requests alone."""
    found = [getattr(request, measure) for request in requests if request.error is None]
    return 1e3 * np.concatenate([np.zeros(0), *(np.atleast_1d(each) for each in found if each is not None)])


def wide(values: Values) -> bool:
    """Whether a logarithmic axis shows the values better: the bulk spans more than a factor of eight."""
    positive = values[values > 0]
    if len(positive) < 2:
        return False
    low, high = np.quantile(positive, [0.02, 0.995])
    return bool(high > 8 * low)


def _cdf(measure: str, axes: Axes, results: Sequence[Result]) -> None:
    log = False
    for label, result in _labelled(results):
        if len(values := latencies(result.requests, measure)):
            axes.ecdf(values, label=label, marker="")
            log |= wide(values)
    _scale(axes.xaxis, "ms", log=log)
    _scale(axes.yaxis, "share at or below", zero=True)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    low, high = axes.get_xlim()
    for limit in sorted({result.limits[measure] for result in results if measure in result.limits}):
        if axes.has_data() and low / 4 <= limit <= high * 2:  # further away it would squeeze the data
            axes.axvline(limit, color="#5b6570", linestyle=":", marker="", label=f"limit {limit:g} ms")


def _slices(requests: Sequence[RequestRecord]) -> Values:
    """The edges of 48 slices of a run, fewer where one would be shorter than a fifth of a second."""
    seconds = max((request.start + request.e2e for request in requests), default=0.0)
    return np.linspace(0, max(seconds, 0.1), max(min(48, int(seconds / 0.2)), 1) + 1)


def gaps_over_time(requests: Sequence[RequestRecord]) -> tuple[Values, Values]:
    """When each gap between two chunks ended (seconds since the run's start), and how long it was (ms)."""
    times, gaps = [np.zeros(0)], [np.zeros(0)]
    for request in requests:
        if request.ttft is not None and request.itl:
            times.append(request.start + request.ttft + np.cumsum(request.itl))
            gaps.append(1e3 * np.array(request.itl))
    return np.concatenate(times), np.concatenate(gaps)


def percentile_over_time(times: Values, values: Values, edges: Values, percentile: float) -> Values:
    """(middle, percentile of the values) of each slice of time; slices with nothing in them are left out."""
    slices = np.digitize(times, edges) - 1
    found = [(at, values[slices == at]) for at in range(len(edges) - 1)]
    middles = (edges[:-1] + edges[1:]) / 2
    return np.array([(middles[at], np.percentile(within, percentile)) for at, within in found if len(within)])


def _itl_over_time(axes: Axes, results: Sequence[Result]) -> None:
    log = False
    for index, (label, result) in enumerate(_labelled(results)):
        times, gaps = gaps_over_time(result.requests)
        log |= wide(gaps)
        for share, style in ((50, "-"), (99, "--")) if len(gaps) else ():
            x, y = percentile_over_time(times, gaps, _slices(result.requests), share).T
            name = f"{label} p{share}" if len(results) > 1 else f"p{share}"
            axes.plot(x, y, color=_COLOURS[index % len(_COLOURS)], linestyle=style, marker="", label=name)
    _scale(axes.xaxis, _SECONDS, zero=True)
    _scale(axes.yaxis, "ms", log=log, zero=True)


def output_rate(requests: Sequence[RequestRecord], edges: Values) -> Values:
    """Output tokens a second in each slice of time, by the arrival of the chunks that held them."""
    times, tokens = [np.zeros(0)], [np.zeros(0)]
    for request in requests:
        if request.ttft is not None:
            first = max(request.output_tokens - sum(request.chunk_tokens), 0)
            times.append(request.start + request.ttft + np.cumsum([0.0, *request.itl]))
            tokens.append(np.array([first, *request.chunk_tokens], dtype=np.float64))
    counts, _ = np.histogram(np.concatenate(times), edges, weights=np.concatenate(tokens))
    return np.asarray(counts / np.diff(edges))


def _throughput(axes: Axes, results: Sequence[Result]) -> None:
    for label, result in _labelled(results):
        if any(request.ttft is not None for request in result.requests):
            edges = _slices(result.requests)
            axes.plot((edges[:-1] + edges[1:]) / 2, output_rate(result.requests, edges), marker="", label=label)
    _scale(axes.xaxis, _SECONDS, zero=True)
    _scale(axes.yaxis, "tokens/s", zero=True)


def in_flight(requests: Sequence[RequestRecord]) -> tuple[Values, Values]:
    """The moments at which requests were sent or answered, and how many were on their way from then on."""
    moments = np.array([at for one in requests for at in (one.start, one.start + one.e2e)])
    times, which = np.unique(moments, return_inverse=True)
    return times, np.cumsum(np.bincount(which, weights=np.resize([1, -1], len(moments))))


def _in_flight(axes: Axes, results: Sequence[Result]) -> None:
    for label, result in _labelled(results):
        if result.requests:
            axes.step(*in_flight(result.requests), where="post", marker="", label=label)
    _scale(axes.xaxis, _SECONDS, zero=True)
    _scale(axes.yaxis, "requests", zero=True)


def _ttft_by_prompt(axes: Axes, results: Sequence[Result]) -> None:
    drawn = [np.zeros((0, 2))]
    for label, result in _labelled(results):
        done = [(one.prompt_tokens, 1e3 * one.ttft) for one in result.requests if one.ttft and one.error is None]
        if done:
            drawn.append(np.array(done))
            axes.plot(*drawn[-1].T, linestyle="", alpha=0.55, label=label, rasterized=len(done) > _DOTS)
    prompts, times = np.concatenate(drawn).T
    _scale(axes.xaxis, "prompt tokens", log=wide(prompts), zero=True)
    _scale(axes.yaxis, "ms", log=wide(times))


RESULT_PLOTS: Final[Mapping[str, Plot]] = {
    **{
        f"{measure}-cdf": Plot(
            f"{measure.upper()}: {meaning}",
            f"Share of {'gaps' if measure == 'itl' else 'requests'} at or below each {meaning}.",
            partial(_cdf, measure),
        )
        for measure, meaning in MEASURES.items()
    },
    "itl-time": Plot(
        "ITL over the run", "Time between successive chunks of output, by when they came.", _itl_over_time
    ),
    "throughput": Plot("Output tokens a second", "Output tokens that arrived in each slice of time.", _throughput),
    "in-flight": Plot("Requests in flight", "Requests that were sent and had no full answer yet.", _in_flight),
    "ttft-prompt": Plot("TTFT against prompt length", "One dot a request.", _ttft_by_prompt),
}
"""By the name that ``--svg`` takes, in the order of the page."""


def _sweep_axis(axes: Axes, sweeps: Sequence[Sweep]) -> None:
    """What was varied, on x: its own values are the ticks where they are few."""
    values = list(dict.fromkeys(point.value for sweep in sweeps for point in sweep.points))
    numbers = [float(value) for value in values if not isinstance(value, str)]
    log = len(numbers) == len(values) > 2 and min(numbers) > 0 and max(numbers) >= 8 * min(numbers)
    axis = sweeps[0].axis if sweeps else ""
    label = {"concurrency": "requests at a time", "rate": "requests sent a second"}.get(axis, axis)
    if len(numbers) < len(values):
        axes.set_xlabel(label)
        return
    _scale(axes.xaxis, label, log=log)
    if log and len(numbers) <= _TICKS:
        axes.set_xticks(sorted(numbers))


def _sweep_lines(
    axes: Axes, sweeps: Sequence[Sweep], figure: str, *, suffix: str = "", style: str = "-", factor: float = 1.0
) -> None:
    """One line a sweep through its medians, and a band from lowest to highest repeat where there are several."""
    words = any(isinstance(point.value, str) for sweep in sweeps for point in sweep.points)
    for index, sweep in enumerate(sweeps):
        points = [point for point in points_of(sweep) if figure in point.medians]
        if not points:
            continue
        colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
        x: list[Any] = [show_value(point.value) if words else point.value for point in points]
        if style == "-" and any(len(point.repeats) > 1 for point in points):
            low, high = zip(*(point.spread(figure) for point in points), strict=True)
            axes.fill_between(x, factor * np.array(low), factor * np.array(high), color=colour, alpha=0.16, linewidth=0)
        label = " ".join(filter(None, (sweep.name if len(sweeps) > 1 or not suffix else "", suffix)))
        y = [factor * point.medians[figure] for point in points]
        axes.plot(x, y, color=colour, marker=marker, linestyle=style, label=label)


def _sweep_figure(figure: str, unit: str, factor: float, axes: Axes, sweeps: Sequence[Sweep]) -> None:
    _sweep_lines(axes, sweeps, figure, factor=factor)
    _sweep_axis(axes, sweeps)
    _scale(axes.yaxis, unit, zero=True)


def _sweep_percentiles(measure: str, axes: Axes, sweeps: Sequence[Sweep]) -> None:
    _sweep_lines(axes, sweeps, f"{measure}.p50", suffix="p50")
    _sweep_lines(axes, sweeps, f"{measure}.p99", suffix="p99", style="--")
    heights = np.concatenate([np.zeros(0), *(np.asarray(line.get_ydata()) for line in axes.lines)])
    _sweep_axis(axes, sweeps)
    _scale(axes.yaxis, "ms", log=wide(heights), zero=True)


def _tradeoff(measure: str, axes: Axes, sweeps: Sequence[Sweep]) -> None:
    latency, rate = f"{measure}.p50", "output_tokens_per_s"
    for sweep in sweeps:
        points = [point for point in points_of(sweep) if {latency, rate} <= point.medians.keys()]
        where = [(point.medians[latency], point.medians[rate]) for point in points]
        if points:
            axes.plot(*zip(*where, strict=True), label=sweep.name)
        for point, at in zip(points, where, strict=True):
            axes.annotate(show_value(point.value), at, (4, 5), textcoords="offset points", fontsize=8)
    reached = np.concatenate([np.zeros(0), *(np.asarray(line.get_xdata()) for line in axes.lines)])
    _scale(axes.xaxis, f"{measure.upper()} p50, ms", log=wide(reached), zero=True)
    _scale(axes.yaxis, "tokens/s", zero=True)


def _sweep_plot(figure: str, title: str, unit: str, about: str, factor: float = 1.0) -> Plot:
    return Plot(title, about, partial(_sweep_figure, figure, unit, factor))


def _tradeoff_plot(measure: str) -> Plot:
    about = "Up and to the left is better. Beside each point: the value of what was varied."
    return Plot(f"Throughput against {measure.upper()}", about, partial(_tradeoff, measure))


SWEEP_PLOTS: Final[Mapping[str, Plot]] = {
    "output-rate": _sweep_plot(
        "output_tokens_per_s", "Output tokens a second", "tokens/s", "Of all requests together."
    ),
    "pareto-tpot": _tradeoff_plot("tpot"),
    **{
        measure: Plot(measure.upper(), "Median and 99th percentile.", partial(_sweep_percentiles, measure))
        for measure in MEASURES
    },
    "pareto-ttft": _tradeoff_plot("ttft"),
    "request-rate": _sweep_plot("requests_per_s", "Requests a second", "requests/s", "Completed requests."),
    "goodput": _sweep_plot("goodput_per_s", "Goodput", "requests/s", "Requests a second that kept every limit."),
    "goodput-share": _sweep_plot(
        "goodput_share", "Share within the limits", "%", "Of all requests, errors included.", 100
    ),
}


def _startup_phases(axes: Axes, startups: Sequence[Startup]) -> None:
    """A row for each kind of start, a colour for each phase, one after the other."""
    rows = {
        f"{startup.name}, {kind}" if len(startups) > 1 else kind: phases
        for startup in startups
        for kind, phases in phases_of(startup).items()
    }
    ends = dict.fromkeys(rows, 0.0)
    for name in dict.fromkeys(name for phases in rows.values() for name in phases):
        widths = [phases.get(name, 0.0) for phases in rows.values()]
        axes.barh(list(rows), widths, 0.6, left=list(ends.values()), label=name)
        ends = {row: end + width for (row, end), width in zip(ends.items(), widths, strict=True)}
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    _scale(axes.xaxis, "seconds", zero=True)


STARTUP_PLOTS: Final[Mapping[str, Plot]] = {
    "startup-phases": Plot(
        "From start to ready", "Medians of each phase, one after the other until ready.", _startup_phases
    )
}

_MOST_LINES: Final = 6
"""In one plot of steps; of more curves every second or third is drawn."""


def _step_curves(axis: str, wanted: str, unit: str, log: bool, axes: Axes, records: Sequence[Steps]) -> None:
    """Milliseconds over ``axis`` of the curves whose name begins with ``wanted``."""
    for record in records:
        lines = [(name, line) for varied, name, line in curves(record.figures) if varied == axis and line]
        lines = [(name, line) for name, line in lines if name.startswith(wanted)]
        for name, line in lines[:: -(-len(lines) // _MOST_LINES) or 1]:
            x = [getattr(each, axis) for each in line]
            axes.plot(x, [each.milliseconds for each in line], label=name)
    _scale(axes.xaxis, unit, log=log, zero=True)
    _scale(axes.yaxis, "ms a step", log=log, zero=True)
    ticks = sorted({x for line in axes.lines for x in np.asarray(line.get_xdata()).tolist()})
    if log and len(ticks) <= _TICKS:
        axes.set_xticks(ticks)


def _steps_plot(axis: str, wanted: str, title: str, unit: str = "tokens", log: bool = True) -> Plot:
    return Plot(title, "Medians.", partial(_step_curves, axis, wanted, unit, log))


STEP_PLOTS: Final[Mapping[str, Plot]] = {
    "batch": _steps_plot("rows", "decode", "A decode step over sequences at once", "sequences"),
    "context": _steps_plot("context", "decode", "A decode step over tokens in the cache"),
    "prefill": _steps_plot("tokens", "prefill", "A prefill step over its tokens"),
    "chunk": _steps_plot("context", "a chunk", "A chunk over tokens in the cache before it", log=False),
}
