"""The record of every request that has ended, handed to metrics, access log and traces."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from stentor.engine.processes.logs import trace_without_messages

from ..config.config import ObserveConfig
from .metrics import Metrics
from .request import RequestRecord

logger = logging.getLogger(__name__)

RecordSink = Callable[[RequestRecord], None]

CLIENT_GONE = 499
"""The status of a request whose client went away before the head of a response."""


class Observer:
    """Hands records on. A sink may fail without the request or the others noticing."""

    def __init__(self, sinks: Iterable[RecordSink] = (), close: Callable[[], None] | None = None) -> None:
        self._sinks = tuple(sinks)
        self._close = close

    def close(self) -> None:
        """Flushes; may take some seconds."""
        if self._close is not None:
            self._close()

    def finish(self, record: RequestRecord) -> None:
        record.ended = time.monotonic()
        record.status = record.status or CLIENT_GONE
        for sink in self._sinks:
            try:
                sink(record)
            except Exception as error:
                logger.error("a request could not be recorded", extra={"trace": trace_without_messages(error)})


logger = logging.getLogger("stentor.access")

MOST_PATH: Final = 200
"""Characters of a path that are shown."""


def open_access_log() -> None:
    """A separate option enables it, so the level of other lines does not apply."""
    logger.setLevel(logging.INFO)


def log_request(record: RequestRecord) -> None:
    """Never the query, which may hold keys, nor anything of a body."""
    path = record.path if len(record.path) <= MOST_PATH else record.path[:MOST_PATH] + "…"
    fields: dict[str, Any] = {
        "method": record.method,
        "path": path,
        "status": record.status,
        "seconds": round(record.seconds, 6),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
    }
    if record.key:
        fields["key"] = record.key
    if record.error:
        fields["error"] = record.error
    logger.info(
        "%s %s %d in %.3f s, %d + %d tokens%s%s",
        record.method,
        path,
        record.status,
        record.seconds,
        fields["prompt_tokens"],
        fields["output_tokens"],
        f", key {record.key}" if record.key else "",
        f", {record.error}" if record.error else "",
        extra={"fields": fields, "request_id": record.request_id},
    )


def open_observer(config: ObserveConfig, metrics: Metrics, model: str) -> Observer:
    """The caller must close it. ``model`` is the served name in traces."""
    sinks: list[RecordSink] = [metrics.ended]
    close = None
    if config.access_log:
        open_access_log()
        sinks.append(log_request)
    if config.otlp_endpoint is not None:
        from .otlp import OtlpTraces  # late: an extra, and a third of a second

        traces = OtlpTraces(config.otlp_endpoint, model)
        metrics.server.traces = traces.queue
        sinks.append(traces)
        close = traces.close
    return Observer(sinks, close)
