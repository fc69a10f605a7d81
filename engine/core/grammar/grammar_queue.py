"""Compiles grammars one at a time, while their requests wait in the scheduler."""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio

from stentor.protocols.ipc.actors import Submit, Vocabulary

from .matcher import GrammarError
from .structured_output import RequestConstraints, StructuredOutputManager

logger = logging.getLogger(__name__)

InThread = Callable[[Callable[[], RequestConstraints]], Awaitable[RequestConstraints]]


class Prepared(NamedTuple):
    """The result of preparing a request's grammar."""

    rid: int
    constraints: RequestConstraints | None
    refusal: str
    """Why there are no constraints."""


class GrammarQueue:
    """Compiles grammars one at a time; owned by the engine loop."""

    def __init__(self, grammars: StructuredOutputManager, in_thread: InThread | None = None) -> None:
        self._grammars = grammars
        # one at a time: they share caches, and the worker needs the cores more
        self._turn = anyio.Lock()
        self._in_thread = _in_thread if in_thread is None else in_thread

    def take(self, piece: Vocabulary) -> bool:
        """Add a piece of the vocabulary; True for the last one. Raises :class:`.vocabulary.VocabularyError`."""
        return self._grammars.take(piece)

    async def warm_up(self) -> None:
        """Prepare for the first grammar while there is no work."""
        async with self._turn:
            with contextlib.suppress(Exception):  # the request that needs it gets the error
                await anyio.to_thread.run_sync(self._grammars.warm_up, abandon_on_cancel=True)

    async def prepare(self, submit: Submit, lives: Callable[[int], bool]) -> Prepared | None:
        """Compile a request's grammar; None if the request has ended before its turn."""
        async with self._turn:
            if not lives(submit.rid):
                return None
            try:
                return Prepared(submit.rid, await self._in_thread(lambda: self._grammars.constraints_of(submit)), "")
            except GrammarError as error:
                return Prepared(submit.rid, None, str(error))
            except Exception as error:  # else it would end this engine, and the next one, which gets the request again
                logger.exception("a grammar could not be prepared", extra={"request_id": submit.name})
                return Prepared(submit.rid, None, f"the grammar cannot be used: {type(error).__name__}")


async def _in_thread(work: Callable[[], RequestConstraints]) -> RequestConstraints:
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
