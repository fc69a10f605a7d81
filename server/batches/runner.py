"""Runs batches, each owner's in sequence, and resumes those of an earlier server.

Owners run side by side: lines of their batches take turns for the concurrent requests, so that a short batch of one
need not wait for a long one of another.

::

    validating ──► in_progress ──► finalizing ──► completed
        │               │ cancel        ▲
        ▼               ▼               │ (with the answers so far)
      failed       cancelling ──────────┴──► cancelled, expired at its time, or failed

An error fails its own batch alone, also if the owner's share of the store has no room for its answers. While the store
fails, all batches wait.
"""

import logging
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio
import msgspec
from starlette.types import ASGIApp

from stentor.engine.processes.exception_groups import first_cause
from stentor.engine.processes.logs import trace_without_messages
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.batches import Batch, BatchError, BatchErrors, RequestCounts, batch_decoder

from ..common.errors import Overloaded
from ..common.fair_queue import FairSemaphore, Shares
from ..common.keys import Caller
from ..http.error_responses import INTERNAL
from ..storage import batches, files
from ..storage.database import Database, StoreFailed, StoreFull
from . import rows
from .answering import LineAnswering
from .calls import client_for
from .input import check, part_reader

logger = logging.getLogger(__name__)

LINES: Final = 64
"""Concurrent requests of all batches; at most half of them for one owner, by the rule of
:class:`..common.fair_queue.Shares`."""
_CHECKS: Final = 2
"""Input files that are checked concurrently: the names of all lines of one are in memory meanwhile."""
_READ_AT_ONCE: Final = 32
_FIRST_PAUSE: Final = 1.0
_LAST_PAUSE: Final = 60.0
"""Between two tries where the store cannot be used."""
_MANY_SECONDS: Final = 60

_KEY_GONE: Final = BatchError("invalid_api_key", "The key of this batch is not valid any more.")
_INPUT_GONE: Final = BatchError("input_file_deleted", "The input file was deleted before all requests were made.")
_FAILED: Final = BatchError("server_error", INTERNAL)


class BatchRunner:
    """Owns the batches that have not ended."""

    def __init__(self, store: Database, most: int, caller: Callable[[str], Caller | None], limits: Limits) -> None:
        """At most ``most`` batches of all callers may be open; ``caller`` finds one by its name in the store."""
        self._store = store
        self._most = most
        self._caller = caller
        self._limits = limits
        self._places = Shares(most)
        self._open: set[str] = set()
        """Names of the batches that have a place."""
        self._waiting: dict[str, deque[str]] = {}
        """Batches that have not been begun, by owner, in their order."""
        self._served: set[str] = set()
        """Owners with a running batch."""
        self._wanted = anyio.Event()
        self._scopes: dict[str, anyio.CancelScope] = {}
        """Scopes of running batches."""
        self._cancelled: set[str] = set()
        # one waits per owner, and owners are keys
        self._lines = FairSemaphore(LINES, sys.maxsize)
        self._checks = FairSemaphore(_CHECKS, sys.maxsize)
        self.suspects: Final = anyio.Lock()
        """The turn of lines, of all batches, and background responses under which engines were given up."""

    async def run(self, app: ASGIApp) -> None:
        """Runs until cancelled; the next server on the same store resumes running batches.

        ``app`` answers requests of authenticated callers.
        """
        if self._store.durable:
            await self._insist(self._take_up)
        async with anyio.create_task_group() as tasks:
            while True:
                for owner in self._waiting.keys() - self._served:
                    self._served.add(owner)
                    tasks.start_soon(self._serve, app, owner)
                self._wanted = anyio.Event()
                await self._wanted.wait()

    async def _serve(self, app: ASGIApp, owner: str) -> None:
        """One batch of the owner after the other, until none waits."""
        waiting = self._waiting[owner]
        while waiting:
            name = waiting.popleft()
            try:
                await self._insist(partial(self._see_to, app, name))
            finally:
                self._forget(owner, name)
        del self._waiting[owner]
        self._served.discard(owner)

    async def add(self, row: batches.StoredBatch) -> None:
        """Raises Overloaded if the limit of open batches, or the owner's share of it, is reached; and StoreFailed."""
        places, owner = self._places, row.owner
        if not places.fits(owner, alone=not row.salt):
            if places.total < places.most:
                why = f"{places.held(owner)} batches of this key are open, its share"
            else:
                why = f"{places.total} batches are open, as many as this server keeps"
            raise Overloaded(f"{why}; try again later.", "batches_full", _MANY_SECONDS)
        self._enter(owner, row.id)
        try:
            await self._store.write(partial(rows.insert, row=row), admitted=owner if row.salt else "")
        except BaseException:
            if row.id in self._waiting.get(owner, ()):  # otherwise it was looked up already, and did not exist
                self._waiting[owner].remove(row.id)
                self._forget(owner, row.id)
            raise
        self._wanted.set()

    async def cancel(self, owner: str, batch: str) -> Batch | None:
        """The batch after cancelling; None if there is none. One that has ended does not change."""
        found = await self._store.write(partial(rows.cancel, owner=owner, name=batch))
        if found is not None and found.status == "cancelling" and batch in self._open:
            self._cancelled.add(batch)
            if batch in self._scopes:
                self._scopes[batch].cancel()
        return found

    def _enter(self, owner: str, name: str, *, first: bool = False) -> None:
        self._places.take(owner)
        self._open.add(name)
        waiting = self._waiting.setdefault(owner, deque())
        if first:
            waiting.appendleft(name)
        else:
            waiting.append(name)

    def _forget(self, owner: str, name: str) -> None:
        self._places.give_back(owner)
        self._open.discard(name)
        self._cancelled.discard(name)

    # ---- whatever happens

    async def _insist(self, work: Callable[[], Awaitable[None]]) -> None:
        """Again, after longer and longer, where the store fails."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await work()
                return
            except Exception as error:
                if not isinstance(first_cause(error), StoreFailed):  # which has been logged
                    raise
            await anyio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def _take_up(self) -> None:
        for name, owner in reversed(await self._store.read(batches.unfinished)):
            if name not in self._open:  # otherwise it was added meanwhile
                self._enter(owner, name, first=True)

    async def _see_to(self, app: ASGIApp, name: str) -> None:
        """Raises StoreFailed, also in a group of errors."""
        try:
            await self._work(app, name)
        except Exception as error:
            cause = first_cause(error)
            why = _FAILED
            if isinstance(cause, StoreFull):
                why = BatchError("store_full", str(cause))
            elif isinstance(cause, StoreFailed):
                raise
            else:
                assert isinstance(cause, Exception)
                logger.error("a batch failed", extra={"trace": trace_without_messages(cause)})
            await self._fail(name, why)

    async def _fail(self, name: str, why: BatchError) -> None:
        """End a batch that may be damaged, so that no server meets it again."""
        fields = {"status": "failed", "failed_at": _now(), "errors": BatchErrors([why])}
        row = await self._store.read(partial(batches.load, batch=name))
        if row is None or not row.open:
            return
        try:
            await self._store.write(partial(rows.end, row=row, fields=fields, written=()))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            logger.warning("a batch cannot be read any more and was deleted: %s", type(error).__name__)
            await self._store.write(partial(rows.drop, row=row))

    # ---- one batch

    async def _work(self, app: ASGIApp, name: str) -> None:
        row = await self._store.read(partial(batches.load, batch=name))
        if row is None or not row.open:
            return
        batch = batch_decoder.decode(row.object)
        caller = self._caller(row.owner)
        read = part_reader(self._store, row.input)
        expired = False
        if caller is not None and batch.status == "validating" and name not in self._cancelled:
            async with self._checks.slot(row.owner):
                checked = await check(read, batch.endpoint, self._limits)
            if checked.errors:
                await self._end(row, [], status="failed", errors=BatchErrors(checked.errors), failed_at=_now())
                return
            counts = RequestCounts(total=checked.total)
            begun = {"in_progress_at": _now(), "request_counts": counts, "model": checked.model}
            batch = await self._store.write(partial(rows.begin, name=name, fields=begun))
        done = await self._store.read(partial(batches.answered, batch=name))
        if caller is not None and batch.status == "in_progress" and name not in self._cancelled:
            scope = anyio.CancelScope(deadline=anyio.current_time() + batch.expires_at - time.time())
            self._scopes[name] = scope
            try:
                with scope:
                    losses = await self._store.read(partial(batches.losses, batch=row.id))
                    answering = LineAnswering(
                        self._store, row, done=done, losses=losses, lines=self._lines, suspects=self.suspects
                    )
                    async with client_for(app, caller) as client:
                        await answering.run(client, read)
            finally:
                del self._scopes[name]
            expired = scope.cancelled_caught
        await self._finalize(row, batch, done, _INPUT_GONE if caller is not None else _KEY_GONE, expired)

    async def _finalize(
        self, row: batches.StoredBatch, batch: Batch, done: dict[int, bool], otherwise: BatchError, expired: bool
    ) -> None:
        """``otherwise`` is the reason why requests were not made, unless it was cancelled or expired."""
        cancelled = batch.status == "cancelling" or row.id in self._cancelled
        whole = len(done) == batch.request_counts.total and batch.in_progress_at is not None
        if not cancelled:
            fields = {"status": "finalizing", "finalizing_at": _now()}
            batch = await self._store.write(partial(rows.change, name=row.id, fields=fields))
        output = await self._write_file(row, good=True) if any(done.values()) else None
        errors = await self._write_file(row, good=False) if not all(done.values()) else None
        names = [name for name in (output, errors) if name is not None]
        ended: dict[str, object] = {"output_file_id": output, "error_file_id": errors}
        if whole:
            status = "completed"
        elif cancelled:
            status = "cancelled"
        elif expired or time.time() >= batch.expires_at:
            status = "expired"
        else:
            status = "failed"
            ended["errors"] = BatchErrors([otherwise])
        await self._end(row, names, status=status, **{f"{status}_at": _now()}, **ended)

    async def _write_file(self, row: batches.StoredBatch, *, good: bool) -> str:
        """The answers of one kind, in the order of their requests."""
        name = await self._store.write(partial(rows.begin_file, row=row, good=good))
        after, place, waiting = 0, 0, bytearray()
        while some := await self._store.read(
            partial(batches.answers, batch=row.id, good=good, after=after, limit=_READ_AT_ONCE)
        ):
            after = some[-1][0]
            waiting += b"".join(data for _, data in some)
            while len(waiting) >= files.PART_BYTES:
                await self._store.write(
                    partial(files.append, file=name, place=place, data=bytes(waiting[: files.PART_BYTES]))
                )
                del waiting[: files.PART_BYTES]
                place += 1
        if waiting:
            await self._store.write(partial(files.append, file=name, place=place, data=bytes(waiting)))
        return name

    async def _end(self, row: batches.StoredBatch, written: list[str], **fields: object) -> None:
        await self._store.write(partial(rows.end, row=row, fields=fields, written=written))


def _now() -> int:
    return int(time.time())
