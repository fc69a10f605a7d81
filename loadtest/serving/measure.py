"""The arithmetic of a run: percentiles, rates, goodput, and the counters of the server.

TTFT: from sending to the first output. ITL: between successive chunks of output. TPOT: (e2e - TTFT) / (output tokens
- 1). Goodput, after DistServe (https://arxiv.org/abs/2401.09670): requests a second within every stated limit.
Counters are in Prometheus' text format: https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..record import MEASURES, RequestRecord, Spread, Summary
from ..tool import UsageError

_NUMBER = r"[+-]?\d+\.?\d*(?:[eE][+-]?\d+)?"
_SAMPLE = re.compile(rf"^([a-zA-Z_:][\w:]*(?:\{{.*\}})?)[ \t]+({_NUMBER})(?:[ \t]+-?\d+)?[ \t]*$", re.MULTILINE)


def parse_limits(words: Iterable[str]) -> dict[str, float]:
    """``ttft:500 tpot:50`` as milliseconds by measure. Raises :class:`..tool.UsageError`."""
    limits = {}
    for word in words:
        name, _, value = word.partition(":")
        name = "e2e" if name == "e2el" else name  # vLLM's name
        try:
            limit = float(value)
        except ValueError:
            limit = 0.0
        if name not in MEASURES or not limit > 0:
            raise UsageError(f"{word} is no limit: expected MEASURE:MILLISECONDS with {', '.join(MEASURES)}")
        limits[name] = limit
    return limits


def spread(seconds: Sequence[float]) -> Spread:
    """Mean and percentiles of durations, in milliseconds; between two values a percentile is interpolated."""
    if not len(seconds):
        return Spread()
    values = np.asarray(seconds, dtype=np.float64) * 1e3
    p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99)).tolist()
    return Spread(float(values.mean()), p50, p90, p95, p99, float(values.max()), len(values))


def keeps(request: RequestRecord, limits: Mapping[str, float]) -> bool:
    """Whether a request was answered within every limit (milliseconds); ``itl`` limits its longest gap.

    A measure that a request does not have (the gap of a single token) is within any limit, but for ``ttft``: an
    answer without output has kept its reader waiting for ever.
    """
    if request.error is not None:
        return False
    measured = {
        "ttft": math.inf if request.ttft is None else request.ttft,
        "tpot": request.tpot,
        "itl": max(request.itl, default=None),
        "e2e": request.e2e,
    }
    return all(value is None or value * 1e3 <= limits[name] for name, value in measured.items() if name in limits)


def summarise(
    requests: Sequence[RequestRecord], seconds: float, limits: Mapping[str, float], peak_concurrency: int = 0
) -> Summary:
    """What ``requests`` came to in ``seconds``. Latencies and rates are those of complete answers."""
    done = [request for request in requests if request.error is None]
    prompt = sum(request.prompt_tokens for request in done)
    output = sum(request.output_tokens for request in done)
    per_second = 1.0 / seconds if seconds > 0 else 0.0
    kept = sum(keeps(request, limits) for request in done) if limits else None
    return Summary(
        seconds=seconds,
        requests=len(requests),
        completed=len(done),
        errors=len(requests) - len(done),
        prompt_tokens=prompt,
        output_tokens=output,
        output_tokens_per_s=output * per_second,
        total_tokens_per_s=(prompt + output) * per_second,
        requests_per_s=len(done) * per_second,
        ttft=spread([request.ttft for request in done if request.ttft is not None]),
        itl=spread([gap for request in done for gap in request.itl]),
        tpot=spread([tpot for request in done if (tpot := request.tpot) is not None]),
        e2e=spread([request.e2e for request in done]),
        goodput_per_s=None if kept is None else kept * per_second,
        goodput_share=None if kept is None else kept / len(requests) if requests else 0.0,
        peak_concurrency=peak_concurrency,
        errors_by_kind=dict(Counter(kind for request in requests if (kind := request.error_kind) is not None)),
    )


def span(requests: Sequence[RequestRecord]) -> float:
    """Seconds from the first request's start to the last one's end."""
    if not requests:
        return 0.0
    return max(one.start + one.e2e for one in requests) - min(one.start for one in requests)


def parse_metrics(text: str) -> dict[str, float]:
    """Samples of ``/metrics`` by ``name{labels}`` as written. What is not a finite number, or no sample, is left out,
    and so are the times at which counters were made (``_created``)."""
    samples = _SAMPLE.findall(text)
    return {name: float(value) for name, value in samples if not name.partition("{")[0].endswith("_created")}


def rise(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """What a counter rose by in all, as :func:`total` counts."""
    return total({sample: value - before.get(sample, 0.0) for sample, value in after.items()}, name)


def rise_by(before: Mapping[str, float], after: Mapping[str, float], name: str, label: str) -> dict[str, float]:
    """The same by the values of a label."""
    values = {found[1] for sample in after if (found := re.search(rf'[{{,]{label}="([^"]*)"', sample))}
    return {
        value: rise(before, {sample: count for sample, count in after.items() if f'{label}="{value}"' in sample}, name)
        for value in values
    }


def total(samples: Mapping[str, float], name: str) -> float:
    """Of a metric, whatever its labels are and whatever stands before ``:`` in its name."""
    return sum(value for sample, value in samples.items() if sample.partition("{")[0].rpartition(":")[2] == name)
