"""A full disk: it is said as such, what is there can be read and deleted, and then there is room again."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from stentor.server.config.config import StoreConfig
from stentor.server.storage import files
from stentor.server.storage.database import RESERVE_BYTES, Database, DiskFull
from stentor.server.storage.opening import StoreRefused, make_store, opened_store

PART = b"x" * files.PART_BYTES


def full() -> sqlite3.Error:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


async def upload(store: Database, name: str, parts: int = 1) -> None:
    await store.write(partial(files.begin, owner="", file=name, purpose="batch", name=name))
    for place in range(parts):
        await store.write(partial(files.append, file=name, place=place, data=PART))
    await store.write(partial(files.finish, file=name))


async def fill(store: Database) -> list[str]:
    """The files that fit."""
    names: list[str] = []
    while True:
        name = f"f{len(names)}-{os.urandom(4).hex()}"
        try:
            await upload(store, name)
        except DiskFull:
            return names
        names.append(name)


async def remove(store: Database, name: str) -> bool:
    return await store.delete(partial(files.delete, owner="", file=name))


@pytest.mark.anyio
async def test_a_database_that_may_not_grow_says_so_and_can_be_deleted_from() -> None:
    store = make_store(StoreConfig())
    await upload(store, "a", 4)
    await store.read(lambda db: db.execute("PRAGMA max_page_count = 400").fetchone())
    names = await fill(store)
    assert names
    assert await remove(store, "a")
    assert len(await fill(store)) >= 3
    await store.close()


@pytest.mark.anyio
async def test_the_reserve_is_given_up_for_what_deletes_and_for_nothing_else(tmp_path: Path) -> None:
    store = await opened_store(StoreConfig(tmp_path / "store.db"))
    reserve = tmp_path / "store.db-reserve"
    assert reserve.stat().st_size == RESERVE_BYTES
    assert reserve.stat().st_mode & 0o777 == 0o600
    await upload(store, "a")
    seen: list[tuple[int, int]] = []

    def work(db: sqlite3.Connection) -> bool:
        seen.append((reserve.stat().st_size, db.execute("PRAGMA secure_delete").fetchone()[0]))
        if reserve.stat().st_size:
            raise full()
        return files.delete(db, "", "a")

    with pytest.raises(DiskFull):
        await store.write(work)
    assert await store.delete(work)
    assert seen == [(RESERVE_BYTES, 1), (RESERVE_BYTES, 1), (0, 0)]
    assert reserve.stat().st_size == RESERVE_BYTES
    assert await store.read(lambda db: db.execute("PRAGMA secure_delete").fetchone()[0]) == 1
    await store.close()


@pytest.mark.anyio
async def test_a_store_that_cannot_be_opened_for_want_of_room_uses_its_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of a folder after a crash on a full disk."""
    config = StoreConfig(tmp_path / "store.db")
    store = await opened_store(config)
    await upload(store, "a")
    await store.close()
    reserve, begin = tmp_path / "store.db-reserve", Database._begin
    (tmp_path / "store.db-reserve").write_bytes(b"x")

    def begins(store: Database, db: sqlite3.Connection) -> None:
        if reserve.exists() and reserve.stat().st_size:
            raise full()
        begin(store, db)

    monkeypatch.setattr(Database, "_begin", begins)
    store = await opened_store(config)
    assert await remove(store, "a")
    await store.close()

    def never(_store: Database, _db: sqlite3.Connection) -> None:
        raise full()

    monkeypatch.setattr(Database, "_begin", never)
    with pytest.raises(StoreRefused, match="make room"):
        await opened_store(config)


MOUNTED = ["unshare", "--map-root-user", "--mount", "--", "sh", "-c"]
ON_A_SMALL_DISK = (
    'mount -t tmpfs -o size=24m none "$1" && exec "$0" -m stentor.tests.server.storage.test_full_disk "$1"'
)


def may_mount() -> bool:
    try:
        return subprocess.run([*MOUNTED, "mount -t tmpfs none /mnt"], capture_output=True).returncode == 0
    except OSError:
        return False


def test_a_store_on_a_full_disk_is_deleted_from_and_filled_again(tmp_path: Path) -> None:
    if not may_mount():
        pytest.skip("no file system can be mounted here")
    command = [*MOUNTED, ON_A_SMALL_DISK, sys.executable, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rounds, of_another = json.loads(done.stdout)
    for kept, deleted, again in rounds:
        assert deleted == kept > 0, "a file could not be deleted"
        assert again >= kept // 2
    kept, deleted = of_another
    assert deleted == kept > 0, "a store of a killed server, on a disk without any room"


async def fill_and_empty(path: Path) -> list[tuple[int, int, int]]:
    """(files kept, files deleted of them, files kept again), three times over on one disk."""
    store = await opened_store(StoreConfig(path))
    rounds = []
    names = await fill(store)
    for _ in range(3):
        deleted = 0
        for name in names:
            deleted += await remove(store, name)
        kept, names = len(names), await fill(store)
        rounds.append((kept, deleted, len(names)))
    await store.close()
    return rounds


async def fill_and_die(path: Path) -> None:
    store = await opened_store(StoreConfig(path))
    await fill(store)
    with path.with_name("other").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(PART):
            pass
    os._exit(0)


async def empty(path: Path) -> tuple[int, int]:
    """(files found, files deleted of them)."""
    store = await opened_store(StoreConfig(path))
    found = await store.read(lambda db: [row[0] for row in db.execute("SELECT id FROM files WHERE owner = ''")])
    deleted = 0
    for name in found:
        deleted += await remove(store, name)
    await store.close()
    return len(found), deleted


if __name__ == "__main__":
    import asyncio

    path = Path(sys.argv[1]) / "store.db"
    rounds = asyncio.run(fill_and_empty(path))
    if (child := os.fork()) == 0:
        asyncio.run(fill_and_die(path))
    os.waitpid(child, 0)
    print(json.dumps((rounds, asyncio.run(empty(path)))))
