"""Background responses that a server began and did not end: the next one on the same store goes on with them.

Each is made again from the tokens that were delivered: they run through the same text, parsers and encoder, step by
step as they came, which makes the events that are stored already; and what the engine adds to them continues the log
without a gap. No event is shown before it is stored, so that none can have been seen that comes out otherwise.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

import msgspec

from stentor.protocols.actors import ChoiceTokens
from stentor.protocols.openai.errors import BadRequest
from stentor.protocols.openai.responses.objects import ResponseFailure, ResponseObject

from ..conversation.turn import begin_turn
from ..door.keys import Caller
from ..errors import ServerError
from ..state import ServerState
from ..store import responses
from ..text.generation import EngineEvent, EventStream, Submitter
from .ids import Ids
from .log import EventLog, Step, unpacked, unpacked_steps
from .preparing import Conversation, Prepared, seal_of
from .running import Resumable, Run, encode, failure_of

logger = logging.getLogger(__name__)

_GONE = ResponseFailure("server_error", "The server was started again, and the key of this response is not valid now.")
_CHANGED = ResponseFailure(
    "server_error", "The server was started again with a model or settings that would change what was said already."
)


async def resume_unfinished(state: ServerState) -> None:
    """Begins to go on with all of them. The engine must be ready. Never raises; what cannot go on is told as failed."""
    if not state.store.durable:
        return
    try:
        await state.store.write(responses.drop_orphans)
        names = await state.store.read(responses.unfinished)
    except ServerError:
        return  # the log says why
    if names:
        logger.info("going on with %d responses of an earlier server", len(names))
    for name in names:
        try:
            await _resume(state, name)
        except Exception as error:
            logger.warning("could not go on with a response: %s", type(error).__name__)
            await _give_up(state, name, failure_of(error))


async def _resume(state: ServerState, name: str) -> None:
    row = await state.store.read(lambda db: responses.load(db, name))
    if row is None or row.request is None:
        raise BadRequest("The response cannot be read any more.")
    caller = state.door.keys.owner(row.owner)
    if caller is None:
        await _give_up(state, name, _GONE)
        return
    with ExitStack() as stack:
        ticket = stack.enter_context(state.live())
        known = await _known(state, row)
        prepared = await _prepared(state, row, caller)
        turn = await begin_turn(state, prepared.chat, caller, ticket, client=Resuming(state.client, known.steps))
        log = EventLog(state.store, name, ahead=True)
        log.expect(known.events, len(known.steps))
        run = Run(state, prepared, turn, log, stored=True, give_up=lambda: _give_up(state, name, _CHANGED))
        run.begin()
        task = run.start(ticket.bounded)
        state.responses.keep(task)
        kept = stack.pop_all()
        task.add_done_callback(lambda _: kept.close())


class _Known(msgspec.Struct, frozen=True):
    events: list[bytes]
    steps: list[Step]


async def _known(state: ServerState, row: responses.Stored) -> _Known:
    stretches = await state.store.read(lambda db: responses.stretches(db, row.id))
    steps = list(chain.from_iterable(unpacked_steps(steps) for _, _, steps in stretches))
    return _Known([event for _, packed, _ in stretches for event in unpacked(packed)], steps)


async def _prepared(state: ServerState, row: responses.Stored, caller: Caller) -> Prepared:
    assert row.request is not None
    resumable = msgspec.json.decode(row.request, type=Resumable)
    given = await state.store.read(lambda db: responses.items(db, row.id, output=False))
    response = msgspec.json.decode(row.object, type=ResponseObject)
    seal = await seal_of(state, caller)
    return Prepared(resumable.request, response, Conversation([], given), resumable.chat, caller, seal, Ids(row.id))


async def _give_up(state: ServerState, name: str, why: ResponseFailure) -> None:
    """Ends it as failed, with an event that says so."""
    try:
        row = await state.store.read(lambda db: responses.load(db, name))
        if row is None:
            return
        known = await _known(state, row)
        object_: dict[str, Any] = msgspec.json.decode(row.object)
        object_ |= {"status": "failed", "error": msgspec.to_builtins(why)}
        event = encode({"type": "response.failed", "response": object_, "sequence_number": len(known.events)})
        log = EventLog(state.store, name, first=len(known.events))
        log.add([event])
        stretch = log.stretch()
        assert stretch is not None
        packed = stretch

        def work(db: Any) -> None:
            responses.add_events(db, name, packed.first, packed.events, packed.steps)
            responses.finish(db, name, encode(object_), [])

        await state.store.write(work)
    except ServerError:
        logger.warning("could not end a response")


class Resuming:
    """Hands a request to the engine with the tokens that it has had, and its reader those tokens first."""

    def __init__(self, client: Submitter, steps: Sequence[Step]) -> None:
        self._client = client
        self._steps = steps

    def submit(self, *arguments: Any, **options: Any) -> EventStream:
        delivered = list(chain.from_iterable(step.tokens for step in self._steps))
        stream = self._client.submit(*arguments, **options, resumed=[delivered])
        return _Replayed(self._steps, stream)


class _Replayed:
    """Steps as the engine's events, and then the engine's own."""

    def __init__(self, steps: Sequence[Step], stream: EventStream) -> None:
        self._steps = iter(steps)
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[list[EngineEvent]]:
        return self

    async def __anext__(self) -> list[EngineEvent]:
        step = next(self._steps, None)
        if step is not None:
            return [ChoiceTokens(-1, 0, step.tokens, step.logprobs)]
        return await self._stream.__anext__()

    def abort(self, index: int = -1) -> None:
        self._stream.abort(index)
