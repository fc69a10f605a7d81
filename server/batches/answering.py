"""Answers the lines of one batch, and stores the answers.

A line under which engines were given up runs after the others and one at a time, so that only one that ends them
reaches MOST_LOSSES: it gets an error as its answer.
"""

import logging
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from ..common.fair_queue import FairSemaphore
from ..common.suspects import MOST_LOSSES, NOT_TRIED_AGAIN
from ..storage import batches
from ..storage.database import Database
from . import rows
from .calls import EngineGivenUp, answer
from .input import ReadPart, requests
from .lines import MAX_ANSWER_BYTES, BatchRequest, answered, failed

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

_FLUSH_SECONDS: Final = 0.5
"""Seconds between two writes of answers."""


class LineAnswering:
    """The lines of one batch that have no answer yet."""

    def __init__(
        self,
        store: Database,
        row: batches.StoredBatch,
        *,
        done: dict[int, bool],
        losses: dict[int, int],
        lines: FairSemaphore,
        suspects: anyio.Lock,
    ) -> None:
        """
        Args:
            done: whether the answer of each answered line is good. Mutated: gets each line once its answer is stored.
            losses: engines that were given up under each line. Mutated.
            lines: bounds the concurrent requests of all batches.
            suspects: the turn of lines under which engines were given up.
        """
        self._store = store
        self._row = row
        self._done = done
        self._losses = losses
        self._lines = lines
        self._suspects = suspects
        self._unstored: list[batches.StoredResult] = []

    async def run(self, client: "httpx.AsyncClient", read: ReadPart) -> None:
        """Answer all lines of the input that ``read`` returns. Answers so far are stored also if it is cancelled.

        Raises StoreFailed, also in a group of errors.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._store_often)
                for lost in range(MOST_LOSSES + 1):
                    if not lost or lost in self._losses.values():
                        await self._answer_lines(client, read, lost)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._store_answers()

    async def _answer_lines(self, client: "httpx.AsyncClient", read: ReadPart, lost: int) -> None:
        """Answer the lines under which ``lost`` engines were given up."""

        def is_wanted(line: int) -> bool:
            return line not in self._done and self._losses.get(line, 0) == lost

        owner = self._row.owner
        async with aclosing(requests(read, is_wanted)) as left, anyio.create_task_group() as calls:
            async for line, request in left:
                if lost == MOST_LOSSES:
                    logger.warning("a line of a batch was failed: %d engines were given up under it", lost)
                    text = failed(request.custom_id, "server_error", NOT_TRIED_AGAIN)
                    self._unstored.append(batches.StoredResult(line, False, text))
                elif lost:
                    async with self._suspects:
                        await self._lines.acquire(owner)
                        await self._answer(client, line, request)
                else:
                    await self._lines.acquire(owner)
                    calls.start_soon(self._answer, client, line, request)

    async def _answer(self, client: "httpx.AsyncClient", line: int, request: BatchRequest) -> None:
        """Make one request; releases the place that it has among the concurrent ones."""
        try:
            given = await answer(client, request)
            good = given.status < 400 and len(given.body) <= MAX_ANSWER_BYTES
            self._unstored.append(batches.StoredResult(line, good, answered(request, given)))
        except EngineGivenUp:
            self._losses[line] = self._losses.get(line, 0) + 1
            with anyio.CancelScope(shield=True):  # the server is about to end
                await self._store.write(partial(batches.count_loss, batch=self._row.id, line=line))
        except Exception:
            logger.exception("a request of a batch failed")
            text = failed(request.custom_id, "server_error", "The server failed on this request.")
            self._unstored.append(batches.StoredResult(line, False, text))
        finally:
            self._lines.release(self._row.owner)

    async def _store_often(self) -> None:
        while True:
            await anyio.sleep(_FLUSH_SECONDS)
            await self._store_answers()

    async def _store_answers(self) -> None:
        taken, self._unstored = self._unstored, []
        if not taken:
            return
        known = {**self._done, **{each.line: each.good for each in taken}}
        good = sum(known.values())
        add = partial(rows.add_answers, name=self._row.id, answers=taken, good=good, all_=len(known))
        with anyio.CancelScope(shield=True):  # answers taken from the queue must not be lost
            await self._store.write(add)
        self._done.update(known)
