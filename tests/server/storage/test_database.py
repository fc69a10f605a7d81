"""The store: bounds, owners, durability, and what happens when it cannot be used."""

import os
import sqlite3
import stat
from functools import partial
from pathlib import Path

import pytest

from stentor.server.config.config import StoreConfig
from stentor.server.storage import conversations, database, responses, secrets
from stentor.server.storage.clock import StoreClock
from stentor.server.storage.database import Database, StoreFailed
from stentor.server.storage.opening import TABLES, StoreRefused, make_store, opened_store

pytestmark = pytest.mark.anyio


class Time:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.clock = StoreClock(lambda: self.now, lambda: self.now)


def row(
    name: str, owner: str = "", *, is_open: bool = False, size: int = 10, previous: str | None = None
) -> responses.StoredResponse:
    return responses.StoredResponse(name, owner, is_open, False, False, previous, b"x" * size)


async def put(store: Database, *rows: responses.StoredResponse) -> None:
    for one in rows:
        await store.write(partial(lambda db, one: responses.insert(db, one, [{"id": f"m{one.id}"}]), one=one))


async def there(store: Database, *names: str, owner: str = "") -> list[str]:
    found = [await store.read(partial(lambda db, name: responses.find(db, owner, name), name=name)) for name in names]
    return [one.id for one in found if one is not None]


async def test_a_file_outlives_the_store_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await opened_store(StoreConfig(path))
    await put(store, row("a"))
    first = await store.once("k", partial(secrets.secret, name="k"))
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600, file
    await store.close()
    again = await opened_store(StoreConfig(path))
    assert await there(again, "a") == ["a"]
    assert await again.once("k", partial(secrets.secret, name="k")) == first
    await again.close()


async def test_two_servers_do_not_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_LOCK_SECONDS", 0.1)
    path = tmp_path / "store.db"
    store = await opened_store(StoreConfig(path))
    with pytest.raises(StoreRefused, match="no other"):
        await opened_store(StoreConfig(path))
    await store.close()


async def test_a_file_that_is_no_database_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("shopping: " * 200)
    with pytest.raises(StoreRefused, match=r"notes\.txt"):
        await opened_store(StoreConfig(path))
    with pytest.raises(StoreRefused):
        await opened_store(StoreConfig(tmp_path / "missing" / "store.db"))
    assert path.read_text().startswith("shopping")


async def test_a_database_of_something_else_or_of_another_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for statement in ("CREATE TABLE shopping (what TEXT)", "PRAGMA user_version = 99"):
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as db:
            db.execute(statement)
        db.close()
        with pytest.raises(StoreRefused, match=r"store\.db: it is a database of something else"):
            await opened_store(StoreConfig(path))
        with sqlite3.connect(path) as db:
            assert db.execute("SELECT name FROM sqlite_master WHERE name = 'responses'").fetchall() == []
        db.close()


async def test_a_damaged_file_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await opened_store(StoreConfig(path))
    await put(store, row("a"))
    await store.close()
    data = path.read_bytes()
    for damaged in (data[:100] + b"x" * 3900 + data[4000:], data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(StoreRefused, match="malformed; put a backup in its place"):
            await opened_store(StoreConfig(path))


async def test_a_file_that_may_not_be_written_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="Cannot use --store"):
        await opened_store(StoreConfig(Path("/proc/self/status")))
    with pytest.raises(StoreRefused, match="directory"):
        await opened_store(StoreConfig(tmp_path))


async def test_what_was_used_longest_ago_goes_when_there_is_too_much_but_never_what_runs() -> None:
    store = make_store(StoreConfig(max_bytes=400_000))
    await put(store, row("running", is_open=True, size=60_000))
    for number in range(12):
        await put(store, row(f"r{number}", size=60_000))
    kept = await there(store, "running", *(f"r{number}" for number in range(12)))
    assert kept[0] == "running"
    assert kept[-1] == "r11"
    assert 2 < len(kept) < 9
    assert kept[1:] == [f"r{number}" for number in range(12)][-len(kept) + 1 :]
    await store.close()


async def test_what_nobody_uses_is_gone_after_its_time() -> None:
    time = Time()
    store = Database(TABLES, ttl=60, clock=time.clock)
    await put(store, row("old"), row("running", is_open=True))
    conversation = conversations.StoredConversation("c", 1, {})
    await store.write(lambda db: conversations.insert(db, "", conversation, []))
    time.now += 61
    await put(store, row("new"))
    assert await there(store, "old", "running", "new") == ["running", "new"]
    assert await store.read(lambda db: conversations.find(db, "", "c")) is None
    await store.close()


async def test_what_is_too_old_is_not_read_either() -> None:
    time = Time()
    store = Database(TABLES, ttl=60, clock=time.clock)
    await put(store, row("old"))
    time.now += 61
    assert await there(store, "old") == []
    await store.close()


async def test_a_store_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    time = Time()
    store = Database(TABLES, tmp_path / "store.db", ttl=60, clock=time.clock)
    await put(store, row("a"))
    await store.read(lambda db: db.execute("PRAGMA query_only = ON"))  # as on a full disk
    time.now += 61
    assert await there(store, "a") == ["a"]
    with pytest.raises(StoreFailed):
        await put(store, row("b"))
    await store.close()


async def test_a_chain_is_its_owners_and_ends_where_a_link_is_missing() -> None:
    store = make_store(StoreConfig())
    await put(store, row("a", "me"), row("b", "me", previous="a"), row("c", "me", previous="gone"))
    chain = partial(responses.chain, response="b", most=10)
    assert await store.write(lambda db: chain(db, "me")) == [{"id": "ma"}, {"id": "mb"}]
    assert await store.write(lambda db: chain(db, "you")) is None
    assert await store.write(lambda db: responses.chain(db, "me", "c", 10)) is None
    assert await store.write(lambda db: responses.chain(db, "me", "b", 1)) is None
    await store.close()


async def test_a_write_that_fails_leaves_nothing_behind() -> None:
    store = make_store(StoreConfig())

    def work(db: sqlite3.Connection) -> None:
        responses.insert(db, row("a"), [])
        responses.insert(db, row("a"), [])

    with pytest.raises(StoreFailed):
        await store.write(work)
    assert await there(store, "a") == []
    await store.close()


async def test_deleting_takes_items_and_events_along() -> None:
    store = make_store(StoreConfig())
    await put(store, row("a"))
    await store.write(lambda db: responses.add_events(db, "a", 0, b"e", b"s"))
    assert await store.read(lambda db: responses.find_item(db, "", "ma")) == {"id": "ma"}
    assert await store.write(lambda db: responses.delete(db, "", "a"))
    assert await store.read(lambda db: responses.find_item(db, "", "ma")) is None
    assert await store.read(lambda db: responses.stretches(db, "a")) == []
    await store.close()
