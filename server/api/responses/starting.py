"""The three ways in which a response is made: at once, as a stream, and in the background."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack

import anyio
import msgspec

from ...generation.admission import GenerationOptions
from ...generation.prepare import PreparedGeneration, prepare_generation
from ...overload.request_context import RequestContext
from ...state.event_log import EventLog
from .encoder import COPIES
from .naming import map_response_fields
from .preparing import Prepared
from .replay import NOTHING, Replay
from .running import ResponseTask
from .services import ResponseServices
from .tool_loop import ToolLoop


async def run_of(
    services: ResponseServices, prepared: Prepared, context: RequestContext, *, watched: bool
) -> ResponseTask:
    """A run that has not begun; ``watched``: its events will be read. Raises as :func:`prepare_generation`."""
    with map_response_fields(prepared.response.tools):
        turns = await turns_of(services, prepared, context)
    log = None
    if watched:
        store = services.store if prepared.request.stored else None
        ahead = prepared.response.background and services.store.durable
        log = EventLog(store, prepared.response.id, ahead=ahead)
    return ResponseTask(services, prepared, turns, log, context.queue_slot.memory)


async def turns_of(
    services: ResponseServices, prepared: Prepared, context: RequestContext, replay: Replay = NOTHING
) -> PreparedGeneration | ToolLoop:
    """One turn of the model, or as many as a compaction and the server's tool calls need. ``replay``: an earlier
    server's work. Raises as :func:`prepare_generation`."""
    if prepared.servers or (prepared.compacts is not None and prepared.answers):
        return ToolLoop(services, prepared, context, replay)
    client = replay.submitter(0, services.chat.client)
    options = GenerationOptions(copies=COPIES, client=client)
    return await prepare_generation(services.chat, prepared.chat, prepared.caller, context, options)


async def run_in_background(services: ResponseServices, prepared: Prepared) -> ResponseTask:
    """A background run, stored as queued. Raises as :func:`run_of`, Overloaded and StoreFailed."""
    if prepared.chat.seed is None:
        # drawn here, since another server must be able to resume from the stored state
        seed = int.from_bytes(os.urandom(7), "little")
        prepared = msgspec.structs.replace(prepared, chat=msgspec.structs.replace(prepared.chat, seed=seed))
    with ExitStack() as stack:
        stack.enter_context(services.live.room(prepared.caller))
        # its own place in the queue: that of the request is given back with the answer
        context = stack.enter_context(services.admission.admit())
        context.queue_slot.memory.add(prepared.held)
        run = await run_of(services, prepared, context, watched=True)
        run.begin()
        await run.write()
        run.start_with(stack, context.bounded)
    return run


class AttachedStream:
    """The events of a run that lives as long as its reader."""

    def __init__(self, run: ResponseTask, bounds: Callable[[], AbstractContextManager[None]]) -> None:
        assert run.log is not None
        self._run = run
        self._bounds = bounds
        self._events: AsyncGenerator[list[bytes], None] = run.log.read()
        self._began = False

    def __aiter__(self) -> AsyncIterator[list[bytes]]:
        self._began = True
        self._run.start(self._bounds)
        return self._events

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            if self._began and self._run.log is not None and not self._run.log.ended:
                self._run.cancel()
                await self._run.ended()
            await self._events.aclose()
            if not self._began:
                await self._run.abandon()
