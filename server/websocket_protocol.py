"""A connection that has become a WebSocket: uvicorn's protocol, counted and watched as it was before."""

import asyncio
from typing import Any, TypeGuard

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from .connections import Place
from .overload.slow_readers import ReaderWatch


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Takes over what :class:`.http_protocol.HttpProtocol` held of its connection.

    Messages are read one at a time: the next is not read from the socket before the application has taken this one.
    """

    def __init__(
        self, *args: Any, place: Place | None = None, reader: ReaderWatch | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._place = place
        self._reader = reader

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reader is not None:
            self._reader.stop()
        if self._place is not None:
            self._place.leave()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader is not None:
            self._reader.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader is not None:
            self._reader.resume()


def takes_over(kind: type[asyncio.Protocol] | None) -> TypeGuard[type[WebSocketProtocol]]:
    """Whether a listener's protocol for WebSockets can be handed what its connections hold."""
    return kind is not None and issubclass(kind, WebSocketProtocol)
