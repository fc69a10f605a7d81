"""Actors: a task that owns its state and reads its mailbox; nobody else touches that state.

::

    STARTING ──► RUNNING ──► STOPPING ──► STOPPED
        └──────────────────────┘  └─────► FAILED     an exception left on_start, main or on_stop
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import anyio
from anyio.abc import TaskStatus

T = TypeVar("T")
R = TypeVar("R")


class MailboxFull(Exception):
    """The mailbox holds as many messages as it may."""


class MailboxClosed(Exception):
    """Nobody reads this mailbox any more."""


class Reply(Generic[R]):
    """Where the answer to one :meth:`Mailbox.ask` goes; the message carries it to the actor."""

    def __init__(self) -> None:
        self._settled = anyio.Event()
        self._answer: list[R] = []
        self._error: BaseException | None = None
        self.abandoned = False
        """Whether the asker has stopped waiting; the work may be dropped."""

    def answer(self, value: R) -> None:
        """Settle the question; a second settling is ignored."""
        if not self._settled.is_set():
            self._answer.append(value)
            self._settled.set()

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in the asker; ignored once settled."""
        if not self._settled.is_set():
            self._error = error
            self._settled.set()

    async def wait(self) -> R:
        try:
            await self._settled.wait()
        except BaseException:
            self.abandoned = True
            raise
        if self._error is not None:
            raise self._error
        return self._answer[0]


class Mailbox(Generic[T]):
    """A bounded queue of messages to one actor, within one loop. First told, first received."""

    def __init__(self, owner: str, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"the mailbox of {owner} needs a capacity of at least 1, not {capacity}")
        self._owner = owner
        self._capacity = capacity
        self._messages: deque[T] = deque()
        self._asked: set[Reply[Any]] = set()
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def tell_nowait(self, message: T) -> None:
        """Put ``message`` in; raises :class:`MailboxFull` or :class:`MailboxClosed`."""
        self._check_open()
        if len(self._messages) >= self._capacity:
            raise MailboxFull(f"the mailbox of {self._owner} is full ({self._capacity} messages)")
        self._messages.append(message)
        self._notify()

    def push(self, message: T) -> None:
        """Put ``message`` in however full the mailbox is: for senders that something else holds back.

        Raises :class:`MailboxClosed`.
        """
        self._check_open()
        self._messages.append(message)
        self._notify()

    async def tell(self, message: T) -> None:
        """Put ``message`` in; waits while the mailbox is full. Raises :class:`MailboxClosed`."""
        self._check_open()
        while len(self._messages) >= self._capacity:
            await self._change()
            self._check_open()
        self.tell_nowait(message)

    async def ask(self, make: Callable[[Reply[R]], T]) -> R:
        """Tell what ``make`` builds around a reply, and wait for the answer.

        Raises what the actor answers with :meth:`Reply.fail`, and :class:`MailboxClosed` when the
        actor ends without an answer.
        """
        reply: Reply[R] = Reply()
        self._asked.add(reply)
        try:
            await self.tell(make(reply))
            return await reply.wait()
        finally:
            self._asked.discard(reply)

    async def receive(self) -> T:
        """The oldest message; waits for one. Raises :class:`MailboxClosed` once closed and empty."""
        await self._wait_for_messages()
        message = self._messages.popleft()
        self._notify()
        return message

    async def receive_all(self) -> list[T]:
        """All messages, at least one, oldest first. Raises :class:`MailboxClosed` once closed and empty."""
        await self._wait_for_messages()
        return self.receive_all_nowait()

    def receive_all_nowait(self) -> list[T]:
        """All messages that are there, oldest first; may be empty."""
        messages = list(self._messages)
        self._messages.clear()
        if messages:
            self._notify()
        return messages

    def close(self) -> None:
        """Refuse further messages; those inside can still be received. May be called again."""
        self._closed = True
        self._notify()

    def abandon(self, error: BaseException | None = None) -> None:
        """Close, drop what is inside, and fail every question without an answer."""
        self.close()
        self._messages.clear()
        for reply in self._asked:
            closed = self._closed_error()
            closed.__cause__ = error
            reply.fail(closed)

    async def _wait_for_messages(self) -> None:
        while not self._messages:
            self._check_open()
            await self._change()

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def _change(self) -> None:
        """Wait until a message comes or goes, or the mailbox closes."""
        # not an anyio.Event: it costs several times as much, and every step of an engine makes and waits for some
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> MailboxClosed:
        return MailboxClosed(f"{self._owner} takes no more messages")


class State(Enum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


LEGAL: Final = {
    State.STARTING: {State.RUNNING, State.STOPPING},
    State.RUNNING: {State.STOPPING},
    State.STOPPING: {State.STOPPED, State.FAILED},
    State.STOPPED: set[State](),
    State.FAILED: set[State](),
}


class Actor(Generic[T]):
    """Subclasses define :meth:`handle`, or :meth:`main` where messages are not the only thing to wait for.

    :meth:`run` is one life, to be started in a task group (or by a supervisor); a restart is a new
    object. Its exception goes to whoever runs it; cancelling it is a clean stop.
    """

    def __init__(self, name: str, capacity: int = 1024) -> None:
        self.name = name
        self.mailbox: Mailbox[T] = Mailbox(name, capacity)
        self.state = State.STARTING

    async def on_start(self) -> None:
        """Before the first message."""

    async def handle(self, message: T) -> None:
        """One message."""
        raise NotImplementedError(f"{type(self).__name__} must define handle() or main()")

    async def on_stop(self) -> None:
        """After the last message, whatever ended the actor; not interrupted by cancelling, so be quick."""

    async def main(self) -> None:
        """Handle messages until the mailbox is closed and empty."""
        while True:
            try:
                message = await self.mailbox.receive()
            except MailboxClosed:
                return
            await self.handle(message)

    def stop(self) -> None:
        """Take no more messages; the actor ends once those inside are handled."""
        self.mailbox.close()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Live: start, handle, stop. ``task_group.start(actor.run)`` returns once it is running."""
        error: BaseException | None = None
        try:
            await self.on_start()
            self._become(State.RUNNING)
            task_status.started()
            await self.main()
        except Exception as failure:
            error = failure
            raise
        finally:
            await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        self._become(State.STOPPING)
        self.mailbox.close()
        try:
            with anyio.CancelScope(shield=True):
                await self.on_stop()
        except Exception as failure:
            error = failure
            raise
        finally:
            self.mailbox.abandon(error)
            self._become(State.STOPPED if error is None else State.FAILED)

    def _become(self, state: State) -> None:
        if state not in LEGAL[self.state]:
            raise RuntimeError(f"{self.name} is {self.state.value} and cannot become {state.value}")
        self.state = state
