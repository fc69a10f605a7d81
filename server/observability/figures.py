"""Figures of the server itself: what it answered, what it is, what it takes, and what became of its traces."""

import asyncio
import contextlib
import platform
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

import stentor

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
        responses = Counter(
            "stentor:http_responses",
            "Requests that have ended, by status: 101 a WebSocket, 499 a client that went away before an answer began.",
            ("model_name", "status"),
            registry=registry,
        )
        known = [*sorted(map(str, STATUSES)), "other"]
        self._responses = {status: responses.labels(model, status) for status in known}
        registry.register(ProcessCollector(model))
        registry.register(self)

    def count(self, record: RequestRecord) -> None:
        self._responses[str(record.status) if record.status in STATUSES else "other"].inc()

    @contextlib.contextmanager
    def websocket(self) -> Iterator[None]:
        """Around what a WebSocket does from its handshake to its end."""
        self._websockets += 1
        try:
            yield
        finally:
            self._websockets -= 1

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "stentor:build_info", "Always 1; the versions are in the labels.", None, ("model_name", "version", "python")
        )
        info.add_metric((self._model, stentor.__version__, platform.python_version()), 1)
        yield info
        yield from self._connection_figures()
        traces = self.traces
        exported = CounterMetricFamily(
            "stentor:traces_exported",
            "Requests whose traces the OpenTelemetry collector has accepted.",
            None,
            ("model_name",),
        )
        exported.add_metric((self._model,), 0 if traces is None else traces.exported)
        yield exported
        dropped = CounterMetricFamily(
            "stentor:traces_dropped",
            "Requests whose traces were not exported, by reason.",
            None,
            ("model_name", "reason"),
        )
        dropped.add_metric((self._model, "queue_full"), 0 if traces is None else traces.dropped_full)
        dropped.add_metric((self._model, "export_failed"), 0 if traces is None else traces.dropped_failed)
        yield dropped

    def _task_figures(self) -> Iterator[Metric]:
        tasks = GaugeMetricFamily("stentor:tasks", "asyncio tasks of the server process.", None, ("model_name",))
        with contextlib.suppress(RuntimeError):  # no loop runs here: nobody serves
            tasks.add_metric((self._model,), len(asyncio.all_tasks()))
        yield tasks

    def _connection_figures(self) -> Iterator[Metric]:
        known = self.connections
        held = GaugeMetricFamily("stentor:connections_open", "Open client connections.", None, ("model_name",))
        held.add_metric((self._model,), 0 if known is None else known.open)
        yield held
        sockets = GaugeMetricFamily(
            "stentor:websocket_connections_active", "Open WebSocket connections.", None, ("model_name",)
        )
        sockets.add_metric((self._model,), self._websockets)
        yield sockets
        yield from self._task_figures()
        reasons = dict.fromkeys((*_REFUSALS.values(), _MALFORMED), 0)
        for status, count in () if known is None else known.refused.items():
            reasons[_REFUSALS.get(status, _MALFORMED)] += count
        refused = CounterMetricFamily(
            "stentor:connections_refused",
            "Connections refused before they sent a whole request, by reason.",
            None,
            ("model_name", "reason"),
        )
        for reason, total in reasons.items():
            refused.add_metric((self._model, reason), total)
        yield refused
