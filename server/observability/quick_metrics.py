"""A counter and a histogram for what happens at every token.

prometheus_client's own take a lock and search the buckets one by one, which costs more than to encode the token.
These are changed and read by one thread, the event loop's.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric


class QuickCounter:
    def __init__(self, name: str, text: str, labels: Mapping[str, str], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._value = 0
        registry.register(self)

    @property
    def value(self) -> int:
        return self._value

    def inc(self, amount: int) -> None:
        self._value += amount

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), self._value)
        yield family


class QuickHistogram:
    def __init__(
        self, name: str, text: str, labels: Mapping[str, str], registry: CollectorRegistry, buckets: Sequence[float]
    ) -> None:
        """``buckets``: their upper bounds, ascending; one without a bound follows."""
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = [float(bound) for bound in buckets]
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def bounds(self) -> list[float]:
        """Upper bounds of the buckets but the last, which has none."""
        return list(self._bounds)

    @property
    def counts(self) -> list[int]:
        """Observations by bucket, each counted once."""
        return list(self._counts)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=tuple(self._labels))
        bounds = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric(tuple(self._labels.values()), buckets, self._sum)
        yield family
