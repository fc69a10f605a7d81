"""``/v1/conversations``."""

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest, wrong
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.metadata import check_metadata
from stentor.protocols.openai.responses.conversations import (
    MAX_ITEMS_AT_ONCE,
    Conversation,
    ConversationCreate,
    ConversationDeleted,
    ConversationUpdate,
    ItemsCreate,
    create_decoder,
    items_decoder,
    update_decoder,
)
from stentor.protocols.openai.responses.items import REFERENCE, Item, read_items
from stentor.protocols.openai.responses.objects import ItemList

from ...middleware.auth import caller_of
from ...overload.memory_budget import STORED_FACTOR
from ...state.store_services import StoreServices
from ...storage import conversations as table
from ...storage.database import Database
from ..common.described import Operation, Operations
from ..common.endpoint import json_response, read_counted_body
from .ids import random_id
from .repository import listed
from .route import page_of

if TYPE_CHECKING:
    import sqlite3

OPERATIONS: Final[Operations] = {
    "/v1/conversations": Operation("Create a conversation", Conversation, ConversationCreate, writes_store=True),
    "/v1/conversations/{conversation_id}": Operation(
        "Read a conversation; POST changes its metadata",
        Conversation,
        ConversationUpdate,
        not_found=True,
        writes_store=True,
    ),
    "DELETE /v1/conversations/{conversation_id}": Operation(
        "Delete a conversation", ConversationDeleted, not_found=True
    ),
    "/v1/conversations/{conversation_id}/items": Operation(
        "List the items of a conversation; POST adds items", ItemList, ItemsCreate, not_found=True, writes_store=True
    ),
    "/v1/conversations/{conversation_id}/items/{item_id}": Operation(
        "Read one item of a conversation", dict[str, Any], not_found=True
    ),
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}": Operation(
        "Delete an item; returns the conversation", Conversation, not_found=True
    ),
}


def routes(services: StoreServices) -> list[Route]:
    one = "/v1/conversations/{conversation_id}"
    return [
        Route("/v1/conversations", partial(create, services), methods=["POST"]),
        Route(one, partial(retrieve, services.store), methods=["GET"]),
        Route(one, partial(update, services), methods=["POST"]),
        Route(one, partial(delete, services.store), methods=["DELETE"]),
        Route(f"{one}/items", partial(list_items, services), methods=["GET"]),
        Route(f"{one}/items", partial(add_items, services), methods=["POST"]),
        Route(f"{one}/items/{{item_id}}", partial(one_item, services.store), methods=["GET"]),
        Route(f"{one}/items/{{item_id}}", partial(delete_item, services.store), methods=["DELETE"]),
    ]


async def create(services: StoreServices, request: Request) -> Response:
    body = decode(create_decoder, await read_counted_body(request, services.admission) or b"{}", services.limits)
    check_metadata(body.metadata)
    given = _checked(services.limits, body.items or [])
    row = table.StoredConversation(random_id("conv"), int(time.time()), body.metadata or {})
    await services.store.write(lambda db: table.insert(db, caller_of(request.scope).owner, row, given))
    return _answer(row)


async def retrieve(store: Database, request: Request) -> Response:
    return _answer(await store.read(partial(_found, *_names(request))))


async def update(services: StoreServices, request: Request) -> Response:
    body = decode(update_decoder, await read_counted_body(request, services.admission), services.limits)
    check_metadata(body.metadata)

    def work(db: "sqlite3.Connection") -> table.StoredConversation:
        row = _found(*_names(request), db)
        table.update(db, row.id, body.metadata or {})
        return table.StoredConversation(row.id, row.created, body.metadata or {})

    return _answer(await services.store.write(work))


async def delete(store: Database, request: Request) -> Response:
    owner, conversation = _names(request)
    if not await store.delete(lambda db: table.delete(db, owner, conversation)):
        raise _missing(conversation)
    return json_response(ConversationDeleted(conversation))


async def list_items(services: StoreServices, request: Request) -> Response:
    def size(db: "sqlite3.Connection") -> int:
        return table.items_bytes(db, _found(*_names(request), db).id)

    def work(db: "sqlite3.Connection") -> list[Item]:
        return table.items(db, _found(*_names(request), db).id)

    with services.admission.memory.share() as share:
        share.add(STORED_FACTOR * await services.store.read(size))
        return json_response(page_of(request, await services.store.read(work)))


async def add_items(services: StoreServices, request: Request) -> Response:
    body = decode(items_decoder, await read_counted_body(request, services.admission), services.limits)
    given = _checked(services.limits, body.items)
    most, most_bytes = services.limits.max_messages, services.limits.max_body_bytes
    added = sum(len(msgspec.json.encode(item)) for item in given)

    def work(db: "sqlite3.Connection") -> None:
        row = _found(*_names(request), db)
        if table.count(db, row.id) + len(given) > most:
            raise BadRequest(
                f"The conversation would have more than the {most} items that this server allows.",
                "items",
                "array_above_max_length",
            )
        if table.items_bytes(db, row.id) + added > most_bytes:
            raise BadRequest(
                f"The items of the conversation would have more than the {most_bytes} bytes that this server allows.",
                "items",
                "conversation_too_large",
                413,
            )
        table.append(db, row.id, given)

    await services.store.write(work)
    shown = [listed(item) for item in given]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else ("", "")
    return json_response(ItemList(shown, first, last, False))


async def one_item(store: Database, request: Request) -> Response:
    def work(db: "sqlite3.Connection") -> Item | None:
        return table.find_item(db, _found(*_names(request), db).id, request.path_params["item_id"])

    found = await store.read(work)
    if found is None:
        raise _missing_item(request)
    return json_response(listed(found))


async def delete_item(store: Database, request: Request) -> Response:
    def work(db: "sqlite3.Connection") -> table.StoredConversation:
        row = _found(*_names(request), db)
        if not table.delete_item(db, row.id, request.path_params["item_id"]):
            raise _missing_item(request)
        return row

    return _answer(await store.delete(work))


def _checked(limits: Limits, items: list[dict[str, Any]]) -> list[Item]:
    if len(items) > MAX_ITEMS_AT_ONCE:
        raise wrong(
            "items",
            f"has {len(items)} items; at most {MAX_ITEMS_AT_ONCE} may be added at a time",
            "array_above_max_length",
        )
    read = read_items(items, limits, random_id, "items")
    for index, item in enumerate(read):
        if item["type"] == REFERENCE:
            raise wrong(f"items[{index}]", "must be an item, not a reference")
    return read


def _names(request: Request) -> tuple[str, str]:
    return caller_of(request.scope).owner, request.path_params["conversation_id"]


def _found(owner: str, conversation: str, db: "sqlite3.Connection") -> table.StoredConversation:
    row = table.find(db, owner, conversation)
    if row is None:
        raise _missing(conversation)
    return row


def _missing(conversation: str) -> BadRequest:
    message = f"There is no conversation `{conversation[:80]}` here."
    return BadRequest(message, "conversation_id", "conversation_not_found", 404)


def _missing_item(request: Request) -> BadRequest:
    message = f"There is no item `{request.path_params['item_id'][:80]}` in this conversation."
    return BadRequest(message, "item_id", "item_not_found", 404)


def _answer(row: table.StoredConversation) -> Response:
    return json_response(Conversation(row.id, row.created, row.metadata))
