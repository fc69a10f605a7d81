"""An error as its response, or as the last event of a stream."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import UNSET
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from stentor.engine.client.errors import EngineAsleep, EngineUnavailable
from stentor.engine.processes.logs import trace_without_messages
from stentor.protocols.common.errors import BadRequest, ErrorBody

from ..common.errors import ServerError, Unavailable
from ..observability.request import current_request_id, note_error
from .error_shapes import OPENAI, SCOPE_SHAPE, ErrorShape, shape_of
from .root_path import route_path

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS: Final = 2
BREAK_OFF: Final = "stentor.break_off"
"""Among a scope's extensions: closes the connection of its response, which has begun."""
INTERNAL: Final = "The server failed on this request; the log of the server says why."


def describe(error: Exception) -> tuple[int, ErrorBody]:
    """Status and body for any exception; unknown ones are logged and reported as internal errors."""
    match error:
        case BadRequest():
            return error.status, ErrorBody(
                error.message, error.kind, error.param, error.code, *(error.lengths or (UNSET, UNSET))
            )
        case ServerError():
            return error.status, ErrorBody(str(error), error.kind, None, error.code)
        case EngineAsleep():
            message = "The server is asleep: wake it with POST /wake_up, then send the request again."
            return 503, ErrorBody(message, Unavailable.kind, None, "asleep")
        case EngineUnavailable():
            logger.warning("refused a request: %s", error)
            message = "The engine is not available; the request may be sent again."
            return 503, ErrorBody(message, Unavailable.kind, None, "engine_unavailable")
        case HTTPException():
            kind = "invalid_request_error" if error.status_code < 500 else "server_error"
            return error.status_code, ErrorBody(HTTPStatus(error.status_code).phrase, kind, None, None)
        case _:
            logger.error("a request failed", extra={"trace": trace_without_messages(error)})
            return 500, ErrorBody(INTERNAL, "server_error", None, None)


def respond(scope: Scope, status: int, body: ErrorBody, headers: Mapping[str, str] | None = None) -> Response:
    """In the shape of the protocol that the path of ``scope`` belongs to, or that its body has shown."""
    note_error(body.code or body.type)
    headers = dict(headers or {})
    if status == 503:
        headers.setdefault("retry-after", str(RETRY_AFTER_SECONDS))
    if status in (408, 413, 415):
        # The rest of the body is not read.
        headers["connection"] = "close"
    shape: ErrorShape = scope.get(SCOPE_SHAPE) or shape_of(route_path(scope), scope["headers"])
    return Response(shape.body(status, body, current_request_id()), status, headers, "application/json")


def can_respond(scope: Scope) -> bool:
    """Whether a response can be sent: to a WebSocket only before it is open, by servers that know how to."""
    return scope["type"] != "websocket" or "websocket.http.response" in scope.get("extensions", {})


def headers_of(error: Exception) -> Mapping[str, str]:
    """Headers that go with the response to an exception."""
    return error.headers if isinstance(error, ServerError) else {}


def error_frame(error: Exception, shape: ErrorShape = OPENAI) -> bytes:
    """The error as an event of a stream that has begun."""
    status, body = describe(error)
    note_error(body.code or body.type)
    return shape.frame(status, body)


async def handle_error(request: Request, error: Exception) -> Response:
    status, body = describe(error)
    return respond(request.scope, status, body, headers_of(error))


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    status, body = describe(error)
    where = f"{request.method} {request.url.path[:200]}"
    if status == 404:
        body = msgspec.structs.replace(body, message=f"There is no route for {where}.", code="unknown_url")
    elif status == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        body = msgspec.structs.replace(body, message=f"{where} is not allowed; use {allowed}.")
    return respond(request.scope, status, body, error.headers)


async def handle_disconnect(_request: Request, _error: Exception) -> Response:
    """The client has gone: the status is for the log."""
    return Response(status_code=499)
