"""Files uploaded in parts, until they are complete.

``owner`` is the caller whose rows are used; a function without it takes ids that were found with it.
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
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    used REAL NOT NULL,
    ends REAL NOT NULL,
    created INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    size INTEGER NOT NULL,
    purpose TEXT NOT NULL,
    name TEXT NOT NULL,
    seconds INTEGER,
    file TEXT
);
CREATE INDEX IF NOT EXISTS uploads_by_use ON uploads (used);
CREATE INDEX IF NOT EXISTS uploads_by_end ON uploads (ends);
CREATE INDEX IF NOT EXISTS uploads_by_owner ON uploads (owner, used);
CREATE TABLE IF NOT EXISTS upload_parts (
    id TEXT PRIMARY KEY,
    upload TEXT NOT NULL REFERENCES uploads ON DELETE CASCADE,
    whole INTEGER NOT NULL,
    size INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS upload_parts_by_upload ON upload_parts (upload);
CREATE TABLE IF NOT EXISTS upload_data (
    part TEXT NOT NULL REFERENCES upload_parts ON DELETE CASCADE,
    place INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (part, place)
) WITHOUT ROWID;
""",
    name="uploads",
    content="LENGTH({row}.name)",
    columns="name",
    # their data does not fill its pages, as that of files
    parts=(Part("upload_parts", "upload", "{row}.size + {row}.size / 32", "size"),),
    on_open="DELETE FROM upload_parts WHERE NOT whole;",
    ended="ends <= ?",
)
_COLUMNS: Final = "id, created, expires_at, size, purpose, name, seconds, file"


class StoredUpload(msgspec.Struct, frozen=True):
    id: str
    created: int
    expires_at: int
    """Expiry by the wall clock, for clients; the store uses its own clock."""
    size: int
    """Bytes that the file is to have."""
    purpose: str
    name: str
    seconds: int | None
    """Lifetime of the file; None: unlimited."""
    file: str | None
    """Once it is whole."""


class StoredPart(msgspec.Struct, frozen=True):
    id: str
    size: int


def insert(db: "sqlite3.Connection", owner: str, upload: StoredUpload) -> None:
    db.execute(
        f"INSERT INTO uploads VALUES (?, ?, {NOW}, {NOW} + ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(upload.id, owner, upload.expires_at - upload.created, upload.created, upload.expires_at),
            *(upload.size, upload.purpose, upload.name, upload.seconds, upload.file),
        ),
    )


def find(db: "sqlite3.Connection", owner: str, upload: str) -> StoredUpload | None:
    """None also after its expiry."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM uploads WHERE id = ? AND owner = ? AND ends > {NOW}", (upload, owner)
    ).fetchone()
    return None if row is None else StoredUpload(*row)


def extent(db: "sqlite3.Connection", upload: str) -> tuple[int, int]:
    """How many parts it has, with those that are coming in, and their bytes."""
    row = db.execute("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM upload_parts WHERE upload = ?", (upload,)).fetchone()
    return row[0], row[1]


def begin_part(db: "sqlite3.Connection", upload: str, part: StoredPart) -> None:
    """Reserves room for a part whose data follows."""
    db.execute("INSERT INTO upload_parts VALUES (?, ?, 0, ?)", (part.id, upload, part.size))
    db.execute(f"UPDATE uploads SET used = {NOW} WHERE id = ?", (upload,))


def append(db: "sqlite3.Connection", part: str, place: int, data: bytes) -> None:
    """Nothing, where the part is gone."""
    db.execute("INSERT INTO upload_data SELECT id, ?, ? FROM upload_parts WHERE id = ?", (place, data, part))


def finish_part(db: "sqlite3.Connection", part: str) -> bool:
    """False where it is gone."""
    return bool(db.execute("UPDATE upload_parts SET whole = 1 WHERE id = ?", (part,)).rowcount)


def drop_part(db: "sqlite3.Connection", part: str) -> None:
    db.execute("DELETE FROM upload_parts WHERE id = ?", (part,))


def parts(db: "sqlite3.Connection", upload: str, wanted: Sequence[str]) -> list[StoredPart]:
    """The ``wanted`` ones that are complete parts of it, in that order."""
    found = dict(db.execute("SELECT id, size FROM upload_parts WHERE upload = ? AND whole", (upload,)))
    return [StoredPart(part, found[part]) for part in wanted if part in found]


def data(db: "sqlite3.Connection", part: str, place: int) -> bytes | None:
    """None behind the last block."""
    row = db.execute("SELECT data FROM upload_data WHERE part = ? AND place = ?", (part, place)).fetchone()
    return None if row is None else bytes(row[0])


def complete(db: "sqlite3.Connection", upload: str, file: str) -> None:
    """Deletes its parts, which the file has; the row stays, for a client that missed the answer."""
    db.execute(f"UPDATE uploads SET file = ?, used = {NOW} WHERE id = ?", (file, upload))
    db.execute("DELETE FROM upload_parts WHERE upload = ?", (upload,))


def delete(db: "sqlite3.Connection", upload: str) -> None:
    db.execute("DELETE FROM uploads WHERE id = ?", (upload,))
