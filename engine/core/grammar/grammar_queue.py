"""Requests whose grammar is being compiled: they wait here, and nobody else waits for them."""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio
import msgspec

from stentor.protocols.ipc.actors import Finished, FinishReason, Resumed, Submit, TokensBatch, Vocabulary

from .matcher import GrammarError
from .structured_output import RequestConstraints, StructuredOutputManager

logger = logging.getLogger(__name__)

InThread = Callable[[Callable[[], RequestConstraints]], Awaitable[RequestConstraints]]


class Prepared(NamedTuple):
    """What has become of one of them."""

    rid: int
    constraints: RequestConstraints | None
    refusal: str
    """Why there are no constraints."""


class GrammarQueue:
    """Owned by the engine loop. Each request that enters gets its end from here, or leaves for the scheduler."""

    def __init__(self, grammars: StructuredOutputManager, in_thread: InThread | None = None) -> None:
        self._grammars = grammars
        # one after the other: they share caches, and the worker needs the cores more
        self._turn = anyio.Lock()
        self._in_thread = _in_thread if in_thread is None else in_thread
        self._waiting: dict[int, Submit] = {}

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def sequences(self) -> int:
        """Of those, that have not ended."""
        return sum(len(_open(submit)) for submit in self._waiting.values())

    def take(self, piece: Vocabulary) -> bool:
        """Whether this was the last piece. Raises :class:`.vocabulary.VocabularyError`."""
        return self._grammars.take(piece)

    async def warm_up(self) -> None:
        """Gets ready for the first grammar, while nobody waits for anything."""
        async with self._turn:
            with contextlib.suppress(Exception):  # told to the request that needs it
                await anyio.to_thread.run_sync(self._grammars.warm_up, abandon_on_cancel=True)

    def enter(self, submit: Submit) -> None:
        """From here on the request is owed a terminal message for each sequence; :meth:`prepare` has to follow."""
        self._waiting[submit.rid] = submit

    async def prepare(self, rid: int) -> Prepared | None:
        """Compiles; None where the request has ended meanwhile."""
        async with self._turn:
            submit = self._waiting.get(rid)
            if submit is None:
                return None
            first = submit
            try:
                return Prepared(rid, await self._in_thread(lambda: self._grammars.constraints_of(first)), "")
            except GrammarError as error:
                return Prepared(rid, None, str(error))
            except Exception as error:  # it would end the engine, and the next one, which is given the request again
                logger.exception("a grammar could not be prepared", extra={"request_id": first.name})
                return Prepared(rid, None, f"the grammar cannot be used: {type(error).__name__}")

    def leave(self, prepared: Prepared) -> Submit | None:
        """The request, as it now is; None where it has ended meanwhile."""
        return self._waiting.pop(prepared.rid, None)

    def abort(self, rid: int, index: int) -> TokensBatch | None:
        """As the scheduler's; None where the request is not here."""
        submit = self._waiting.get(rid)
        if submit is None:
            return None
        open_ = _open(submit)
        ended = open_ if index == -1 else [each for each in open_ if each == index]
        if len(ended) == len(open_):
            del self._waiting[rid]
        elif ended:
            resumed = submit.resumed or Resumed([[] for _ in submit.seeds], [], False)
            self._waiting[rid] = msgspec.structs.replace(
                submit, resumed=msgspec.structs.replace(resumed, ended=[*resumed.ended, *ended])
            )
        return TokensBatch([], [], [Finished(rid, each, "abort", None, None) for each in ended])

    def end_all(self, reason: FinishReason, message: str | None) -> TokensBatch:
        """Nothing can run any more."""
        ended = [
            Finished(submit.rid, index, reason, None, message)
            for submit in self._waiting.values()
            for index in _open(submit)
        ]
        self._waiting.clear()
        return TokensBatch([], [], ended)


def refused(submit: Submit, why: str) -> TokensBatch:
    """The terminal messages of a request that never ran."""
    return TokensBatch([], [], [Finished(submit.rid, index, "error", None, why) for index in _open(submit)])


def _open(submit: Submit) -> list[int]:
    ended = () if submit.resumed is None else submit.resumed.ended
    return [index for index in range(len(submit.seeds)) if index not in ended]


async def _in_thread(work: Callable[[], RequestConstraints]) -> RequestConstraints:
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
