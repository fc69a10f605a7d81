"""Who is told of every request that has ended."""

import logging
import time
from collections.abc import Callable, Iterable

from stentor.engine.processes.logs import trace_without_messages

from .request import RequestRecord

logger = logging.getLogger(__name__)

Told = Callable[[RequestRecord], None]

CLIENT_GONE = 499
"""The status of a request whose client went away before the head of a response."""


class Observer:
    """Hands records on. One of those who are told may fail without the request or the others noticing."""

    def __init__(self, told: Iterable[Told] = (), close: Callable[[], None] | None = None) -> None:
        self._told = tuple(told)
        self._close = close

    def close(self) -> None:
        """Lets go of what is still to be told; may take some seconds."""
        if self._close is not None:
            self._close()

    def finish(self, record: RequestRecord) -> None:
        record.ended = time.monotonic()
        record.status = record.status or CLIENT_GONE
        for tell in self._told:
            try:
                tell(record)
            except Exception as error:
                logger.error("a request could not be recorded", extra={"trace": trace_without_messages(error)})
