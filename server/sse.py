"""Server-sent events, and the watch for a client that goes away.

Starlette's own streaming response looks for a disconnect only below ASGI 2.4 and otherwise learns of it
from its next send; a queued request would hold its place until its first token. Here one task does
nothing but listen, from the start.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

import anyio
from starlette.types import Receive, Scope, Send

from .errors import ClientDisconnected, error_frame

T = TypeVar("T")

KEEP_ALIVE_SECONDS: Final = 15.0
DONE: Final = b"data: [DONE]\n\n"

_COMMENT: Final = b": keep-alive\n\n"
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """An ASGI response that sends ``frames`` as they come, each in one write.

    The status is only sent with the first frame, or with the first keep-alive comment: what fails
    before that (``frames`` raising on its first step) is raised from the call and gets its own status.
    What fails later becomes an error frame that ends the stream. ``frames`` is closed in every case,
    at once when the client disconnects.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        keep_alive: float = KEEP_ALIVE_SECONDS,
        to_frame: Callable[[Exception], bytes] = error_frame,
    ) -> None:
        self._frames = frames
        self._keep_alive = keep_alive
        self._to_frame = to_frame
        self._started = False
        self._finished = False
        self._last_sent = 0.0
        self._clock: Callable[[], float] = time.monotonic
        # A comment must not be written after the last frame while both wait for a slow client.
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        failure: Exception | None = None
        self._clock = asyncio.get_running_loop().time
        self._last_sent = self._clock()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, receive, send, tasks.cancel_scope)
            try:
                async with aclosing(self._frames):
                    await self._send_frames(send)
            except Exception as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is None:
            return
        if not self._started:
            raise failure
        await self._send(send, self._to_frame(failure), last=True)

    async def _send_frames(self, send: Send) -> None:
        async for frame in self._frames:
            await self._send(send, frame)
        await self._send(send, b"", last=True)

    async def _send(self, send: Send, body: bytes, last: bool = False) -> None:
        async with self._turn:
            if self._finished:
                return
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            self._finished = last
            await send({"type": "http.response.body", "body": body, "more_body": not last})
            self._last_sent = self._clock()

    async def _watch(self, receive: Receive, send: Send, scope: anyio.CancelScope) -> None:
        while True:
            message = None
            with anyio.move_on_at(self._last_sent + self._keep_alive):
                message = await receive()
            if message is None:
                if self._clock() >= self._last_sent + self._keep_alive:
                    await self._send(send, _COMMENT)
            elif message["type"] == "http.disconnect":
                scope.cancel()
                return


async def unless_disconnected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled when the client goes away.

    Raises ClientDisconnected then, or whatever ``work`` raises.
    """
    results: list[T] = []
    failure: Exception | None = None

    async def watch(scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, tasks.cancel_scope)
        try:
            results.append(await work)
        except Exception as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not results:
        raise ClientDisconnected
    return results[0]
