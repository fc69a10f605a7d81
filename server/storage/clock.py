"""The store's own time, by which the ages of rows are measured."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY CHECK (one = 1), now REAL NOT NULL, wall REAL NOT NULL);
"""
NOW: Final = "(SELECT now FROM clock)"
"""In a statement: the time of the transaction, which no other transaction has."""
MOST_DOWN: Final = 86400.0
"""Most seconds that count between two servers on one file, whatever the wall clock says."""
_STEP: Final = 1e-6


class StoreClock:
    """Seconds that have certainly passed: setting the date ages no row.

    While a server runs, this time advances by the smaller of wall clock and monotonic clock. Between two servers on one
    file the wall clock counts, at most :data:`MOST_DOWN`, and nothing if it was set back. So no row is younger than
    this says; one may be older.

    It begins with the wall clock's time, and is stored in the database with every write.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        self._now = 0.0
        self._looked_at = (0.0, 0.0)

    def load(self, db: "sqlite3.Connection", newest: float | None) -> None:
        """From the database; ``newest`` is when a row was last used by the clock of servers that had no such time."""
        wall = self._wall()
        self._looked_at = (wall, self._steady())
        row = db.execute("SELECT now, wall FROM clock").fetchone()
        if row is None:
            self._now = wall if newest is None else min(wall, newest)
            db.execute("INSERT INTO clock VALUES (1, ?, ?)", (self._now, wall))
        else:
            self._now = row[0] + min(max(wall - row[1], 0.0), MOST_DOWN)

    @property
    def now(self) -> float:
        self._advance(0.0)
        return self._now

    def begin(self, db: "sqlite3.Connection") -> float:
        """The time of a transaction that writes, which this begins."""
        self._advance(_STEP)
        db.execute("UPDATE clock SET now = ?, wall = ?", (self._now, self._looked_at[0]))
        return self._now

    def _advance(self, least: float) -> None:
        before, self._looked_at = self._looked_at, (self._wall(), self._steady())
        passed = min(now - then for now, then in zip(self._looked_at, before, strict=True))
        self._now += max(passed, least)
