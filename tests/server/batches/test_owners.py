"""Batches of several keys: owners take turns, and none takes all slots."""

from typing import Any

import anyio
import openai
import pytest

from stentor.server.app.state import ServerState
from stentor.server.batches import runner
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.config import StoreConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.server.storage import batches, files
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.batches.test_batches import begun, ended, lines, served, uploaded
from stentor.tests.server.harness import until

pytestmark = pytest.mark.anyio


def state_of(*keys: bytes, engine: FakeEngine | None = None, **fields: Any) -> ServerState:
    return fake_state(engine, access=AccessControl(Keyring(tuple(KeyDigest(key) for key in keys), ())), **fields)


async def test_a_batch_of_one_line_does_not_wait_for_a_long_one_of_another_key() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    state = state_of(b"one", b"two", engine=engine)
    async with served(state, "one") as client:
        long = await begun(client, lines(*map(str, range(200))))
        await until(lambda: engine.live == runner.LINES // 2)
        other = client.with_options(api_key="two")
        short = await begun(other, lines("a"))
        await until(lambda: engine.live == runner.LINES // 2 + 1)  # none of the others has ended
        engine.gate.set()
        await ended(other, short.id, "completed")
        await ended(client, long.id, "completed")


async def test_batches_of_one_key_are_worked_on_one_after_the_other() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    state = state_of(b"one", b"two", engine=engine)
    async with served(state, "one") as client:
        first = await begun(client, lines("a"))
        await until(lambda: engine.live == 1)
        second = await begun(client, lines("b"))
        other = client.with_options(api_key="two")
        third = await begun(other, lines("c"))
        await until(lambda: engine.live == 2)
        assert (await client.batches.retrieve(second.id)).status == "validating"
        engine.gate.set()
        for by, batch in ((client, first), (client, second), (other, third)):
            await ended(by, batch.id, "completed")


async def test_a_key_that_takes_all_the_places_it_can_leaves_some_to_others() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    state = state_of(b"one", b"two", engine=engine, storing=StoreConfig(max_batches=8))
    async with served(state, "one") as client:
        opened: list[openai.types.Batch] = []
        for _ in range(4):
            opened.append(await begun(client, lines("a")))
        with pytest.raises(openai.RateLimitError, match="its share") as refused:
            await begun(client, lines("a"))
        assert refused.value.code == "batches_full"
        other = client.with_options(api_key="two")
        short = await begun(other, lines("b"))
        engine.gate.set()
        await ended(other, short.id, "completed")
        for batch in opened:
            await ended(client, batch.id, "completed")
        await ended(client, (await begun(client, lines("a"))).id, "completed")


async def test_an_upload_that_is_on_its_way_when_batches_are_taken_up_is_kept() -> None:
    state = fake_state()
    await state.store.write(lambda db: files.begin(db, "", "file-x", "batch", "x", size=5))
    async with served(state) as client:
        other = fake_state(store=state.store).batches
        await other._take_up()
        await state.store.write(lambda db: files.append(db, "file-x", 0, b"hello"))
        await state.store.write(lambda db: files.finish(db, "file-x"))
        assert (await client.files.content("file-x")).content == b"hello"


async def test_a_batch_whose_answers_find_no_room_fails_alone_and_says_why() -> None:
    state = fake_state(FakeEngine())
    state.store._max_bytes = 60_000
    async with served(state) as client:
        file = await uploaded(client, lines(*map(str, range(60))))
        batch = await client.batches.create(
            input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h"
        )
        failed = await ended(client, batch.id, "failed")
        assert failed.errors is not None
        assert failed.errors.data is not None
        assert failed.errors.data[0].code == "store_full"
        await client.files.delete(file)
        await ended(client, (await begun(client, lines("a"))).id, "completed")
    assert await state.store.read(batches.unfinished) == []


async def test_a_batch_that_could_not_be_stored_gives_its_place_back() -> None:
    state = fake_state(storing=StoreConfig(max_batches=1))
    async with served(state) as client:
        file = await uploaded(client, lines("a"))
        await state.store.read(lambda db: db.execute("PRAGMA query_only = ON"))
        with pytest.raises(openai.InternalServerError):
            await client.batches.create(input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h")
        await state.store.read(lambda db: db.execute("PRAGMA query_only = OFF"))
        with anyio.fail_after(60):
            await ended(client, (await begun(client, lines("a"))).id, "completed")
        assert state.batches._places.total == 0
