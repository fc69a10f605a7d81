"""Every error a client can meet; :mod:`.error_shapes` writes it as the protocol of its path does.

::

    Exception
    ├── protocols.common.errors.BadRequest   400, 404, 413: what the client sent
    ├── text.errors.TextTooLarge             413: there is no memory to tokenize it
    ├── ServerError                          500: what went wrong here
    │   ├── GenerationFailed                 500: the engine ended a choice with an error
    │   ├── Unavailable                      503: starting, draining, or the engine is gone
    │   ├── Overloaded                       429: as many requests or tokens wait as may
    │   ├── store.database.StoreFailed       500: what is kept could not be read or written
    │   │   ├── DiskFull                     507: nor can it before there is room on a disk
    │   │   └── StoreFull                    507: the caller has used up its share of the store
    │   ├── mcp.errors.ToolServerFailed      424: a server of tools that the request names does not list them
    │   ├── embedding.plugin.PluginFailed    500: the operator's own code failed on the request
    │   └── CutShort                         the request had to end before it was done
    │       ├── DeadlineExceeded             504: its time is up
    │       └── ShutDown                     503: the server's time is up
    └── ClientDisconnected                   nobody is left to answer

Messages never carry what the code knows but the client must not: paths, tracebacks, addresses. Those
go to the log.
"""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from stentor.engine.client.client import EngineUnavailable
from stentor.engine.processes.logs import trace_without_messages
from stentor.protocols.common.errors import BadRequest, ErrorBody
from stentor.protocols.ipc.deltas import Finish

from ..middleware.root_path import route_path
from ..observability.request import current_request_id, note_error
from ..text.errors import TextTooLarge
from .error_shapes import OPENAI, ErrorShape, shape_of

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS: Final = 2
INTERNAL: Final = "The server failed on this request; the log of the server says why."


class ServerError(Exception):
    """Something that is not the client's fault; ``str(error)`` is safe to show."""

    status = 500
    kind = "server_error"
    code: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What the client should know beside the body."""
        return {}


class GenerationFailed(ServerError):
    code = "generation_failed"

    def __init__(self) -> None:
        super().__init__("The generation failed on the server; the request may be sent again.")


def generation_error(finish: Finish | None) -> Exception:
    """Of a choice that ended so, or never: what the client is told."""
    fault = "" if finish is None else finish.fault
    match fault:
        case "":
            return GenerationFailed()
        case "grammar":
            return BadRequest(
                "The grammar that this request asks for became too complex on the way; bound what repeats, or ask for "
                "less.",
                code="grammar_too_complex",
            )
        case field:
            return BadRequest(
                f"`{field}` leaves nothing to draw of what the grammar or the thinking budget asks for.",
                field,
                "invalid_value",
            )


class Unavailable(ServerError):
    status = 503
    kind = "service_unavailable_error"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def headers(self) -> dict[str, str]:
        # the connection would only be used for more that is refused
        return {"connection": "close"} if self.code == "draining" else {}


class Overloaded(ServerError):
    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, code: str, retry_after: int) -> None:
        """``retry_after`` in seconds."""
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_after)}


class CutShort(ServerError):
    """The request had to end before it was done."""


class DeadlineExceeded(CutShort):
    """504, not 408: the client has sent all that it should, and 408 invites proxies to send it again."""

    status = 504
    kind = "timeout_error"
    code = "deadline_exceeded"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request did not end within its {seconds:g} seconds and was given up.")

    @property
    def headers(self) -> dict[str, str]:
        # SDKs retry every 5xx: the same work would begin again, for somebody who has stopped waiting
        return {"x-should-retry": "false"}


class ShutDown(CutShort):
    status = 503
    kind = Unavailable.kind
    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__("The server is shutting down and had to give up the request; it may be sent again.")

    @property
    def headers(self) -> dict[str, str]:
        return {"connection": "close"}


class ClientDisconnected(Exception):
    """The client went away before its answer was ready."""


def describe(error: Exception) -> tuple[int, ErrorBody]:
    """Status and body for any exception; one that is not known is logged and told as an internal error."""
    match error:
        case BadRequest():
            return error.status, ErrorBody(error.message, "invalid_request_error", error.param, error.code)
        case TextTooLarge():
            return 413, ErrorBody(str(error), "invalid_request_error", error.field, "request_too_large")
        case ServerError():
            return error.status, ErrorBody(str(error), error.kind, None, error.code)
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
    """In the shape of the protocol that the path of ``scope`` belongs to."""
    note_error(body.code or body.type)
    headers = dict(headers or {})
    if status == 503:
        headers.setdefault("retry-after", str(RETRY_AFTER_SECONDS))
    if status in (408, 413, 415):
        # The rest of the body is not read.
        headers["connection"] = "close"
    shape = shape_of(route_path(scope), scope["headers"])
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
    """Nobody will read it; the status is for the log."""
    return Response(status_code=499)
