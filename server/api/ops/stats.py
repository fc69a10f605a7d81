"""``GET /v1/stats``: current figures as JSON, for the playground.

``/metrics`` (:mod:`.operations`) has more, in Prometheus' text format.
"""

import os
from functools import partial
from itertools import accumulate, pairwise
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...common.keys import Keyring
from ...middleware.auth import AdminRoute
from ...observability.metrics import EngineFigures, Metrics
from ...observability.processes import usage_by_role
from ...observability.quick_metrics import QuickHistogram
from ...tts.model import SpeechModel
from ..common.described import Operation, Operations
from ..common.endpoint import json_response


class ModelStats(msgspec.Struct, frozen=True):
    """Gauges of now, and counters since the server's start."""

    model: str
    ready: bool
    running: int
    """Sequences."""
    waiting: int
    kv_usage: float
    """Fraction of the KV cache in use."""
    kv_tokens: int | None
    """Capacity of the KV cache in tokens; null until the model is ready."""
    prefix_queries: int
    """Prompt tokens that were looked up in the prefix cache."""
    prefix_hits: int
    """Prompt tokens that were found there."""
    host_queries: int
    """Prompt tokens that were not, and were looked up in host memory."""
    host_hits: int
    """Prompt tokens that were found in host memory."""
    host_usage: float
    """Fraction of host memory for cached blocks in use."""
    preemptions: int
    engine_restarts: int
    worker_restarts: int
    recovered: int
    """Requests that continued after a crash."""
    num_drafts: int
    """Proposals of draft tokens that were verified."""
    num_accepted_tokens: int
    """Accepted draft tokens."""


class SpeechStats(msgspec.Struct, frozen=True):
    model: str
    ready: bool
    running: int
    """Texts that are being spoken, each in its turn."""
    restarts: int
    """Restarts of its process since the server's start."""


class Latency(msgspec.Struct, frozen=True):
    """In seconds, since the server's start."""

    p50: float | None
    p95: float | None
    p99: float | None
    bounds: list[float]
    """Upper bounds of the buckets; one without a bound follows."""
    counts: list[int]
    """Observations by bucket."""


class ServerStats(msgspec.Struct, frozen=True):
    """The figures of now."""

    models: list[ModelStats]
    generation_tokens: int
    """Of the chat model, like the latencies."""
    time_to_first_token: Latency
    inter_token_latency: Latency
    memory: dict[str, int]
    """Resident bytes by the role of the process."""
    speech: SpeechStats | None
    """The speech model, by its process; null without one."""


OPERATIONS: Final[Operations] = {
    "/v1/stats": Operation(
        "Figures of now: requests, KV cache, latencies, memory, restarts. Wants an admin key where there is one",
        ServerStats,
    )
}


def routes(figures: Metrics, speech: SpeechModel | None, keys: Keyring) -> list[Route]:
    return [AdminRoute("/v1/stats", partial(stats, figures, speech), keys, methods=["GET"], open_without=True)]


async def stats(figures: Metrics, speech: SpeechModel | None, _request: Request) -> Response:
    return json_response(
        ServerStats(
            [_model(model, engine) for model, engine in figures.engines.items()],
            figures.requests.generation_tokens.value,
            _latency(figures.requests.ttft),
            _latency(figures.requests.inter_token),
            {role: usage.resident_bytes for role, usage in usage_by_role(os.getpid()).items()},
            None if speech is None else _speech(speech),
        )
    )


def _model(model: str, engine: EngineFigures) -> ModelStats:
    now, ready = engine.stats, engine.ready
    return ModelStats(
        model,
        ready is not None,
        now.running,
        now.waiting,
        now.kv_usage,
        None if ready is None else ready.num_blocks * ready.block_size,
        now.prefix_queries,
        now.prefix_hits,
        now.host_queries,
        now.host_hits,
        now.host_usage,
        now.preemptions,
        engine.engine_restarts,
        now.worker_restarts,
        now.recovered,
        now.num_drafts,
        sum(now.accepted_by_position),
    )


def _speech(model: SpeechModel) -> SpeechStats:
    return SpeechStats(model.names[0], model.ready is not None and model.stalled is None, model.callers, model.restarts)


def _latency(histogram: QuickHistogram) -> Latency:
    bounds, counts = histogram.bounds, histogram.counts
    p50, p95, p99 = (percentile(bounds, counts, share) for share in (0.5, 0.95, 0.99))
    return Latency(p50, p95, p99, bounds, counts)


def percentile(bounds: list[float], counts: list[int], share: float) -> float | None:
    """The value that ``share`` of the observations do not exceed, interpolated within its bucket; the last bound if it
    lies beyond. None without observations."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    edges = pairwise([0.0, *bounds])
    for (low, high), reached, count in zip(edges, accumulate(counts), counts, strict=False):
        if reached >= wanted:
            return high - (high - low) * (reached - wanted) / count
    return bounds[-1]
