"""Resumes background responses that an earlier server on the same store, or an engine of several, did not end.

Each is rebuilt from its delivered tokens: they pass through the same text, parsers and encoder, step by step, and make
the stored events again; the engine's further output continues the log without a gap. No event is sent before it is
stored, so a client cannot have seen an event that comes out differently.
"""

import asyncio
import contextlib
import logging
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.responses.items import Item, without_trigger
from stentor.protocols.openai.responses.objects import ResponseFailure, ResponseObject

from ...common.errors import Overloaded, ServerError, Unavailable
from ...common.fair_queue import current_owner
from ...common.keys import Caller
from ...common.suspects import MOST_LOSSES, NOT_TRIED_AGAIN
from ...overload.memory_budget import STORED_FACTOR, MemoryShare
from ...state.event_log import EventLog, Step, unpacked, unpacked_steps
from ...storage import responses
from ...storage.database import Database
from .compacted import in_force
from .ids import Ids
from .preparing import ConversationItems, Prepared, read_conversation, seal_of
from .replay import Replay
from .running import ResponseTask, Resumable, failure_of
from .services import ResponseServices
from .starting import turns_of

logger = logging.getLogger(__name__)

_MOST_SECONDS: Final = 5
"""Between two tries while the queue has no room."""
_GONE = ResponseFailure("server_error", "The server was started again, and the key of this response is not valid now.")
_LOSSES = ResponseFailure("server_error", NOT_TRIED_AGAIN)
_CHANGED = ResponseFailure(
    "server_error", "The server was started again with a model or settings that would change what was said already."
)


async def keep_resuming(services: ResponseServices) -> None:
    """Resumes what an earlier server left, then what one engine leaves to the others, until the server ends."""
    while True:
        await resume_unfinished(services)
        await services.live.left()
        if services.admission.draining or services.chat.client.failure is not None:
            return


async def resume_unfinished(services: ResponseServices) -> None:
    """Resumes all unfinished responses, as slots become free. The engine must be ready.

    Never raises; a response that cannot be resumed is marked failed. Those under which engines were given up follow
    last and in turn with lines of batches (:mod:`...common.suspects`): each is waited for until it goes on, and fails
    after MOST_LOSSES without an event between.
    """
    if not services.store.durable:
        return
    try:
        left = await services.store.read(responses.unfinished)
    except ServerError:
        return  # the log says why
    if left:
        logger.info("going on with %d responses that were left unfinished", len(left))
    for name, losses in left:
        # between the store's answer and now one of this server's own may have begun
        if any(live.response.id == name for live in services.live):
            continue
        if losses >= MOST_LOSSES:
            logger.warning("a background response was failed: %d engines in a row were given up under it", losses)
            await _give_up(services.store, name, _LOSSES)
            continue
        try:
            if losses:
                async with services.suspects:
                    await _resume_when_there_is_room(services, name, watched=True)
            else:
                await _resume_when_there_is_room(services, name, watched=False)
        except Exception as error:
            logger.warning("could not go on with a response: %s", type(error).__name__)
            await _give_up(services.store, name, failure_of(error))


async def _resume_when_there_is_room(services: ResponseServices, name: str, *, watched: bool) -> None:
    """``watched``: returns when it has gone on or ended."""
    while True:
        try:
            resumed = await _resume(services, name)
            if resumed is not None and watched:
                await resumed.log.stored_beyond(resumed.known)
            return
        except Overloaded as full:
            await asyncio.sleep(min(full.retry_after, _MOST_SECONDS))
        except Unavailable:  # paused, or about to end: then the next server goes on with it
            await asyncio.sleep(_MOST_SECONDS)


class _Resumed(NamedTuple):
    log: EventLog
    known: int
    """Events that had been stored before."""


async def _resume(services: ResponseServices, name: str) -> _Resumed | None:
    """None if it was marked failed."""
    row = await services.store.read(lambda db: responses.load(db, name))
    if row is None or row.request is None:
        raise BadRequest("The response cannot be read any more.")
    caller = services.caller_of_owner(row.owner)
    if caller is None:
        await _give_up(services.store, name, _GONE)
        return None
    current_owner.set(caller.owner)
    with ExitStack() as stack:
        stack.enter_context(services.live.room(caller, resumed=True))
        context = stack.enter_context(services.admission.admit(0.0))
        known = await _known(services.store, row)
        prepared = await _prepared(services, row, caller, context.queue_slot.memory)
        turns = await turns_of(services, prepared, context, Replay(known.events, known.steps))
        log = EventLog(services.store, name, ahead=True)
        log.expect(known.events, len(known.steps))
        give_up = partial(_give_up, services.store, name, _CHANGED)
        run = ResponseTask(services, prepared, turns, log, context.queue_slot.memory, stored=True, give_up=give_up)
        run.begin()
        run.start_with(stack, context.bounded)
        return _Resumed(log, len(known.events))


class _Known(msgspec.Struct, frozen=True):
    events: list[bytes]
    steps: list[Step]


async def _known(store: Database, row: responses.StoredResponse) -> _Known:
    stretches = await store.read(lambda db: responses.stretches(db, row.id))
    steps = list(chain.from_iterable(unpacked_steps(steps) for _, _, steps in stretches))
    return _Known([event for _, packed, _ in stretches for event in unpacked(packed)], steps)


async def _prepared(
    services: ResponseServices, row: responses.StoredResponse, caller: Caller, memory: MemoryShare
) -> Prepared:
    assert row.request is not None
    stored = await services.store.read(partial(responses.items_bytes, response=row.id))
    memory.add(STORED_FACTOR * (len(row.request) + stored))
    resumable = msgspec.json.decode(row.request, type=Resumable)
    given = await services.store.read(lambda db: responses.items(db, row.id, output=False))
    response = msgspec.json.decode(row.object, type=ResponseObject)
    seal = await seal_of(services.store, caller)
    request, locked = resumable.request, resumable.locked
    compacts, answers = resumable.compacts, not without_trigger(request.input or [])[1]
    servers = await services.gateway.servers(request.tools or (), locked) if answers else ()
    history: list[Item] = []
    if (servers or compacts is not None) and answers and (request.previous_response_id or request.conversation_id):
        # the next prompt of the model consists of all earlier output
        before = msgspec.structs.replace(request, input=[])
        history = (await read_conversation(services, before, caller, memory, seal)).history
    conversation = ConversationItems(history, given, in_force(history + given, seal.open))
    ids = Ids(row.id)
    chat = resumable.chat
    return Prepared(request, response, conversation, chat, caller, seal, ids, servers, locked, compacts, answers)


async def _give_up(store: Database, name: str, why: ResponseFailure) -> None:
    """Ends the response as failed, with an event that tells the reason."""
    try:
        row = await store.read(lambda db: responses.load(db, name))
        if row is None:
            return
        known = await _known(store, row)
        object_: dict[str, Any] = msgspec.json.decode(row.object)
        object_ |= {"status": "failed", "error": msgspec.to_builtins(why)}
        event = encode({"type": "response.failed", "response": object_, "sequence_number": len(known.events)})
        log = EventLog(store, name, first=len(known.events))
        log.add([event])
        stretch = await log.stretch()
        assert stretch is not None
        packed = stretch

        def work(db: Any) -> None:
            responses.add_events(db, name, packed.first, packed.events, packed.steps)
            responses.finish(db, name, encode(object_), [])

        await store.write(work)
    except ServerError:
        logger.warning("could not end a response")
    except Exception as error:  # stored data is invalid JSON, or packed incorrectly
        logger.warning("a response cannot be read any more and was deleted: %s", type(error).__name__)
        with contextlib.suppress(ServerError):
            await store.write(lambda db: responses.drop(db, name))
