"""An encoding that pauses between its parts, so that decoding rows wait for a slice only."""

import math
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ...layers.linear.parts import Pace

T = TypeVar("T")
_LAST: Final = math.inf
_LEAST_PART: Final = 8
"""A slice ends if less than its time divided by this is left: many small parts would read the weights as often."""


class _DroppedError(Exception):
    """The result is no longer wanted."""


class SlicedEncoding(Generic[T]):
    """Encodes on a thread of its own, which runs only while :meth:`run` waits for it."""

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
        """When the last part began, and its expected duration."""
        self._thread = threading.Thread(target=self._work, name="encode", daemon=True)
        self._thread.start()

    @classmethod
    def pause(cls, seconds: float = math.inf) -> float:
        """Call before a part of ``seconds``: waits if this is the thread of an encoding whose time is over.

        Returns the most seconds that the part should take; infinity outside of an encoding in slices.
        """
        mine: SlicedEncoding[T] | None = getattr(cls._own, "encoding", None)
        return _LAST if mine is None else mine._next_part(seconds)

    def run(self, seconds: float | None = None) -> bool:
        """Go on for about ``seconds``, or to the end; returns whether it is done."""
        self._deadline = _LAST if seconds is None else time.monotonic() + seconds
        self._least = 0.0 if seconds is None else seconds / _LEAST_PART
        self._resumed.release()
        self._paused.acquire()
        return self.done

    def result(self) -> T:
        """The result, once done. Raises the encoding's error."""
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found

    def drop(self) -> None:
        """End the encoding if it is not done."""
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
        except Exception as error:  # raised to the caller
            self._error = error
        self.done = True
        self._paused.release()
