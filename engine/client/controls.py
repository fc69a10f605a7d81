"""What the engine is told to do as a whole, and answers: to pause, to forget what is cached."""

import asyncio
from collections.abc import Callable

from stentor.protocols.ipc.actors import Control, ControlOperation

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
        self.paused = False
        """Whether no step is to run, also of engines to come."""

    def __bool__(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._asked)

    async def carry_out(self, operation: ControlOperation) -> None:
        """Returns when it has taken effect, or the engine is gone."""
        done = self._asked[self._next] = asyncio.Event()
        self._tell(operation)
        self._wake()
        await done.wait()

    def answered(self, number: int) -> None:
        if (done := self._asked.pop(number, None)) is not None:
            done.set()

    def begin(self) -> None:
        """An engine is ready, and has got nothing to do yet."""
        if self.paused:
            self._tell("pause")

    def end(self) -> None:
        """The engine at hand is gone: no step runs, nothing is cached."""
        for done in self._asked.values():
            done.set()
        self._asked.clear()

    def _tell(self, operation: ControlOperation) -> None:
        self._queue.control(Control(self._next, operation))
        self._next += 1
