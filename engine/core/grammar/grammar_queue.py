"""Grammars are compiled here, one after the other, while the requests that await them stand aside."""

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
    """What has become of one of them."""

    rid: int
    constraints: RequestConstraints | None
    refusal: str
    """Why there are no constraints."""


class GrammarQueue:
    """Owned by the engine loop. Compiles one after the other, for requests that wait in the scheduler."""

    def __init__(self, grammars: StructuredOutputManager, in_thread: InThread | None = None) -> None:
        self._grammars = grammars
        # one after the other: they share caches, and the worker needs the cores more
        self._turn = anyio.Lock()
        self._in_thread = _in_thread if in_thread is None else in_thread

    def take(self, piece: Vocabulary) -> bool:
        """Whether this was the last piece. Raises :class:`.vocabulary.VocabularyError`."""
        return self._grammars.take(piece)

    async def warm_up(self) -> None:
        """Gets ready for the first grammar, while nobody waits for anything."""
        async with self._turn:
            with contextlib.suppress(Exception):  # told to the request that needs it
                await anyio.to_thread.run_sync(self._grammars.warm_up, abandon_on_cancel=True)

    async def prepare(self, submit: Submit, lives: Callable[[int], bool]) -> Prepared | None:
        """Compiles; None where by its turn the request has ended."""
        async with self._turn:
            if not lives(submit.rid):
                return None
            try:
                return Prepared(submit.rid, await self._in_thread(lambda: self._grammars.constraints_of(submit)), "")
            except GrammarError as error:
                return Prepared(submit.rid, None, str(error))
            except Exception as error:  # it would end the engine, and the next one, which is given the request again
                logger.exception("a grammar could not be prepared", extra={"request_id": submit.name})
                return Prepared(submit.rid, None, f"the grammar cannot be used: {type(error).__name__}")


async def _in_thread(work: Callable[[], RequestConstraints]) -> RequestConstraints:
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
