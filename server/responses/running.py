"""One response, made apart from whoever reads it: by a task of its own, or in the request's where nobody may watch."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from stentor.protocols.openai.responses.items import Item
from stentor.protocols.openai.responses.objects import ResponseFailure, ResponseObject
from stentor.protocols.openai.responses.request import ENCRYPTED_REASONING

from ..conversation.turn import Turn
from ..encoders.responses import ResponseEncoder
from ..errors import CutShort, GenerationFailed, ShutDown, describe
from ..state import ServerState
from ..store import conversations, responses
from ..store.database import StoreFailed
from .log import EventLog
from .preparing import Prepared

if TYPE_CHECKING:
    import sqlite3

logger = logging.getLogger(__name__)

encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode


class Run:
    """Makes one response, tells its log, and stores it where that is wanted.

    The last event is told once the response is stored, so that who has read it can go on from there.
    """

    def __init__(self, state: ServerState, prepared: Prepared, turn: Turn, log: EventLog | None) -> None:
        """``log`` None: nobody reads the events."""
        request = prepared.request
        self.log = log
        self._state = state
        self._prepared = prepared
        self._turn = turn
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._stored = asyncio.Event()
        self._encoder = ResponseEncoder(
            prepared.response,
            prepared.ids.new,
            top_logprobs=(request.top_logprobs or 0) if request.wants_logprobs else None,
            customs=frozenset(tool["name"] for tool in request.tools or () if tool["type"] == "custom"),
            seal=prepared.seal.seal if ENCRYPTED_REASONING in (request.include or ()) else None,
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

    @property
    def output(self) -> list[Item]:
        found: list[Item] = msgspec.to_builtins(self.response.output)
        return found

    # ---- in the task of the request

    async def complete(self) -> None:
        """Makes it here and now. Raises GenerationFailed, and what cuts it short."""
        self._begin()
        await self._generate()
        self._encoder.complete()
        if self.response.status == "failed":
            raise GenerationFailed
        await self._store_whole()

    # ---- in a task of its own

    def start(self, bounds: Callable[[], AbstractContextManager[None]] = nullcontext) -> asyncio.Task[None]:
        """Everything else is told through the log. ``bounds`` may cut it short."""
        assert self._task is None
        self._task = asyncio.create_task(self._run(bounds))
        return self._task

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        await self._stored.wait()

    async def _run(self, bounds: Callable[[], AbstractContextManager[None]]) -> None:
        log = self.log
        assert log is not None
        self._state.responses.add(self)
        failure: Exception | None = None
        try:
            with bounds():
                await self._generate_with_flushes(log)
            ending = self._encoder.complete()
        except ShutDown if self._survives else ():
            await self._leave_unfinished(log)
            return
        except asyncio.CancelledError:
            if self._survives and not self._cancelled:
                raise
            ending = self._encoder.cancel()
        except Exception as error:
            if log.end == 0:
                failure = error  # nothing has been said yet: it gets the status that it has everywhere
            ending = self._encoder.fail(failure_of(error))
        finally:
            self._state.responses.remove(self.response.id)
            with anyio.CancelScope(shield=True):
                await self._turn.batches.aclose()
        with anyio.CancelScope(shield=True):
            await self._settle(log, ending, failure)

    @property
    def _survives(self) -> bool:
        """Whether another server goes on with it after this one."""
        return self.response.background and self._state.store.durable

    async def _generate_with_flushes(self, log: EventLog) -> None:
        if not self._survives:
            await self._generate()
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.flush_for_ever)
            await self._generate()
            tasks.cancel_scope.cancel()

    async def _leave_unfinished(self, log: EventLog) -> None:
        with anyio.CancelScope(shield=True), suppress(StoreFailed):
            await log.flush()
        log.close(ShutDown())
        self._stored.set()

    # ---- either way

    def _begin(self) -> None:
        events = self._encoder.begin()
        if self.log is not None:
            self.log.add(events)

    async def _generate(self) -> None:
        """The turns of the model: one, for all that is called is the client's to run."""
        encoder, log, turn = self._encoder, self.log, self._turn
        encoder.begin_turn(len(turn.prompt), turn.names)
        async with aclosing(turn.batches):
            async for batch in turn.batches:
                events = encoder.take(batch)
                if log is not None:
                    if log.end == 0:
                        self._begin_in(log, events)
                    else:
                        log.add(events)
                    if log.full:
                        await log.flush()

    async def _store_whole(self) -> None:
        if self._prepared.request.stored:
            try:
                await self._state.store.write(self._insert_whole)
            except StoreFailed:
                logger.warning("a response could not be stored")
        self._stored.set()

    async def _settle(self, log: EventLog, ending: list[bytes], failure: Exception | None) -> None:
        """Stores what it came to, and then tells the end."""
        log.add(ending)
        self._stored.set()
        log.close(failure)

    def _insert_whole(self, db: "sqlite3.Connection") -> None:
        responses.insert(db, self._row(events=False, is_open=True), self.given)
        self._finish(db)

    def _finish(self, db: "sqlite3.Connection") -> None:
        ...
