"""The server's side of an engine: starts it, submits requests, hands every event to the stream it belongs to."""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Self, assert_never

import anyio

from stentor.protocols.actors import (
    Abort,
    ChoiceTokens,
    EngineReady,
    Failed,
    Finished,
    FinishReason,
    Progress,
    PromptDone,
    Shutdown,
    Stalled,
    Stats,
    Submit,
    TokensBatch,
)
from stentor.protocols.codec import decode_client, encoder
from stentor.protocols.config import EngineConfig
from stentor.protocols.sampling import SamplingParams

from .channel import ChannelError, Endpoint, PeerDied
from .groups import first_cause, one_line
from .launch import EngineProcess, launch_engine
from .process import Child

logger = logging.getLogger(__name__)

Event = PromptDone | ChoiceTokens | Finished

_NO_STATS = Stats(0, 0, 0.0, 0, 0, 0, 0, 0)
_SHUTDOWN_SECONDS = 5.0


class EngineUnavailable(Exception):
    """The engine cannot take requests: it is still starting, or it has ended."""


class RequestStream:
    """Events of one request, each choice's in order. Iterate until it ends, or call :meth:`abort`.

    Each item is the list of everything that has come since the last one: at most one event of each kind
    a choice, so that a slow reader costs the memory of the tokens and no more. A reader that is cancelled
    in the moment in which an item comes loses it.
    """

    __slots__ = ("_aborted", "_client", "_events", "_open", "_reader", "_rid", "_unread")

    def __init__(self, client: "EngineClient", rid: int, choices: int) -> None:
        self._client = client
        self._rid = rid
        self._open = set(range(choices))
        self._aborted: set[int] = set()
        self._events: list[Event] = []
        self._unread: dict[int, ChoiceTokens] = {}
        """By choice: its tokens among the events, where more are appended."""
        self._reader: asyncio.Future[list[Event]] | None = None

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[list[Event]]:
        # no coroutine around the future: it would be one more to walk through at every token
        reader = asyncio.get_running_loop().create_future()
        if self._events:
            reader.set_result(self._take())
        elif self._open:
            self._reader = reader
        else:
            reader.set_exception(StopAsyncIteration())
        return reader

    def abort(self, index: int = -1) -> None:
        """Ends one choice, or with -1 all of them; what has ended or been aborted already is left alone."""
        asked = self._open if index < 0 else self._open & {index}
        if asked <= self._aborted:
            return
        self._aborted |= asked
        self._client._abort(self, index)

    def _push(self, event: Event) -> bool:
        """Adds an event, for the reader to get once woken; whether it is the first since the reader took all."""
        if isinstance(event, ChoiceTokens):
            if event.index not in self._open or self._append(event):
                return False
            self._unread[event.index] = event
        elif isinstance(event, Finished):
            if event.index not in self._open:
                return False
            self._open.discard(event.index)
        self._events.append(event)
        return len(self._events) == 1

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(self._take())

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        self._unread.clear()
        return events

    def _append(self, event: ChoiceTokens) -> bool:
        """Adds tokens to those of the same choice that nobody has read yet; false where there are none."""
        unread = self._unread.get(event.index)
        if unread is None or (unread.logprobs is None) != (event.logprobs is None):
            return False
        unread.tokens.extend(event.tokens)
        if unread.logprobs is not None and event.logprobs is not None:
            unread.logprobs.extend(event.logprobs)
        return True

    @property
    def _ended(self) -> bool:
        return not self._open

    def _end(self, reason: FinishReason, why: str | None) -> None:
        for index in sorted(self._open):
            self._push(Finished(self._rid, index, reason, None, why))
        self._wake()


class EngineClient:
    """One engine process and the live requests on it.

    ``process`` is one that has been launched with this very config; without it :meth:`run` launches one.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_progress: Callable[[Progress], None] | None = None,
        process: EngineProcess | None = None,
    ) -> None:
        self._config = config
        self._process = process
        self._on_progress = on_progress
        self._streams: dict[int, RequestStream] = {}
        self._arrived: list[RequestStream] = []
        """Streams whose readers are to be woken."""
        self._next_rid = 0
        # By (rid, index of an Abort; None for the Submit). Bounded by the live requests, for as long as the
        # engine does not read too: one that is given up before its Submit has left takes it out again.
        self._outbox: OrderedDict[tuple[int, int | None], bytes] = OrderedDict()
        self._outbox_filled = asyncio.Event()
        self._started = asyncio.Event()
        self._ready: EngineReady | None = None
        self._failure: str | None = None
        self._stats = _NO_STATS

    @property
    def ready(self) -> EngineReady | None:
        """Set once the model has completed a real step."""
        return self._ready

    @property
    def failure(self) -> str | None:
        """Why the engine ended, once it has."""
        return self._failure

    @property
    def stats(self) -> Stats:
        """The engine's latest figures."""
        return self._stats

    @property
    def pid(self) -> int | None:
        return self._process.child.pid if self._process is not None else None

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        seeds: list[int],
        *,
        priority: int = 0,
        salt: str = "",
    ) -> RequestStream:
        """Hands a request to the engine. Raises :class:`EngineUnavailable`."""
        if self._failure is not None:
            raise EngineUnavailable(self._failure)
        if self._ready is None:
            raise EngineUnavailable("the model is still loading")
        rid = self._next_rid
        self._next_rid += 1
        stream = RequestStream(self, rid, len(seeds))
        self._streams[rid] = stream
        self._post((rid, None), Submit(rid, prompt, params, seeds, priority, salt, time.monotonic()))
        return stream

    async def wait_started(self) -> EngineReady:
        """Waits until the engine is ready. Raises :class:`EngineUnavailable` if it ends before."""
        await self._started.wait()
        if self._ready is None:
            raise EngineUnavailable(self._failure or "the engine ended")
        return self._ready

    async def run(self) -> None:
        """Serves the engine process, which it launches where nobody has, until it ends or the task is cancelled.

        Whatever happens, no process is left and every live stream has got its end; :attr:`failure` says why.
        """
        why = "the server is shutting down"
        try:
            if self._process is None:
                self._process = launch_engine(self._config)
            why = await self._converse(self._process.endpoint, self._process.child)
        except (ChannelError, OSError) as error:
            why = f"cannot start the engine process: {one_line(error)}"
        except Exception as error:
            logger.exception("the conversation with the engine broke off")
            why = f"the conversation with the engine broke off: {one_line(first_cause(error))}"
        finally:
            self._failure = why
            for stream in self._streams.values():
                stream._end("error", why)
            self._streams.clear()
            self._outbox.clear()
            self._started.set()
            with anyio.CancelScope(shield=True):
                await self._end()

    async def _converse(self, engine: Endpoint, child: Child) -> str:
        """Sends and receives until the engine cannot go on; returns why."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_all, engine)
            try:
                why = await self._receive_all(engine)
            except PeerDied:
                with anyio.move_on_after(_SHUTDOWN_SECONDS):
                    await child.wait()
                why = f"the engine process was lost: {child.description}"
            tasks.cancel_scope.cancel()
        return why

    async def _receive_all(self, engine: Endpoint) -> str:
        """Dispatches until the engine says that it cannot go on; returns why. Raises PeerDied."""
        while True:
            frames = await engine.receive()
            try:
                for frame in frames:
                    match decode_client.decode(frame):
                        case TokensBatch() as batch:
                            self._dispatch(batch)
                        case Stats() as stats:
                            self._stats = stats
                        case Progress() as progress:
                            if self._on_progress is not None:
                                self._on_progress(progress)
                        case EngineReady() as ready:
                            self._ready = ready
                            self._started.set()
                        case Stalled(message=why):
                            logger.warning("the engine is stalled: %s", why)
                        case Failed(message=why):
                            return why
                        case other:
                            assert_never(other)
            finally:
                self._wake_readers()

    def _dispatch(self, batch: TokensBatch) -> None:
        streams = self._streams
        for events in (batch.prompts, batch.tokens, batch.finished):
            for event in events:
                stream = streams.get(event.rid)
                if stream is not None and stream._push(event):
                    self._arrived.append(stream)
        for end in batch.finished:
            stream = streams.get(end.rid)
            if stream is not None and stream._ended:
                del streams[end.rid]

    def _wake_readers(self) -> None:
        """Once for all frames that came together: a server that is behind passes on what waits as one piece."""
        arrived, self._arrived = self._arrived, []
        for stream in arrived:
            stream._wake()

    async def _send_all(self, engine: Endpoint) -> None:
        while True:
            try:
                while self._outbox:
                    _, frame = self._outbox.popitem(last=False)
                    await engine.send(frame)
            except PeerDied:
                return  # told to the receiving side, once it has read what the engine still sent
            self._outbox_filled.clear()
            await self._outbox_filled.wait()

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ChannelError):
            process.endpoint.try_send(encoder.encode(Shutdown()))
        # an engine that waits for room in a ring that nobody empties any more must wake up and end
        process.endpoint.close()
        with anyio.move_on_after(_SHUTDOWN_SECONDS):
            await process.child.wait()
        process.close()

    def _abort(self, stream: RequestStream, index: int) -> None:
        rid = stream._rid
        if index < 0 and self._outbox.pop((rid, None), None) is not None:
            del self._streams[rid]
            stream._end("abort", None)
        elif rid in self._streams:
            self._post((rid, index), Abort(rid, index))

    def _post(self, key: tuple[int, int | None], message: Submit | Abort) -> None:
        self._outbox[key] = encoder.encode(message)
        self._outbox_filled.set()
