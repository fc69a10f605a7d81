"""How long one generation took."""

import time
from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from stentor.protocols.ipc.deltas import Delta, PromptProcessed
from stentor.protocols.openai.usage import RequestMetrics, Timings


class AnswerClock:
    """Times of one generation: the wait and the prefill as the client of the engine measured them, and of the tokens
    behind the first the arrival of their deltas."""

    def __init__(self) -> None:
        self._processed: PromptProcessed | None = None
        self._first = self._last = 0.0

    def take(self, batch: Sequence[Delta]) -> None:
        """To be called when the deltas come."""
        self._last = time.monotonic()
        if self._processed is None:
            self._first = self._last
            self._processed = next((delta for delta in batch if type(delta) is PromptProcessed), None)

    def metrics(self, tokens: int) -> RequestMetrics | UnsetType:
        """The figures of an answer of so many tokens; UNSET if no prompt was computed."""
        if self._processed is None:
            return UNSET
        prefill, decode = self._processed.prefill_seconds, self._last - self._first
        return RequestMetrics(
            1000 * prefill,
            1000 * decode,
            1000 * self._processed.queue_seconds,
            1000 * decode / (tokens - 1) if tokens > 1 else UNSET,
            tokens / (prefill + decode) if prefill + decode > 0 else UNSET,
        )

    def timings(self, prompt: int, tokens: int) -> Timings | UnsetType:
        """The figures in llama.cpp's shape, of a ``prompt`` and an answer of so many tokens; UNSET before the prompt is
        computed."""
        if self._processed is None:
            return UNSET
        seconds = self._processed.prefill_seconds, self._last - self._first
        return timings_of(prompt, self._processed.cached_tokens, tokens, *seconds)


def timings_of(prompt: int, cached: int, tokens: int, prefill: float, decode: float) -> Timings:
    """Of a ``prompt`` of which ``cached`` tokens were found, and ``tokens`` behind it; times in seconds."""
    computed, steps = prompt - cached, max(0, tokens - 1)  # the step of the prompt makes the first token
    return Timings(cached, computed, *_rates(computed, 1000 * prefill), tokens, *_rates(steps, 1000 * decode))


def _rates(count: int, milliseconds: float) -> tuple[float, float, float]:
    """Time, time per token, and tokens a second; unknown values are 0."""
    each = milliseconds / count if count else 0.0
    return milliseconds, each, 1000 / each if each else 0.0
