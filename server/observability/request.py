"""The record of one HTTP request, from its head to its last byte, and the running task's record. A WebSocket is one
request, from its handshake to its end.

It is in a context variable, so that every task of a request finds it, and every log line has the request's id. It
contains nothing of a prompt or an answer.
"""

import re
import time
import uuid
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final

import msgspec

from stentor.protocols.common.limits import MAX_REQUEST_ID
from stentor.protocols.ipc.actors import FinishReason

SCOPE_KEY: Final = "stentor.request_id"
"""Key of the request's id in an ASGI scope."""
SANE_ID: Final = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_REQUEST_ID)
"""Request ids that are taken from a client."""

Headers = Sequence[tuple[bytes, bytes]]

MOST_SERVED: Final = 1024
"""Prompts of one request that are recorded one by one: a WebSocket may send new ones for hours."""


class EngineUsage(msgspec.Struct):
    """One prompt in the engine, and its result. Times by ``time.monotonic()``; 0 is never."""

    prompt_tokens: int
    max_tokens: int
    choices: int
    submitted: float
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    first: float = 0.0
    """The first token."""
    last: float = 0.0
    output_tokens: int = 0
    prompt_done: bool = False
    reasons: list[FinishReason] = msgspec.field(default_factory=list)
    """How its choices ended, in the order in which they did."""
    failure: str = ""
    """The engine's error of a failed choice; not for the client."""
    ended: float = 0.0


class RequestRecord(msgspec.Struct):
    """Written by the request's handlers, read after its end."""

    request_id: str
    method: str
    path: str
    """The client's path, without the query; not trusted."""
    headers: Headers = ()
    began: float = msgspec.field(default_factory=time.monotonic)
    began_ns: int = msgspec.field(default_factory=time.time_ns)
    """Since the epoch; for traces."""
    route: str = ""
    """The template that matched, of a closed set; empty where none did."""
    status: int = 0
    """0 until the head of a response is sent; of a WebSocket that was opened 101."""
    error: str = ""
    """Code of the client's error, of a closed set."""
    key: str = ""
    """The name of the API key, never the key."""
    served: list[EngineUsage] = msgspec.field(default_factory=list)
    """The first :data:`MOST_SERVED`; filled by :meth:`add`."""
    ended: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def add(self, served: EngineUsage) -> None:
        """Nothing more will become of it."""
        self.prompt_tokens += served.prompt_tokens
        self.output_tokens += served.output_tokens
        if len(self.served) < MOST_SERVED:
            self.served.append(served)

    @property
    def seconds(self) -> float:
        return self.ended - self.began


current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)


def current_request_id() -> str:
    """Empty where the running task works for no request."""
    record = current_record.get()
    return "" if record is None else record.request_id


def note_error(code: str) -> None:
    """Records the code of the client's error; the first counts."""
    record = current_record.get()
    if record is not None and not record.error:
        record.error = code


def new_request_id() -> str:
    return uuid.uuid4().hex
