"""Chat completions that are stored: how they get there, and the routes that read, change and delete them."""

import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from secrets import token_hex
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest, wrong
from stentor.protocols.ipc.deltas import Delta, ToolCallStart
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.metadata import Metadata, check_metadata
from stentor.protocols.openai.stored_chats import (
    ChatDeleted,
    ChatList,
    ChatUpdate,
    StoredChatResponse,
    StoredMessages,
    update_decoder,
)

from ...common.loop_turns import LoopTurns
from ...http.sse import Batches
from ...http.whole_answer import WholeAnswer
from ...middleware.auth import caller_of
from ...overload.memory_budget import STORED_FACTOR, MemoryShare
from ...state.store_services import StoreServices
from ...storage import chats as table
from ...storage.database import Database, StoreFailed
from ..common.described import Operation, Operations
from ..common.endpoint import json_response, read_counted_body
from ..common.query import limit_of, order_of
from .shape import call_id
from .whole import ChatCollector

logger = logging.getLogger(__name__)

OPERATIONS: Final[Operations] = {
    "GET /v1/chat/completions": Operation("List the caller's stored chat completions", ChatList),
    "/v1/chat/completions/{completion_id}": Operation(
        "Read a stored chat completion; POST changes its metadata",
        StoredChatResponse,
        ChatUpdate,
        not_found=True,
        writes_store=True,
    ),
    "DELETE /v1/chat/completions/{completion_id}": Operation(
        "Delete a stored chat completion", ChatDeleted, not_found=True
    ),
    "/v1/chat/completions/{completion_id}/messages": Operation(
        "List the messages that a stored chat completion answers", StoredMessages, not_found=True
    ),
}
_ID_BYTES: Final = 16
_LISTED: Final = 20
_MOST_LISTED: Final = 100
_FILTER: Final = re.compile(r"metadata\[(.*)\]", re.DOTALL)


class Keeping(msgspec.Struct, frozen=True):
    """The stored parts of one chat completion beside the answer."""

    store: Database
    owner: str
    metadata: Metadata
    messages: list[bytes]
    id: str
    """Drawn here: that of a request is the client's to choose, and may come again."""

    @classmethod
    def of(cls, store: Database, owner: str, body: ChatRequest, memory: MemoryShare) -> "Keeping":
        """Its messages are counted in ``memory``, since they are held until the end."""
        messages = [encode(message) for message in body.messages]
        memory.add(sum(map(len, messages)))
        return cls(store, owner, body.metadata or {}, messages, f"chatcmpl-{token_hex(_ID_BYTES)}")

    async def keep(self, answer: WholeAnswer, model: str, memory: MemoryShare) -> WholeAnswer:
        """Stores the answer, and returns the stored form. If storing fails, the client still gets the answer, and the
        log reports the failure."""
        memory.add(answer.size)
        row = table.StoredChat(self.id, model, self.metadata, b"".join(answer.pieces()))
        try:
            await self.store.write(lambda db: table.insert(db, self.owner, row, self.messages))
        except StoreFailed:
            logger.warning("a chat completion could not be stored")
        return WholeAnswer([_shown(row)])

    async def streamed(
        self,
        batches: Batches[list[Delta]],
        collector: ChatCollector,
        model: str,
        loop_turns: LoopTurns,
        memory: MemoryShare,
    ) -> AsyncGenerator[list[Delta], None]:
        """``batches`` unchanged. The result is stored before their end is yielded."""
        async with aclosing(batches):
            async for batch in batches:
                # a call without an id would get one in the stream and another one here
                batch = [_named(delta) if type(delta) is ToolCallStart else delta for delta in batch]
                yield batch
                collector.take(batch)
        await self.keep(await collector.answer(loop_turns), model, memory)


def _named(call: ToolCallStart) -> ToolCallStart:
    return msgspec.structs.replace(call, id=call_id(call.id))


def routes(services: StoreServices) -> list[Route]:
    one = "/v1/chat/completions/{completion_id}"
    return [
        Route("/v1/chat/completions", partial(listed, services), methods=["GET"]),
        Route(one, partial(retrieve, services), methods=["GET"]),
        Route(one, partial(update, services), methods=["POST"]),
        Route(one, partial(delete, services.store), methods=["DELETE"]),
        Route(f"{one}/messages", partial(messages, services), methods=["GET"]),
    ]


async def listed(services: StoreServices, request: Request) -> Response:
    page = await services.store.read(
        partial(
            table.listed,
            owner=caller_of(request.scope).owner,
            limit=limit_of(request, _LISTED, _MOST_LISTED),
            most_bytes=services.limits.max_body_bytes,
            after=request.query_params.get("after"),
            newest_first=order_of(request, "asc") == "desc",
            model=request.query_params.get("model"),
            metadata=_wanted_metadata(request),
        )
    )
    if page is None:
        raise wrong("after", "names no stored chat completion", "invalid_value")
    with services.admission.memory.share() as share:
        rows = await _load(services.store, page, share)
        first, last = (rows[0].id, rows[-1].id) if rows else (None, None)
        data: Any = [msgspec.Raw(_shown(row)) for row in rows]
        return json_response(ChatList(data, first, last, page.more))


async def retrieve(services: StoreServices, request: Request) -> Response:
    return await _answer(services, *_names(request))


async def update(services: StoreServices, request: Request) -> Response:
    content = await read_counted_body(request, services.admission)
    owner, chat = _names(request)
    if await services.store.read(lambda db: table.find(db, owner, chat)) is None:
        raise _missing(chat)  # before faults of the body: the path may be one of another server
    body = decode(update_decoder, content, services.limits)
    body.check()
    if not await services.store.write(lambda db: table.update(db, owner, chat, body.metadata or {})):
        raise _missing(chat)
    return await _answer(services, owner, chat)


async def delete(store: Database, request: Request) -> Response:
    owner, chat = _names(request)
    if not await store.delete(lambda db: table.delete(db, owner, chat)):
        raise _missing(chat)
    return json_response(ChatDeleted(chat))


async def messages(services: StoreServices, request: Request) -> Response:
    owner, chat = _names(request)
    if await services.store.read(lambda db: table.find(db, owner, chat)) is None:
        raise _missing(chat)
    page = await services.store.read(
        partial(
            table.messages,
            chat=chat,
            limit=limit_of(request, _LISTED, _MOST_LISTED),
            most_bytes=services.limits.max_body_bytes,
            after=_place(request, chat),
            newest_first=order_of(request, "asc") == "desc",
        )
    )
    if page is None:
        raise _no_message()
    with services.admission.memory.share() as share:
        share.add(STORED_FACTOR * page.bytes)
        found = await services.store.read(lambda db: table.load_messages(db, chat, page.numbers))
        data = [
            _shown_message(f"{chat}-{place}", msgspec.json.decode(message))
            for place, message in zip(page.numbers, found, strict=False)
        ]
        first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        return json_response(StoredMessages(data, first, last, page.more))


def _shown(row: table.StoredChat) -> bytes:
    """Its JSON, with its metadata."""
    return b"".join((memoryview(row.object)[:-1], b',"metadata":', encode(row.metadata), b"}"))


def _shown_message(name: str, message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    shown = {"content": content if parts is None else None, "refusal": message.get("refusal"), "content_parts": parts}
    return {**message, "id": name, **shown}


async def _answer(services: StoreServices, owner: str, chat: str) -> Response:
    page = await services.store.read(lambda db: table.find(db, owner, chat))
    with services.admission.memory.share() as share:
        rows = [] if page is None else await _load(services.store, page, share)
        if not rows:
            raise _missing(chat)
        return Response(_shown(rows[0]), media_type="application/json")


async def _load(store: Database, page: table.Page, share: MemoryShare) -> list[table.StoredChat]:
    """Counted in ``share`` as they are read and as they are sent."""
    share.add(2 * page.bytes)
    return await store.read(lambda db: table.load(db, page.numbers))


def _wanted_metadata(request: Request) -> Metadata:
    """Required metadata of the query. Raises BadRequest."""
    pairs = {found[1]: value for name, value in request.query_params.items() if (found := _FILTER.fullmatch(name))}
    check_metadata(pairs)
    return pairs


def _place(request: Request, chat: str) -> int | None:
    """Position of the message in the query's ``after``. Raises BadRequest."""
    after = request.query_params.get("after")
    if after is None:
        return None
    place = after.removeprefix(f"{chat}-")
    if place == after or not (place.isascii() and place.isdigit() and len(place) < 10):
        raise _no_message()
    return int(place)


def _no_message() -> BadRequest:
    return wrong("after", "names no message of this chat completion", "invalid_value")


def _names(request: Request) -> tuple[str, str]:
    return caller_of(request.scope).owner, request.path_params["completion_id"]


def _missing(chat: str) -> BadRequest:
    message = f"There is no stored chat completion `{chat[:80]}` here."
    return BadRequest(message, "completion_id", "completion_not_found", 404)
