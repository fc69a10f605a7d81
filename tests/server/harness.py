"""A server to talk to: in memory through ASGI, or real on loopback."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import uvicorn

from stentor.server.app.application import create_app
from stentor.server.app.state import ServerState
from stentor.server.http.http_protocol import HttpProtocol

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def in_memory(state: ServerState) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(create_app(state)), base_url="http://server")


def sdk(state: ServerState, key: str = "none") -> openai.AsyncOpenAI:
    """OpenAI's client of an application in memory."""
    http: Any = in_memory(state)  # of an httpx that the client's types do not know
    return openai.AsyncOpenAI(base_url="http://server/v1", api_key=key, max_retries=0, http_client=http)


@asynccontextmanager
async def on_loopback(state: ServerState, http: Any = HttpProtocol) -> AsyncIterator[str]:
    """Serves ``state`` with uvicorn, each connection under an ``http``; yields the base URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(state), http=http, ws="none", lifespan="off", log_level="error", access_log=False
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        while not server.started:
            assert not serving.done(), serving.exception()
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await serving
        listener.close()


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Waits for ``condition()`` to hold; fails if it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def events_of(text: str) -> list[str]:
    """The data of every event of a stream; comments are left out."""
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    assert all(frame.startswith("data: ") for frame in frames), frames
    return [frame.removeprefix("data: ") for frame in frames]


def chunks_of(text: str) -> list[dict[str, Any]]:
    """The chunks of a stream, which must have ended with ``[DONE]``."""
    events = events_of(text)
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]
