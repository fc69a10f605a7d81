"""The outermost middleware: names every request, and answers for what nobody else has caught."""

import re
import uuid
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.protocols.openai.limits import MAX_REQUEST_ID

from .errors import describe, respond

SANE: Final = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_REQUEST_ID)
SCOPE_KEY: Final = "stentor.request_id"


class NameRequests:
    """Puts a request id into the scope and into the headers of the response.

    The client's ``x-request-id`` is kept where it is short and printable; otherwise one is drawn.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _given(scope) or new_request_id()
        scope[SCOPE_KEY] = request_id
        started = False

        async def named_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", scope[SCOPE_KEY].encode())]
            await send(message)

        try:
            await self.app(scope, receive, named_send)
        except Exception as error:
            if started:
                raise
            status, body = describe(error)
            await respond(status, body)(scope, receive, named_send)


def new_request_id() -> str:
    return uuid.uuid4().hex


def _given(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return value.decode("ascii") if SANE.fullmatch(value) else None
    return None
