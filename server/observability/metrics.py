"""Prometheus metrics under vLLM's names.

The engine's metrics are read when the page is requested; those of requests are observed in :mod:`.request_metrics`.
Labels come from the configuration or from closed sets, never from a client.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, Protocol, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from stentor.engine.client.outages import LostProcess
from stentor.protocols.common.bounds import LIST_TOO_LONG, NUMBER_TOO_LARGE, OBJECT_TOO_LARGE, TEXT_TOO_LONG
from stentor.protocols.ipc.actors import EngineReady, Resource, Stats
from stentor.protocols.ipc.histograms import REQUEST_PREEMPTIONS, STEP_TOKENS

from .declarations import MODEL, Declarations, family, histogram_family
from .figures import ServerFigures
from .realtime_figures import RealtimeFigures
from .request import RequestRecord
from .request_metrics import LONG, RequestMetrics

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_RECOVERY: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 40, 80, 160)

REJECTIONS: Final = (
    *("starting", "draining", "failed", "paused"),
    *("queue_full", "queue_tokens_full", "memory_full", "templates_full", "background_full", "grammars_full"),
    "speech_full",
    "audio_full",
    "media_full",
)
CUT_OFFS: Final = ("deadline_exceeded", "shutting_down", "aborted", "slow_reader")
TOOL_OUTCOMES: Final = ("completed", "failed", "cut_off")
SleepOperation = Literal["sleep", "wake_up"]
_SLEEP_STATES: Final = ("awake", "weights_offloaded", "discard_all")


class EngineFigures(Protocol):
    """Figures of the engine for the metrics page."""

    @property
    def stats(self) -> Stats: ...

    @property
    def ready(self) -> EngineReady | None: ...

    @property
    def engine_restarts(self) -> int: ...


class Metrics:
    """A separate registry; ``model`` is the only label besides reasons.

    Metrics of engines are reported for each, with the name of its model.
    """

    def __init__(self, model: str, engine: EngineFigures, others: Mapping[str, EngineFigures] | None = None) -> None:
        self.registry = CollectorRegistry()
        engines = {model: engine, **(others or {})}
        self.engines: Final[Mapping[str, EngineFigures]] = engines
        """By the names of their models."""
        self.registry.register(_EngineCollector(engines))
        self.server = ServerFigures(model, self.registry)
        self.realtime = RealtimeFigures(model, self.registry)
        self._made = made = Declarations(self.registry, model)
        self.requests: Final = RequestMetrics(made)
        """Of requests to ``model``."""
        self._requests = {model: self.requests}
        self.rejected = made.each(
            Counter,
            "admission_rejections",
            "Requests refused before they reached the engine, by reason.",
            "reason",
            (*REJECTIONS, *REFUSALS),
        )
        self.cut_off = made.each(
            Counter,
            "requests_cut_off",
            "Requests that the server ended before they were complete, by reason.",
            "reason",
            CUT_OFFS,
        )
        self.tool_calls = made.each(
            Histogram,
            "tool_call_seconds",
            "Seconds that a tool call on an MCP server took, by outcome.",
            "outcome",
            TOOL_OUTCOMES,
            buckets=LONG,
        )
        self.sleep = SleepFigures(made)
        self.weight_update_seconds = made.each(
            Histogram,
            "rl_weight_update_operation_duration_seconds",
            "Seconds that an update of the main model's weights took, also one that failed.",
            "operation",
            ("update",),
            buckets=LONG,
        )["update"]
        self.recovery = _recovery(self.registry, engines)
        """By the name of a model and the lost process."""

    def requests_of(self, model: str) -> RequestMetrics:
        """Metrics of requests to this model, the same object every time."""
        if model not in self._requests:
            self._requests[model] = RequestMetrics(Declarations(self.registry, model, self._made))
        return self._requests[model]

    def ended(self, record: RequestRecord) -> None:
        """Called for every request at its end."""
        self.server.count(record)
        if (refusal := refusal_of(record)) is not None:
            self.rejected[refusal].inc()

    def render(self) -> bytes:
        """The page, in Prometheus' text format."""
        return generate_latest(self.registry)


class SleepFigures:
    """Of the engines' sleep, which an operator asks for with ``/sleep``."""

    def __init__(self, made: Declarations) -> None:
        self._states = made.each(
            Gauge,
            "engine_sleep_state",
            "1 for the state of the engines: awake (or paused), weights_offloaded (level 1) or discard_all (level 2).",
            "sleep_state",
            _SLEEP_STATES,
        )
        self._states["awake"].set(1)
        self._seconds = made.each(
            Histogram,
            "sleep_mode_operation_duration_seconds",
            "Seconds that `/sleep` and `/wake_up` took.",
            "operation",
            get_args(SleepOperation),
            buckets=_RECOVERY,
        )

    def changed(self, operation: SleepOperation, seconds: float, level: int | None) -> None:
        """``level``: that of the sleep afterwards; None: awake."""
        self._seconds[operation].observe(seconds)
        for number, state in enumerate(self._states.values()):
            state.set(number == (level or 0))


def _recovery(registry: CollectorRegistry, engines: Iterable[str]) -> dict[str, dict[LostProcess, Histogram]]:
    made = Histogram(
        "stentor:recovery_seconds",
        "Seconds from the crash of a worker or engine process to the first step of its replacement.",
        (MODEL, "process"),
        registry=registry,
        buckets=_RECOVERY,
    )
    return {name: {process: made.labels(name, process) for process in get_args(LostProcess)} for name in engines}


class _EngineCollector:
    """Reads the engine's figures at the moment of the scrape."""

    def __init__(self, engines: Mapping[str, EngineFigures]) -> None:
        """By the names of their models."""
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        engines = self._engines.items()
        stats = [(model, engine.stats) for model, engine in engines]
        for field, (name, text) in _GAUGES.items():
            yield family(GaugeMetricFamily, name, text, (((model,), getattr(each, field)) for model, each in stats))
        waiting = (((m, name), each.waiting_for.get(name, 0)) for m, each in stats for name in get_args(Resource))
        text = (
            "Sequences that wait, by what they or an earlier one lack: a row, blocks of the KV cache, "
            "room in the encoder cache, room in the next step, a slot for an adapter, a grammar, streamed input, "
            "written media, a transfer, an adapter that is being loaded."
        )
        yield family(GaugeMetricFamily, "num_requests_waiting_by_reason", text, waiting, "reason")
        restarts = (((model,), engine.engine_restarts) for model, engine in engines)
        text = "Engine processes started to replace a crashed one."
        yield family(CounterMetricFamily, "engine_restarts", text, restarts)
        for field, (name, text) in _COUNTERS.items():
            yield family(CounterMetricFamily, name, text, (((model,), getattr(each, field)) for model, each in stats))
        for field, (name, text, bounds) in _HISTOGRAMS.items():
            yield histogram_family(name, text, bounds, ((model, getattr(each, field)) for model, each in stats))
        text = "Prompt tokens by where their keys and values came from: computed, the prefix cache, or host memory."
        sources = (((m, source), getattr(each, of)) for m, each in stats for source, of in _SOURCES.items())
        yield family(CounterMetricFamily, "prompt_tokens_by_source", text, sources, "source")
        text = "Draft tokens accepted, by their position behind the sequence's own token, from 0."
        by_position = (
            ((model, str(position)), count)
            for model, each in stats
            for position, count in enumerate(each.accepted_by_position)
        )
        yield family(CounterMetricFamily, "spec_decode_num_accepted_tokens_per_pos", text, by_position, "position")
        ready = [(model, ready) for model, engine in engines if (ready := engine.ready) is not None]
        if ready:
            yield family(
                GaugeMetricFamily,
                "cache_config_info",
                "Always 1; the labels give the block size in tokens and the number of blocks of the KV cache.",
                (((model, str(each.block_size), str(each.num_blocks)), 1) for model, each in ready),
                "block_size",
                "num_gpu_blocks",
            )


_GAUGES: Final = {
    "running": ("num_requests_running", "Sequences (choices of requests) that the engine is running."),
    "waiting": ("num_requests_waiting", "Sequences (choices of requests) that wait in the engine's queue."),
    "free_blocks": (
        "kv_cache_free_blocks",
        "KV cache blocks that no request holds; cached prefixes in them can be evicted.",
    ),
    "kv_usage": ("kv_cache_usage_perc", "Fraction of the KV cache blocks in use, 0 to 1."),
    "host_usage": (
        "kv_offload_cpu_cache_usage_perc",
        "Fraction of the host memory of --kv-offloading-size that holds blocks, 0 to 1.",
    ),
}
_COUNTERS: Final = {
    "preemptions": ("num_preemptions", "Times that a running sequence was preempted because the KV cache was full."),
    "prefix_queries": ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_hits": ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "host_queries": (
        "external_prefix_cache_queries",
        "Prompt tokens not found in the prefix cache and looked up in host memory (--kv-offloading-size).",
    ),
    "host_hits": ("external_prefix_cache_hits", "Prompt tokens found in host memory."),
    "host_stored_bytes": ("kv_offload_store_bytes", "Bytes of KV cache blocks copied to host memory."),
    "host_loaded_bytes": ("kv_offload_load_bytes", "Bytes of KV cache blocks copied back from host memory."),
    "steps": ("engine_steps", "Steps (forward passes of the batch) that the engine has completed."),
    "worker_restarts": ("worker_restarts", "Worker processes started to replace a crashed one."),
    "recovered": ("recovered_requests", "Requests that continued after a crash of their worker or engine."),
    "watchdog_kills": ("watchdog_kills", "Workers that the watchdog killed because a step took too long."),
    "poisoned": ("poisoned_requests", "Requests ended because they crashed a worker or engine when run alone."),
    "num_drafts": ("spec_decode_num_drafts", "Times that draft tokens of a sequence were verified in a step."),
    "num_draft_tokens": ("spec_decode_num_draft_tokens", "Draft tokens that were verified."),
    "num_accepted_tokens": (
        "spec_decode_num_accepted_tokens",
        "Draft tokens that were accepted; their ratio to spec_decode_num_drafts, and 1, are the tokens a step.",
    ),
}
"""Names and texts of the counters of :class:`.Stats`, by its fields."""
_HISTOGRAMS: Final = {
    "step_tokens": (
        "iteration_tokens_total",
        "Tokens of a step: of prompts, outputs and drafts. A histogram, as in vLLM, in spite of its name.",
        STEP_TOKENS,
    ),
    "request_preemptions": (
        "request_num_preemptions",
        "Times that sequences of a request were preempted because the KV cache was full.",
        REQUEST_PREEMPTIONS,
    ),
}
"""Names, texts and upper bounds of the histograms of :class:`.Stats`, by its fields."""
_SOURCES: Final = {
    "local_compute": "prompt_computed",
    "local_cache_hit": "prefix_hits",
    "external_kv_transfer": "host_hits",
}
"""Sources of prompt tokens under vLLM's names, with the fields of :class:`.Stats` that count them."""

REFUSALS: Final = ("auth", "not_found", "limit", "invalid")

_LIMITS: Final = frozenset(
    {LIST_TOO_LONG, NUMBER_TOO_LARGE, OBJECT_TOO_LARGE, TEXT_TOO_LONG, "context_length_exceeded", "media_too_large"}
)


def refusal_of(record: RequestRecord) -> str | None:
    """One of :data:`REFUSALS`, or None for a request that was not refused, or not for such a reason."""
    match record.status:
        case 401 | 403:
            return "auth"
        case 404 | 405:
            return "not_found"
        case 408 | 413:
            return "limit"
        case 400 | 415 | 422:
            return "limit" if record.error in _LIMITS else "invalid"
        case _:
            return None
