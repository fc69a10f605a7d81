"""Who is told of the requests, as the operator wants it."""

from ..config.config import ObserveConfig
from .access_log import log_request, open_access_log
from .metrics import Metrics
from .observer import Observer, Told


def open_observer(config: ObserveConfig, metrics: Metrics, model: str) -> Observer:
    """Its owner must close it. ``model`` is the served name that traces carry."""
    told: list[Told] = [metrics.ended]
    close = None
    if config.access_log:
        open_access_log()
        told.append(log_request)
    if config.otlp_endpoint is not None:
        from .otlp import OtlpTraces  # late: an extra, and a third of a second

        traces = OtlpTraces(config.otlp_endpoint, model)
        metrics.server.traces = traces.queue
        told.append(traces)
        close = traces.close
    return Observer(told, close)
