"""How sure a ratio of two percentiles is, by the bootstrap over requests.

Requests are what is drawn again, not single gaps: the gaps of one answer are not independent. Efron and Tibshirani,
An Introduction to the Bootstrap (1993), chapters 8 and 13. What differs from one run to the next, such as a machine
that is busy with something else, is not in the interval: repeat the runs for that. The p99 of fewer than 100 values
is nearly their maximum, of which the bootstrap knows little: there the 95% interval holds the true ratio in some 85
cases of 100.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..record import RequestRecord

DRAWS: Final = 1_000
_LEAST: Final = 5
"""Fewer requests than this say nothing of their own spread."""
_MOST: Final = 100_000
"""Gaps that are looked at; of more, every so-manieth in order of size."""

Values = NDArray[np.float64]


def ratio_interval(
    before: Sequence[RequestRecord],
    after: Sequence[RequestRecord],
    measure: str,
    share: float,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Bounds of after / before of the quantile ``share`` (0.5: the median) of ``ttft``, ``itl``, ``tpot`` or ``e2e``.

    The same requests and seed give the same bounds. None where either side has fewer than five requests with the
    measure, or the quantile of ``before`` may be 0.
    """
    rng = np.random.default_rng(seed)
    drawn = [_quantiles(requests, measure, share, rng) for requests in (before, after)]
    if drawn[0] is None or drawn[1] is None or not drawn[0].all():
        return None
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn[1] / drawn[0], [tail, 1 - tail])
    return float(low), float(high)


def _quantiles(
    requests: Sequence[RequestRecord], measure: str, share: float, rng: np.random.Generator
) -> Values | None:
    """The quantile in each of the draws."""
    groups = [group for request in requests if request.error is None and (group := _values(request, measure))]
    if len(groups) < _LEAST:
        return None
    values = np.concatenate([np.array(group) for group in groups])
    owners = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    order = np.argsort(values, kind="stable")[:: max(-(-len(values) // _MOST), 1)]
    values, owners = values[order], owners[order]
    found = np.empty(DRAWS)
    for draw in range(DRAWS):
        times = np.bincount(rng.integers(len(groups), size=len(groups)), minlength=len(groups))
        below = np.cumsum(times[owners])
        found[draw] = values[np.searchsorted(below, share * below[-1])]
    return found


def _values(request: RequestRecord, measure: str) -> list[float]:
    if measure == "itl":
        return request.itl
    value: float | None = getattr(request, measure)
    return [] if value is None else [value]
