"""Traces over OTLP/HTTP: a span for every request, with its phases below it. Needs the extra ``otel``.

The spans are made once the request has ended, from times that were taken anyway, and in a thread of their own: the SDK
takes 0.3 ms for those of one request. Attributes follow OpenTelemetry's conventions for HTTP servers and for generative
AI; no prompt and no answer is among them. Headers for the collector come from ``OTEL_EXPORTER_OTLP_HEADERS``, which the
SDK itself reads.
"""

import logging
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

import stentor

from .export_queue import ExportQueue
from .request import EngineUsage, RequestRecord

UNTRACED: Final = frozenset({"/health", "/ping", "/metrics"})
MOST_PROMPTS: Final = 8
"""Requests with more prompts only have the phases of these."""

_TRACES: Final = "/v1/traces"
_CLOSE_SECONDS: Final = 2.0
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"})
_NS: Final = 1_000_000_000


class OtlpTraces:
    """Exports spans of requests. Never blocks; spans that cannot be sent are dropped."""

    def __init__(self, endpoint: str, model: str) -> None:
        """``endpoint``: where a collector takes OTLP over HTTP; ``model``: the served name that spans carry."""
        # it logs every failure, where one line for the first is enough
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        url = traces_url(endpoint)
        self._model = model
        self._exporter = OTLPSpanExporter(endpoint=url)
        self._made: Final[list[ReadableSpan]] = []
        resource = Resource.create({"service.name": "stentor", "service.version": stentor.__version__})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(_Gather(self._made))
        self._tracer = provider.get_tracer("stentor", stentor.__version__)
        self._propagator = TraceContextTextMapPropagator()
        self.queue: Final[ExportQueue[RequestRecord]] = ExportQueue(self._export, _shown(url))

    def __call__(self, record: RequestRecord) -> None:
        if record.route not in UNTRACED:
            self.queue.put(record)

    def close(self) -> None:
        """Sends waiting spans, for a short time."""
        self.queue.close(_CLOSE_SECONDS)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _export(self, records: Sequence[RequestRecord]) -> bool:
        self._made.clear()
        for record in records:
            self._make_spans(record)
            time.sleep(0)  # the event loop needs the interpreter's lock
        return not self._made or self._exporter.export(self._made) is SpanExportResult.SUCCESS

    def _make_spans(self, record: RequestRecord) -> None:
        span = self._tracer.start_span(
            f"{_method(record, 'HTTP')} {record.route}".rstrip(),
            self._parent(record),
            SpanKind.SERVER,
            _http_attributes(record) | self._model_attributes(record),
            start_time=record.began_ns,
        )
        if record.status >= 500 or (record.error and record.status < 400):
            span.set_attribute("error.type", record.error or str(record.status))
            span.set_status(Status(StatusCode.ERROR))
        below = set_span_in_context(span)
        began = record.began
        for number, served in enumerate(record.served[:MOST_PROMPTS]):
            for name, start, end in _phases(began, served):
                phase = self._tracer.start_span(
                    name, below, attributes={"stentor.prompt": number}, start_time=_wall(record, start)
                )
                phase.end(_wall(record, end))
        span.end(_wall(record, record.ended))

    def _parent(self, record: RequestRecord) -> Context:
        names = (b"traceparent", b"tracestate")
        carrier = {name.decode(): value.decode("latin-1") for name, value in record.headers if name in names}
        return self._propagator.extract(carrier, Context())

    def _model_attributes(self, record: RequestRecord) -> dict[str, AttributeValue]:
        operation = _OPERATIONS.get(record.route)
        if operation is None:
            return {}
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "stentor",
            "gen_ai.request.model": self._model,
        }
        if not record.served:
            return attributes
        first = record.served[0]
        return attributes | {
            "gen_ai.response.model": self._model,
            "gen_ai.request.max_tokens": first.max_tokens,
            "gen_ai.request.choice.count": first.choices,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": sum(served.cached_tokens for served in record.served),
            "gen_ai.response.finish_reasons": [reason for served in record.served for reason in served.reasons],
        }


class _Gather(SpanProcessor):
    def __init__(self, spans: list[ReadableSpan]) -> None:
        self._spans = spans

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)  # unsampled spans do not reach this


def traces_url(endpoint: str) -> str:
    """A collector's address as it is, or with OTLP's own path where it names none."""
    parts = urlsplit(endpoint)
    return endpoint if parts.path.strip("/") else urlunsplit(parts._replace(path=_TRACES))


def _shown(url: str) -> str:
    """Without a password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def _method(record: RequestRecord, other: str) -> str:
    """A client may use any text as method."""
    return record.method if record.method in _METHODS else other


def _http_attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "http.request.method": _method(record, "_OTHER"),
        "http.response.status_code": record.status,
        "stentor.request_id": record.request_id,
    }
    return attributes | {"http.route": record.route} if record.route else attributes


def _phases(began: float, served: EngineUsage) -> list[tuple[str, float, float]]:
    """Name, start and end. The phase in which a request was aborted ends with it."""
    phases = [("prompt", began, served.submitted)]
    if not served.prompt_done:
        return [*phases, ("queue", served.submitted, served.ended)]
    scheduled = served.submitted + served.queue_seconds
    computed = scheduled + served.prefill_seconds
    phases += [("queue", served.submitted, scheduled), ("prefill", scheduled, computed)]
    if served.first:
        phases.append(("decode", served.first, served.last))
    return phases


def _wall(record: RequestRecord, moment: float) -> int:
    return record.began_ns + int((moment - record.began) * _NS)
