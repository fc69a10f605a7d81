"""Somebody who has many texts, and sends them while others wait for something else."""

import http.client
import itertools
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from .asking import Connection


class Bulk:
    """Context manager: lists of texts on their way to a server, each over a connection and a thread of its own.

    ``endless`` sends each again and again until the block ends. What runs then is dropped. Leaving raises what a
    request that had not been dropped ended with.
    """

    def __init__(self, port: int, model: str, jobs: Sequence[Sequence[str]], *, endless: bool = False) -> None:
        self._jobs = jobs
        self._endless = endless
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._connections = [Connection(port, model) for _ in jobs]
        self._threads = [
            threading.Thread(target=self._send, args=(*each,)) for each in zip(self._connections, jobs, strict=True)
        ]
        self.texts = 0
        """That are done."""

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        for connection in self._connections:
            connection.drop()
        for thread in self._threads:
            thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _send(self, connection: Connection, texts: Sequence[str]) -> None:
        try:
            with connection:
                for _ in itertools.count() if self._endless else range(1):
                    if self._ending.is_set():
                        return
                    made = len(connection.ask(texts).vectors)
                    with self._lock:
                        self.texts += made
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            if not self._ending.is_set():
                self._error = error
