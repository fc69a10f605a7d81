"""A clock that is set to another date deletes nothing: ages are of time that certainly has passed."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.server.storage import responses
from stentor.server.storage.clock import MOST_DOWN, StoreClock
from stentor.server.storage.database import Database
from stentor.server.storage.opening import TABLES

DAY = 86400.0
NOON = 1.7e9


class Clocks:
    """Those of a machine."""

    def __init__(self) -> None:
        self.wall = NOON
        self.steady = 5.0

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def store(self, path: Path | None = None, *, ttl: float = 30 * DAY) -> Database:
        clock = StoreClock(lambda: self.wall, lambda: self.steady)
        return Database(TABLES, path, ttl=ttl, clock=clock)


async def put(store: Database, name: str) -> None:
    row = responses.StoredResponse(name, "", False, False, False, None, b"{}")
    await store.write(lambda db: responses.insert(db, row, []))


async def there(store: Database, *names: str) -> list[str]:
    def work(db: Any) -> list[str]:
        return [name for name in names if responses.find(db, "", name) is not None]

    return await store.read(work)


@pytest.mark.anyio
@pytest.mark.parametrize("jump", [40 * DAY, -40 * DAY, 400 * DAY])
async def test_a_clock_that_jumps_while_the_server_runs_deletes_nothing(jump: float) -> None:
    clocks = Clocks()
    store = clocks.store()
    await put(store, "a")
    clocks.wall += jump
    assert await there(store, "a") == ["a"]
    clocks.pass_(60)
    await put(store, "b")
    assert await there(store, "a", "b") == ["a", "b"]
    clocks.pass_(30 * DAY - 30)
    assert await there(store, "a", "b") == ["b"]
    clocks.pass_(60)
    assert await there(store, "b") == []
    await store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("jump", [40 * DAY, -40 * DAY, DAY, 0.0])
async def test_a_clock_that_jumps_while_no_server_runs_deletes_nothing(tmp_path: Path, jump: float) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path / "store.db")
    await put(store, "a")
    await store.close()
    clocks.wall += jump
    clocks.steady = 1.0  # the machine has been started anew
    store = clocks.store(tmp_path / "store.db")
    assert await there(store, "a") == ["a"]
    clocks.pass_(30 * DAY - max(0.0, min(jump, MOST_DOWN)) + 1)
    assert await there(store, "a") == []
    await store.close()


@pytest.mark.anyio
async def test_days_without_a_server_count_one_each_time_and_no_more(tmp_path: Path) -> None:
    clocks = Clocks()
    for day in range(12):
        store = clocks.store(tmp_path / "store.db", ttl=10 * DAY + 1)
        if day == 0:
            await put(store, "a")
        assert await there(store, "a") == (["a"] if day <= 10 else [])
        await store.close()
        clocks.wall += (1 + day) * DAY


@pytest.mark.anyio
async def test_a_server_that_is_killed_has_lost_no_time_that_it_wrote_in(tmp_path: Path) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path / "store.db", ttl=10 * DAY)
    await put(store, "a")
    clocks.pass_(9.5 * DAY)
    await put(store, "b")
    assert store._connection is not None
    store._connection.close()  # and nothing else
    clocks.pass_(60)
    store = clocks.store(tmp_path / "store.db", ttl=10 * DAY)
    clocks.pass_(DAY)
    assert await there(store, "a", "b") == ["b"]
    await store.close()


@given(st.lists(st.tuples(st.floats(-1e8, 1e8), st.floats(0, 1e5)), max_size=40))
def test_no_more_time_passes_than_the_steady_clock_says_and_never_less_than_none(
    moves: list[tuple[float, float]],
) -> None:
    import sqlite3

    clocks = Clocks()
    clock = StoreClock(lambda: clocks.wall, lambda: clocks.steady)
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE clock (one, now, wall)")
    clock.load(db, None)
    before = first = clock.now
    for jump, passed in moves:
        clocks.wall += jump
        clocks.steady += passed
        assert clock.begin(db) > before, "two transactions have one time"
        assert clock.now - first <= clocks.steady - 5.0 + 1e-3
        before = clock.now
    db.close()
