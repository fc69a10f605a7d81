"""Reading from WebSockets, with a rate limit, for all families."""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from stentor.engine.client.replicas import engine_choice

from ...overload.request_context import engine_choice_of
from ...state.admission_control import AdmissionControl

Receive = Callable[[], Awaitable[bytes | None]]
"""The next message; None after the client has disconnected."""

_BAD_DATA: Final = 1003


def choose_engine(scope: Scope, admission: AdmissionControl) -> None:
    """Note which engine the headers of the handshake ask for, for all requests of the running task and of those that it
    starts. Raises BadRequest."""
    engine_choice.set(engine_choice_of(scope["headers"], admission.engines_of("chat")))


async def receive_text(socket: WebSocket) -> bytes | None:
    """The next message; None after the client has disconnected, also because it sent a message that is no text."""
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
        """Call behind each message; ``cost`` is its weight."""
        self._next = max(self._next + self._interval * cost, anyio.current_time())
        await anyio.sleep_until(self._next)
