"""Tables of one kind of object: their charges, and the order of deletion."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    import sqlite3

CHARGES: Final = """
CREATE TABLE IF NOT EXISTS charges (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owners (
    owner TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL,
    grew REAL NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS charge_made AFTER INSERT ON charges BEGIN
    INSERT INTO owners VALUES (NEW.owner, NEW.bytes, (SELECT now FROM clock))
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes, grew = excluded.grew;
END;
CREATE TRIGGER IF NOT EXISTS charge_changed AFTER UPDATE OF bytes ON charges WHEN NEW.bytes <> OLD.bytes BEGIN
    UPDATE owners SET
        bytes = bytes + NEW.bytes - OLD.bytes,
        grew = CASE WHEN NEW.bytes > OLD.bytes THEN (SELECT now FROM clock) ELSE grew END
    WHERE owner = NEW.owner;
END;
CREATE TRIGGER IF NOT EXISTS charge_ended AFTER DELETE ON charges BEGIN
    UPDATE owners SET bytes = bytes - OLD.bytes WHERE owner = OLD.owner;
    DELETE FROM owners WHERE owner = OLD.owner AND bytes <= 0;
END;
"""
"""Charges of every row of a :class:`Table` with its parts, and the sums by owner, with the time of the last growth.
Triggers maintain them, so that no statement can forget it."""

_ROW_BYTES: Final = 384
"""Bytes of a row besides its content: its header and index entries."""
_PAGE_BYTES: Final = 4096


class Row(NamedTuple):
    """One that may be deleted."""

    used: float
    kind: "Table"
    id: str
    bytes: int


class Part(msgspec.Struct, frozen=True):
    """Rows of another table that are deleted with the rows they belong to."""

    name: str
    parent: str
    """The column with the id of the row that they belong to."""
    content: str
    """The bytes of a row's contents, in SQL, with ``{row}`` for its name."""
    columns: str
    """Columns of ``content``."""


class Table(msgspec.Struct, frozen=True):
    """Rows with an ``id``, an ``owner``, and the time of last use (``used``), by :mod:`.clock`."""

    schema: str
    """Statements that create it and its parts, if they do not exist."""
    name: str | None = None
    """None if its rows are never deleted for age or size, nor counted."""
    held: str | None = None
    """The column that is above 0 in rows that may not go."""
    content: str = "0"
    """The bytes of a row's contents, in SQL, with ``{row}`` for its name."""
    columns: str = "id"
    parts: tuple[Part, ...] = ()
    ended: str | None = None
    """A condition on rows with an expiry of their own; ``?`` is the time, by :mod:`.clock`."""
    on_open: str = ""
    """Statements that clean up after an earlier server."""

    @property
    def triggers(self) -> str:
        """Statements that create the triggers of its charges."""
        if self.name is None:
            return ""
        name = self.name
        change = f"UPDATE charges SET bytes = bytes + {{}} WHERE kind = '{name}' AND id = {{}}"
        new, old = (_charged(self.content, row) for row in ("NEW", "OLD"))
        made = [
            ("INSERT", "", f"INSERT INTO charges VALUES ('{name}', NEW.id, NEW.owner, {new})"),
            ("DELETE", "", f"DELETE FROM charges WHERE kind = '{name}' AND id = OLD.id"),
            ("UPDATE", self.columns, change.format(f"{new} - ({old})", "NEW.id")),
        ]
        statements = [_trigger(name, *each) for each in made]
        for part in self.parts:
            new, old = (_charged(part.content, row) for row in ("NEW", "OLD"))
            statements += [
                _trigger(part.name, "INSERT", "", change.format(new, f"NEW.{part.parent}")),
                _trigger(part.name, "DELETE", "", change.format(f"-({old})", f"OLD.{part.parent}")),
                _trigger(part.name, "UPDATE", part.columns, change.format(f"{new} - ({old})", f"NEW.{part.parent}")),
            ]
        return "".join(statements)

    def charge_all(self, db: "sqlite3.Connection") -> None:
        """Charges rows that were there before anything was charged."""
        if self.name is None:
            return
        sums = "".join(
            f" + COALESCE((SELECT SUM({_charged(part.content, 'part')}) FROM {part.name} AS part "
            f"WHERE part.{part.parent} = own.id), 0)"
            for part in self.parts
        )
        db.execute(
            f"INSERT OR REPLACE INTO charges SELECT '{self.name}', own.id, own.owner, "
            f"{_charged(self.content, 'own')}{sums} FROM {self.name} AS own"
        )

    def newest(self, db: "sqlite3.Connection") -> float | None:
        """Time of the most recent use; None for an empty table."""
        used = None if self.name is None else db.execute(f"SELECT MAX(used) FROM {self.name}").fetchone()[0]
        return None if used is None else float(used)

    def expire(self, db: "sqlite3.Connection", now: float, ttl: float) -> None:
        """Deletes rows that were unused for ``ttl`` seconds, unless that is 0, and rows past their own expiry."""
        if self.name is not None and ttl:
            db.execute(f"DELETE FROM {self.name} WHERE {self._evictable}used < ?", (now - ttl,))
        if self.ended is not None:
            db.execute(f"DELETE FROM {self.name} WHERE {self._evictable}{self.ended}", (now,))

    def evictable(self, db: "sqlite3.Connection", owner: str) -> Iterator[Row]:
        """Rows of the owner that may be deleted for others, those first that were used longest ago.

        Not those that the transaction has used itself.
        """
        if self.name is None:
            return
        rows = db.execute(
            f"SELECT used, id FROM {self.name} WHERE {self._evictable}owner = ? AND used <> (SELECT now FROM clock) "
            "ORDER BY used",
            (owner,),
        )
        for used, name in rows:
            size = db.execute("SELECT bytes FROM charges WHERE kind = ? AND id = ?", (self.name, name)).fetchone()[0]
            yield Row(used, self, name, size)

    def held_bytes(self, db: "sqlite3.Connection") -> dict[str, int]:
        """Charged bytes of held rows, by owner."""
        if self.held is None:
            return {}
        return dict(
            db.execute(
                f"SELECT owner, SUM(bytes) FROM charges WHERE kind = '{self.name}' AND id IN "
                f"(SELECT id FROM {self.name} WHERE {self.held} > 0) GROUP BY owner"
            )
        )

    def drop(self, db: "sqlite3.Connection", row: str) -> None:
        db.execute(f"DELETE FROM {self.name} WHERE id = ?", (row,))

    @property
    def _evictable(self) -> str:
        return "" if self.held is None else f"{self.held} = 0 AND "


def _charged(content: str, row: str) -> str:
    """Approximate bytes of a row's pages: content longer than a quarter of a page seldom shares one."""
    size = f"({content.format(row=row)})"
    pages = f"({size} + {_PAGE_BYTES - 1}) / {_PAGE_BYTES} * {_PAGE_BYTES}"
    return f"{_ROW_BYTES} + CASE WHEN {size} <= {_PAGE_BYTES // 4} THEN {size} ELSE {pages} END"


def _trigger(table: str, event: str, columns: str, statement: str) -> str:
    of = f" OF {columns}" if columns else ""
    name = f"{table}_charged_on_{event.lower()}"
    return f"CREATE TRIGGER IF NOT EXISTS {name} AFTER {event}{of} ON {table} BEGIN {statement}; END;\n"
