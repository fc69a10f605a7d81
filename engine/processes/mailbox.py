"""The mailbox of an actor: a task that alone owns its state and reads messages."""

import asyncio
import contextlib
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A bounded first-in, first-out queue of messages to one task, within one event loop."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._messages: deque[T] = deque()
        self._waiters: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def push(self, message: T) -> None:
        """Add a message even if the mailbox is full: for senders that are bounded otherwise."""
        self._messages.append(message)
        self._notify()

    async def tell(self, message: T) -> None:
        """Add a message; wait while the mailbox is full."""
        while len(self._messages) >= self._capacity:
            await self._change()
        self.push(message)

    async def receive_all(self) -> list[T]:
        """Take all messages, oldest first; wait until there is one."""
        while not self._messages:
            await self._change()
        messages = list(self._messages)
        self._messages.clear()
        self._notify()
        return messages

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def _change(self) -> None:
        """Wait until a message is added or taken."""
        # not an anyio.Event, which costs several times as much: every engine step makes some
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
            raise
