"""Every error a client can meet, as one JSON object in OpenAI's shape.

::

    Exception
    ├── protocols.openai.errors.BadRequest   400, 404, 413: what the client sent
    ├── ServerError                          500: what went wrong here
    │   ├── GenerationFailed                 500: the engine ended a choice with an error
    │   └── Unavailable                      503: starting, draining, or the engine is gone
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

from stentor.engine.client import EngineUnavailable
from stentor.protocols.openai.errors import BadRequest, ErrorBody, ErrorResponse

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS: Final = 2
INTERNAL: Final = "The server failed on this request; the log of the server says why."

_encode: Final = msgspec.json.Encoder().encode


class ServerError(Exception):
    """Something that is not the client's fault; ``str(error)`` is safe to show."""

    status = 500
    kind = "server_error"
    code: str | None = None


class GenerationFailed(ServerError):
    code = "generation_failed"

    def __init__(self) -> None:
        super().__init__("The generation failed on the server; the request may be sent again.")


class Unavailable(ServerError):
    status = 503
    kind = "service_unavailable_error"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class ClientDisconnected(Exception):
    """The client went away before its answer was ready."""


def describe(error: Exception) -> tuple[int, ErrorBody]:
    """Status and body for any exception; one that is not known is logged and told as an internal error."""
    match error:
        case BadRequest():
            return error.status, ErrorBody(error.message, "invalid_request_error", error.param, error.code)
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
            logger.error("a request failed", exc_info=error)
            return 500, ErrorBody(INTERNAL, "server_error", None, None)


def respond(status: int, body: ErrorBody, headers: Mapping[str, str] | None = None) -> Response:
    headers = dict(headers or {})
    if status == 503:
        headers.setdefault("retry-after", str(RETRY_AFTER_SECONDS))
    if status in (408, 413, 415):
        # The rest of the body is not read.
        headers["connection"] = "close"
    return Response(_encode(ErrorResponse(body)), status, headers, "application/json")


def error_frame(error: Exception) -> bytes:
    """The error as an event of a stream that has begun."""
    return b"data: " + _encode(ErrorResponse(describe(error)[1])) + b"\n\n"


async def handle_error(_request: Request, error: Exception) -> Response:
    status, body = describe(error)
    return respond(status, body)


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
    return respond(status, body, error.headers)


async def handle_disconnect(_request: Request, _error: Exception) -> Response:
    """Nobody will read it; the status is for the log."""
    return Response(status_code=499)
