"""Records transcription windows in the HTTP request's record and in the metrics."""

import time
from collections.abc import Callable
from typing import Protocol

from stentor.protocols.ipc.actors import FinishReason

from ..observability.request import EngineUsage, RequestRecord
from ..overload.queue_slots import QueueSlot


class RequestObserver(Protocol):
    """Observes one request to the engine, from its submission to its end."""

    def prompt_done(self, cached_tokens: int, queue_seconds: float, prefill_seconds: float) -> None: ...

    def tokens(self, tokens: list[int]) -> None: ...

    def close(self, reason: FinishReason, failure: str) -> None:
        """Called once; ``failure`` is the engine's error, not for the client."""


OpenAccount = Callable[[int, int], RequestObserver]
"""Called with the number of prompt tokens, and the most tokens to sample."""


class WindowObserver:
    """Observes one request to the engine (:class:`RequestObserver`), for metrics and the queue."""

    def __init__(
        self, record: RequestRecord | None, queue_slot: QueueSlot, prompt_tokens: int, max_tokens: int
    ) -> None:
        queue_slot.take(prompt_tokens)
        self._queue_slot = queue_slot
        self._record = record
        self._served = EngineUsage(prompt_tokens, max_tokens, 1, time.monotonic())

    def prompt_done(self, cached_tokens: int, queue_seconds: float, prefill_seconds: float) -> None:
        served = self._served
        served.prompt_done = True
        served.cached_tokens = cached_tokens
        served.queue_seconds = queue_seconds
        served.prefill_seconds = prefill_seconds
        self._queue_slot.processed(served.prompt_tokens)

    def tokens(self, tokens: list[int]) -> None:
        served = self._served
        served.last = time.monotonic()
        served.first = served.first or served.last
        served.output_tokens += len(tokens)

    def close(self, reason: FinishReason, failure: str) -> None:
        served = self._served
        served.ended = time.monotonic()
        served.reasons.append(reason)
        served.failure = failure
        if self._record is not None:
            self._record.add(served)


def observe_windows(record: RequestRecord | None, queue_slot: QueueSlot) -> OpenAccount:
    """Observers for the windows of one request of a client. All leave the queue with the first whose prompt is done."""

    def open_account(prompt_tokens: int, max_tokens: int) -> RequestObserver:
        return WindowObserver(record, queue_slot, prompt_tokens, max_tokens)

    return open_account
