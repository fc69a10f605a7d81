"""Queues and slots that owners share, so that no owner's requests block another's.

An owner is a ``Caller.owner``: one API key. Without keys all requests have the same owner, and the
queues are first come, first served: addresses do not identify clients (NAT, proxies).

* :class:`FairQueue`: bounded; one line per owner, served in turn (round robin). When it is full, an owner with a
  shorter line than the longest still gets in, and the last item of the longest line is dropped (longest queue drop).
* :class:`Shares`: for grants that cannot be revoked. No owner gets more than remains free afterwards (a dynamic
  threshold): alone, an owner can have half; ``n`` greedy owners settle at ``1 / (n + 1)`` each, with as much left for
  another owner.
* :class:`FairSemaphore`: slots that are held by :class:`Shares` and waited for in a :class:`FairQueue`.

None is safe for threads: each belongs to one event loop.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

current_owner: ContextVar[str] = ContextVar("current_owner", default="")
"""Owner of the running task's request; empty without keys."""


class QueueFull(Exception):
    """The queue is full, and the owner has its share of it."""


def _always(_owner: str, _item: object) -> bool:
    return True


class FairQueue(Generic[T]):
    """At most ``most`` items, which need not be hashable."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()
        """By owner, in the order of their turns; never an empty one."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, owner: str, item: T) -> T | None:
        """Appends to the owner's line. Returns the item that had to leave for it, or None.

        Raises QueueFull where the queue is full and no line is longer than the owner's would become. An owner is never
        refused while it has fewer waiting than ``most`` divided by the number of owners that wait.
        """
        dropped: T | None = None
        if self._count >= self._most:
            longest = max(self._lines.values(), key=len, default=None)
            if longest is None or len(longest) <= len(self._lines.get(owner, ())) + 1:
                raise QueueFull
            dropped = longest.pop()  # at least one is left in the line
            self._count -= 1
        self._lines.setdefault(owner, deque()).append(item)
        self._count += 1
        return dropped

    def pop(self, ready: Callable[[str, T], bool] = _always) -> tuple[str, T] | None:
        """The owner whose turn it is and its first item that is ready, or None.

        An owner with a ready item waits for at most as many calls as there are other owners in the queue.
        """
        for owner, line in self._lines.items():
            for item in line:
                if ready(owner, item):
                    self._lines.move_to_end(owner)
                    self.remove(owner, item)
                    return owner, item
        return None

    def remove(self, owner: str, item: T) -> bool:
        """False where it is not there."""
        line = self._lines.get(owner)
        if line is None or item not in line:
            return False
        line.remove(item)
        self._count -= 1
        if not line:
            del self._lines[owner]
        return True

    def clear(self) -> list[T]:
        """Removes all waiting items."""
        items = [item for line in self._lines.values() for item in line]
        self._lines.clear()
        self._count = 0
        return items


class Shares:
    """How much of ``most`` each owner holds."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._held: dict[str, int] = {}

    def held(self, owner: str) -> int:
        return self._held.get(owner, 0)

    def fits(self, owner: str, amount: int = 1, *, alone: bool = False) -> bool:
        """Whether the owner may take ``amount``; an owner that is ``alone``, without others, may take all."""
        free = self.most - self.total
        return amount <= free if alone else self.held(owner) + amount <= free

    def take(self, owner: str, amount: int = 1) -> None:
        """Whether or not it fits."""
        self._add(owner, amount)

    def give_back(self, owner: str, amount: int = 1) -> None:
        assert amount <= self.held(owner), "more is given back than was taken"
        self._add(owner, -amount)

    def _add(self, owner: str, change: int) -> None:
        self.total += change
        left = self._held.pop(owner, 0) + change
        if left:
            self._held[owner] = left


class FairSemaphore:
    """``slots`` for holders; ``most_waiting`` may wait for one.

    No waiting owner could have a slot now, so an owner that can get one need not wait.
    """

    def __init__(self, slots: int, most_waiting: int) -> None:
        self._shares = Shares(slots)
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(most_waiting)

    def __len__(self) -> int:
        """Holders and waiters together."""
        return self._shares.total + len(self._waiting)

    async def acquire(self, owner: str) -> None:
        """Raises QueueFull, at once or when another owner takes the waiter's place."""
        if self._shares.fits(owner):
            self._shares.take(owner)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        dropped = self._waiting.push(owner, turn)
        if dropped is not None and not dropped.done():
            dropped.set_exception(QueueFull())
        try:
            await turn
        except asyncio.CancelledError:
            if not self._waiting.remove(owner, turn) and not turn.cancelled() and turn.exception() is None:
                self.release(owner)
            raise

    def release(self, owner: str) -> None:
        """Releases a slot of the owner."""
        self._shares.give_back(owner)
        while (next_one := self._waiting.pop(lambda owner, turn: turn.done() or self._shares.fits(owner))) is not None:
            owner, turn = next_one
            if not turn.done():  # otherwise its caller has gone
                self._shares.take(owner)
                turn.set_result(None)

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """Raises as :meth:`acquire`."""
        await self.acquire(owner)
        try:
            yield
        finally:
            self.release(owner)
