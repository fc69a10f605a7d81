"""The responses that are being made, by id: what can be asked for before it is stored, and ended."""

import asyncio
from collections.abc import Iterator
from typing import Final, Protocol

from stentor.protocols.openai.responses.items import Item
from stentor.protocols.openai.responses.objects import ResponseObject

from ..errors import Overloaded
from .log import EventLog

_RETRY_SECONDS: Final = 2


class Live(Protocol):
    """One of them."""

    @property
    def owner(self) -> str: ...

    @property
    def response(self) -> ResponseObject: ...

    @property
    def given(self) -> list[Item]:
        """Its own input items."""

    @property
    def log(self) -> EventLog | None:
        """None where nobody may read its events but the client that asked for it."""

    def cancel(self) -> None:
        """Ends it as cancelled, as soon as may be."""

    async def ended(self) -> None:
        """Returns once it has been stored."""


class LiveResponses:
    """Owned by the server's state."""

    def __init__(self, max_background: int = 256) -> None:
        self._max = max_background
        self._by_id: dict[str, Live] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Live]:
        return iter(tuple(self._by_id.values()))

    def add(self, live: Live) -> None:
        self._by_id[live.response.id] = live

    def remove(self, response: str) -> None:
        self._by_id.pop(response, None)

    def find(self, owner: str, response: str) -> Live | None:
        live = self._by_id.get(response)
        return live if live is not None and live.owner == owner else None

    def check_room(self) -> None:
        """Raises Overloaded where as many run in the background as may."""
        if len(self._tasks) >= self._max:
            raise Overloaded(
                f"{len(self._tasks)} responses run in the background, as many as this server lets; try again later.",
                "background_full",
                _RETRY_SECONDS,
            )

    def keep(self, task: asyncio.Task[None]) -> None:
        """A task that runs apart from any connection."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends those tasks where they are."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
