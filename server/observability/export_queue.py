"""A bounded queue before a collector, emptied by a thread: adding never waits."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

CAPACITY: Final = 2048
BATCH: Final = 16
"""To encode it holds the interpreter's lock: a small one gives it back soon."""
GATHER_SECONDS: Final = 1.0


class ExportQueue(Generic[T]):
    """Exports items in batches; items that find no room, or cannot be exported, are dropped and counted."""

    def __init__(
        self,
        export: Callable[[Sequence[T]], bool],
        where: str,
        *,
        capacity: int = CAPACITY,
        gather_seconds: float = GATHER_SECONDS,
    ) -> None:
        """``export`` may block, in a thread of this queue's; it says whether it succeeded, and may raise."""
        self._export = export
        self._where = where
        self._capacity = capacity
        self._gather_seconds = gather_seconds
        self._waiting: deque[T] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._fails = False
        self.exported = 0
        self.dropped_full = 0
        self.dropped_failed = 0
        self._thread = threading.Thread(target=self._run, name="export", daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        """Called from one thread."""
        if len(self._waiting) >= self._capacity or self._closing.is_set():
            self.dropped_full += 1
            return
        self._waiting.append(item)
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Exports waiting items, for at most ``seconds``. May be called again."""
        self._closing.set()
        self._wake.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            self._closing.wait(self._gather_seconds)
            while self._waiting:
                self._send([self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))])
            if self._closing.is_set():
                return

    def _send(self, batch: list[T]) -> None:
        why = "it did not take them"
        try:
            succeeded = self._export(batch)
        except Exception as error:
            succeeded, why = False, type(error).__name__
        if succeeded:
            self.exported += len(batch)
        else:
            self.dropped_failed += len(batch)
        if succeeded and self._fails:
            logger.info("traces reach %s again", self._where)
        elif not succeeded and not self._fails:
            logger.warning("traces do not reach %s and are dropped: %s", self._where, why)
        self._fails = not succeeded
