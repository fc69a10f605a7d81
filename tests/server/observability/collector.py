"""A collector of OpenTelemetry traces on loopback, that decodes what it is sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Value = str | int | float | bool | list[str]


class Collector:
    def __init__(self) -> None:
        self.paths: list[str] = []
        self.spans: list[Span] = []
        self.resources: list[dict[str, Value]] = []
        self.url = ""
        self.status = 200
        self.gate = threading.Event()
        """While it is not set, requests get no answer."""
        self.gate.set()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            self.resources.append(attributes(group.resource))
            for scope in group.scope_spans:
                self.spans.extend(scope.spans)

    def roots(self) -> list[Span]:
        ids = {span.span_id for span in self.spans}
        return [span for span in self.spans if span.parent_span_id not in ids]

    def below(self, root: Span) -> list[Span]:
        return [span for span in self.spans if span.parent_span_id == root.span_id]


def attributes(holder: object) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for entry in holder.attributes:  # type: ignore[attr-defined]
        kind = entry.value.WhichOneof("value")
        value = getattr(entry.value, kind)
        found[entry.key] = [one.string_value for one in value.values] if kind == "array_value" else value
    return found


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.gate.wait(60)
            collector.paths.append(self.path)
            if collector.status == 200:
                collector.take(body)
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield collector
        finally:
            collector.gate.set()
            server.shutdown()
            thread.join()
