"""Server-sent events, and the watch for a client that goes away.

Starlette's own streaming response looks for a disconnect only below ASGI 2.4 and otherwise learns of it
from its next send; a queued request would hold its place until its first token. Here one task does
nothing but listen, from the start.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Final, Generic, Protocol, TypeVar

import anyio
import msgspec
from starlette.types import Receive, Scope, Send

from stentor.protocols.common.encoding import encode

from ..common.errors import ClientDisconnected, CutShort
from ..common.task_scope import TaskScope
from .error_responses import error_frame
from .http_protocol import chunk_writer
from .whole_answer import PIECE_BYTES

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

KEEP_ALIVE_SECONDS: Final = 15.0
DONE: Final = b"data: [DONE]\n\n"

COMMENT: Final = b": keep-alive\n\n"
EVENTS: Final = "text/event-stream; charset=utf-8"
LINES: Final = "application/x-ndjson"
"""Content type of a stream of JSON lines."""
_HEADERS: Final = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Batches(Protocol[T_co]):
    """The output of a generation, to be iterated once; an asynchronous generator is one."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def aclose(self) -> Awaitable[None]:
        """Ends the generation; may be called at any time, and again."""


class Encoder(Protocol[T_contra]):
    """Encodes a generation's output as the frames of one response."""

    @property
    def failed(self) -> bool:
        """Whether the frames so far end in an error, after which nothing more may be sent."""

    def encode(self, batch: T_contra, /) -> bytes | Iterable[bytes]:
        """The frames of one batch, joined; may be empty. Or one by one, where they would be large together."""

    def end(self) -> bytes:
        """The frames that follow the last batch."""


def frame_of(event: msgspec.Struct) -> bytes:
    return b"data: " + encode(event) + b"\n\n"


class EventStream(Generic[T]):
    """An ASGI response that encodes ``batches`` as they come and sends the frames of each in one write.

    The status is sent with the first frame, or with the first ``sign_of_life``, which interrupts long silences. An
    earlier failure (``batches`` raising on its first step) is raised from the call and gets its own status. A later one
    becomes an error frame that ends the stream. ``batches`` is always closed: at once when the client disconnects, and
    when ``bounds``, which is entered around everything, cuts it short. A silence lasts ``keep_alive`` seconds, by
    default KEEP_ALIVE_SECONDS.
    """

    def __init__(
        self,
        batches: Batches[T],
        encoder: Encoder[T],
        keep_alive: float | None = None,
        bounds: Callable[[], AbstractContextManager[None]] = nullcontext,
        to_frame: Callable[[Exception], bytes] = error_frame,
        sign_of_life: bytes = COMMENT,
        media_type: str = EVENTS,
    ) -> None:
        self._batches = batches
        self._encoder = encoder
        self._keep_alive = KEEP_ALIVE_SECONDS if keep_alive is None else keep_alive
        self._bounds = bounds
        self._to_frame = to_frame
        self._sign_of_life = sign_of_life
        self._headers = [(b"content-type", media_type.encode()), *_HEADERS]
        self._started = False
        self._finished = False
        self._failure: Exception | None = None
        self._last_sent = 0.0
        self._clock: Callable[[], float] = time.monotonic
        # A comment must not be written after the last frame while both wait for a slow client.
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._clock = asyncio.get_running_loop().time
        self._last_sent = self._clock()
        try:
            with self._bounds():
                async with anyio.create_task_group() as tasks:
                    # The frames get the task of their own: it is woken for every one of them, and each
                    # time Python walks down all the calls that the task has come through.
                    tasks.start_soon(self._run, scope, send, tasks.cancel_scope)
                    await self._watch(receive, send)
                    tasks.cancel_scope.cancel()
        except CutShort as cut:
            self._failure = self._failure or cut
        if self._failure is None:
            return
        if not self._started:
            raise self._failure
        await self._send(send, self._to_frame(self._failure), last=True)

    async def _run(self, scope: Scope, send: Send, done: anyio.CancelScope) -> None:
        encoder, clock, write = self._encoder, self._clock, chunk_writer(scope)
        try:
            async with aclosing(self._batches):
                async for batch in self._batches:
                    frames = encoder.encode(batch)
                    if not isinstance(frames, bytes):
                        await self._send_each(send, frames)
                    elif frames:
                        if write(frames):
                            self._last_sent = clock()
                        else:
                            await self._send(send, frames)
                    if encoder.failed:
                        break
                await self._send(send, b"" if encoder.failed else encoder.end(), last=True)
        except Exception as error:
            self._failure = error
        done.cancel()

    async def _send_each(self, send: Send, frames: Iterable[bytes]) -> None:
        """Sends some at a time, as the client reads."""
        waiting: list[bytes] = []
        size = 0
        for frame in frames:
            waiting.append(frame)
            size += len(frame)
            if size >= PIECE_BYTES:
                await self._send(send, b"".join(waiting))
                waiting, size = [], 0
                await asyncio.sleep(0)
        if size:
            await self._send(send, b"".join(waiting))

    async def _send(self, send: Send, body: bytes, last: bool = False) -> None:
        async with self._turn:
            if self._finished:
                return
            # Recorded afterwards: a write that is cancelled while it waits for the client has not been sent.
            if not self._started:
                await send({"type": "http.response.start", "status": 200, "headers": list(self._headers)})
                self._started = True
            await send({"type": "http.response.body", "body": body, "more_body": not last})
            self._finished = last
            self._last_sent = self._clock()

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Returns when the client has gone away; until then, breaks silences."""
        while True:
            message = None
            with anyio.move_on_at(self._last_sent + self._keep_alive):
                message = await receive()
            if message is None:
                if self._clock() >= self._last_sent + self._keep_alive:
                    await self._send(send, self._sign_of_life)
            elif message["type"] == "http.disconnect":
                return


async def unless_disconnected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled when the client disconnects.

    Raises ClientDisconnected then, or whatever ``work`` raises.
    """
    loop = asyncio.get_running_loop()
    watching: TaskScope | None = None

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    def begin() -> None:
        nonlocal watching
        watching = TaskScope("watches for clients that go away")
        watching.start(watch())

    with anyio.CancelScope() as scope:
        # Not a task group: most work of a streaming request is done before a disconnect could be seen, and a group
        # costs a third of the whole request. Work that waits is watched from the loop's next turn on.
        beginning = loop.call_soon(begin)
        try:
            return await work
        finally:
            beginning.cancel()
            if watching is not None:
                await watching.aclose()
    raise ClientDisconnected
