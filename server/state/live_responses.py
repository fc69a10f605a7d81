"""Running responses by id: available before they are stored, and cancellable."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import anyio

from stentor.protocols.openai.responses.items import Item
from stentor.protocols.openai.responses.objects import ResponseObject

from ..common.errors import Overloaded
from ..common.fair_queue import Shares
from ..common.keys import Caller
from ..common.task_scope import TaskScope
from .event_log import EventLog

_RETRY_SECONDS: Final = 2


class LiveResponse(Protocol):
    """A response that has not ended."""

    @property
    def owner(self) -> str: ...

    @property
    def response(self) -> ResponseObject: ...

    @property
    def given(self) -> list[Item]:
        """Its own input items."""

    @property
    def log(self) -> EventLog | None:
        """None if only the requesting client may read its events."""

    def cancel(self) -> None:
        """Ends it as cancelled, as soon as may be."""

    async def ended(self) -> None:
        """Returns once it has been stored."""


class LiveResponses:
    """Owned by the server process."""

    def __init__(self, max_background: int = 256) -> None:
        self._shares = Shares(max_background)
        self._by_id: dict[str, LiveResponse] = {}
        self._background = TaskScope("responses in the background")
        self._attached = TaskScope("responses that are read")
        self._left = anyio.Event()

    def __iter__(self) -> Iterator[LiveResponse]:
        return iter(tuple(self._by_id.values()))

    def add(self, live: LiveResponse) -> None:
        self._by_id[live.response.id] = live

    def remove(self, response: str) -> None:
        self._by_id.pop(response, None)

    def leave(self) -> None:
        """Report that a response was left unfinished in the store: its engine was given up, or the server ends."""
        self._left.set()

    async def left(self) -> None:
        """Wait for the next :meth:`leave`."""
        await self._left.wait()
        self._left = anyio.Event()

    def find(self, owner: str, response: str) -> LiveResponse | None:
        live = self._by_id.get(response)
        return live if live is not None and live.owner == owner else None

    @contextmanager
    def room(self, caller: Caller, *, resumed: bool = False) -> Iterator[None]:
        """A slot for one background response, until the end of the block.

        Raises Overloaded if all slots, or the caller's share of them, are in use; not for one that is ``resumed``,
        which an earlier server admitted.
        """
        shares, owner = self._shares, caller.owner
        if not resumed and not shares.fits(owner, alone=not caller.salt):
            if shares.total < shares.most:
                why = f"{shares.held(owner)} responses of this key run in the background, its share"
            else:
                why = f"{shares.total} responses run in the background, as many as this server lets"
            raise Overloaded(f"{why}; try again later.", "background_full", _RETRY_SECONDS)
        shares.take(owner)
        try:
            yield
        finally:
            shares.give_back(owner)

    def start(self, making: Coroutine[Any, Any, None], *, background: bool) -> asyncio.Task[None]:
        """Runs one in its own task; in the ``background`` it does not end with its connection."""
        return (self._background if background else self._attached).submit(making)

    async def close(self) -> None:
        """Ends those tasks where they are."""
        await self._background.aclose()
        await self._attached.aclose()
