"""One SQLite database, and the one thread that touches it."""

import asyncio
import contextlib
import errno
import heapq
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ..common.errors import ServerError
from . import clock
from .clock import StoreClock
from .eviction import fair_share, rows_to_evict
from .table import CHARGES, Row, Table

if TYPE_CHECKING:
    import sqlite3

logger = logging.getLogger(__name__)

T = TypeVar("T")

_EXPIRY_SECONDS: Final = 10.0
"""Interval of checks for expired rows, and for room for a missing reserve."""
_LOCK_SECONDS: Final = 2.0
_VERSION: Final = 1
"""Version of the tables; raise it if older servers could not read them, or this one not those of older servers."""
RESERVE_BYTES: Final = 8 << 20
"""Disk space reserved for deleting: twice the size at which SQLite moves the log into the file."""
_UNLIMITED_PAGES: Final = 0xFFFFFFFE


class StoreFailed(ServerError):
    """The message may be shown to clients; the log has the cause."""

    code = "store_failed"

    def __init__(self, message: str = "") -> None:
        super().__init__(message or "The server could not read or write its store; the log of the server says why.")


class _NoStorage(StoreFailed):
    status = 507

    @property
    def headers(self) -> dict[str, str]:
        # SDKs retry every 5xx, within seconds: there is no more room by then
        return {"x-should-retry": "false"}


class DiskFull(_NoStorage):
    """There may be room later."""

    code = "disk_full"

    def __init__(self) -> None:
        super().__init__("The disk of the server is full; what was to be kept of this request was not.")


class StoreFull(_NoStorage):
    """The store's bound, and the owner's share of it, leave no room: it must delete something itself."""

    code = "store_full"


class Database:
    """Opened on first use; must be closed.

    Every few seconds of use it deletes expired rows, by its own time (:mod:`.clock`).

    A write beyond ``max_bytes`` first deletes rows of owners above their fair share, least recently used first
    (:mod:`.eviction`); one that cannot make room fails and deletes nothing. Held rows are not deleted; an owner may
    have at most as many as it leaves of the total.

    A second file beside the database reserves disk space, which is released for deletions when the disk is full.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        path: Path | None = None,
        *,
        ttl: float = 0,
        max_bytes: int = 0,
        clock: StoreClock | None = None,
    ) -> None:
        """``path`` None keeps all in memory; ``ttl`` in seconds; 0 is no limit."""
        self._tables = tables
        self._path = path
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._clock = clock or StoreClock()
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "stentor-store")
        self._looked_at = 0.0
        """Time of the last expiry, by the store's clock."""
        self._reserved = path is None
        self._known: dict[str, bytes] = {}

    @property
    def durable(self) -> bool:
        """Whether it outlives the server."""
        return self._path is not None

    async def open(self) -> None:
        """Opens it now, rather than with its first use. Raises OSError or ``sqlite3.Error``."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    async def read(self, work: "Callable[[sqlite3.Connection], T]") -> T:
        """The result of ``work``, which must not write. Raises StoreFailed, or the errors of ``work``."""
        return await self._run(work, False)

    async def write(self, work: "Callable[[sqlite3.Connection], T]", *, admitted: str = "") -> T:
        """The result of ``work``, in one transaction, which is rolled back if it raises.

        Raises StoreFailed, DiskFull and StoreFull, or the errors of ``work``.

        ``admitted`` is the owner whose new rows will be held, if there are others to leave room for.
        """
        return await self._run(work, True, admitted=admitted)

    async def delete(self, work: "Callable[[sqlite3.Connection], T]") -> T:
        """The result of ``work``, which only deletes, in one transaction; it also succeeds on a full disk."""
        return await self._run(work, True, deletes=True)

    async def once(self, name: str, work: "Callable[[sqlite3.Connection], bytes]") -> bytes:
        """The result of ``work``, which never changes; computed once for a ``name``."""
        if name not in self._known:
            self._known[name] = await self.write(work)
        return self._known[name]

    async def close(self) -> None:
        """May be called again."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    # ---- in the thread

    async def _run(
        self, work: "Callable[[sqlite3.Connection], T]", writes: bool, *, deletes: bool = False, admitted: str = ""
    ) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._work, work, writes, deletes, admitted)

    def _work(self, work: "Callable[[sqlite3.Connection], T]", writes: bool, deletes: bool, admitted: str) -> T:
        import sqlite3  # late: not every server has a store

        try:
            db = self._open()
            if not self._reserved and self._is_due:
                self._reserve(db)
            if writes:
                try:
                    return self._transaction(db, work, admitted)
                except sqlite3.Error as error:
                    if not deletes or not is_full(error):
                        raise
                return self._delete_on_full_disk(db, work)
            if self._is_due:
                with contextlib.suppress(sqlite3.Error):  # a full disk can still be read
                    self._transaction(db, lambda _: None)
            return work(db)
        except (sqlite3.Error, OSError) as error:
            logger.warning("the store failed: %s", error)
            raise (DiskFull() if is_full(error) else StoreFailed()) from None

    def _transaction(
        self, db: "sqlite3.Connection", work: "Callable[[sqlite3.Connection], T]", admitted: str = ""
    ) -> T:
        with db:
            db.execute("BEGIN IMMEDIATE")
            now = self._clock.begin(db)
            if self._is_due:
                self._looked_at = now
                self._expire(db, now)
            before = _charged(db)
            result = work(db)
            if admitted and self._max_bytes:
                self._check_held(db, admitted)
            if self._max_bytes and _charged(db) > before:
                self._make_room(db)
        return result

    def _open(self) -> "sqlite3.Connection":
        import sqlite3  # late, as above

        if self._connection is not None:
            return self._connection
        if self._path is not None:
            # its contents are private; SQLite gives its other files the same mode
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        name = ":memory:" if self._path is None else str(self._path)
        db = sqlite3.connect(name, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            # two servers on one file would both resume its unfinished work
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA secure_delete = ON")
            try:
                self._set_up(db)
            except sqlite3.Error as error:
                if not is_full(error):
                    raise
                self._set_up_on_full_disk(db)
            self._reserve(db)
        except BaseException:
            db.close()
            raise
        self._connection = db
        return db

    def _set_up(self, db: "sqlite3.Connection") -> None:
        _check_version(db)
        for table in self._tables:
            db.executescript(table.schema)
        with db:
            db.execute("BEGIN IMMEDIATE")
            self._begin(db)

    def _begin(self, db: "sqlite3.Connection") -> None:
        """Sets up charges and time, also for a database without them, and for unfinished work of another server."""
        is_new = not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'charges'").fetchone()
        for statement in _statements(clock.SCHEMA, CHARGES, *(table.triggers for table in self._tables)):
            db.execute(statement)
        newest = [used for table in self._tables if (used := table.newest(db)) is not None]
        self._clock.load(db, max(newest, default=None))
        self._clock.begin(db)
        for table in self._tables:
            if is_new:
                table.charge_all(db)
            for statement in _statements(table.on_open):
                db.execute(statement)

    def _close(self) -> None:
        if self._connection is not None:
            import sqlite3  # late, as above

            with contextlib.suppress(sqlite3.Error), self._connection as db:  # time passes no slower for it
                db.execute("BEGIN IMMEDIATE")
                self._clock.begin(db)
            self._connection.close()
            self._connection = None

    # ---- bounds

    @property
    def _is_due(self) -> bool:
        seconds = min(_EXPIRY_SECONDS, self._ttl) if self._ttl else _EXPIRY_SECONDS
        return self._clock.now - self._looked_at >= seconds

    def _expire(self, db: "sqlite3.Connection", now: float) -> None:
        for table in self._tables:
            table.expire(db, now, self._ttl)

    def _make_room(self, db: "sqlite3.Connection") -> None:
        """Makes room for the transaction's additions. Raises StoreFull, which rolls it back."""
        most = self._max_bytes
        charged: dict[str, int] = dict(db.execute("SELECT owner, bytes FROM owners"))
        if sum(charged.values()) <= most:
            return
        asking = [row[0] for row in db.execute("SELECT owner FROM owners WHERE grew = (SELECT now FROM clock)")]

        def evictable(owner: str) -> Iterator[Row]:
            return heapq.merge(*(table.evictable(db, owner) for table in self._tables), key=lambda row: row.used)

        rows = rows_to_evict(charged, asking, most, evictable)
        if rows is None:
            share = fair_share(charged.values(), most)
            raise StoreFull(
                f"There is no room for this: the server keeps {most} bytes, of which {share:.0f} are this key's share, "
                "and nothing that could be deleted for it makes room. Delete what is not needed, or keep less."
            )
        for row in rows:
            row.kind.drop(db, row.id)

    def _check_held(self, db: "sqlite3.Connection", owner: str) -> None:
        """Raises StoreFull, which undoes the transaction."""
        held = [table.held_bytes(db) for table in self._tables]
        own = sum(each.get(owner, 0) for each in held)
        free = self._max_bytes - sum(sum(each.values()) for each in held)
        if own > free:
            raise StoreFull(
                f"There is no room for this: unfinished uploads, batches and responses of this key would take {own} "
                f"of {self._max_bytes} bytes and leave {max(free, 0)} to others. Wait for some to end."
            )

    # ---- a full disk

    def _delete_on_full_disk(self, db: "sqlite3.Connection", work: "Callable[[sqlite3.Connection], T]") -> T:
        """With the room of the reserve, and of the log as little as can be: deleted pages are not overwritten."""
        import sqlite3  # late, as above

        logger.warning("the disk of the store is full: what is deleted is not overwritten before its place is used")
        if self._path is not None and self._reserved:
            os.truncate(self._reserve_path, 0)
        db.execute("PRAGMA secure_delete = OFF")
        try:
            return self._transaction(db, work)
        finally:
            db.execute("PRAGMA secure_delete = ON")
            with contextlib.suppress(sqlite3.Error):
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._reserve(db)

    def _set_up_on_full_disk(self, db: "sqlite3.Connection") -> None:
        """With the room of the reserve: what is there can be read and deleted, also after a crash."""
        logger.warning("the disk of the store is full: its reserve is used to open it")
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self._reserve_path, 0)
        self._set_up(db)
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _reserve(self, db: "sqlite3.Connection") -> None:
        """Reserves disk space for deletions. Without it the file does not grow: only free pages are written.

        Such pages can always be moved out of the log, so that the log has room for deletions.
        """
        if self._path is None:
            return
        try:
            file = os.open(self._reserve_path, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.posix_fallocate(file, 0, RESERVE_BYTES)
                self._reserved = True
            except OSError:
                os.ftruncate(file, 0)
                self._reserved = False
            finally:
                os.close(file)
        except OSError:
            self._reserved = False
        pages = _UNLIMITED_PAGES if self._reserved else db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}").fetchall()

    @property
    def _reserve_path(self) -> Path:
        assert self._path is not None
        return self._path.with_name(f"{self._path.name}-reserve")


def _check_version(db: "sqlite3.Connection") -> None:
    """Raises ``sqlite3.DatabaseError`` for a database that is not ours, or not of a version that is known here."""
    import sqlite3  # late, as above

    version = db.execute("PRAGMA user_version").fetchone()[0]
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if version not in (0, _VERSION) or (version == 0 and tables and "secrets" not in tables):
        raise sqlite3.DatabaseError("it is a database of something else, or of another version of this server")
    db.execute(f"PRAGMA user_version = {_VERSION}")


def _charged(db: "sqlite3.Connection") -> int:
    """Charged bytes of all owners."""
    return int(db.execute("SELECT COALESCE(SUM(bytes), 0) FROM owners").fetchone()[0])


def is_full(error: Exception) -> bool:
    """Whether the disk is."""
    import sqlite3  # late, as above

    if isinstance(error, OSError):
        return is_disk_full(error)
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _statements(*scripts: str) -> Iterator[str]:
    """One by one: ``executescript`` would commit first."""
    import sqlite3  # late, as above

    waiting = ""
    for line in "\n".join(scripts).splitlines():
        waiting += f"{line}\n"
        if sqlite3.complete_statement(waiting):
            yield waiting
            waiting = ""
    assert not waiting.strip(), waiting
