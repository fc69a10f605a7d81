"""How metrics are declared: each is named ``stentor:…``, and the first label of each is the name of a model."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from stentor.protocols.ipc.histograms import Histogram as Counted

from .quick_metrics import QuickCounter, QuickHistogram

MODEL: Final = "model_name"

V = TypeVar("V", bound=str)
M = TypeVar("M", Counter, Gauge, Histogram)
F = TypeVar("F", bound=CounterMetricFamily | GaugeMetricFamily)


class Declarations:
    """Makes the metrics of one model."""

    def __init__(self, registry: CollectorRegistry, model: str, beside: "Declarations | None" = None) -> None:
        """``beside``: declarations of another model in this registry; metrics of both are one family."""
        self._registry = registry
        self._model = model
        self._families: dict[str, Any] = {} if beside is None else beside._families

    def counter(self, name: str, text: str) -> Counter:
        return self._family(Counter, name, text).labels(self._model)

    def gauge(self, name: str, text: str) -> Gauge:
        return self._family(Gauge, name, text).labels(self._model)

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return self._family(Histogram, name, text, buckets=buckets).labels(self._model)

    def each(self, kind: type[M], name: str, text: str, label: str, values: Iterable[V], **options: Any) -> dict[V, M]:
        """One for each value of a further label; ``options`` are the kind's own, such as ``buckets``."""
        made = self._family(kind, name, text, label, **options)
        return {value: made.labels(self._model, value) for value in values}

    def quick(self, name: str, text: str, buckets: Sequence[float]) -> QuickHistogram:
        labels, known = {MODEL: self._model}, self._families.get(name)
        made = QuickHistogram(f"stentor:{name}", text, labels, known or self._registry, buckets)
        self._families.setdefault(name, made)
        return made

    def quick_counter(self, name: str, text: str) -> QuickCounter:
        labels, known = {MODEL: self._model}, self._families.get(name)
        made = QuickCounter(f"stentor:{name}", text, labels, known or self._registry)
        self._families.setdefault(name, made)
        return made

    def _family(self, kind: type[M], name: str, text: str, *labels: str, **options: Any) -> M:
        if name not in self._families:
            made = kind(f"stentor:{name}", text, (MODEL, *labels), registry=self._registry, **options)
            self._families[name] = made
        found: M = self._families[name]
        return found


def family(kind: type[F], name: str, text: str, samples: Iterable[tuple[Sequence[str], float]], *labels: str) -> F:
    """A metric that is computed when the page is requested. ``samples``: the model's name, the values of ``labels``,
    and the number."""
    made = kind(f"stentor:{name}", text, labels=(MODEL, *labels))
    for values, number in samples:
        made.add_metric(values, number)
    return made


def histogram_family(
    name: str, text: str, bounds: Sequence[int], samples: Iterable[tuple[str, Counted]]
) -> HistogramMetricFamily:
    """A histogram that is counted elsewhere. ``samples``: the model's name, and what was counted with these bounds."""
    made = HistogramMetricFamily(f"stentor:{name}", text, labels=(MODEL,))
    edges = [*(str(float(bound)) for bound in bounds), "+Inf"]
    for model, counted in samples:
        counts = counted.counts or [0] * len(edges)
        made.add_metric((model,), list(zip(edges, accumulate(counts), strict=True)), counted.total)
    return made
