"""Stored chat completions, and the messages that they answer.

``owner`` is the caller whose rows are used; a function without it takes numbers that were found with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from .clock import NOW
from .table import Part, Table

if TYPE_CHECKING:
    import sqlite3

TABLE: Final = Table(
    """
CREATE TABLE IF NOT EXISTS chats (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    number INTEGER NOT NULL,
    used REAL NOT NULL,
    model TEXT NOT NULL,
    metadata TEXT NOT NULL,
    object BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS chats_by_use ON chats (used);
CREATE UNIQUE INDEX IF NOT EXISTS chats_by_number ON chats (number);
CREATE INDEX IF NOT EXISTS chats_by_owner ON chats (owner, number);
CREATE TABLE IF NOT EXISTS chat_messages (
    chat TEXT NOT NULL REFERENCES chats ON DELETE CASCADE,
    place INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (chat, place)
);
""",
    name="chats",
    content="LENGTH({row}.object) + LENGTH(CAST({row}.metadata AS BLOB))",
    columns="object, metadata",
    parts=(Part("chat_messages", "chat", "LENGTH({row}.data)", "data"),),
)


class StoredChat(msgspec.Struct, frozen=True):
    id: str
    model: str
    metadata: Mapping[str, str]
    object: bytes
    """JSON, without ``metadata``."""


class Page(msgspec.Struct, frozen=True):
    """The rows of a page, of which nothing has been loaded yet."""

    numbers: list[int]
    bytes: int
    """Bytes of its content."""
    more: bool


def insert(db: "sqlite3.Connection", owner: str, row: StoredChat, messages: Sequence[bytes]) -> None:
    """``messages``: JSON of each that it answers."""
    db.execute(
        f"INSERT INTO chats SELECT ?, ?, COALESCE(MAX(number), 0) + 1, {NOW}, ?, ?, ? FROM chats",
        (row.id, owner, row.model, msgspec.json.encode(row.metadata).decode(), row.object),
    )
    db.executemany(
        "INSERT INTO chat_messages VALUES (?, ?, ?)",
        [(row.id, place, message) for place, message in enumerate(messages)],
    )


def find(db: "sqlite3.Connection", owner: str, chat: str) -> Page | None:
    """Its row."""
    row = db.execute("SELECT number, LENGTH(object) FROM chats WHERE id = ? AND owner = ?", (chat, owner)).fetchone()
    return None if row is None else Page([row[0]], row[1], False)


def load(db: "sqlite3.Connection", numbers: Iterable[int]) -> list[StoredChat]:
    """In their order, those that are still there."""
    found = []
    for number in numbers:
        row = db.execute("SELECT id, model, metadata, object FROM chats WHERE number = ?", (number,)).fetchone()
        if row is not None:
            found.append(StoredChat(row[0], row[1], msgspec.json.decode(row[2]), row[3]))
    return found


def listed(
    db: "sqlite3.Connection",
    owner: str,
    *,
    limit: int,
    most_bytes: int,
    after: str | None,
    newest_first: bool,
    model: str | None,
    metadata: Mapping[str, str],
) -> Page | None:
    """A page of at most ``limit`` rows, and of ``most_bytes`` if it has more than one. None if ``after`` names none."""
    order, side = ("DESC", "<") if newest_first else ("ASC", ">")
    conditions, values = ["owner = ?"], [owner]
    if model is not None:
        conditions.append("model = ?")
        values.append(model)
    for key, value in metadata.items():
        conditions.append("EXISTS (SELECT 1 FROM json_each(metadata) AS pair WHERE pair.key = ? AND pair.value = ?)")
        values += [key, value]
    if after is not None:
        row = db.execute("SELECT number FROM chats WHERE id = ? AND owner = ?", (after, owner)).fetchone()
        if row is None:
            return None
        conditions.append(f"number {side} ?")
        values.append(row[0])
    rows = db.execute(
        f"SELECT number, LENGTH(object) FROM chats WHERE {' AND '.join(conditions)} ORDER BY number {order} LIMIT ?",
        (*values, limit + 1),
    )
    return _page(rows, limit, most_bytes)


def messages(
    db: "sqlite3.Connection", chat: str, *, limit: int, most_bytes: int, after: int | None, newest_first: bool
) -> Page | None:
    """A page of the messages' places, as :func:`listed`; the caller has checked the owner."""
    order, side = ("DESC", "<") if newest_first else ("ASC", ">")
    values = [chat]
    beyond = ""
    if after is not None:
        if not db.execute("SELECT 1 FROM chat_messages WHERE chat = ? AND place = ?", (chat, after)).fetchone():
            return None
        beyond = f"AND place {side} {after}"
    rows = db.execute(
        f"SELECT place, LENGTH(data) FROM chat_messages WHERE chat = ? {beyond} ORDER BY place {order} LIMIT ?",
        (*values, limit + 1),
    )
    return _page(rows, limit, most_bytes)


def load_messages(db: "sqlite3.Connection", chat: str, places: Iterable[int]) -> list[bytes]:
    """In their order; none where the chat has been deleted meanwhile."""
    rows = (
        db.execute("SELECT data FROM chat_messages WHERE chat = ? AND place = ?", (chat, place)).fetchone()
        for place in places
    )
    return [row[0] for row in rows if row is not None]


def update(db: "sqlite3.Connection", owner: str, chat: str, metadata: Mapping[str, str]) -> bool:
    """False where it is not there."""
    changed = db.execute(
        f"UPDATE chats SET metadata = ?, used = {NOW} WHERE id = ? AND owner = ?",
        (msgspec.json.encode(metadata).decode(), chat, owner),
    )
    return bool(changed.rowcount)


def delete(db: "sqlite3.Connection", owner: str, chat: str) -> bool:
    return bool(db.execute("DELETE FROM chats WHERE id = ? AND owner = ?", (chat, owner)).rowcount)


def _page(rows: Iterable[tuple[int, int]], limit: int, most_bytes: int) -> Page:
    numbers: list[int] = []
    size = 0
    for number, each in rows:
        if len(numbers) == limit or (numbers and size + each > most_bytes):
            return Page(numbers, size, True)
        numbers.append(number)
        size += each
    return Page(numbers, size, False)
