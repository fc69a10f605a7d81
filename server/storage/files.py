"""Files of clients. A function with an ``owner`` only uses that caller's rows.

A file's content is stored in parts of one size, so that it is written and read part by part. A file has the number 0
until it is whole: only then is it found and listed.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from .clock import NOW
from .table import Table

if TYPE_CHECKING:
    import sqlite3

PART_BYTES: Final = 256 << 10
TABLE: Final = Table(
    """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    number INTEGER NOT NULL,
    created INTEGER NOT NULL,
    used REAL NOT NULL,
    held INTEGER NOT NULL,
    size INTEGER NOT NULL,
    purpose TEXT NOT NULL,
    name TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS files_by_use ON files (held, used);
CREATE INDEX IF NOT EXISTS files_by_number ON files (number);
CREATE INDEX IF NOT EXISTS files_by_owner ON files (owner, used);
CREATE TABLE IF NOT EXISTS file_parts (
    file TEXT NOT NULL REFERENCES files ON DELETE CASCADE,
    place INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (file, place)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS file_ends (
    file TEXT PRIMARY KEY REFERENCES files ON DELETE CASCADE,
    ends REAL NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS file_ends_by_end ON file_ends (ends);
""",
    name="files",
    held="held",
    content="{row}.size + {row}.size / 32",  # its parts do not fill their pages
    columns="size",
    ended="id IN (SELECT file FROM file_ends WHERE ends <= ?)",
    # incomplete files are deleted, except those that batches read; open batches hold their input
    on_open="""
DELETE FROM files WHERE held > 0 AND id NOT IN (SELECT input FROM batches);
UPDATE files SET held = 0 WHERE held > 0;
UPDATE files SET held = (SELECT COUNT(*) FROM batches WHERE open AND input = files.id)
    WHERE id IN (SELECT input FROM batches WHERE open);
""",
)
_COLUMNS: Final = "id, created, size, purpose, name, (SELECT expires_at FROM file_ends WHERE file = files.id)"


class StoredFile(msgspec.Struct, frozen=True):
    id: str
    created: int
    size: int
    """Bytes."""
    purpose: str
    name: str
    expires_at: int | None = None


def begin(
    db: "sqlite3.Connection",
    owner: str,
    file: str,
    purpose: str,
    name: str,
    *,
    size: int = 0,
    seconds: int | None = None,
) -> None:
    """A file of ``size`` bytes, or more, whose parts are still to come; nothing shows or deletes it until
    :func:`finish`.

    Its room is made now: it is known at once whether there is enough. It expires after ``seconds``.
    """
    now = int(time.time())
    db.execute(
        f"INSERT INTO files VALUES (?, ?, 0, ?, {NOW}, 1, ?, ?, ?)",
        (file, owner, now, size, purpose, name),
    )
    if seconds is not None:
        db.execute(f"INSERT INTO file_ends VALUES (?, {NOW} + ?, ?)", (file, seconds, now + seconds))


def append(db: "sqlite3.Connection", file: str, place: int, data: bytes) -> None:
    """Part ``place``, counted from 0; all but the last have :data:`PART_BYTES`. Nothing, where its owner deleted it."""
    size = place * PART_BYTES + len(data)
    if db.execute("UPDATE files SET size = MAX(size, ?) WHERE id = ?", (size, file)).rowcount:
        db.execute("INSERT INTO file_parts VALUES (?, ?, ?)", (file, place, data))


def finish(db: "sqlite3.Connection", file: str) -> StoredFile | None:
    """The file, which is whole; None if its owner deleted it."""
    row = db.execute(
        f"UPDATE files SET held = held - 1, used = {NOW}, "
        "number = IIF(number > 0, number, (SELECT MAX(number) + 1 FROM files)) "
        f"WHERE id = ? RETURNING {_COLUMNS}",
        (file,),
    ).fetchone()
    return None if row is None else StoredFile(*row)


def hold(db: "sqlite3.Connection", file: str) -> None:
    """Only its owner deletes it until :func:`finish` has been called as often."""
    db.execute("UPDATE files SET held = held + 1 WHERE id = ?", (file,))


def find(db: "sqlite3.Connection", owner: str, file: str) -> StoredFile | None:
    row = db.execute(
        f"SELECT {_COLUMNS} FROM files WHERE id = ? AND owner = ? AND number > 0", (file, owner)
    ).fetchone()
    return None if row is None else StoredFile(*row)


def exists(db: "sqlite3.Connection", file: str) -> bool:
    return db.execute("SELECT 1 FROM files WHERE id = ?", (file,)).fetchone() is not None


def touch(db: "sqlite3.Connection", *files: str) -> None:
    """They are used now."""
    db.executemany(f"UPDATE files SET used = {NOW} WHERE id = ?", [(file,) for file in files])


def part(db: "sqlite3.Connection", file: str, place: int) -> bytes | None:
    """Check the owner first; None behind the last part."""
    row = db.execute("SELECT data FROM file_parts WHERE file = ? AND place = ?", (file, place)).fetchone()
    return None if row is None else bytes(row[0])


def listed(
    db: "sqlite3.Connection",
    owner: str,
    *,
    limit: int,
    after: str | None,
    purposes: Sequence[str] = (),
    newest_first: bool,
) -> list[StoredFile] | None:
    """Files of ``purposes``, or of any; None if ``after`` names no file."""
    order, side = ("DESC", "<") if newest_first else ("ASC", ">")
    conditions, values = ["owner = ?", "number > 0"], [owner]
    if purposes:
        conditions.append(f"purpose IN ({', '.join('?' * len(purposes))})")
        values += purposes
    if after is not None:
        row = db.execute("SELECT number FROM files WHERE id = ? AND owner = ?", (after, owner)).fetchone()
        if row is None:
            return None
        conditions.append(f"number {side} ?")
        values.append(row[0])
    where = " AND ".join(conditions)
    rows = db.execute(f"SELECT {_COLUMNS} FROM files WHERE {where} ORDER BY number {order} LIMIT ?", (*values, limit))
    return [StoredFile(*row) for row in rows]


def delete(db: "sqlite3.Connection", owner: str, file: str) -> bool:
    return bool(db.execute("DELETE FROM files WHERE id = ? AND owner = ?", (file, owner)).rowcount)
