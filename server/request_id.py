"""The outermost middleware: names every request, and answers for what nobody else has caught."""

import logging
import re
import uuid
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.engine.logs import trace_without_messages
from stentor.protocols.openai.limits import MAX_REQUEST_ID

from .auth import caller_of
from .door.root_path import route_path
from .error_shapes import shape_of
from .errors import describe, headers_of, respond
from .observe.observer import Observer
from .observe.request import RequestRecord, current_record, note_error

logger = logging.getLogger(__name__)

SANE: Final = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_REQUEST_ID)
SCOPE_KEY: Final = "stentor.request_id"


class NameRequests:
    """Puts a request id into the scope and into the headers of the response.

    The client's ``x-request-id`` is kept where it is short and printable; otherwise one is drawn. Whatever happens
    below, ``observer`` is told of the request once it has ended.
    """

    def __init__(self, app: ASGIApp, observer: Observer) -> None:
        self.app = app
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _given(scope) or new_request_id()
        scope[SCOPE_KEY] = request_id
        record = RequestRecord(request_id, scope["method"], scope["path"], scope["headers"])
        current_record.set(record)
        theirs = shape_of(route_path(scope), scope["headers"]).id_header
        names = (b"x-request-id",) if theirs is None else (b"x-request-id", theirs)

        async def named_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                named = scope[SCOPE_KEY].encode()
                message["headers"] = [*message.get("headers", ()), *((name, named) for name in names)]
            await send(message)

        try:
            await self.app(scope, receive, named_send)
        except Exception as error:
            if record.status:
                logger.error("a response broke off", extra={"trace": trace_without_messages(error)})
                note_error("broke_off")
                raise
            status, body = describe(error)
            await respond(scope, status, body, headers_of(error))(scope, receive, named_send)
        finally:
            record.route = getattr(scope.get("route"), "path", "")
            record.key = caller_of(scope).name
            self._observer.finish(record)


def new_request_id() -> str:
    return uuid.uuid4().hex


def _given(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return value.decode("ascii") if SANE.fullmatch(value) else None
    return None
