"""Doorbells (eventfds), and waiting for them together with a pidfd, in an asyncio loop or a blocked thread."""

import asyncio
import contextlib
import math
import os
import select
from collections.abc import Callable


def make_bell() -> int:
    """A new descriptor that is readable from a ring until it is cleared."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def ring(bell: int) -> None:
    with contextlib.suppress(BlockingIOError):  # the counter is full, so it is ringing
        os.eventfd_write(bell, 1)


def clear(bell: int) -> None:
    with contextlib.suppress(BlockingIOError):  # nobody rang
        os.eventfd_read(bell)


class LoopBell:
    """A doorbell registered in an asyncio loop. One task at a time waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bell: int) -> None:
        self._loop = loop
        self._bell = bell
        self._waiter: asyncio.Future[None] | None = None
        loop.add_reader(bell, self._on_ring)

    async def wait(self) -> None:
        """Return after the next ring, or when :meth:`wake` is called."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._bell)
            self.wake()

    def _on_ring(self) -> None:
        clear(self._bell)
        self.wake()


class LoopBells:
    """The two doorbells of an endpoint and its peer's pidfd in one asyncio loop (uvloop's too)."""

    def __init__(self, data_bell: int, space_bell: int, pidfd: int, on_death: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._on_death = on_death
        self._pidfd: int | None = pidfd
        self.data = LoopBell(self.loop, data_bell)
        self.space = LoopBell(self.loop, space_bell)
        self.loop.add_reader(pidfd, self._on_exit)

    def close(self) -> None:
        self._forget_pidfd()
        self.data.close()
        self.space.close()

    def _on_exit(self) -> None:
        self._forget_pidfd()
        self._on_death()
        self.data.wake()
        self.space.wake()

    def _forget_pidfd(self) -> None:
        # a pidfd stays readable, so the loop would spin
        if self._pidfd is not None and not self.loop.is_closed():
            self.loop.remove_reader(self._pidfd)
        self._pidfd = None


def sleep_on(bell: int | None, pidfd: int, timeout: float | None) -> tuple[bool, bool]:
    """Block until ``bell`` rings (and clear it), the process of ``pidfd`` exits, or ``timeout`` seconds pass.

    Returns (something happened, the process is dead). Signal handlers run meanwhile.
    """
    poller = select.poll()
    if bell is not None:
        poller.register(bell, select.POLLIN)
    poller.register(pidfd, select.POLLIN)
    events = poller.poll(None if timeout is None else max(0, math.ceil(timeout * 1000)))
    ready = {fd for fd, _ in events}
    if bell in ready:
        clear(bell)
    return bool(ready), pidfd in ready
