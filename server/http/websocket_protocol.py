"""A connection that has become a WebSocket: uvicorn's protocol, counted and watched as it was before."""

import asyncio
import select
from asyncio.transports import BaseTransport
from http import HTTPStatus
from typing import Any, Final, TypeGuard

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from stentor.protocols.common.errors import BadRequest

from ..config.limits import ConnectionLimits
from ..overload.memory_budget import MemoryBudget, MemoryFull
from ..overload.slow_readers import ReaderWatch
from .connections import ConnectionSlot
from .http_refusals import Refused, response_to

_FRAME_BYTES: Final = 128
"""Memory for a frame besides its payload: an object, and its place in a list."""
_MAX_CONTROL_FRAMES: Final = 128
"""Pings and pongs of a client in a second, many times what any client needs. Each ping is answered at once, and answers
that wait for a client that does not read would otherwise be unbounded."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Takes over the connection of an :class:`.http_protocol.HttpProtocol`.

    Messages are read one at a time: the next is not read from the socket before the application has taken this one.
    Received bytes that were not taken are counted, also of incomplete messages; if there is no room for them, or pings
    come without end, the connection is closed.

    What comes before the handshake is answered is read behind it: a pong, or the end of a connection, must not be
    written before the answer.

    A handshake that the library cannot read is refused, and one that the application does not answer in time is ended:
    uvicorn would hold both connections for as long as their clients do. After the handshake, pings detect dead clients.
    """

    def __init__(
        self,
        *args: Any,
        place: ConnectionSlot | None = None,
        reader: ReaderWatch | None = None,
        memory: MemoryBudget | None = None,
        path: str = "",
        accept_timeout: float = ConnectionLimits().header_timeout,
        **kwargs: Any,
    ) -> None:
        """``path`` is the request's, as the routes name it; ``accept_timeout`` in seconds."""
        super().__init__(*args, **kwargs)
        self._place = place
        self._reader = reader
        self._path = path
        self._accept_timeout = accept_timeout
        self._accept_timer: asyncio.TimerHandle | None = None
        self._share = (memory or MemoryBudget(0)).share(free=0)
        self._fragments = 0
        """Bytes of the frames of a message whose last one has not come."""
        self._queued = 0
        """Bytes of messages that the application has not taken."""
        self._early = bytearray()
        """Frames that came before the answer to the handshake, behind which they are read."""
        self._control_frames = 0
        self._control_since = 0.0

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._accept_timer = self.loop.call_later(self._accept_timeout, self._accept_is_late)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or not self._has_room(len(data)):
            return
        if self.handshake_initiated and not self.handshake_complete:
            self._early += data
            return
        super().data_received(data)
        self._has_room(0)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "The path or a header of this WebSocket's handshake is longer than this server reads.",
                "headers_too_large",
            )

    def _has_room(self, more: int) -> bool:
        """Counts ``more`` bytes; if that is too much, ends the connection and returns False."""
        held = len(self.conn.reader.buffer) + len(self._early) + self._fragments + self._queued + more
        most = self.config.ws_max_size
        try:
            if held > 2 * most:
                self._give_up(CloseCode.MESSAGE_TOO_BIG, f"more than {2 * most} bytes of frames wait")
                return False
            self._share.set(held)
        except (MemoryFull, BadRequest):
            self._give_up(CloseCode.TRY_AGAIN_LATER, "the server holds as many messages as it may")
            return False
        return True

    def _give_up(self, code: CloseCode, reason: str) -> None:
        self.conn.fail(code, reason)
        self.conn.reader.discard()
        self.frames = []
        self._fragments = 0
        self._share.set(self._queued)
        if self.conn.close_sent is None:  # before the handshake
            self.transport.abort()
        else:
            self.handle_parser_exception()

    def handle_text(self, event: Frame) -> None:
        self._fragments = _FRAME_BYTES + len(event.data)
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._fragments = _FRAME_BYTES + len(event.data)
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._fragments += _FRAME_BYTES + len(event.data)
        super().handle_cont(event)

    def handle_ping(self) -> None:
        if self._takes_control_frame():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._takes_control_frame():
            super().handle_pong(event)

    def _takes_control_frame(self) -> bool:
        """Counts a control frame; if there are too many, ends the connection and returns False."""
        now = self.loop.time()
        if now - self._control_since >= 1:
            self._control_frames, self._control_since = 0, now
        self._control_frames += 1
        if self._control_frames <= _MAX_CONTROL_FRAMES:
            return True
        if not self.transport.is_closing():
            most = f"more than {_MAX_CONTROL_FRAMES} pings and pongs in a second"
            self._give_up(CloseCode.POLICY_VIOLATION, most)
        return False

    def send_receive_event_to_app(self) -> None:
        self._queued += self._fragments
        self._fragments = 0
        super().send_receive_event_to_app()

    async def receive(self) -> ASGIReceiveEvent:
        if not self.queue.empty() and not self.disconnected and self._has_gone():
            self._drop_messages()
            self.transport.abort()  # which ends the application's wait
        message = await super().receive()
        if self.queue.empty():
            self._queued = 0
            self._share.set(len(self.conn.reader.buffer) + self._fragments)
        return message

    def _has_gone(self) -> bool:
        """Whether the client has ended or reset the connection. The loop does not tell while messages wait, since
        nothing is read then."""
        found = select.poll()
        found.register(self.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(found.poll(0))

    def _drop_messages(self) -> None:
        """Drop messages that the application has not taken: at its pace, a client that has gone would keep it busy for
        minutes."""
        kept = []
        while not self.queue.empty():
            if (event := self.queue.get_nowait())["type"] != "websocket.receive":
                kept.append(event)
        for event in kept:
            self.queue.put_nowait(event)
        self._queued = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_messages()
        if self._accept_timer is not None:
            self._accept_timer.cancel()
        if self._reader is not None:
            self._reader.stop()
        if self._place is not None:
            self._place.leave()
        self._share.close()
        # the library's state and its parser refer to each other: the parser's frame and all buffered data would stay
        # until cycles are collected, which an idle server never does
        self.conn.parser.close()
        self.conn.reader.discard()
        self.frames, self._early = [], bytearray()
        super().connection_lost(exc)

    async def send(self, message: ASGISendEvent) -> None:
        """Raises ClientDisconnected also where this side has given the connection up, which the application learns
        later: uvicorn would blame the application for what it sends until then."""
        await self.writable.wait()
        if self.handshake_complete and self.transport.is_closing():
            raise ClientDisconnected
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # refused by a response, which uvicorn takes for forgotten
        if self.handshake_complete and self._early:
            early, self._early = bytes(self._early), bytearray()
            self.data_received(early)

    def _accept_is_late(self) -> None:
        if not (self.handshake_complete or self.close_sent):
            message = f"The WebSocket was not opened within {self._accept_timeout:g} seconds; try again."
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, message, "handshake_timeout")

    def _refuse(self, status: HTTPStatus, message: str, code: str) -> None:
        """Instead of a handshake; for the application the client has gone."""
        self.disconnected = self.handshake_complete = self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        self.transport.write(response_to(Refused(status, message, code), self._path))
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader is not None:
            self._reader.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader is not None:
            self._reader.resume()


def takes_over(kind: type[asyncio.Protocol] | None) -> TypeGuard[type[WebSocketProtocol]]:
    """Whether a listener's WebSocket protocol can take over connections with their bytes."""
    return kind is not None and issubclass(kind, WebSocketProtocol)
