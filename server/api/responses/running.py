"""Runs one response apart from its readers: in its own task, or in the request's if nobody may watch it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, aclosing, nullcontext
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

from stentor.engine.client.errors import EngineUnavailable
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.deltas import Delta, Finish, Reasoning, Text
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.responses.items import Item
from stentor.protocols.openai.responses.objects import ResponseFailure, ResponseObject
from stentor.protocols.openai.responses.request import ENCRYPTED_REASONING, ResponseRequest
from stentor.protocols.openai.responses.tools import client_functions

from ...common.errors import Overloaded, ShutDown, generation_error
from ...common.task_scope import TaskScope
from ...generation.prepare import PreparedGeneration
from ...http.error_responses import describe
from ...http.whole_answer import AnswerBudget
from ...overload.memory_budget import MemoryShare
from ...state.event_log import Diverged, EventLog, Step
from ...storage import conversations, responses
from ...storage.database import StoreFailed
from .compacted import Compacted
from .encoder import ResponseEncoder
from .items import items_of
from .preparing import Prepared
from .services import ResponseServices
from .tool_loop import ToolLoop

if TYPE_CHECKING:
    import sqlite3

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.05
"""Interval of storing events that no reader waits for."""

STORE_PAUSES: Final = (1.0, 4.0, 15.0, 60.0)
"""Seconds between two tries to store an end; the last one again and again."""
_MOST_FLUSH_SECONDS: Final = 10.0
"""The same while the store fails."""


class Resumable(msgspec.Struct, frozen=True):
    """Data with which another server can resume a response."""

    request: ResponseRequest
    chat: ChatRequest
    locked: tuple[str, ...] = ()
    """Tool servers whose secrets are not stored, so that they cannot be called again."""
    compacts: Compacted | None = None


END_OF_TURN: Final = Step([], None)


class _EngineGivenUp(ShutDown):
    """Another engine, or the next server, goes on with it."""


class ResponseTask:
    """Runs one response, logs its events, and stores it if requested.

    Its end is published when its row is handed to the store, which works in order: a reader of the end finds the row.
    """

    def __init__(
        self,
        services: ResponseServices,
        prepared: Prepared,
        turns: PreparedGeneration | ToolLoop,
        log: EventLog | None,
        held: MemoryShare,
        *,
        stored: bool = False,
        give_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``log`` None: no readers. ``held`` counts its memory. ``stored``: whether its row exists. ``give_up`` ends it
        if it cannot be rebuilt unchanged."""
        request = prepared.request
        self.log = log
        self._services = services
        self._prepared = prepared
        self._turns = turns
        self._task: asyncio.Task[None] | None = None
        """Of :meth:`start`; owned by the server's live responses."""
        # not the task's own cancellation: that of a task that has not taken its first step leaves no trace
        self._scope = anyio.CancelScope()
        self._ended = asyncio.Event()
        self._writing = asyncio.Lock()
        self._row_is_there = stored
        self._give_up = give_up
        self._steered = False
        self._stopped = False
        """It has been steered, and has ended early."""
        self._encoder = ResponseEncoder(
            prepared.response,
            prepared.ids.new,
            top_logprobs=(request.top_logprobs or 0) if request.wants_logprobs else None,
            tools=client_functions(request.tools or ()),
            seal=prepared.seal.seal if ENCRYPTED_REASONING in (request.include or ()) else None,
            budget=AnswerBudget(services.limits.max_answer_bytes, held),
            compact=None if prepared.compacts is None else partial(prepared.seal.seal_summary, prepared.compacts),
        )

    @property
    def owner(self) -> str:
        return self._prepared.caller.owner

    @property
    def response(self) -> ResponseObject:
        return self._encoder.response

    @property
    def given(self) -> list[Item]:
        return self._prepared.conversation.given

    # ---- in the task of the request

    async def complete(self) -> None:
        """Generates the whole response. Raises as :func:`...common.errors.generation_error` says, or CutShort."""
        self._encoder.begin()
        await self._generate()
        self._encoder.complete()
        if self.response.status == "failed":
            raise generation_error(self._encoder.finish)
        await self._store_the_end()

    # ---- in a task of its own

    def begin(self) -> None:
        """The first events, of one that waits in the background."""
        assert self.log is not None
        self.log.add(self._encoder.begin())

    async def write(self) -> None:
        """Stores it as it is now. Raises StoreFailed."""
        async with self._writing:
            await self._write(ended=False)

    def start(self, bounds: Callable[[], AbstractContextManager[None]] = nullcontext) -> asyncio.Task[None]:
        """Starts the run; its results come through the log. ``bounds`` may cut it short."""
        assert self._task is None
        if self._prepared.request.stored:
            self._services.live.add(self)
        self._task = self._services.live.start(self._run(bounds), background=self.response.background)
        return self._task

    def start_with(self, held: ExitStack, bounds: Callable[[], AbstractContextManager[None]]) -> None:
        """Starts the run, which ``bounds`` may cut short, and releases ``held`` at its end."""
        task = self.start(bounds)
        kept = held.pop_all()
        task.add_done_callback(lambda _: kept.close())

    def cancel(self) -> None:
        """May be called at any time, and again."""
        self._scope.cancel()

    def steer(self) -> None:
        """Ends it as soon as nothing is lost: not within a call, nor before the results of the server's own calls."""
        self._steered = True

    async def abandon(self) -> None:
        """Drops a run that was not started."""
        if isinstance(self._turns, PreparedGeneration):
            await self._turns.batches.aclose()

    async def ended(self) -> None:
        await self._ended.wait()

    async def _run(self, bounds: Callable[[], AbstractContextManager[None]]) -> None:
        assert self.log is not None
        try:
            await self._make(self.log, bounds)
        finally:
            # also if the task itself was cancelled: nobody may wait for ever
            if not self.log.ended:
                self.log.close(ShutDown())
            self._ended.set()

    async def _make(self, log: EventLog, bounds: Callable[[], AbstractContextManager[None]]) -> None:
        failure: Exception | None = None
        left = False
        flusher = TaskScope("what writes a response down")
        if self._survives:
            flusher.start(self._flush_for_ever())
        try:
            with self._scope, bounds():
                await self._generate()
            if self._scope.cancelled_caught and not log.end:
                self.begin()
            ending = self._ending(cancelled=self._scope.cancelled_caught)
        except Exception as error:
            if isinstance(error, Diverged) and self._give_up is not None:
                with anyio.CancelScope(shield=True):
                    await self._give_up()
                log.ended_by_others()
                log.close()
                return
            if isinstance(error, ShutDown | EngineUnavailable) and self._survives:
                left = True
                await self._leave_unfinished(log, given_up=isinstance(error, _EngineGivenUp))
                return
            if not log.end:
                failure = error  # nothing has been sent yet: the error gets its usual status
            ending = self._encoder.fail(failure_of(error))
        finally:
            with anyio.CancelScope(shield=True):
                await self.abandon()
                await flusher.aclose()
            self._services.live.remove(self.response.id)
            if left:
                self._services.live.leave()
        if failure is None:
            log.add(ending)
            if log.full and self._prepared.request.stored:
                log.hold()
        with anyio.CancelScope(shield=True):
            if failure is None:
                await self._store_the_end()
            log.close(failure)

    def _ending(self, *, cancelled: bool) -> list[bytes]:
        if cancelled:
            return self._encoder.cancel()
        return self._encoder.stop() if self._stopped else self._encoder.complete()

    @property
    def _survives(self) -> bool:
        """Whether another engine or server goes on with it after this one."""
        return self.response.background and self._services.store.durable

    async def _flush_for_ever(self) -> None:
        pause = FLUSH_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                await self.write()
                pause = FLUSH_SECONDS
            except StoreFailed:  # what is held is stored later, at the latest with the end
                pause = min(2 * pause, _MOST_FLUSH_SECONDS)

    async def _leave_unfinished(self, log: EventLog, *, given_up: bool) -> None:
        """``given_up``: its engine was, perhaps because of it."""
        with anyio.CancelScope(shield=True):
            try:
                await self.write()
                if given_up:
                    await self._services.store.write(lambda db: responses.count_loss(db, self.response.id))
            except StoreFailed:
                logger.warning("a response could not be stored")
            log.close(ShutDown())

    # ---- either way

    async def _generate(self) -> None:
        """Runs one turn of the model, and one more after each round of the server's tool calls."""
        if isinstance(self._turns, PreparedGeneration):
            await self._take(self._turns)
            return
        if self.log is not None and not self.log.end:
            self.begin()
        async with aclosing(self._turns.turns(self._encoder, self._tell, self._commit)) as turns:
            async for turn in turns:
                if self._steered:
                    self._stopped = True
                else:
                    await self._take(turn)
                if self._stopped:
                    return

    def _tell(self, events: list[bytes]) -> None:
        if self.log is not None:
            self.log.add(events)

    async def _commit(self) -> None:
        if self._survives:
            await self.write()

    async def _take(self, turn: PreparedGeneration) -> None:
        encoder, log = self._encoder, self.log
        begun = False
        async with aclosing(turn.batches):
            async for batch in turn.batches:
                if self._survives:
                    _check_engine(batch)
                if not begun:
                    begun = True
                    if log is not None and not log.end:
                        self.begin()
                    encoder.begin_turn(len(turn.prompt), turn.names)
                events = encoder.take(batch)
                if log is not None:
                    log.add(events, _step(batch) if self._survives else None)
                    if self._survives and encoder.finish is not None and isinstance(self._turns, ToolLoop):
                        log.add((), END_OF_TURN)
                    if log.full and self._prepared.request.stored:
                        await self.write()
                if self._steered and encoder.may_stop:
                    self._stopped = True
                    return

    async def _store_the_end(self) -> None:
        """A background response has not ended for anybody before it is stored, so storing is retried until the server
        ends; the next one makes it again."""
        pauses = chain(STORE_PAUSES, repeat(STORE_PAUSES[-1]))
        while not await self._is_stored():
            if not self.response.background:
                logger.warning("a response could not be stored")
                return
            await asyncio.sleep(next(pauses))

    async def _is_stored(self) -> bool:
        try:
            if self._prepared.request.stored:
                async with self._writing:
                    await self._write(ended=True)
            elif self.response.conversation is not None:
                output = self._encoded()[1]
                await self._services.store.write(lambda db: self._append_to_conversation(db, output))
        except StoreFailed:
            return False
        return True

    async def _write(self, ended: bool) -> None:
        """Stores its current state in one transaction. Raises StoreFailed."""
        stretch = None if self.log is None else await self.log.stretch()
        if stretch is None and not ended and self._row_is_there:
            return
        object_, output = self._encoded()
        resumable = None
        if not ended and not self._row_is_there and self.response.background:
            prepared = self._prepared
            resumable = encode(Resumable(prepared.request, prepared.chat, prepared.locked, prepared.compacts))

        def work(db: "sqlite3.Connection") -> None:
            if not self._row_is_there:
                responses.insert(db, self._row(object_, resumable), self.given)
            if stretch is not None:
                responses.add_events(db, self.response.id, stretch.first, stretch.events, stretch.steps)
            if ended and responses.finish(db, self.response.id, object_, output):
                self._append_to_conversation(db, output)

        with anyio.CancelScope(shield=True):  # otherwise it would be unknown whether the row exists
            await self._services.store.write(work)
        self._row_is_there = True
        if stretch is not None and self.log is not None:
            self.log.written(stretch)

    def _encoded(self) -> tuple[bytes, list[Item]]:
        """The object without its output, and that."""
        bare = msgspec.structs.replace(self.response, output=[])
        return encode(bare), items_of(self.response.output, logprobs=True)

    def _row(self, object_: bytes, resumable: bytes | None) -> responses.StoredResponse:
        response = self.response
        return responses.StoredResponse(
            response.id,
            self.owner,
            open=True,
            background=response.background,
            events=self.log is not None,
            previous=response.previous_response_id,
            object=object_,
            request=resumable,
        )

    def _append_to_conversation(self, db: "sqlite3.Connection", output: list[Item]) -> None:
        if self.response.conversation is not None and self.response.status in ("completed", "incomplete"):
            conversations.append(db, self.response.conversation.id, [*self.given, *output])


def failure_of(error: Exception) -> ResponseFailure:
    """The error in the response's form."""
    message = describe(error)[1].message
    match error:
        case BadRequest():
            return ResponseFailure("invalid_prompt", message)
        case Overloaded():
            return ResponseFailure("rate_limit_exceeded", message)
        case _:
            return ResponseFailure("server_error", message)


def _check_engine(batch: Iterable[Delta]) -> None:
    """Raises ShutDown if the batch ends for want of an engine."""
    for each in batch:
        if type(each) is Finish and each.fault in ("engine", "shutdown"):
            raise _EngineGivenUp if each.fault == "engine" else ShutDown


def _step(batch: Iterable[Delta]) -> Step | None:
    """The tokens of a batch of one choice."""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    for delta in batch:
        if isinstance(delta, Text | Reasoning):
            tokens += delta.tokens
            logprobs += delta.logprobs or ()
    return Step(tokens, logprobs or None) if tokens else None
