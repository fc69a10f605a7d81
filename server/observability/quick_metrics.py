"""A counter and a histogram that are updated for every token.

prometheus_client's take a lock and search the buckets one by one, which costs more than encoding the token. These are
used by one thread, the event loop's. The first of a family is in the registry and reports all others of it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric


class QuickCounter:
    def __init__(
        self, name: str, text: str, labels: Mapping[str, str], where: "CollectorRegistry | QuickCounter"
    ) -> None:
        """``where``: a registry, or the first of the same name, whose values of ``labels`` are others."""
        self._name = name
        self._text = text
        self._labels = labels
        self._value = 0
        self._family = [self]
        if isinstance(where, QuickCounter):
            where._family.append(self)
        else:
            where.register(self)

    @property
    def value(self) -> int:
        return self._value

    def inc(self, amount: int) -> None:
        self._value += amount

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=tuple(self._labels))
        for each in self._family:
            family.add_metric(tuple(each._labels.values()), each._value)
        yield family


class QuickHistogram:
    def __init__(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str],
        where: "CollectorRegistry | QuickHistogram",
        buckets: Sequence[float],
    ) -> None:
        """``where`` as for a :class:`QuickCounter`; ``buckets``: their upper bounds, ascending; one without a bound
        follows."""
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = [float(bound) for bound in buckets]
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        self._family = [self]
        if isinstance(where, QuickHistogram):
            where._family.append(self)
        else:
            where.register(self)

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
        for each in self._family:
            bounds = [*map(str, each._bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(each._counts), strict=True))
            family.add_metric(tuple(each._labels.values()), buckets, each._sum)
        yield family
