"""Ctrl-C as an end, not as an accident."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator


class Interrupt:
    """Whether SIGINT came, and the task that it ends."""

    def __init__(self) -> None:
        self.raised = False
        self._task: asyncio.Task[None] | None = None

    async def watch(self, work: Coroutine[None, None, None]) -> None:
        """Runs ``work`` to its end or until the interrupt, whichever comes first; returns in both cases."""
        self._task = asyncio.ensure_future(work)
        if self.raised:
            self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            if not self.raised:  # not by us: whoever runs us wants an end
                self._task.cancel()
                raise
        finally:
            self._task = None

    def raise_(self) -> None:
        self.raised = True
        if self._task is not None:
            self._task.cancel()


@contextlib.contextmanager
def until_interrupted() -> Iterator[Interrupt]:
    """Takes SIGINT for a while. In a thread other than the main one there are no signals to take."""
    interrupt = Interrupt()
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, interrupt.raise_)
    except (ValueError, RuntimeError):
        yield interrupt
        return
    try:
        yield interrupt
    finally:
        loop.remove_signal_handler(signal.SIGINT)
