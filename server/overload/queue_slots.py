"""The bounded queue before the engine: admission, and the retry time of refused requests.

A request waits from the end of its body until the engine has processed all of its prompts: for the tokenizer, for a
place in a step, and for its prefill. One whose body still comes holds no slot, or clients that send a byte now and then
would fill the queue; it is refused at once where the queue is full by then. A generating request has left the queue and
is bounded by the engine's concurrency. Requests are counted, whatever their choices and prompts; the tokens of all
their prompts are counted once known.
"""

import math
import time
from collections.abc import Callable
from typing import Final

from ..common.errors import Overloaded
from ..config.limits import OverloadConfig
from .memory_budget import MemoryBudget, MemoryShare

LEAST_SECONDS: Final = 1
MOST_SECONDS: Final = 60
"""Longer than this, the OpenAI SDK does not wait: it then retries by its own, shorter back-off."""
_RATE_SECONDS: Final = 30.0


class QueueSlot:
    """The slot of one request in the queue, and its memory until its end. Closing it releases what it still holds, and
    is the only way to release the slot."""

    __slots__ = ("_closed", "_queue", "_tokens", "_waits", "memory")

    def __init__(self, queue: "AdmissionQueue", memory: MemoryShare) -> None:
        self._queue = queue
        self.memory: Final = memory
        """Held until the response's last byte: prompts and parameters, here and in the engine, and loaded objects."""
        self._tokens = 0
        self._waits = False
        """A request without an engine takes no slot."""
        self._closed = False

    def arrived(self) -> None:
        """The request's body has come: counts the request. Raises Overloaded if the queue is full."""
        self._queue._arrived()
        self._waits = True

    def take(self, tokens: int) -> None:
        """Counts a prompt of the request. Raises Overloaded if other requests leave no room.

        A request that is alone in the queue always has room: a long one would otherwise never run.
        """
        if self._closed or not self._waits:
            return
        self._queue._check_tokens(tokens, self._tokens)
        self._tokens += tokens
        self._queue.tokens += tokens

    def processed(self, tokens: int) -> None:
        """A prompt that :meth:`take` counted waits no more; with the last one the request has left the queue."""
        self._give_back(min(tokens, self._tokens))
        if self._tokens == 0:
            self._leave()

    def close(self) -> None:
        """The request is over. May be called again."""
        self._closed = True
        self.memory.close()
        self._give_back(self._tokens)
        self._leave()

    def _give_back(self, tokens: int) -> None:
        self._tokens -= tokens
        self._queue.tokens -= tokens

    def _leave(self) -> None:
        if self._waits:
            self._waits = False
            self._queue._left()


class AdmissionQueue:
    """Counts waiting requests. Owned by the server's state; only its slots change it."""

    def __init__(self, config: OverloadConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_requests = config.max_queued_requests
        self._max_tokens = config.max_queued_tokens
        self._departures = _Departures(clock)
        self.requests = 0
        """Requests that wait."""
        self.tokens = 0
        """Prompt tokens of those among them whose prompts are known."""

    def enter(self, memory: MemoryShare | None = None, *, body_to_come: bool = False) -> QueueSlot:
        """``memory`` is the request's, released with its slot; None counts nothing. With ``body_to_come``,
        :meth:`QueueSlot.arrived` counts the request.

        Raises Overloaded if the queue is full.
        """
        self._check_requests()
        slot = QueueSlot(self, memory or MemoryBudget(0).share())
        if not body_to_come:
            slot.arrived()
        return slot

    def _check_requests(self) -> None:
        if self._max_requests and self.requests >= self._max_requests:
            raise Overloaded(
                f"{self.requests} requests are waiting, as many as this server lets wait; try again later.",
                "queue_full",
                self._departures.seconds_for(self._max_requests / 10),
            )

    def _arrived(self) -> None:
        self._check_requests()
        if self.requests == 0:
            self._departures.begin()
        self.requests += 1

    def pass_by(self) -> QueueSlot:
        """A slot outside the queue, for a request without an engine."""
        return QueueSlot(self, MemoryBudget(0).share())

    def _check_tokens(self, tokens: int, own: int) -> None:
        if not self._max_tokens or self.tokens == own or self.tokens + tokens <= self._max_tokens:
            return
        waiting = max(1, self.requests)
        # as many requests of the present size as make room for it
        needed = (self.tokens + tokens - self._max_tokens) / (self.tokens / waiting)
        raise Overloaded(
            f"Prompts of {self.tokens} tokens are waiting, and with the {tokens} of this one they would be more than "
            f"the {self._max_tokens} that this server lets wait; try again later.",
            "queue_tokens_full",
            self._departures.seconds_for(max(needed, waiting / 10)),
        )

    def _left(self) -> None:
        self.requests -= 1
        self._departures.count()
        if self.requests == 0:
            self._departures.pause()


class _Departures:
    """The rate at which requests leave, over the last seconds in which there was one to leave."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._busy = 0.0
        """Seconds with waiting requests, until the last decay."""
        self._faded = 0.0
        self._weight = 0.0
        """Departures, each fading by a factor of e in _RATE_SECONDS."""
        self._running = False

    def begin(self) -> None:
        self._faded = self._clock()
        self._running = True

    def pause(self) -> None:
        self._fade()
        self._running = False

    def count(self) -> None:
        self._fade()
        self._weight += 1

    def seconds_for(self, departures: float) -> int:
        """How long that many are likely to take; within the bounds of a ``retry-after``.

        A tenth of the queue is a fit number to ask for: a single place would be gone at once where a crowd was
        refused, and the engine must not run dry before they come again.
        """
        self._fade()
        # the weight that a steady rate of 1 a second would have reached by now
        unit = _RATE_SECONDS * -math.expm1(-self._busy / _RATE_SECONDS)
        # one more than were seen: at the beginning it is as if one were about to leave
        seconds = departures * unit / (self._weight + 1)
        return min(MOST_SECONDS, max(LEAST_SECONDS, math.ceil(seconds)))

    def _fade(self) -> None:
        if not self._running:
            return
        now = self._clock()
        passed, self._faded = now - self._faded, now
        self._busy += passed
        self._weight *= math.exp(-passed / _RATE_SECONDS)
