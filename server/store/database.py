"""One SQLite database, and the one thread that touches it."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ..errors import ServerError
from .table import Table

if TYPE_CHECKING:
    import sqlite3

logger = logging.getLogger(__name__)

T = TypeVar("T")

_EXPIRY_SECONDS: Final = 10.0
"""Between two looks for what has outlived its time."""
_LOCK_SECONDS: Final = 2.0
_VERSION: Final = 1
"""Of the tables; to be raised where an older server could not read them, or this one not those of an older."""


class StoreFailed(ServerError):
    """The message is safe to show; the log says what happened."""

    code = "store_failed"

    def __init__(self) -> None:
        super().__init__("The server could not read or write its store; the log of the server says why.")


class Database:
    """Opened when it is first used; must be closed.

    Every few seconds in which it is used it deletes what is older than it may be; after every write, whatever was used
    longest ago until no more than ``max_bytes`` are taken up.
    """

    def __init__(
        self, tables: Sequence[Table], path: Path | None = None, *, ttl: float = 0, max_bytes: int = 0
    ) -> None:
        """``path`` None keeps all in memory; ``ttl`` in seconds; 0 is no bound."""
        self._tables = tables
        self._path = path
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "stentor-store")
        self._expired_at = 0.0
        self._known: dict[str, bytes] = {}

    @property
    def durable(self) -> bool:
        """Whether it outlives the server."""
        return self._path is not None

    async def open(self) -> None:
        """Opens it now, rather than with its first use. Raises OSError or ``sqlite3.Error``."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    async def read(self, work: "Callable[[sqlite3.Connection], T]") -> T:
        """What ``work`` returns, which must not write. Raises StoreFailed, or what ``work`` raises of its own."""
        return await self._run(work, False)

    async def write(self, work: "Callable[[sqlite3.Connection], T]") -> T:
        """As :meth:`read`, in one transaction, which is undone where ``work`` raises."""
        return await self._run(work, True)

    async def once(self, name: str, work: "Callable[[sqlite3.Connection], bytes]") -> bytes:
        """What ``work`` writes or reads and will never change; asked for by ``name`` only once."""
        if name not in self._known:
            self._known[name] = await self.write(work)
        return self._known[name]

    async def close(self) -> None:
        """May be called again."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    # ---- in the thread

    async def _run(self, work: "Callable[[sqlite3.Connection], T]", writes: bool) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work, writes)

    def _work(self, work: "Callable[[sqlite3.Connection], T]", writes: bool) -> T:
        import sqlite3  # late: not every server keeps anything

        try:
            db = self._open()
            if not writes:
                if self._expiry_is_due:
                    with contextlib.suppress(sqlite3.Error), db:  # a full disk can still be read
                        db.execute("BEGIN IMMEDIATE")
                        self._keep_bounds(db)
                return work(db)
            with db:
                db.execute("BEGIN IMMEDIATE")
                result = work(db)
                self._keep_bounds(db)
                return result
        except (sqlite3.Error, OSError) as error:
            logger.warning("the store failed: %s", error)
            raise StoreFailed from None

    def _open(self) -> "sqlite3.Connection":
        import sqlite3  # late, as above

        if self._connection is not None:
            return self._connection
        if self._path is not None:
            # what it holds is its owner's alone; SQLite gives its other files the same mode
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        name = ":memory:" if self._path is None else str(self._path)
        db = sqlite3.connect(name, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            # of two servers on one file, both would finish what is unfinished in it
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA secure_delete = ON")
            _check_version(db)
            for table in self._tables:
                db.executescript(table.schema)
            db.execute("BEGIN IMMEDIATE")
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        self._connection = db
        return db

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _expiry_is_due(self) -> bool:
        return bool(self._ttl) and time.time() - self._expired_at >= min(_EXPIRY_SECONDS, self._ttl)

    def _keep_bounds(self, db: "sqlite3.Connection") -> None:
        if self._expiry_is_due:
            now = self._expired_at = time.time()
            for table in self._tables:
                table.expire(db, now - self._ttl)
        while self._max_bytes and _used_bytes(db) > self._max_bytes:
            ages = [(age, place) for place, table in enumerate(self._tables) if (age := table.oldest(db)) is not None]
            if not ages:
                return
            self._tables[min(ages)[1]].drop_oldest(db)


def _check_version(db: "sqlite3.Connection") -> None:
    """Raises ``sqlite3.DatabaseError`` for a database that is not ours, or not of a version that is known here."""
    import sqlite3  # late, as above

    version = db.execute("PRAGMA user_version").fetchone()[0]
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if version not in (0, _VERSION) or (version == 0 and tables and "secrets" not in tables):
        raise sqlite3.DatabaseError("it is a database of something else, or of another version of this server")
    db.execute(f"PRAGMA user_version = {_VERSION}")


def _used_bytes(db: "sqlite3.Connection") -> int:
    """Pages that hold something: what is deleted gives its pages back to the file, not the disk."""
    pages, free, size = (
        db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)
