"""Metrics of the server itself: responses, version, resources, traces."""

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

import stentor
from stentor.protocols.ipc.actors import Stats

from .declarations import Declarations, family
from .processes import ProcessCollector
from .request import RequestRecord

STATUSES: Final = frozenset(
    {101, 200, 400, 401, 403, 404, 405, 408, 411, 413, 415, 421, 422, 429, 431, 499, 500, 503, 504, 507}
)

_REFUSALS: Final = {408: "timeout", 413: "too_large", 414: "too_large", 429: "too_many", 431: "too_large"}
_MALFORMED: Final = "malformed"


class TraceCounts(Protocol):
    """Requests so far."""

    exported: int
    dropped_full: int
    dropped_failed: int


class ConnectionCounts(Protocol):
    @property
    def open(self) -> int: ...

    @property
    def refused(self) -> Mapping[int, int]:
        """By HTTP status."""


class ServerFigures:
    """Registers itself."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        self._model = model
        self.traces: TraceCounts | None = None
        self.connections: ConnectionCounts | None = None
        self._websockets = 0
        self._responses = Declarations(registry, model).each(
            Counter,
            "http_responses",
            "Requests that have ended, by status: 101 a WebSocket, 499 a client that went away before an answer began.",
            "status",
            [*sorted(map(str, STATUSES)), "other"],
        )
        registry.register(ProcessCollector(model, os.getpid()))
        registry.register(self)

    def count(self, record: RequestRecord) -> None:
        self._responses[str(record.status) if record.status in STATUSES else "other"].inc()

    @contextlib.contextmanager
    def websocket(self) -> Iterator[None]:
        """Around a WebSocket from its handshake to its end."""
        self._websockets += 1
        try:
            yield
        finally:
            self._websockets -= 1

    def collect(self) -> Iterator[Metric]:
        yield family(
            GaugeMetricFamily,
            "build_info",
            "Always 1; the versions are in the labels.",
            [((self._model, stentor.__version__, platform.python_version()), 1)],
            "version",
            "python",
        )
        known, traces = self.connections, self.traces
        opened = 0 if known is None else known.open
        yield self._gauge("connections_open", "Open client connections.", opened)
        yield self._gauge("websocket_connections_active", "Open WebSocket connections.", self._websockets)
        yield self._gauge("tasks", "asyncio tasks of the server process.", _running_tasks())
        refused = dict.fromkeys((*_REFUSALS.values(), _MALFORMED), 0)
        for status, count in () if known is None else known.refused.items():
            refused[_REFUSALS.get(status, _MALFORMED)] += count
        text = "Connections refused before they sent a whole request, by reason."
        yield self._by_reason("connections_refused", text, refused)
        yield family(
            CounterMetricFamily,
            "traces_exported",
            "Requests whose traces the OpenTelemetry collector has accepted.",
            [((self._model,), 0 if traces is None else traces.exported)],
        )
        dropped = {
            "queue_full": 0 if traces is None else traces.dropped_full,
            "export_failed": 0 if traces is None else traces.dropped_failed,
        }
        yield self._by_reason("traces_dropped", "Requests whose traces were not exported, by reason.", dropped)

    def _gauge(self, name: str, text: str, number: float | None) -> Metric:
        return family(GaugeMetricFamily, name, text, [] if number is None else [((self._model,), number)])

    def _by_reason(self, name: str, text: str, counts: Mapping[str, int]) -> Metric:
        samples = [((self._model, reason), count) for reason, count in counts.items()]
        return family(CounterMetricFamily, name, text, samples, "reason")


class AdapterFigures:
    """Which adapters requests have, by the names that the operator has given them. Registers itself."""

    def __init__(
        self,
        model: str,
        most: int,
        stats: Callable[[], Stats],
        name_of: Callable[[int], str],
        registry: CollectorRegistry,
    ) -> None:
        """``most``: adapters that rows may have at a time."""
        self._model, self._most = model, most
        self._stats, self._name_of = stats, name_of
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        named = [
            ",".join(sorted(filter(None, map(self._name_of, numbers))))
            for numbers in (stats.running_adapters, stats.waiting_adapters)
        ]
        yield family(
            GaugeMetricFamily,
            "lora_requests_info",
            "Seconds since the epoch; the labels name the LoRA adapters that requests run with, and wait with.",
            [((self._model, str(self._most), *named), time.time())],
            "max_lora",
            "running_lora_adapters",
            "waiting_lora_adapters",
        )


class WeightUpdates(Protocol):
    @property
    def weight_version(self) -> str: ...

    @property
    def weight_updates(self) -> int: ...


class WeightFigures:
    """The version of the main model's weights. Registers itself."""

    def __init__(self, registry: CollectorRegistry, model: str, weights: WeightUpdates) -> None:
        self._model = model
        self._weights = weights
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        version, updates = self._weights.weight_version, self._weights.weight_updates
        text = "Always 1; the label is the version of the main model's weights."
        yield family(GaugeMetricFamily, "weight_version_info", text, [((self._model, version), 1)], "version")
        text = "Times that the main model's weights were replaced."
        yield family(CounterMetricFamily, "weight_updates", text, [((self._model,), updates)])


def _running_tasks() -> int | None:
    """None without a running loop."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return None
