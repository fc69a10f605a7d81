"""Responses, their items and their events.

An ``owner`` is the caller whose rows are read; a function without one takes ids that were found with it.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .clock import NOW
from .table import Part, Table

if TYPE_CHECKING:
    import sqlite3

TABLE: Final = Table(
    """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    used REAL NOT NULL,
    open INTEGER NOT NULL,
    background INTEGER NOT NULL,
    events INTEGER NOT NULL,
    previous TEXT,
    object BLOB NOT NULL,
    request BLOB
);
CREATE INDEX IF NOT EXISTS responses_by_use ON responses (open, used);
CREATE INDEX IF NOT EXISTS responses_by_owner ON responses (owner, used);
CREATE TABLE IF NOT EXISTS response_items (
    response TEXT NOT NULL REFERENCES responses ON DELETE CASCADE,
    place INTEGER NOT NULL,
    output INTEGER NOT NULL,
    id TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (response, output, place)
);
CREATE INDEX IF NOT EXISTS response_items_by_id ON response_items (id);
CREATE TABLE IF NOT EXISTS response_events (
    response TEXT NOT NULL REFERENCES responses ON DELETE CASCADE,
    first INTEGER NOT NULL,
    events BLOB NOT NULL,
    steps BLOB NOT NULL,
    PRIMARY KEY (response, first)
);
CREATE TABLE IF NOT EXISTS response_losses (
    response TEXT PRIMARY KEY REFERENCES responses ON DELETE CASCADE,
    count INTEGER NOT NULL,
    reached INTEGER NOT NULL
) WITHOUT ROWID;
""",
    name="responses",
    held="open",
    content="LENGTH({row}.object) + COALESCE(LENGTH({row}.request), 0)",
    columns="object, request",
    parts=(
        Part("response_items", "response", "LENGTH({row}.data)", "data"),
        Part("response_events", "response", "LENGTH({row}.events) + LENGTH({row}.steps)", "events, steps"),
    ),
    # these ended with their server, without readers
    on_open="DELETE FROM responses WHERE open AND NOT background;",
)

Item = dict[str, Any]


class StoredResponse(msgspec.Struct, frozen=True):
    """One row."""

    id: str
    owner: str
    open: bool
    """Not ended: it runs, or ran when its server ended."""
    background: bool
    events: bool
    """Whether its events are stored."""
    previous: str | None
    object: bytes
    """JSON, without ``output``."""
    request: bytes | None = None
    """State for resuming it."""


def insert(db: "sqlite3.Connection", row: StoredResponse, given: Sequence[Item]) -> None:
    """With its input items."""
    db.execute(
        f"INSERT INTO responses VALUES (?, ?, {NOW}, ?, ?, ?, ?, ?, ?)",
        (row.id, row.owner, row.open, row.background, row.events, row.previous, row.object, row.request),
    )
    _insert_items(db, row.id, False, given)


def finish(db: "sqlite3.Connection", response: str, object_: bytes, output: Sequence[Item]) -> bool:
    """False where it has been deleted meanwhile."""
    changed = db.execute(
        f"UPDATE responses SET open = 0, object = ?, request = NULL, used = {NOW} WHERE id = ?", (object_, response)
    )
    if not changed.rowcount:
        return False
    _insert_items(db, response, True, output)
    return True


def _insert_items(db: "sqlite3.Connection", response: str, output: bool, items: Iterable[Item]) -> None:
    rows = [(response, place, output, item["id"], msgspec.json.encode(item)) for place, item in enumerate(items)]
    db.executemany("INSERT INTO response_items VALUES (?, ?, ?, ?, ?)", rows)


def find(db: "sqlite3.Connection", owner: str, response: str) -> StoredResponse | None:
    found = db.execute(
        "SELECT id, owner, open, background, events, previous, object, request FROM responses "
        "WHERE id = ? AND owner = ?",
        (response, owner),
    ).fetchone()
    return (
        None
        if found is None
        else StoredResponse(
            found[0], found[1], bool(found[2]), bool(found[3]), bool(found[4]), found[5], found[6], found[7]
        )
    )


def items(db: "sqlite3.Connection", response: str, *, output: bool) -> list[Item]:
    """In order; the caller has checked the owner."""
    rows = db.execute(
        "SELECT data FROM response_items WHERE response = ? AND output = ? ORDER BY place", (response, output)
    )
    return [msgspec.json.decode(row[0]) for row in rows]


def chain(db: "sqlite3.Connection", owner: str, response: str, most: int) -> list[Item] | None:
    """Input and output of a response and of all those before it, oldest first, which count as used now.

    None where one of them is not there, or would be more than ``most`` items.
    """
    names: list[str] = []
    found: list[Item] = []
    following: str | None = response
    while following is not None:
        row = find(db, owner, following)
        if row is None or row.open:
            return None
        names.append(row.id)
        found[:0] = items(db, row.id, output=False) + items(db, row.id, output=True)
        if len(found) > most:
            return None
        following = row.previous
    db.executemany(f"UPDATE responses SET used = {NOW} WHERE id = ?", [(name,) for name in names])
    return found


def chain_bytes(db: "sqlite3.Connection", owner: str, response: str, most: int) -> int | None:
    """Bytes of all that :func:`chain` would load, without loading it; None if it returns None."""
    size = count = 0
    following: str | None = response
    while following is not None:
        row = db.execute(
            "SELECT previous, open, (SELECT COUNT(*) FROM response_items WHERE response = responses.id), "
            "(SELECT COALESCE(SUM(LENGTH(data)), 0) FROM response_items WHERE response = responses.id) "
            "FROM responses WHERE id = ? AND owner = ?",
            (following, owner),
        ).fetchone()
        if row is None or row[1]:
            return None
        following, count, size = row[0], count + row[2], size + row[3]
        if count > most:
            return None
    return int(size)


def items_bytes(db: "sqlite3.Connection", response: str) -> int:
    """Bytes of its input items; check the response's owner first."""
    row = db.execute(
        "SELECT COALESCE(SUM(LENGTH(data)), 0) FROM response_items WHERE response = ? AND output = 0", (response,)
    ).fetchone()
    return int(row[0])


def item_bytes(db: "sqlite3.Connection", owner: str, item: str) -> int | None:
    """Bytes of the item that :func:`find_item` finds."""
    row = db.execute(
        "SELECT LENGTH(data) FROM response_items JOIN responses ON responses.id = response "
        "WHERE response_items.id = ? AND owner = ? ORDER BY used DESC LIMIT 1",
        (item, owner),
    ).fetchone()
    return None if row is None else int(row[0])


def find_item(db: "sqlite3.Connection", owner: str, item: str) -> Item | None:
    row = db.execute(
        "SELECT data FROM response_items JOIN responses ON responses.id = response "
        "WHERE response_items.id = ? AND owner = ? ORDER BY used DESC LIMIT 1",
        (item, owner),
    ).fetchone()
    return None if row is None else msgspec.json.decode(row[0])


def delete(db: "sqlite3.Connection", owner: str, response: str) -> bool:
    return bool(db.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (response, owner)).rowcount)


def add_events(db: "sqlite3.Connection", response: str, first: int, events: bytes, steps: bytes) -> None:
    """A stretch of them, whose first has the sequence number ``first``; ``steps`` are the tokens they came from."""
    db.execute(
        "INSERT INTO response_events SELECT id, ?, ?, ? FROM responses WHERE id = ? "
        "ON CONFLICT DO UPDATE SET events = excluded.events, steps = excluded.steps",
        (first, events, steps, response),
    )


def events(db: "sqlite3.Connection", response: str, wanted: int) -> list[tuple[int, bytes]]:
    """The stretch that holds the event ``wanted``, and some that follow it."""
    return db.execute(
        "SELECT first, events FROM response_events WHERE response = ? AND first >= COALESCE("
        "(SELECT MAX(first) FROM response_events WHERE response = ? AND first <= ?), 0) ORDER BY first LIMIT 16",
        (response, response, wanted),
    ).fetchall()


def stretches(db: "sqlite3.Connection", response: str) -> list[tuple[int, bytes, bytes]]:
    """All of them: first, events, steps."""
    return db.execute(
        "SELECT first, events, steps FROM response_events WHERE response = ? ORDER BY first", (response,)
    ).fetchall()


def unfinished(db: "sqlite3.Connection") -> list[tuple[str, int]]:
    """Background responses of every caller that a server began and did not end, and how many engines in a row were
    given up under each (:func:`count_loss`): those with the fewest first, then in order of their beginning."""
    return db.execute(
        "SELECT id, COALESCE(count, 0) AS losses FROM responses LEFT JOIN response_losses ON response = id "
        "WHERE open AND background ORDER BY losses, used"
    ).fetchall()


def count_loss(db: "sqlite3.Connection", response: str) -> None:
    """Counts that the engine was given up under an unfinished response: anew if events were stored since the last
    time."""
    db.execute(
        "INSERT INTO response_losses SELECT id, 1, "
        "(SELECT COALESCE(MAX(first), -1) FROM response_events WHERE response = id) FROM responses WHERE id = ? "
        "ON CONFLICT (response) DO UPDATE SET count = IIF(excluded.reached > reached, 1, count + 1), "
        "reached = excluded.reached",
        (response,),
    )


def load(db: "sqlite3.Connection", response: str) -> StoredResponse | None:
    """Whoever's it is."""
    row = db.execute("SELECT owner FROM responses WHERE id = ?", (response,)).fetchone()
    return None if row is None else find(db, row[0], response)


def drop(db: "sqlite3.Connection", response: str) -> None:
    """Whoever's it is."""
    db.execute("DELETE FROM responses WHERE id = ?", (response,))
