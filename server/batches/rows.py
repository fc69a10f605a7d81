"""The batch runner's operations on the store: each function is one transaction."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from stentor.protocols.common.encoding import encode
from stentor.protocols.openai.batches import Batch, RequestCounts, batch_decoder

from ..storage import batches, files

if TYPE_CHECKING:
    import sqlite3


def insert(db: "sqlite3.Connection", row: batches.StoredBatch) -> None:
    batches.insert(db, row)
    files.hold(db, row.input)


def change(db: "sqlite3.Connection", name: str, fields: Mapping[str, object], *, open: bool = True) -> Batch:
    """In one transaction, because cancelling and counting change the same object."""
    batch: Batch = msgspec.structs.replace(batch_decoder.decode(_row(db, name).object), **fields)
    batches.update(db, name, encode(batch), open=open)
    return batch


def begin(db: "sqlite3.Connection", name: str, fields: Mapping[str, object]) -> Batch:
    """Marks its requests as started; a cancelled one stays cancelled."""
    found = batch_decoder.decode(_row(db, name).object)
    return change(db, name, {"status": "in_progress", **fields}) if found.status == "validating" else found


def cancel(db: "sqlite3.Connection", owner: str, name: str) -> Batch | None:
    """The batch after cancelling; None if there is none. One that has ended, or is about to, does not change."""
    row = batches.find(db, owner, name)
    if row is None:
        return None
    found = batch_decoder.decode(row.object)
    if not row.open or found.status in ("cancelling", "finalizing"):
        return found
    return change(db, name, {"status": "cancelling", "cancelling_at": int(time.time())})


def add_answers(
    db: "sqlite3.Connection", name: str, answers: Sequence[batches.StoredResult], good: int, all_: int
) -> None:
    """Adds answers, ``good`` of ``all_`` of them successful."""
    batches.add_answers(db, name, answers)
    total = batch_decoder.decode(_row(db, name).object).request_counts.total
    change(db, name, {"request_counts": RequestCounts(total, good, all_ - good)})


def begin_file(db: "sqlite3.Connection", row: batches.StoredBatch, *, good: bool) -> str:
    """An empty file for answers of one kind, in place of one that was begun before; nothing deletes it until
    :func:`end`."""
    kind = "output" if good else "error"
    name = f"file-{hashlib.blake2b(f'{row.id}:{kind}'.encode(), digest_size=16).hexdigest()}"
    files.delete(db, row.owner, name)
    files.begin(db, row.owner, name, "batch_output", f"{row.id}_{kind}.jsonl")
    return name


def end(
    db: "sqlite3.Connection", row: batches.StoredBatch, fields: Mapping[str, object], written: Sequence[str]
) -> None:
    """With the files that have been written for it."""
    change(db, row.id, fields, open=False)
    for name in (row.input, *written):
        files.finish(db, name)


def drop(db: "sqlite3.Connection", row: batches.StoredBatch) -> None:
    """Deletes an open batch that cannot be read."""
    batches.delete(db, row.id)
    files.finish(db, row.input)


def _row(db: "sqlite3.Connection", name: str) -> batches.StoredBatch:
    row = batches.load(db, name)
    assert row is not None, "an open batch is not deleted"
    return row
