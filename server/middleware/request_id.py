"""The outermost middleware: gives every request an id, and answers uncaught exceptions."""

import logging
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from stentor.engine.processes.logs import trace_without_messages

from ..common.errors import CutShort
from ..http.error_responses import BREAK_OFF, can_respond, describe, headers_of, respond
from ..http.error_shapes import shape_of
from ..http.root_path import route_path
from ..observability.observer import Observer
from ..observability.request import SANE_ID, SCOPE_KEY, RequestRecord, current_record, new_request_id, note_error
from .auth import caller_of

logger = logging.getLogger(__name__)

_HEADS: Final = frozenset({"http.response.start", "websocket.http.response.start", "websocket.accept"})
_STATUSES: Final = {"websocket.accept": 101, "websocket.close": 403}
"""Statuses of messages without one; a close counts only if the WebSocket was never accepted."""


class RequestIdMiddleware:
    """Puts a request id into the scope and into the headers of the response, or of a WebSocket's handshake.

    The client's ``x-request-id`` is used if it is short and printable; otherwise an id is generated. ``observer`` is
    notified once the request has ended.
    """

    def __init__(self, app: ASGIApp, observer: Observer) -> None:
        self.app = app
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        request_id = _given(scope) or new_request_id()
        scope[SCOPE_KEY] = request_id
        record = RequestRecord(request_id, scope.get("method", "GET"), scope["path"], scope["headers"])
        current_record.set(record)
        theirs = shape_of(route_path(scope), scope["headers"]).id_header
        names = (b"x-request-id",) if theirs is None else (b"x-request-id", theirs)

        async def named_send(message: Message) -> None:
            kind = message["type"]
            status = _STATUSES.get(kind) if scope["type"] == "websocket" else None
            if kind in _HEADS:
                status = message.get("status", status)
                named = scope[SCOPE_KEY].encode()
                message["headers"] = [*message.get("headers", ()), *((name, named) for name in names)]
            record.status = record.status or status or 0
            await send(message)

        try:
            await self.app(scope, receive, named_send)
        except WebSocketDisconnect:
            pass  # the writer of the response has noticed first
        except Exception as error:
            cut = _cut(error)
            if record.status and cut is not None:
                logger.warning("a response was cut off: %s", cut)
                note_error(cut.code or cut.kind)
                if _break_off(scope):
                    return
                raise
            if record.status or not can_respond(scope):
                logger.error("a response broke off", extra={"trace": trace_without_messages(error)})
                note_error("broke_off")
                raise
            status, body = describe(error)
            await respond(scope, status, body, headers_of(error))(scope, receive, named_send)
        finally:
            record.route = getattr(scope.get("route"), "path", "")
            record.key = caller_of(scope).name
            self._observer.finish(record)


def _cut(error: BaseException) -> CutShort | None:
    """Why a request was cut short, if that is the error; Starlette wraps errors after a head."""
    cause = error if isinstance(error, CutShort) else error.__cause__
    return cause if isinstance(cause, CutShort) else None


def _break_off(scope: Scope) -> bool:
    """Closes the connection of an incomplete response, so that its client notices.

    False under other servers, where raising an error does it.
    """
    breaks: Callable[[], None] | None = scope.get("extensions", {}).get(BREAK_OFF)
    if breaks is not None:
        breaks()
    return breaks is not None


def _given(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return value.decode("ascii") if SANE_ID.fullmatch(value) else None
    return None
