"""``/v1/responses`` and its sub-resources."""

from contextlib import suppress
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from stentor.protocols.common.decoding import decode, decoded_bytes
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import wrong
from stentor.protocols.openai.responses.items import Item
from stentor.protocols.openai.responses.objects import (
    Compaction,
    InputTokens,
    ItemList,
    ResponseDeleted,
    ResponseObject,
)
from stentor.protocols.openai.responses.request import (
    CompactRequest,
    ContextFields,
    ResponseRequest,
    compact_decoder,
    context_decoder,
    decoder,
)

from ...http.sse import Batches, EventStream
from ...http.whole_answer import WholeAnswer
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operation, Operations, generation
from ..common.endpoint import generation_route, json_response, name_anew
from ..common.query import order_of, switch_of
from . import repository
from .compacting import compact
from .events import ResponseFrames
from .preparing import count_context, prepare
from .services import ResponseServices
from .socket import ResponseSocket
from .starting import AttachedStream, run_in_background, run_of

OPERATIONS: Final[Operations] = {
    "/v1/responses": generation(
        "Create a response (OpenAI's Responses API)", ResponseObject, ResponseRequest, streams=True, writes_store=True
    ),
    "/v1/responses/input_tokens": generation("Count the prompt tokens of a response", InputTokens, ContextFields),
    "/v1/responses/compact": generation(
        "Compact a conversation: summarize it to save context", Compaction, CompactRequest
    ),
    "/v1/responses/{response_id}": Operation(
        "Read a stored response, or its events with `stream`", ResponseObject, streams=True, not_found=True
    ),
    "DELETE /v1/responses/{response_id}": Operation("Delete a stored response", ResponseDeleted, not_found=True),
    "/v1/responses/{response_id}/cancel": Operation("Cancel a background response", ResponseObject, not_found=True),
    "/v1/responses/{response_id}/input_items": Operation(
        "List the input items of a stored response", ItemList, not_found=True
    ),
}


def routes(services: ResponseServices) -> list[BaseRoute]:
    one = "/v1/responses/{response_id}"
    return [
        generation_route("/v1/responses", services, create),
        WebSocketRoute("/v1/responses", partial(connect, services)),
        generation_route("/v1/responses/input_tokens", services, input_tokens),
        generation_route("/v1/responses/compact", services, compact_route),
        Route(one, partial(retrieve, services), methods=["GET"]),
        Route(one, partial(delete, services), methods=["DELETE"]),
        Route(f"{one}/cancel", partial(cancel, services), methods=["POST"]),
        Route(f"{one}/input_items", partial(input_items, services), methods=["GET"]),
    ]


async def create(services: ResponseServices, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(decoder, content, services.limits)
    memory = context.queue_slot.memory
    memory.add(decoded_bytes(content, services.limits))  # its request is stored at the end, so it is held until then
    prepared = await prepare(services, body, caller_of(request.scope), memory)
    name_anew(request, body.request_id)
    if body.background:
        run = await run_in_background(services, prepared)
        assert run.log is not None
        if body.stream:
            return _stream(run.log.read())
        return json_response(run.response)
    run = await run_of(services, prepared, context, watched=bool(body.stream))
    if body.stream:
        return _stream(AttachedStream(run, context.bounded))
    await run.complete()
    return WholeAnswer([encode(run.response)])


def _stream(events: Batches[list[bytes]], first: int = 0) -> ASGIApp:
    frames = ResponseFrames(first)
    return EventStream(events, frames, to_frame=frames.error)


async def connect(services: ResponseServices, socket: WebSocket) -> None:
    with services.chat.metrics.server.websocket():
        await ResponseSocket(services, socket, services.connection.max_messages_per_second).serve()


async def input_tokens(
    services: ResponseServices, request: Request, content: bytes, context: RequestContext
) -> Response:
    body = decode(context_decoder, content, services.limits)
    return json_response(
        InputTokens(await count_context(services, body, caller_of(request.scope), context.queue_slot.memory))
    )


async def compact_route(
    services: ResponseServices, request: Request, content: bytes, context: RequestContext
) -> Response:
    body = decode(compact_decoder, content, services.limits)
    return json_response(await compact(services, body, caller_of(request.scope), context))


async def retrieve(services: ResponseServices, request: Request) -> ASGIApp:
    found = await repository.find(services, caller_of(request.scope), request.path_params["response_id"])
    if switch_of(request, "stream"):
        after = _number(request, "starting_after", -1, 2**53, -1)
        return _stream(repository.events_of(services.store, found, after), after + 1)
    return json_response(found.object)


async def delete(services: ResponseServices, request: Request) -> Response:
    response = request.path_params["response_id"]
    await repository.delete(services, caller_of(request.scope), response)
    return json_response(ResponseDeleted(response))


async def cancel(services: ResponseServices, request: Request) -> Response:
    found = await repository.cancel(services, caller_of(request.scope), request.path_params["response_id"])
    return json_response(found.object)


async def input_items(services: ResponseServices, request: Request) -> Response:
    with services.admission.memory.share() as share:
        given = await repository.given_items(
            services, caller_of(request.scope), request.path_params["response_id"], share
        )
        return json_response(page_of(request, given))


def page_of(request: Request, items: list[Item]) -> ItemList:
    """The page of the query. Raises BadRequest."""
    order = order_of(request)
    limit = _number(request, "limit", 1, repository.MAX_PAGE, repository.DEFAULT_PAGE)
    return repository.page(items, limit, order, request.query_params.get("after"))


def _number(request: Request, name: str, low: int, high: int, default: int) -> int:
    value = request.query_params.get(name)
    if value is None:
        return default
    with suppress(ValueError):
        if len(value) < 20 and low <= int(value) <= high:
            return int(value)
    raise wrong(name, f"must be an integer from {low} to {high}", "invalid_value")
