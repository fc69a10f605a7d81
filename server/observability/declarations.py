"""How metrics are declared: each is named ``stentor:…``, and the first label of each is the name of a model."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from .quick_metrics import QuickHistogram

MODEL: Final = "model_name"

V = TypeVar("V", bound=str)
M = TypeVar("M", Counter, Gauge, Histogram)
F = TypeVar("F", bound=CounterMetricFamily | GaugeMetricFamily)


class Declarations:
    """Makes the metrics of one model."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._registry = registry
        self._model = model

    def counter(self, name: str, text: str) -> Counter:
        return Counter(f"stentor:{name}", text, (MODEL,), registry=self._registry).labels(self._model)

    def gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"stentor:{name}", text, (MODEL,), registry=self._registry).labels(self._model)

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        made = Histogram(f"stentor:{name}", text, (MODEL,), registry=self._registry, buckets=buckets)
        return made.labels(self._model)

    def each(self, kind: type[M], name: str, text: str, label: str, values: Iterable[V], **options: Any) -> dict[V, M]:
        """One for each value of a further label; ``options`` are the kind's own, such as ``buckets``."""
        made = kind(f"stentor:{name}", text, (MODEL, label), registry=self._registry, **options)
        return {value: made.labels(self._model, value) for value in values}

    def quick(self, name: str, text: str, buckets: Sequence[float]) -> QuickHistogram:
        return QuickHistogram(f"stentor:{name}", text, {MODEL: self._model}, self._registry, buckets)


def family(kind: type[F], name: str, text: str, samples: Iterable[tuple[Sequence[str], float]], *labels: str) -> F:
    """What is counted elsewhere, as it is when the page is asked for. ``samples``: the model's name and the values of
    ``labels``, and the number."""
    made = kind(f"stentor:{name}", text, labels=(MODEL, *labels))
    for values, number in samples:
        made.add_metric(values, number)
    return made
