"""What the engine is told to do as a whole, and answers: to pause, to sleep, to forget what is cached, to load
an adapter."""

import asyncio
from collections.abc import Callable
from typing import Literal

from stentor.protocols.ipc.actors import Control, ControlOperation
from stentor.protocols.ipc.adapters import AdapterRef, AdapterWarm, WarmAdapter

from .send_queue import SendQueue


class Controls:
    """Operations on the engine at hand, each with a number by which the engine says that it has taken effect."""

    def __init__(self, queue: SendQueue, wake: Callable[[], None]) -> None:
        """``wake`` is called once the engine has something to answer."""
        self._queue = queue
        self._wake = wake
        self._next = 0
        self._asked: dict[int, asyncio.Event] = {}
        """Those that the engine at hand has yet to answer."""
        self._loading: dict[int, asyncio.Future[AdapterWarm | None]] = {}
        """Adapters that somebody waits for, by ticket; None: they will not be told of."""
        self.paused = False
        """Whether no step is to run, also of engines to come."""
        self.sleep: Literal["sleep", "discard"] | None = None
        """How they sleep, if they do."""

    def __bool__(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._asked or self._loading)

    async def carry_out(self, operation: ControlOperation) -> None:
        """Returns when it has taken effect, or the engine is gone."""
        done = self._asked[self._next] = asyncio.Event()
        self._tell(operation)
        self._wake()
        await done.wait()

    def answered(self, number: int) -> None:
        if (done := self._asked.pop(number, None)) is not None:
            done.set()

    async def load(self, adapter: AdapterRef) -> AdapterWarm | None:
        """Has an adapter loaded before any request names it; None where the engine is lost meanwhile."""
        ticket, self._next = self._next, self._next + 1
        answer: asyncio.Future[AdapterWarm | None] = asyncio.get_running_loop().create_future()
        self._loading[ticket] = answer
        self._queue.warm(WarmAdapter(ticket, adapter))
        self._wake()
        try:
            return await answer
        finally:
            self._loading.pop(ticket, None)

    def loaded(self, warm: AdapterWarm) -> None:
        if (answer := self._loading.get(warm.ticket)) is not None and not answer.done():
            answer.set_result(warm)

    def begin(self) -> None:
        """An engine is ready, and has got nothing to do yet."""
        if self.paused:
            self._tell("pause")
        if self.sleep is not None:
            self._tell(self.sleep)

    def end(self) -> None:
        """The engine at hand is gone: no step runs, nothing is cached."""
        for done in self._asked.values():
            done.set()
        self._asked.clear()
        for answer in self._loading.values():
            if not answer.done():
                answer.set_result(None)

    def _tell(self, operation: ControlOperation) -> None:
        self._queue.control(Control(self._next, operation))
        self._next += 1
