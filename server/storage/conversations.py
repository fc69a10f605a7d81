"""Conversations and their items.

An ``owner`` is the caller whose rows are read; a function without one takes ids that were found with it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .clock import NOW
from .table import Part, Table

if TYPE_CHECKING:
    import sqlite3

TABLE: Final = Table(
    """
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    created INTEGER NOT NULL,
    used REAL NOT NULL,
    metadata BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS conversations_by_use ON conversations (used);
CREATE INDEX IF NOT EXISTS conversations_by_owner ON conversations (owner, used);
CREATE TABLE IF NOT EXISTS conversation_items (
    conversation TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE,
    place INTEGER NOT NULL,
    id TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (conversation, place)
);
CREATE UNIQUE INDEX IF NOT EXISTS conversation_items_by_id ON conversation_items (conversation, id);
""",
    name="conversations",
    content="LENGTH({row}.metadata)",
    columns="metadata",
    parts=(Part("conversation_items", "conversation", "LENGTH({row}.data)", "data"),),
)

Item = dict[str, Any]


class StoredConversation(msgspec.Struct, frozen=True):
    id: str
    created: int
    metadata: dict[str, str]


def insert(db: "sqlite3.Connection", owner: str, row: StoredConversation, given: Sequence[Item]) -> None:
    db.execute(
        f"INSERT INTO conversations VALUES (?, ?, ?, {NOW}, ?)",
        (row.id, owner, row.created, msgspec.json.encode(row.metadata)),
    )
    append(db, row.id, given)


def find(db: "sqlite3.Connection", owner: str, conversation: str) -> StoredConversation | None:
    row = db.execute(
        "SELECT id, created, metadata FROM conversations WHERE id = ? AND owner = ?", (conversation, owner)
    ).fetchone()
    return None if row is None else StoredConversation(row[0], row[1], msgspec.json.decode(row[2]))


def update(db: "sqlite3.Connection", conversation: str, metadata: dict[str, str]) -> None:
    """The caller has checked the owner, also for the functions below."""
    db.execute(
        f"UPDATE conversations SET metadata = ?, used = {NOW} WHERE id = ?",
        (msgspec.json.encode(metadata), conversation),
    )


def delete(db: "sqlite3.Connection", owner: str, conversation: str) -> bool:
    return bool(db.execute("DELETE FROM conversations WHERE id = ? AND owner = ?", (conversation, owner)).rowcount)


def append(db: "sqlite3.Connection", conversation: str, added: Sequence[Item]) -> None:
    """Appends items; an existing item keeps its place. Does nothing for a deleted conversation."""
    if db.execute(f"UPDATE conversations SET used = {NOW} WHERE id = ?", (conversation,)).rowcount:
        place = db.execute(
            "SELECT COALESCE(MAX(place), -1) + 1 FROM conversation_items WHERE conversation = ?", (conversation,)
        ).fetchone()[0]
        db.executemany(
            "INSERT OR IGNORE INTO conversation_items VALUES (?, ?, ?, ?)",
            [(conversation, place + at, item["id"], msgspec.json.encode(item)) for at, item in enumerate(added)],
        )


def items(db: "sqlite3.Connection", conversation: str) -> list[Item]:
    """In order."""
    rows = db.execute("SELECT data FROM conversation_items WHERE conversation = ? ORDER BY place", (conversation,))
    return [msgspec.json.decode(row[0]) for row in rows]


def count(db: "sqlite3.Connection", conversation: str) -> int:
    row = db.execute("SELECT COUNT(*) FROM conversation_items WHERE conversation = ?", (conversation,)).fetchone()
    return int(row[0])


def items_bytes(db: "sqlite3.Connection", conversation: str) -> int:
    """Bytes of all items, without loading them."""
    row = db.execute(
        "SELECT COALESCE(SUM(LENGTH(data)), 0) FROM conversation_items WHERE conversation = ?", (conversation,)
    ).fetchone()
    return int(row[0])


def find_item(db: "sqlite3.Connection", conversation: str, item: str) -> Item | None:
    row = db.execute(
        "SELECT data FROM conversation_items WHERE conversation = ? AND id = ?", (conversation, item)
    ).fetchone()
    return None if row is None else msgspec.json.decode(row[0])


def delete_item(db: "sqlite3.Connection", conversation: str, item: str) -> bool:
    gone = db.execute("DELETE FROM conversation_items WHERE conversation = ? AND id = ?", (conversation, item))
    return bool(gone.rowcount)
