"""Operations on the engine as a whole: pausing, sleeping, resetting the prefix cache, loading an adapter."""

import asyncio
from collections.abc import Callable
from typing import Literal

from stentor.protocols.ipc.actors import Control, ControlOperation
from stentor.protocols.ipc.adapters import AdapterRef, AdapterWarm, WarmAdapter

from .send_queue import SendQueue


class Controls:
    """Sends operations to the present engine, each with a number by which the engine answers."""

    def __init__(self, queue: SendQueue, wake: Callable[[], None]) -> None:
        """``wake`` is called once the engine has something to answer."""
        self._queue = queue
        self._wake = wake
        self._next = 0
        self._asked: dict[int, asyncio.Event] = {}
        """Operations that the present engine has not answered."""
        self._loading: dict[int, asyncio.Future[AdapterWarm | None]] = {}
        """Awaited adapters by ticket. The result is None if the engine is lost."""
        self.paused = False
        """Whether steps are stopped, also for later engines."""
        self.sleep: Literal["sleep", "discard"] | None = None
        """The sleep that was asked for, also of later engines; None while awake."""

    def __bool__(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._asked or self._loading)

    async def carry_out(self, operation: ControlOperation) -> None:
        """Send an operation; returns when it has taken effect or the engine is gone."""
        done = self._asked[self._next] = asyncio.Event()
        self._tell(operation)
        self._wake()
        await done.wait()

    def answered(self, number: int) -> None:
        if (done := self._asked.pop(number, None)) is not None:
            done.set()

    async def load(self, adapter: AdapterRef) -> AdapterWarm | None:
        """Load an adapter before any request names it; None if the engine is lost meanwhile."""
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
        """Pass pause and sleep to a new engine that has no requests yet."""
        if self.paused:
            self._tell("pause")
        if self.sleep is not None:
            self._tell(self.sleep)

    def end(self) -> None:
        """Complete all operations: the engine is gone, so nothing runs or is cached."""
        for done in self._asked.values():
            done.set()
        self._asked.clear()
        for answer in self._loading.values():
            if not answer.done():
                answer.set_result(None)

    def _tell(self, operation: ControlOperation) -> None:
        self._queue.control(Control(self._next, operation))
        self._next += 1
