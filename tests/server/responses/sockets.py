"""A client of the WebSocket mode, and the listener that really serves it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from openai.types.responses.responses_server_event import ResponsesServerEvent
from websockets.asyncio.client import ClientConnection, connect

from stentor.server.app.lifecycle import make_listener
from stentor.server.app.state import ServerState
from stentor.server.config.config import AccessConfig
from stentor.server.config.limits import ConnectionLimits
from stentor.server.http.address import listening
from stentor.server.http.listening import address_of
from stentor.tests.server.harness import until
from stentor.tests.server.middleware.listeners import config_of
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.wire.validate import check_event

ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
EXTENDED = {**EXTENSIONS, "ResponseFunctionCallArgumentsWsDone": frozenset({"name"})}


@asynccontextmanager
async def serving(state: ServerState, **limits: Any) -> AsyncIterator[str]:
    """The address, without its scheme."""
    counted = ConnectionLimits(**limits)
    listener = make_listener(state, counted)
    with listening(config_of(AccessConfig())) as sock:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.run_until_closed, sock)
            await until(lambda: listener.started)
            try:
                yield address_of(sock, tls=False).removeprefix("http://")
            finally:
                with anyio.CancelScope(shield=True):
                    await listener.close()
            tasks.cancel_scope.cancel()


def opened(address: str, **options: Any) -> connect:
    return connect(f"ws://{address}{RESPONSES}", compression=None, proxy=None, max_size=None, **options)


async def ask(socket: ClientConnection, **body: Any) -> None:
    await socket.send(json.dumps({"type": "response.create", "max_output_tokens": 6, **body}))


async def until_told(socket: ClientConnection, *kinds: str) -> list[dict[str, Any]]:
    """All events up to one of these types."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in kinds:
        events.append(json.loads(await asyncio.wait_for(socket.recv(), 60)))
        check_event(ResponsesServerEvent, events[-1], EXTENDED)
    return events


async def until_the_end(socket: ClientConnection) -> list[dict[str, Any]]:
    """All events up to one that ends a response."""
    return await until_told(socket, *ENDS)
