"""The queue of messages to a client, encoded in its dialect."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import anyio
from msgspec import UNSET

from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import ErrorBody
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.realtime.client import AnyClientEvent, decode_event
from stentor.protocols.openai.realtime.live import LiveCommand
from stentor.protocols.openai.realtime.server import ErrorEvent, RealtimeError, ServerEvent

from ....observability.request import current_request_id
from ...responses.ids import short_id
from ..common.interfaces import Sound

SESSION_EXPIRED: Final = "session_expired"
"""The code of the error that ends a session which has lasted as long as it may."""
MAX_EVENTS: Final = 512
MAX_BYTES: Final = 1 << 20
"""Bytes in the queue before producers wait; one step may exceed it."""


class Dialect(Protocol):
    """How events are written."""

    def decode(self, message: bytes, limits: Limits) -> AnyClientEvent | LiveCommand | Sound:
        """An event, or the sound that it brought. Raises BadRequest."""

    def encode(self, event: ServerEvent) -> bytes | None:
        """None for events that this dialect lacks."""


class CurrentDialect:
    """The current API."""

    def decode(self, message: bytes, limits: Limits) -> AnyClientEvent:
        return decode_event(message, limits)

    def encode(self, event: ServerEvent) -> bytes | None:
        return encode(event)


class EventQueue:
    """Filled by the connection and its tasks, emptied by :meth:`write`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._more = anyio.Event()
        self._less = anyio.Event()
        self._closed = False

    def put(self, event: ServerEvent) -> None:
        """Never waits; the event is encoded as it is now."""
        event.event_id = short_id("event")
        message = self._dialect.encode(event)
        if message is not None:
            self.put_message(message)

    def put_message(self, message: bytes) -> None:
        """Queues a message unchanged; never waits."""
        if not self._closed:
            self._waiting.append(message)
            self._bytes += len(message)
            self._more.set()

    def tell(self, error: ErrorBody, event_id: str | None = None) -> None:
        """``event_id`` is that of the client's event that is at fault."""
        body = RealtimeError(error.type, error.code, error.message, error.param, event_id)
        self.put(ErrorEvent(error=body, request_id=current_request_id() or UNSET))

    async def room(self) -> None:
        """Returns when more may be queued; at once after the reader has gone."""
        while not self._closed and (self._bytes > MAX_BYTES or len(self._waiting) > MAX_EVENTS):
            await self._less.wait()

    async def write(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Sends until :meth:`close`, and then the rest."""
        while True:
            while self._waiting:
                message = self._waiting.popleft()
                self._bytes -= len(message)
                less, self._less = self._less, anyio.Event()
                less.set()
                await send(message)
            if self._closed:
                return
            self._more = anyio.Event()
            await self._more.wait()

    def close(self) -> None:
        """Nothing more is put."""
        self._closed = True
        self._more.set()
        self._less.set()
