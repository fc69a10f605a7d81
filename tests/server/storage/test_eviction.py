"""What one owner keeps is not lost to another's uploads: the store against a plain dict of it."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stentor.server.config.config import StoreConfig
from stentor.server.storage import batches, conversations, files, responses
from stentor.server.storage.database import Database, StoreFull
from stentor.server.storage.eviction import fair_share
from stentor.server.storage.opening import make_store
from stentor.tests.examples import examples

MOST = 400_000
EMPTY = 62 * 4096
"""The pages of a store without rows, and some that are partly filled."""
OWNERS = "abc"


def charges(store: Database) -> "Awaitable[dict[str, dict[str, int]]]":
    """Bytes by id, by owner."""

    def work(db: Any) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {owner: {} for owner in OWNERS}
        for name, owner, size in db.execute("SELECT id, owner, bytes FROM charges"):
            found.setdefault(owner, {})[name] = size
        return found

    return store.read(work)


async def upload(store: Database, owner: str, name: str, size: int, *, finished: bool = True) -> None:
    await store.write(partial(files.begin, owner=owner, file=name, purpose="batch", name=name, size=size))
    if finished:
        await store.write(partial(files.finish, file=name))


class StoreMachine(RuleBasedStateMachine):
    """Rows of three owners come and go; ``self.kept`` is what must be there."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = make_store(StoreConfig(max_bytes=MOST))
        self.kept: dict[str, dict[str, int]] = {owner: {} for owner in OWNERS}
        """Bytes by id, by owner; the row that was used longest ago comes first."""
        self.held: set[str] = set()
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.loop.run_until_complete(self.store.close())
            self.loop.close()

    def do(self, work: Callable[[Any], Any]) -> Any:
        return self.loop.run_until_complete(self.store.write(work))

    def grow(self, owner: str, name: str, at_most: int, work: Callable[[Any], Any], *, held: bool = False) -> None:
        """A write that makes or lengthens the row ``name``, by so many bytes ``at_most``."""
        before = {each: dict(rows) for each, rows in self.kept.items()}
        try:
            self.do(work)
        except StoreFull:
            assert self.loop.run_until_complete(charges(self.store)) == before, "a refused write changed something"
            if not any(rows for each, rows in before.items() if each != owner):
                fixed = sum(bytes_ for each, bytes_ in before[owner].items() if each in self.held or each == name)
                assert fixed + at_most > MOST, "there was room"
            return
        if held:
            self.held.add(name)
        after = self.loop.run_until_complete(charges(self.store))
        total = {each: sum(rows.values()) for each, rows in before.items()}
        total[owner] += after[owner][name] - before[owner].get(name, 0)
        share = fair_share(total.values(), MOST)
        for other, rows in before.items():
            lost = [each for each in rows if each not in after[other]]
            assert not self.held & set(lost), "a row was deleted that is held"
            if lost and other != owner:
                assert total[other] > share >= MOST / len([size for size in total.values() if size])
            evictable = [each for each in rows if each not in self.held and each != name]
            assert lost == evictable[: len(lost)], "not those that were used longest ago"
            if lost and sum(total.values()) <= MOST:
                raise AssertionError("rows were deleted though there was room")
            for each in lost:
                del self.kept[other][each]
        self.kept[owner].pop(name, None)
        self.kept[owner][name] = after[owner][name]

    @rule(owner=st.sampled_from(OWNERS), size=st.integers(0, 250_000), finished=st.booleans())
    def file(self, owner: str, size: int, finished: bool) -> None:
        self.number += 1
        name = f"file{self.number}"
        self.grow(
            owner,
            name,
            size + size // 32 + 8192,
            partial(files.begin, owner=owner, file=name, purpose="batch", name=name, size=size),
            held=True,
        )
        if finished and name in self.held:
            self.do(partial(files.finish, file=name))
            self.held.discard(name)

    @rule(owner=st.sampled_from(OWNERS), size=st.integers(0, 90_000), items=st.integers(0, 3), ended=st.booleans())
    def response(self, owner: str, size: int, items: int, ended: bool) -> None:
        self.number += 1
        name = f"resp{self.number}"
        row = responses.StoredResponse(name, owner, not ended, False, False, None, b"x" * size)
        given = [{"id": f"{name}-{place}", "text": "y" * 3000} for place in range(items)]
        self.grow(owner, name, size + 16384, lambda db: responses.insert(db, row, given), held=not ended)

    @rule(owner=st.sampled_from(OWNERS), items=st.integers(0, 30))
    def conversation(self, owner: str, items: int) -> None:
        self.number += 1
        name = f"conv{self.number}"
        given = [{"id": f"{name}-{place}", "text": "z" * 2000} for place in range(items)]
        row = conversations.StoredConversation(name, 1, {})
        self.grow(owner, name, 150_000, lambda db: conversations.insert(db, owner, row, given))

    @rule(owner=st.sampled_from(OWNERS), choice=st.integers(0, 99), size=st.integers(0, 200_000))
    def lengthen_a_conversation(self, owner: str, choice: int, size: int) -> None:
        known = [name for name in self.kept[owner] if name.startswith("conv")]
        if known:
            self.number += 1
            name, item = known[choice % len(known)], {"id": f"more{self.number}", "text": "z" * size}
            self.grow(owner, name, size + 8192, lambda db: conversations.append(db, name, [item]))

    @rule(owner=st.sampled_from(OWNERS), choice=st.integers(0, 99))
    def delete(self, owner: str, choice: int) -> None:
        if not self.kept[owner]:
            return
        name = list(self.kept[owner])[choice % len(self.kept[owner])]
        table = {"file": files, "resp": responses, "conv": conversations}[name[:4]]
        assert self.do(lambda db: table.delete(db, owner, name))
        del self.kept[owner][name]
        self.held.discard(name)

    @invariant()
    def what_is_charged_is_what_is_there(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.loop.run_until_complete(charges(self.store)) == self.kept

        def work(db: Any) -> tuple[dict[str, int], int]:
            pages, free = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
            return dict(db.execute("SELECT owner, bytes FROM owners")), (pages - free) * 4096

        sums, used = self.loop.run_until_complete(self.store.read(work))
        assert sums == {owner: sum(rows.values()) for owner, rows in self.kept.items() if rows}
        assert sum(sums.values()) <= MOST
        assert used <= sum(sums.values()) + EMPTY, "more pages are used than is charged"


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=examples(12, 125), stateful_step_count=30, deadline=None)


@pytest.mark.anyio
async def test_uploads_of_one_key_delete_nothing_of_another_within_its_share() -> None:
    store = make_store(StoreConfig(max_bytes=1_000_000))
    await upload(store, "a", "a-file", 100_000)
    row = responses.StoredResponse("a-response", "a", False, False, False, None, b"{}")
    await store.write(lambda db: responses.insert(db, row, []))
    await store.write(
        lambda db: conversations.insert(db, "a", conversations.StoredConversation("a-conversation", 1, {}), [])
    )
    for number in range(30):
        await upload(store, "b", f"b{number}", 200_000)
    kept = await charges(store)
    assert set(kept["a"]) == {"a-file", "a-response", "a-conversation"}
    assert list(kept["b"]) == sorted(f"b{number}" for number in range(26, 30))
    await store.close()


@pytest.mark.anyio
async def test_whoever_has_more_than_its_share_makes_room_for_another() -> None:
    store = make_store(StoreConfig(max_bytes=1_000_000))
    for number in range(9):
        await upload(store, "a", f"a{number}", 100_000)
    for number in range(3):
        await upload(store, "b", f"b{number}", 100_000)
    kept = await charges(store)
    assert set(kept["b"]) == {"b0", "b1", "b2"}
    assert list(kept["a"]) == [f"a{number}" for number in range(3, 9)]
    await store.close()


@pytest.mark.anyio
async def test_a_file_for_which_there_is_no_room_is_refused_and_evicts_nothing() -> None:
    store = make_store(StoreConfig(max_bytes=1_000_000))
    for owner in "ab":
        for number in range(4):
            await upload(store, owner, f"{owner}{number}", 100_000)
    before = await charges(store)
    with pytest.raises(StoreFull, match="this key's share"):
        await upload(store, "a", "large", 900_000)
    assert await charges(store) == before
    await store.close()


@pytest.mark.anyio
async def test_work_of_one_key_that_may_not_be_deleted_leaves_room_for_others() -> None:
    store = make_store(StoreConfig(max_bytes=1_000_000))

    async def hold(owner: str, name: str, size: int) -> None:
        begin = partial(files.begin, owner=owner, file=name, purpose="batch", name=name, size=size)
        await store.write(begin, admitted=owner)

    await hold("a", "a0", 400_000)
    with pytest.raises(StoreFull, match="leave"):
        await hold("a", "a1", 200_000)
    await hold("b", "b0", 200_000)
    await upload(store, "b", "b1", 100_000)
    assert {name for rows in (await charges(store)).values() for name in rows} == {"a0", "b0", "b1"}
    await store.close()


@pytest.mark.anyio
async def test_answers_and_events_are_charged_and_deleted_with_what_they_belong_to() -> None:
    store = make_store(StoreConfig())
    batch = batches.StoredBatch("b", "a", "", True, "f", b"{}")
    await store.write(lambda db: batches.insert(db, batch))
    empty = (await charges(store))["a"]["b"]
    answers = [batches.StoredResult(line, True, b"x" * 1000) for line in range(5)]
    await store.write(lambda db: batches.add_answers(db, "b", answers))
    assert (await charges(store))["a"]["b"] - empty == 5 * 1384
    await store.write(lambda db: batches.update(db, "b", b"{}", open=False))
    assert (await charges(store))["a"]["b"] == empty
    row = responses.StoredResponse("r", "a", True, True, True, None, b"{}")
    await store.write(lambda db: responses.insert(db, row, []))
    empty = (await charges(store))["a"]["r"]
    for _ in range(2):  # a stretch may be written again
        await store.write(lambda db: responses.add_events(db, "r", 0, b"e" * 300, b"s" * 200))
        assert (await charges(store))["a"]["r"] - empty == 884
    await store.write(lambda db: responses.delete(db, "a", "r"))
    assert list((await charges(store))["a"]) == ["b"]
    await store.close()


@pytest.mark.anyio
async def test_what_an_older_server_kept_is_charged_too(tmp_path: Any) -> None:
    config = StoreConfig(tmp_path / "store.db")
    store = make_store(config)
    given = [{"id": "item", "text": "x" * 5000}]
    row = responses.StoredResponse("r", "a", False, False, False, None, b"{}")
    await store.write(lambda db: responses.insert(db, row, given))
    await upload(store, "b", "f", 70_000)
    charged = await charges(store)

    def forget(db: Any) -> None:
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in names:
            db.execute(f"DROP TRIGGER {name}")
        for table in ("charges", "owners", "clock"):
            db.execute(f"DROP TABLE {table}")

    await store.read(forget)
    await store.close()
    store = make_store(config)
    assert await charges(store) == charged
    await upload(store, "b", "g", 10)
    assert set((await charges(store))["b"]) == {"f", "g"}
    await store.close()


@pytest.mark.parametrize(
    ("held", "share"), [([100], math.inf), ([60, 60], 50.0), ([10, 200], 90.0), ([10, 30, 80], 60.0), ([], math.inf)]
)
def test_whoever_needs_less_leaves_the_rest_to_others(held: list[int], share: float) -> None:
    assert fair_share(held, 100) == share
