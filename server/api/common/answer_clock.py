"""How long one generation took."""

import time
from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from stentor.protocols.ipc.deltas import Delta, PromptProcessed
from stentor.protocols.openai.usage import RequestMetrics


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
