"""What one kind of object is kept in, and which of its rows goes first."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


@dataclass(frozen=True)
class Table:
    """Of rows with an ``id`` and the time when they were ``used`` last, by ``time.time()``."""

    schema: str
    """Statements that make it, and what belongs to it, where they are not there."""
    name: str | None = None
    """None where nothing of it is ever deleted for its age."""
    held: str | None = None
    """The column that is true of rows that may not go."""

    def expire(self, db: "sqlite3.Connection", before: float) -> None:
        """Deletes what has not been used since ``before``."""
        if self.name is not None:
            also = "" if self.held is None else f"NOT {self.held} AND "
            db.execute(f"DELETE FROM {self.name} WHERE {also}used < ?", (before,))

    def oldest(self, db: "sqlite3.Connection") -> float | None:
        """When what would be deleted next was used last; None where nothing may be deleted."""
        if self.name is None:
            return None
        row = db.execute(f"SELECT MIN(used) FROM {self.name}{self._where}").fetchone()
        return None if row[0] is None else float(row[0])

    def drop_oldest(self, db: "sqlite3.Connection") -> None:
        """Deletes it."""
        first = f"SELECT id FROM {self.name}{self._where} ORDER BY used LIMIT 1"
        db.execute(f"DELETE FROM {self.name} WHERE id = ({first})")

    @property
    def _where(self) -> str:
        return "" if self.held is None else f" WHERE NOT {self.held}"
