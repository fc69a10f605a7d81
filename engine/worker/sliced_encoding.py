"""An encoding that stops between two of its parts and goes on later: rows that decode wait for a slice of it."""

import math
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ..layers.parts import Pace

T = TypeVar("T")
_LAST: Final = math.inf
_LEAST_PART: Final = 8
"""A slice of which less than this part is left ends: what is computed in many parts reads its weights as often."""


class _DroppedError(Exception):
    """Nobody wants its result any more."""


class SlicedEncoding(Generic[T]):
    """Computes on a thread of its own, which runs only while :meth:`run` waits for it: one of both at a time."""

    _own = threading.local()

    def __init__(self, encode: Callable[[], T], pace: Pace) -> None:
        """``pace`` learns how long its parts take."""
        self._encode, self._pace = encode, pace
        self._resumed, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._deadline, self._least = _LAST, 0.0
        self._dropped = self.done = False
        self._found: T | None = None
        self._error: Exception | None = None
        self._part: tuple[float, float] | None = None
        """When the last one began, and for how long it was expected to take."""
        self._thread = threading.Thread(target=self._work, name="encode", daemon=True)
        self._thread.start()

    @classmethod
    def pause(cls, seconds: float = math.inf) -> float:
        """Before a part of what takes so long: waits, where it runs on the thread of an encoding whose time is over.
        Returns seconds of work that the part should be, at most; infinity where nobody waits for it."""
        mine: SlicedEncoding[T] | None = getattr(cls._own, "encoding", None)
        return _LAST if mine is None else mine._next_part(seconds)

    def run(self, seconds: float | None = None) -> bool:
        """Goes on for about so long, its last part included, or to the end. Returns whether it is done."""
        self._deadline = _LAST if seconds is None else time.monotonic() + seconds
        self._least = 0.0 if seconds is None else seconds / _LEAST_PART
        self._resumed.release()
        self._paused.acquire()
        return self.done

    def result(self) -> T:
        """Once it is done. Raises what was raised on the way."""
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found

    def drop(self) -> None:
        """Ends it, where it is not done."""
        if not self.done:
            self._dropped = True
            self._resumed.release()
        self._thread.join()

    def _next_part(self, seconds: float) -> float:
        now = time.monotonic()
        if self._part is not None:
            began, expected = self._part
            self._pace.took(now - began, expected)
        if now >= self._deadline - self._least:
            self._paused.release()
            self._resumed.acquire()
            if self._dropped:
                raise _DroppedError
            now = time.monotonic()
        work = max(0.0, self._deadline - now) / self._pace.factor
        self._part = (now, min(work, seconds)) if work and seconds < math.inf else None
        return work

    def _work(self) -> None:
        type(self)._own.encoding = self
        self._resumed.acquire()
        try:
            if not self._dropped:
                self._found = self._encode()
        except Exception as error:  # it is the caller's
            self._error = error
        self.done = True
        self._paused.release()
