"""Batches and the answers that they have so far.

Every function but those of the runner reads only its caller's rows.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from .clock import NOW
from .table import Part, Table

if TYPE_CHECKING:
    import sqlite3

TABLE: Final = Table(
    """
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    salt TEXT NOT NULL,
    number INTEGER NOT NULL,
    used REAL NOT NULL,
    open INTEGER NOT NULL,
    input TEXT NOT NULL,
    object BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS batches_by_use ON batches (open, used);
CREATE INDEX IF NOT EXISTS batches_by_number ON batches (number);
CREATE INDEX IF NOT EXISTS batches_by_owner ON batches (owner, used);
CREATE TABLE IF NOT EXISTS batch_answers (
    batch TEXT NOT NULL REFERENCES batches ON DELETE CASCADE,
    line INTEGER NOT NULL,
    good INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (batch, line)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batch_losses (
    batch TEXT NOT NULL REFERENCES batches ON DELETE CASCADE,
    line INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (batch, line)
) WITHOUT ROWID;
""",
    name="batches",
    held="open",
    content="LENGTH({row}.object)",
    columns="object",
    parts=(Part("batch_answers", "batch", "LENGTH({row}.data)", "data"),),
)


class StoredBatch(msgspec.Struct, frozen=True):
    id: str
    owner: str
    salt: str
    """The caller's salt of the prefix cache."""
    open: bool
    """It has not ended."""
    input: str
    """The file of its requests."""
    object: bytes
    """JSON."""


class StoredResult(msgspec.Struct, frozen=True):
    line: int
    """The request's line in the input, from 1."""
    good: bool
    data: bytes
    """A line of JSON with its end."""


def insert(db: "sqlite3.Connection", row: StoredBatch) -> None:
    db.execute(
        f"INSERT INTO batches SELECT ?, ?, ?, COALESCE(MAX(number), 0) + 1, {NOW}, 1, ?, ? FROM batches",
        (row.id, row.owner, row.salt, row.input, row.object),
    )


def find(db: "sqlite3.Connection", owner: str, batch: str) -> StoredBatch | None:
    found = load(db, batch)
    return found if found is not None and found.owner == owner else None


def load(db: "sqlite3.Connection", batch: str) -> StoredBatch | None:
    """Whoever's it is."""
    row = db.execute("SELECT id, owner, salt, open, input, object FROM batches WHERE id = ?", (batch,)).fetchone()
    return None if row is None else StoredBatch(row[0], row[1], row[2], bool(row[3]), row[4], row[5])


def update(db: "sqlite3.Connection", batch: str, object_: bytes, *, open: bool = True) -> None:
    """Answers and losses are deleted once it has ended: its files have the answers."""
    db.execute(f"UPDATE batches SET object = ?, open = ?, used = {NOW} WHERE id = ?", (object_, open, batch))
    if not open:
        db.execute("DELETE FROM batch_answers WHERE batch = ?", (batch,))
        db.execute("DELETE FROM batch_losses WHERE batch = ?", (batch,))


def add_answers(db: "sqlite3.Connection", batch: str, answers: Sequence[StoredResult]) -> None:
    """An existing answer stays."""
    db.executemany(
        "INSERT OR IGNORE INTO batch_answers SELECT id, ?, ?, ? FROM batches WHERE id = ?",
        [(answer.line, answer.good, answer.data, batch) for answer in answers],
    )


def answered(db: "sqlite3.Connection", batch: str) -> dict[int, bool]:
    """Whether the answer is good, by line."""
    rows = db.execute("SELECT line, good FROM batch_answers WHERE batch = ?", (batch,))
    return {line: bool(good) for line, good in rows}


def count_loss(db: "sqlite3.Connection", batch: str, line: int) -> None:
    """Counts that the engine was given up under an unanswered line."""
    db.execute(
        "INSERT INTO batch_losses SELECT id, ?, 1 FROM batches WHERE id = ? "
        "ON CONFLICT (batch, line) DO UPDATE SET count = count + 1",
        (line, batch),
    )


def losses(db: "sqlite3.Connection", batch: str) -> dict[int, int]:
    """Engines that were given up under each line that ran on one."""
    return dict(db.execute("SELECT line, count FROM batch_losses WHERE batch = ?", (batch,)).fetchall())


def answers(db: "sqlite3.Connection", batch: str, *, good: bool, after: int, limit: int) -> list[tuple[int, bytes]]:
    """Lines behind ``after`` and their answers, in order."""
    return db.execute(
        "SELECT line, data FROM batch_answers WHERE batch = ? AND good = ? AND line > ? ORDER BY line LIMIT ?",
        (batch, good, after, limit),
    ).fetchall()


def listed(
    db: "sqlite3.Connection", owner: str, *, limit: int, after: str | None, prefix: str, newest_first: bool = True
) -> list[bytes] | None:
    """Batches whose ids begin with ``prefix``; None if ``after`` names no batch."""
    order, side, number = ("DESC", "<", 1 << 62) if newest_first else ("ASC", ">", 0)
    if after is not None:
        row = db.execute("SELECT number FROM batches WHERE id = ? AND owner = ?", (after, owner)).fetchone()
        if row is None:
            return None
        number = row[0]
    rows = db.execute(
        f"SELECT object FROM batches WHERE owner = ? AND number {side} ? AND SUBSTR(id, 1, ?) = ? "
        f"ORDER BY number {order} LIMIT ?",
        (owner, number, len(prefix), prefix, limit),
    )
    return [row[0] for row in rows]


def delete(db: "sqlite3.Connection", batch: str) -> None:
    """The caller has checked the owner, and that the batch has ended."""
    db.execute("DELETE FROM batches WHERE id = ?", (batch,))


def unfinished(db: "sqlite3.Connection") -> list[tuple[str, str]]:
    """(id, owner) of every caller's, in order of their beginning."""
    return db.execute("SELECT id, owner FROM batches WHERE open ORDER BY number").fetchall()
