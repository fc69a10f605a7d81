"""State of a response, running or stored."""

from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stentor.protocols.common.errors import BadRequest, refused
from stentor.protocols.openai.responses.items import Item
from stentor.protocols.openai.responses.objects import ItemList

from ...common.errors import Unavailable
from ...common.keys import Caller
from ...overload.memory_budget import STORED_FACTOR, MemoryShare
from ...state.event_log import stored_events
from ...state.live_responses import LiveResponse
from ...storage import responses
from ...storage.database import Database
from .services import ResponseServices

if TYPE_CHECKING:
    import sqlite3

DEFAULT_PAGE: Final = 20
MAX_PAGE: Final = 100


class Found(msgspec.Struct, frozen=True):
    """One response of a caller."""

    id: str
    live: LiveResponse | None
    stored: responses.StoredResponse | None
    output: list[Item]

    @property
    def object(self) -> Any:
        """Ready for JSON."""
        if self.live is not None:
            return self.live.response
        assert self.stored is not None
        return {**msgspec.json.decode(self.stored.object), "output": self.output}


async def find(services: ResponseServices, caller: Caller, response: str) -> Found:
    """Raises BadRequest (404), also where it is another caller's."""
    live = services.live.find(caller.owner, response)
    if live is not None:
        return Found(response, live, None, [])
    found = await services.store.read(partial(_find, caller.owner, response))
    if found is None:
        raise not_found(response)
    return Found(response, None, *found)


def _find(owner: str, response: str, db: "sqlite3.Connection") -> tuple[responses.StoredResponse, list[Item]] | None:
    row = responses.find(db, owner, response)
    return None if row is None else (row, responses.items(db, response, output=True))


def not_found(response: str) -> BadRequest:
    return BadRequest(f"There is no response `{response[:80]}` here.", "response_id", "response_not_found", 404)


async def given_items(services: ResponseServices, caller: Caller, response: str, memory: MemoryShare) -> list[Item]:
    """The input items of the response's request, counted in ``memory``. Raises BadRequest (404)."""
    found = await find(services, caller, response)
    if found.live is not None:
        return found.live.given
    memory.add(STORED_FACTOR * await services.store.read(lambda db: responses.items_bytes(db, response)))
    return await services.store.read(lambda db: responses.items(db, response, output=False))


def events_of(store: Database, found: Found, after: int) -> AsyncGenerator[list[bytes], None]:
    """Events after number ``after``, to the last one. Raises BadRequest if they were not stored."""
    if found.live is not None and found.live.log is not None:
        return found.live.log.read(after)
    if found.stored is None or not found.stored.events:
        raise refused(
            "stream",
            "the events of this response were not kept; they are where it was asked for with `stream` or `background`",
            "not_streamed",
        )
    if found.stored.open:
        raise _not_yet()
    return stored_events(store, found.id, after + 1)


def _not_yet() -> Unavailable:
    return Unavailable("The response goes on once the server is ready; try again shortly.", "starting")


async def delete(services: ResponseServices, caller: Caller, response: str) -> None:
    """Ends it first where it runs. Raises BadRequest (404)."""
    live = services.live.find(caller.owner, response)
    if live is not None:
        live.cancel()
        await live.ended()
    if not await services.store.delete(lambda db: responses.delete(db, caller.owner, response)):
        raise not_found(response)


async def cancel(services: ResponseServices, caller: Caller, response: str) -> Found:
    """Cancels a running background response. Raises BadRequest, 404 if there is none."""
    found = await find(services, caller, response)
    shown = found.object
    background = shown["background"] if isinstance(shown, dict) else shown.background
    if not background:
        raise BadRequest(
            "Only a response that runs in the background can be cancelled; close the connection of any other.",
            "response_id",
            "not_in_background",
        )
    if found.live is None:
        if found.stored is not None and found.stored.open:
            raise _not_yet()
        return found
    found.live.cancel()
    await found.live.ended()
    return await find(services, caller, response)


def page(items: list[Item], limit: int, order: str, after: str | None) -> ItemList:
    """Raises BadRequest where ``after`` is none of them."""
    if order == "desc":
        items = items[::-1]
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise refused("after", f"there is no item `{after[:80]}` here", "item_not_found")
        items = items[places[0] + 1 :]
    shown = [listed(item) for item in items[:limit]]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else ("", "")
    return ItemList(shown, first, last, len(items) > limit)


def listed(item: Item) -> Item:
    """The item in lists, where items of some types have a status."""
    if item["type"] == "custom_tool_call":
        return {**item, "status": "completed"}
    return item
