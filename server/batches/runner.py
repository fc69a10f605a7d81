"""Works off batches, one after another, a few requests at a time; goes on with those that an earlier server left.

::

    validating ──► in_progress ──► finalizing ──► completed
        │               │ cancel        ▲
        ▼               ▼               │ (with the answers there are)
      failed       cancelling ──────────┴──► cancelled, or expired at its time
"""

import logging
import time
import uuid
from collections import deque
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
from starlette.types import ASGIApp

from stentor.protocols.openai.batches import Batch, BatchErrors, RequestCounts, batch_decoder

from ..door.keys import Caller
from ..errors import Overloaded
from ..store import batches, files
from ..store.database import Database, StoreFailed
from .calls import answer, client_for
from .input import ReadPart, check, part_reader, requests
from .lines import BatchRequest, answered, failed

if TYPE_CHECKING:
    import sqlite3

logger = logging.getLogger(__name__)

CONCURRENCY: Final = 32
"""Requests of a batch that are made at a time."""
_READ_AT_ONCE: Final = 256
_FLUSH_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 5.0
_MANY_SECONDS: Final = 60

_encode: Final = msgspec.json.Encoder().encode


class BatchRunner:
    """Owns the batches that have not ended."""

    def __init__(self, store: Database, most: int) -> None:
        """``most`` batches may be open at a time, of all callers."""
        self._store = store
        self._most = most
        self._queue: deque[str] = deque()
        self._wanted = anyio.Event()
        self._now: str | None = None
        self._cancel: anyio.CancelScope | None = None
        self._cancelled: set[str] = set()

    async def run(self, app: ASGIApp) -> None:
        """Until it is cancelled; what runs then is taken up by the next server on the same store.

        ``app`` answers requests behind the guard at the door.
        """
        if self._store.durable:
            for batch in await self._store.write(_take_up):
                self._queue.append(batch)
        while True:
            while self._queue:
                self._now = self._queue[0]
                try:
                    await self._work(app, self._now)
                except StoreFailed:  # which has been logged
                    await anyio.sleep(_RETRY_SECONDS)
                    continue
                finally:
                    self._now = None
                self._cancelled.discard(self._queue.popleft())
            self._wanted = anyio.Event()
            await self._wanted.wait()

    async def add(self, row: batches.Stored) -> None:
        """Raises Overloaded where as many are open as may be, and StoreFailed."""
        if len(self._queue) >= self._most:
            raise Overloaded(
                f"{len(self._queue)} batches are open, as many as this server keeps; try again later.",
                "batches_full",
                _MANY_SECONDS,
            )
        self._queue.append(row.id)
        try:
            await self._store.write(partial(_insert, row=row))
        except BaseException:
            self._queue.remove(row.id)
            raise
        self._wanted.set()

    async def cancel(self, owner: str, batch: str) -> Batch | None:
        """As it is then; None where there is none. One that has ended stays as it is."""
        row = await self._store.read(partial(batches.find, owner=owner, batch=batch))
        if row is None:
            return None
        found = batch_decoder.decode(row.object)
        if not row.open or found.status in ("cancelling", "finalizing"):
            return found
        self._cancelled.add(batch)
        found = await self._change(batch, status="cancelling", cancelling_at=_now())
        if self._now == batch and self._cancel is not None:
            self._cancel.cancel()
        return found

    # ---- one batch

    async def _work(self, app: ASGIApp, name: str) -> None:
        row = await self._store.read(partial(batches.load, batch=name))
        if row is None or not row.open:
            return
        batch = batch_decoder.decode(row.object)
        read = part_reader(self._store, row.input)
        if batch.status == "validating" and name not in self._cancelled:
            checked = await check(read, batch.endpoint)
            if checked.errors:
                await self._end(row, status="failed", errors=BatchErrors(checked.errors), failed_at=_now())
                return
            counts = RequestCounts(total=checked.total)
            begun = {"in_progress_at": _now(), "request_counts": counts, "model": checked.model}
            if name not in self._cancelled:
                batch = await self._change(name, status="in_progress", **begun)
        done = await self._store.read(partial(batches.answered, batch=name))
        if batch.status == "in_progress" and name not in self._cancelled:
            with anyio.CancelScope(deadline=anyio.current_time() + batch.expires_at - time.time()) as self._cancel:
                await self._answer_all(app, row, read, done)
        await self._finalize(row, batch, done)

    async def _answer_all(self, app: ASGIApp, row: batches.Stored, read: ReadPart, done: dict[int, bool]) -> None:
        """Adds to ``done`` what is answered, as it is stored."""
        waiting: list[batches.Answer] = []
        slots = anyio.Semaphore(CONCURRENCY)

        async def flush() -> None:
            taken = waiting.copy()
            waiting.clear()
            if taken:
                done.update((each.line, each.good) for each in taken)
                await self._store.write(partial(batches.add_answers, batch=row.id, answers=taken))
                await self._note_counts(row.id, done)

        async def flush_often() -> None:
            while True:
                await anyio.sleep(_FLUSH_SECONDS)
                await flush()

        async with client_for(app, Caller(salt=row.salt, owner=row.owner)) as client:

            async def make(line: int, request: BatchRequest) -> None:
                try:
                    given = await answer(client, request)
                    good = given.status < 400
                    waiting.append(batches.Answer(line, good, answered(request, given)))
                except Exception:
                    logger.exception("a request of a batch failed")
                    text = failed(request.custom_id, "server_error", "The server failed on this request.")
                    waiting.append(batches.Answer(line, False, text))
                finally:
                    slots.release()

            try:
                async with anyio.create_task_group() as tasks, aclosing(requests(read, dict(done))) as left:
                    tasks.start_soon(flush_often)
                    async with anyio.create_task_group() as calls:
                        async for line, request in left:
                            await slots.acquire()
                            calls.start_soon(make, line, request)
                    tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await flush()

    async def _finalize(self, row: batches.Stored, batch: Batch, done: dict[int, bool]) -> None:
        cancelled = batch.status == "cancelling" or row.id in self._cancelled
        whole = len(done) == batch.request_counts.total and batch.in_progress_at is not None
        if not cancelled:
            batch = await self._change(row.id, status="finalizing", finalizing_at=_now())
        output = await self._write_file(row, good=True) if any(done.values()) else None
        errors = await self._write_file(row, good=False) if not all(done.values()) else None
        written = {"output_file_id": output, "error_file_id": errors}
        if whole:
            await self._end(row, status="completed", completed_at=_now(), **written)
        elif cancelled:
            await self._end(row, status="cancelled", cancelled_at=_now(), **written)
        else:
            await self._end(row, status="expired", expired_at=_now(), **written)

    async def _write_file(self, row: batches.Stored, *, good: bool) -> str:
        """The answers of one kind, in the order of their requests."""
        name = f"file-{uuid.uuid4().hex}"
        title = f"{row.id}_{'output' if good else 'error'}.jsonl"
        await self._store.write(partial(files.begin, owner=row.owner, file=name, purpose="batch_output", name=title))
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
        await self._store.write(partial(files.finish, file=name))
        return name

    async def _note_counts(self, name: str, done: dict[int, bool]) -> None:
        good = sum(done.values())

        def work(db: "sqlite3.Connection") -> None:
            batch = _decode(db, name)
            counts = RequestCounts(batch.request_counts.total, good, len(done) - good)
            _replace(db, name, {"request_counts": counts})

        await self._store.write(work)

    async def _change(self, name: str, **fields: object) -> Batch:
        return await self._store.write(partial(_replace, name=name, fields=fields))

    async def _end(self, row: batches.Stored, **fields: object) -> None:
        def work(db: "sqlite3.Connection") -> None:
            _replace(db, row.id, fields, open=False)
            files.finish(db, row.input)

        await self._store.write(work)


def _decode(db: "sqlite3.Connection", name: str) -> Batch:
    row = batches.load(db, name)
    assert row is not None, "an open batch is not deleted"
    return batch_decoder.decode(row.object)


def _replace(db: "sqlite3.Connection", name: str, fields: dict[str, object], *, open: bool = True) -> Batch:
    """In one transaction: who cancels and who counts change the same object."""
    batch: Batch = msgspec.structs.replace(_decode(db, name), **fields)
    batches.update(db, name, _encode(batch), open=open)
    return batch


def _insert(db: "sqlite3.Connection", row: batches.Stored) -> None:
    batches.insert(db, row)
    files.hold(db, row.input)


def _take_up(db: "sqlite3.Connection") -> list[str]:
    files.release_all(db)
    names = batches.unfinished(db)
    for name in names:
        row = batches.load(db, name)
        assert row is not None
        files.hold(db, row.input)
    return names


def _now() -> int:
    return int(time.time())
