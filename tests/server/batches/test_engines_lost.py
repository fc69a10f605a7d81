"""Lines of batches under which engines are given up."""

import json
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from stentor.server.app.state import ServerState
from stentor.server.batches import calls
from stentor.server.batches.lines import BatchRequest
from stentor.server.common.suspects import MOST_LOSSES
from stentor.server.config.config import StoreConfig
from stentor.server.storage import batches
from stentor.server.storage.opening import make_store
from stentor.tests.fakes import ANSWER, FakeEngine, fake_state, says
from stentor.tests.server.batches.test_batches import CHAT, begun, ended, lines, read, served
from stentor.tests.server.harness import in_memory, until

pytestmark = pytest.mark.anyio

POISON = {**CHAT, "messages": [{"role": "user", "content": "poison"}]}


def lethal() -> FakeEngine:
    """One that is given up under a prompt that is poison."""
    engine = FakeEngine()
    harmless = says(ANSWER, repeat=True)

    def answer(prompt: list[int], index: int) -> Sequence[int]:
        if b"poison" in bytes(prompt):
            engine.failure, engine.fault = "no worker can be kept", "engine"
        return harmless(prompt, index)

    engine.answer = answer
    return engine


def on(path: Path, engine: FakeEngine) -> ServerState:
    return fake_state(engine, store=make_store(StoreConfig(path=path)))


async def losses(state: ServerState, batch: str) -> dict[int, int]:
    return await state.store.read(lambda db: batches.losses(db, batch))


async def begin_under_a_lost_engine(path: Path, data: bytes, count: int) -> str:
    """A batch whose server ends with its engine while all of its lines are in flight."""
    engine = FakeEngine()
    engine.gate.clear()
    state = on(path, engine)
    async with served(state) as client:
        batch = await begun(client, data)
        await until(lambda: engine.live == count)
        engine.failure, engine.fault = "no worker can be kept", "engine"
        engine.gate.set()
        with anyio.fail_after(60):
            while len(await losses(state, batch.id)) < count:
                await anyio.sleep(0.005)
    await state.store.close()
    return batch.id


async def test_a_line_under_which_engine_after_engine_is_given_up_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    data = b"\n".join((lines("a"), lines("poison", body=POISON), lines("b")))
    batch = await begin_under_a_lost_engine(path, data, 3)
    for lost in range(2, MOST_LOSSES + 1):
        engine = lethal()
        state = on(path, engine)
        async with served(state):
            with anyio.fail_after(60):
                while (await losses(state, batch)).get(2, MOST_LOSSES) < lost:  # gone with the batch's end
                    await anyio.sleep(0.005)
        assert len(engine.streams) == 2, "one at a time: another one, then the poison"
        await state.store.close()
    engine = lethal()
    state = on(path, engine)
    async with served(state) as client:
        done = await ended(client, batch, "completed")
        assert done.request_counts is not None
        assert (done.request_counts.completed, done.request_counts.failed) == (2, 1)
        assert [row["custom_id"] for row in await read(client, done.output_file_id)] == ["a", "b"]
        (row,) = await read(client, done.error_file_id)
        assert (row["custom_id"], row["error"]["code"]) == ("poison", "server_error")
        assert not engine.streams, "it is not tried again"
        assert not await losses(state, batch)
    await state.store.close()


async def test_lines_under_which_an_engine_was_given_up_wait_for_their_turn_and_run_one_at_a_time(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    batch = await begin_under_a_lost_engine(path, lines("a", "b"), 2)
    engine = FakeEngine()
    most = 0

    async def pace() -> None:
        nonlocal most
        most = max(most, engine.live)

    engine.pace = pace  # type: ignore[method-assign]
    state = on(path, engine)
    async with served(state) as client:
        async with state.batches.suspects:  # as for a background response
            await until(lambda: state.batches.suspects.statistics().tasks_waiting)
            assert not engine.streams
        done = await ended(client, batch, "completed")
        assert len(await read(client, done.output_file_id)) == 2
    assert (most, len(engine.streams)) == (1, 2)
    await state.store.close()


async def test_a_line_that_did_not_run_on_the_engine_that_was_given_up_is_no_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(calls, "_LAST_PAUSE", 0.001)
    engine = FakeEngine()
    state = on(tmp_path / "store.db", engine)
    await state.control.pause("abort", clear_cache=False)
    async with served(state) as client:
        batch = await begun(client, lines("a"))
        paused, gone = (state.metrics.rejected[code]._value for code in ("paused", "failed"))
        await until(lambda: paused.get() > 1)
        engine.failure, engine.fault = "no worker can be kept", "engine"
        await state.control.resume()
        await until(lambda: gone.get() > 1)
        assert not await losses(state, batch.id)
    await state.store.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_in_each_shape_of_errors_a_line_is_told_that_its_engine_was_given_up(path: str) -> None:
    prompt = {"input": "hi"} if path == "/v1/responses" else {"prompt": "hi"} if path == "/v1/completions" else CHAT
    state = fake_state(lethal())
    poison = json.loads(json.dumps({"model": "fake", "max_tokens": 3, **prompt}).replace("hi", "poison"))
    if path == "/v1/responses":
        del poison["max_tokens"]
    async with in_memory(state) as client:
        with pytest.raises(calls.EngineGivenUp):
            await calls.answer(client, BatchRequest("a", path, poison))
