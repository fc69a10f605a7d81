"""What the WebSockets of all families read, and how fast."""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

Receive = Callable[[], Awaitable[bytes | None]]
"""The next message; None once the client has gone."""

_BAD_DATA: Final = 1003


async def receive_text(socket: WebSocket) -> bytes | None:
    """The next message; None once the client has gone, also because it has sent one that is no text."""
    try:
        message = await socket.receive()
    except WebSocketDisconnect:
        return None
    if message["type"] == "websocket.disconnect":
        return None
    text: str | None = message.get("text")
    if text is None:
        await socket.close(_BAD_DATA, "messages are text")
        return None
    return text.encode()


class ReadPace:
    """Keeps a connection from reading more than ``most`` messages a second; 0: it reads as many as come."""

    def __init__(self, most: int) -> None:
        self._interval = 1 / most if most else 0.0
        self._next = anyio.current_time()

    async def wait(self, cost: float = 1.0) -> None:
        """Behind each message; ``cost`` is what it counts."""
        self._next = max(self._next + self._interval * cost, anyio.current_time())
        await anyio.sleep_until(self._next)
