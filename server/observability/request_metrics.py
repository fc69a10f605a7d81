"""Metrics of generating requests, observed as deltas pass."""

import time
from collections.abc import Iterable
from typing import Final, get_args

from prometheus_client import Counter

from stentor.protocols.ipc.actors import FinishReason
from stentor.protocols.ipc.deltas import Delta, Finish, PromptProcessed, Reasoning, Text

from .declarations import Declarations
from .request import EngineUsage

_TTFT: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_STEP: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5)
_COUNT: Final = tuple(float(2**power) for power in range(18))
_SMALL: Final = (1, 2, 5, 10, 20, 50, 100)
LONG: Final = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960, 1920)


class RequestMetrics:
    """Metrics of one model."""

    def __init__(self, made: Declarations) -> None:
        self.prompt_tokens = made.counter(
            "prompt_tokens", "Prompt tokens whose prefill is complete, cached ones included."
        )
        self.prompt_tokens_cached = made.counter(
            "prompt_tokens_cached", "Prompt tokens of prefilled requests that came from the prefix cache."
        )
        self.generation_tokens = made.quick_counter("generation_tokens", "Generated tokens delivered to the server.")
        self.finished = made.each(
            Counter,
            "request_success",
            "Sequences (choices of requests) that ended, by finish reason.",
            "finished_reason",
            get_args(FinishReason),
        )
        self.ttft = made.quick(
            "time_to_first_token_seconds", "Seconds from the arrival of a request to its first token.", _TTFT
        )
        self.inter_token = made.quick(
            "inter_token_latency_seconds", "Seconds between two deliveries of tokens of one request.", _STEP
        )
        self.per_token = made.histogram(
            "request_time_per_output_token_seconds",
            "Mean seconds per token after the first, one observation per request.",
            _STEP,
        )
        self.e2e = made.histogram(
            "e2e_request_latency_seconds", "Seconds from the arrival of a request to its end.", LONG
        )
        self.queue = made.histogram(
            "request_queue_time_seconds",
            "Seconds that a request waited in the engine before it was first scheduled.",
            LONG,
        )
        self.prefill = made.histogram(
            "request_prefill_time_seconds",
            "Seconds from the first scheduling of a request to the end of its prefill.",
            LONG,
        )
        self.decode = made.histogram(
            "request_decode_time_seconds", "Seconds from the first to the last token of a request.", LONG
        )
        self.inference = made.histogram(
            "request_inference_time_seconds", "Seconds of prefill and decode of a request, queueing excluded.", LONG
        )
        self.request_prompt = made.histogram("request_prompt_tokens", "Prompt tokens of a request.", _COUNT)
        self.request_generation = made.histogram("request_generation_tokens", "Generated tokens of a request.", _COUNT)
        self.request_longest = made.histogram(
            "request_max_num_generation_tokens", "Generated tokens of the longest sequence of a request.", _COUNT
        )
        self.request_computed = made.histogram(
            "request_prefill_kv_computed_tokens",
            "Prompt tokens of a request that were computed, those from caches excluded.",
            _COUNT,
        )
        self.params_n = made.histogram("request_params_n", "Number of sequences that a request asks for (n).", _SMALL)
        self.params_max_tokens = made.histogram(
            "request_params_max_tokens", "Number of tokens that a sequence of a request may have (max_tokens).", _COUNT
        )

    def track(self, prompt_tokens: int, n: int, max_tokens: int, arrival: float) -> "RequestTracker":
        """Observes one request from here on; ``arrival`` by ``time.monotonic()``."""
        self.params_n.observe(n)
        self.params_max_tokens.observe(max_tokens)
        return RequestTracker(self, EngineUsage(prompt_tokens, max_tokens, n, time.monotonic()), arrival)


class RequestTracker:
    """Observes one request; gets every batch of deltas, and is closed once."""

    __slots__ = (
        "_arrival",
        "_by_choice",
        "_first",
        "_generated",
        "_last",
        "_metrics",
        "_open",
        "_served",
    )

    def __init__(self, metrics: RequestMetrics, served: EngineUsage, arrival: float) -> None:
        self._metrics = metrics
        self._served = served
        self._open = served.choices
        self._arrival = arrival
        self._first = 0.0
        self._last = 0.0
        self._generated = 0
        self._by_choice = [0] * served.choices

    def batch(self, deltas: Iterable[Delta]) -> None:
        tokens = 0
        for delta in deltas:
            if type(delta) is Text or type(delta) is Reasoning:
                tokens += len(delta.tokens)
                self._by_choice[delta.index] += len(delta.tokens)
            elif type(delta) is Finish:
                self._open -= 1
                self._metrics.finished[delta.reason].inc()
                self._served.reasons.append(delta.reason)
                if delta.fault in ("", "engine", "shutdown"):  # the client learns about its own faults
                    self._served.failure = delta.message or self._served.failure
            elif type(delta) is PromptProcessed:
                self._prompt_done(delta)
        if not tokens:
            return
        now = time.monotonic()
        if self._generated:
            self._metrics.inter_token.observe(now - self._last)
        else:
            self._first = now
            self._metrics.ttft.observe(now - self._arrival)
        self._last = now
        self._generated += tokens
        self._metrics.generation_tokens.inc(tokens)

    def close(self) -> EngineUsage:
        """The request is over, whether it ended or was given up; choices still open count as aborted."""
        metrics, served = self._metrics, self._served
        if self._open:
            metrics.finished["abort"].inc(self._open)
            served.reasons += ["abort"] * self._open
            self._open = 0
        served.first, served.last, served.output_tokens = self._first, self._last, self._generated
        served.ended = time.monotonic()
        metrics.e2e.observe(served.ended - self._arrival)
        if not served.prompt_done:
            return served
        metrics.request_prompt.observe(served.prompt_tokens)
        metrics.request_generation.observe(self._generated)
        metrics.request_longest.observe(max(self._by_choice))
        decode = self._last - self._first
        metrics.decode.observe(decode)
        metrics.inference.observe(served.prefill_seconds + decode)
        if self._generated > 1:
            metrics.per_token.observe(decode / (self._generated - 1))
        return served

    def _prompt_done(self, delta: PromptProcessed) -> None:
        served = self._served
        served.prompt_done = True
        served.cached_tokens = delta.cached_tokens
        served.queue_seconds = delta.queue_seconds
        served.prefill_seconds = delta.prefill_seconds
        self._metrics.prompt_tokens.inc(served.prompt_tokens)
        self._metrics.prompt_tokens_cached.inc(delta.cached_tokens)
        self._metrics.request_computed.observe(served.prompt_tokens - delta.cached_tokens)
        self._metrics.queue.observe(delta.queue_seconds)
        self._metrics.prefill.observe(delta.prefill_seconds)
