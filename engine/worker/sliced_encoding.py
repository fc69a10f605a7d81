"""An encoding that stops between two of its parts and goes on later: rows that decode wait for a slice of it."""

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_LAST: Final = float("inf")
_PARTS: Final = 4
"""Of a slice."""


class _DroppedError(Exception):
    """Nobody wants its result any more."""


class SlicedEncoding(Generic[T]):
    """Computes on a thread of its own, which runs only while :meth:`run` waits for it: one of both at a time."""

    _own = threading.local()

    def __init__(self, encode: Callable[[], T]) -> None:
        self._encode = encode
        self._resumed, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._deadline = self._part = _LAST
        self._dropped = self.done = False
        self._found: T | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="encode", daemon=True)
        self._thread.start()

    @classmethod
    def pause(cls) -> float:
        """Before a part: waits, where it runs on the thread of an encoding whose time is over. Returns seconds that the
        part should take, at most; infinity where nobody waits for it."""
        mine: SlicedEncoding[T] | None = getattr(cls._own, "encoding", None)
        if mine is None:
            return _LAST
        if time.monotonic() >= mine._deadline:
            mine._paused.release()
            mine._resumed.acquire()
            if mine._dropped:
                raise _DroppedError
        return mine._part

    def run(self, seconds: float | None = None) -> bool:
        """Goes on for about so long, its last part included, or to the end. Returns whether it is done."""
        self._part = _LAST if seconds is None else seconds / _PARTS
        self._deadline = _LAST if seconds is None else time.monotonic() + seconds - self._part
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
