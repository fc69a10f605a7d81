"""What goes wrong while batches are worked off: each ends once, and the next one is answered all the same."""

import sqlite3
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import openai
import pytest
from starlette.types import Receive, Scope, Send

from stentor.protocols.openai.batches import batch_decoder
from stentor.server.app.state import ServerState
from stentor.server.batches import answering, calls, input, runner
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.config import StoreConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.server.storage import batches, files
from stentor.server.storage.opening import make_store
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.batches.test_batches import CHAT, begun, ended, lines, read, served, uploaded
from stentor.tests.server.harness import in_memory, until

pytestmark = pytest.mark.anyio


async def next_one_is_answered(client: openai.AsyncOpenAI) -> None:
    done = await ended(client, (await begun(client, lines("next"))).id, "completed")
    assert len(await read(client, done.output_file_id)) == 1


async def some_answers(client: openai.AsyncOpenAI, batch: str) -> None:
    with anyio.fail_after(60):
        while not (await client.batches.retrieve(batch)).request_counts.completed:  # type: ignore[union-attr]
            await anyio.sleep(0.02)


async def test_a_batch_whose_input_is_deleted_fails_with_the_answers_that_it_has() -> None:
    body = {**CHAT, "user": "x" * 2000}  # several parts, so that a line is torn
    async with served(fake_state(FakeEngine(delay=0.02))) as client:
        batch = await begun(client, lines(*map(str, range(400)), body=body))
        await some_answers(client, batch.id)
        await client.files.delete(batch.input_file_id)
        failed = await ended(client, batch.id, "failed")
        assert failed.errors is not None
        assert failed.errors.data is not None
        assert failed.errors.data[0].code == "input_file_deleted"
        assert failed.request_counts is not None
        assert len(await read(client, failed.output_file_id)) == failed.request_counts.completed < 400
        await next_one_is_answered(client)


async def test_an_error_that_nobody_thought_of_fails_its_batch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def torn(*_args: Any) -> AsyncGenerator[Any, None]:
        raise RuntimeError("torn")
        yield

    async with served() as client:
        with monkeypatch.context() as patch:
            patch.setattr(answering, "requests", torn)
            failed = await ended(client, (await begun(client, lines("a"))).id, "failed")
        assert failed.errors is not None
        assert failed.errors.data is not None
        assert failed.errors.data[0].code == "server_error"
        await next_one_is_answered(client)


def failing_once(work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, module: Any) -> list[int]:
    """Lets ``work`` of a table fail the first time, as on a full disk."""
    calls: list[int] = []

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise sqlite3.OperationalError("database or disk is full")
        return work(*args, **kwargs)

    monkeypatch.setattr(module, work.__name__, fails)
    return calls


@pytest.mark.parametrize(
    ("module", "name"), [(batches, "add_answers"), (files, "part"), (files, "append"), (batches, "update")]
)
async def test_a_store_that_fails_for_a_while_loses_nothing_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    monkeypatch.setattr(runner, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(answering, "_FLUSH_SECONDS", 0.05)
    # slow enough that answers are stored while others are still being made
    async with served(fake_state(FakeEngine(delay=0.1))) as client:
        file = await uploaded(client, lines(*map(str, range(40))))
        failed = failing_once(getattr(module, name), monkeypatch, module)
        batch = await client.batches.create(
            input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h"
        )
        done = await ended(client, batch.id, "completed")
        assert len(failed) > 1
        rows = await read(client, done.output_file_id)
        assert [row["custom_id"] for row in rows] == [str(i) for i in range(40)]
        assert {each.id async for each in client.files.list()} == {file, done.output_file_id}


async def test_whoever_cancels_at_whatever_moment_every_batch_ends_once() -> None:
    state = fake_state()
    async with served(state) as client:
        for _ in range(12):
            batch = await begun(client, lines("a"))
            moment = 0

            async def cancel_at(moment: int, name: str = batch.id) -> None:
                for _ in range(moment):
                    await anyio.lowlevel.checkpoint()
                await state.batches.cancel("", name)

            async with anyio.create_task_group() as tasks:
                for moment in range(0, 400, 13):
                    tasks.start_soon(cancel_at, moment)
            await ended(client, batch.id, "completed", "cancelled")
        assert await state.store.read(batches.unfinished) == []


async def test_one_that_ends_while_it_is_being_cancelled_stays_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    state = fake_state()
    async with served(state) as client:
        batch = await begun(client, lines("a"))
        original = state.store.read

        async def slow_read(work: Any) -> Any:
            found = await original(work)
            if getattr(work, "func", None) is batches.find:
                monkeypatch.undo()
                await ended(client, batch.id, "completed")
            return found

        monkeypatch.setattr(state.store, "read", slow_read)
        await state.batches.cancel("", batch.id)
        monkeypatch.undo()
        await ended(client, batch.id, "completed", "cancelled")
        assert await state.store.read(batches.unfinished) == []


async def test_an_answer_on_its_way_to_the_store_is_not_lost_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    state = fake_state(FakeEngine(delay=0.03))
    write = state.store.write

    async def late(work: Any) -> Any:
        if getattr(work, "func", work).__name__ == "add_answers":
            await anyio.sleep(0.4)  # as behind much other work; meanwhile the last requests are answered
        return await write(work)

    async with served(state) as client:
        monkeypatch.setattr(answering, "_FLUSH_SECONDS", 0.001)
        batch = await begun(client, lines(*map(str, range(40))))
        monkeypatch.setattr(state.store, "write", late)
        done = await ended(client, batch.id, "completed")
        assert len(await read(client, done.output_file_id)) == 40


async def test_a_server_that_is_busy_for_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(calls, "_LAST_PAUSE", 0.001)
    refused = 30

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal refused
        refused -= 1
        await send({"type": "http.response.start", "status": 429 if refused > 0 else 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    state = fake_state()
    async with served(state) as client, anyio.create_task_group() as tasks:
        other = fake_state(store=state.store).batches
        tasks.start_soon(other.run, app)
        monkeypatch.setattr(state.batches, "add", other.add)
        done = await ended(client, (await begun(client, lines("a"))).id, "completed")
        assert done.request_counts is not None
        assert done.request_counts.completed == 1
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_request_waits_for_as_long_as_the_server_is_paused_in_whatever_shape_it_is_told(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(calls, "_PATIENCE", 0.0)
    state = fake_state()
    refused = state.metrics.rejected["paused"]._value
    body = b'{"model":"fake","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}'
    await state.control.pause("abort", clear_cache=False)
    async with in_memory(state) as client, anyio.create_task_group() as tasks:

        async def post() -> None:
            assert (await calls.post(client, path, body)).status == 200

        tasks.start_soon(post)
        await until(lambda: refused.get() > 5)
        await state.control.resume()


async def test_a_line_waits_for_as_long_as_the_server_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(calls, "_PATIENCE", 0.0)
    state = fake_state()
    async with served(state) as client:
        await state.control.pause("abort", clear_cache=False)
        batch = await begun(client, lines("a"))
        refused = state.metrics.rejected["paused"]._value
        await until(lambda: refused.get() > 5)
        await state.control.resume()
        done = await ended(client, batch.id, "completed")
        assert done.request_counts is not None
        assert (done.request_counts.completed, done.request_counts.failed) == (1, 0)


async def test_a_batch_whose_key_is_gone_is_not_gone_on_with(tmp_path: Path) -> None:
    def state_of(*keys: bytes, engine: FakeEngine) -> ServerState:
        access = AccessControl(Keyring(tuple(KeyDigest(key) for key in keys), ()))
        return fake_state(engine, access=access, store=make_store(StoreConfig(path=tmp_path / "store.db")))

    state = state_of(b"one", b"two", engine=FakeEngine(delay=0.02))
    async with served(state, "one") as client:
        batch = await begun(client, lines(*map(str, range(300))))
        await some_answers(client, batch.id)
    await state.store.close()
    state = state_of(b"two", b"three", engine=FakeEngine())
    async with served(state, "two"):
        with anyio.fail_after(60):
            while await state.store.read(batches.unfinished):
                await anyio.sleep(0.02)
        row = await state.store.read(lambda db: batches.load(db, batch.id))
        assert row is not None
        found = batch_decoder.decode(row.object)
        assert found.errors is not None
        assert (found.status, found.errors.data[0].code) == ("failed", "invalid_api_key")
        assert 0 < found.request_counts.completed < 300
    await state.store.close()


async def test_a_server_whose_store_fails_at_first_takes_up_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_FIRST_PAUSE", 0.01)
    failed = failing_once(batches.unfinished, monkeypatch, batches)
    state = fake_state(store=make_store(StoreConfig(path=tmp_path / "store.db")))
    async with served(state) as client:
        await next_one_is_answered(client)
    assert len(failed) == 2
    await state.store.close()


@pytest.mark.parametrize("damaged", [b"{", b'{"id":"batch_1"}', b"\xff", b""])
async def test_a_stored_batch_that_cannot_be_read_is_deleted_and_the_next_one_is_answered(
    damaged: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = StoreConfig(path=tmp_path / "store.db")
    state = fake_state(FakeEngine(delay=0.02), store=make_store(config))
    async with served(state) as client:
        batch = await begun(client, lines(*map(str, range(300))))
        await some_answers(client, batch.id)
    await state.store.write(lambda db: db.execute("UPDATE batches SET object = ? WHERE open", (damaged,)))
    await state.store.close()
    state = fake_state(store=make_store(config))
    async with served(state) as client:
        await next_one_is_answered(client)
        assert await state.store.read(lambda db: batches.load(db, batch.id)) is None
        await client.files.delete(batch.input_file_id)
    assert "a batch cannot be read any more and was deleted: " in caplog.text
    await state.store.close()


async def test_a_name_that_is_too_long_is_told_with_its_line() -> None:
    async with served() as client:
        failed = await ended(client, (await begun(client, lines("a", "b" * (input.MAX_ID_CHARS + 1)))).id, "failed")
        assert failed.errors is not None
        assert failed.errors.data is not None
        assert (failed.errors.data[0].code, failed.errors.data[0].line) == ("invalid_custom_id", 2)


async def test_a_line_that_would_be_long_to_read_is_refused_before_it_is() -> None:
    line = b'{"custom_id": "b", "url": "/v1/chat/completions", "body": {"x": [' + b"[]," * 4_000_000 + b"0]}}"
    slowest = 0.0

    async def watch() -> None:
        nonlocal slowest
        while True:
            began = time.thread_time()
            await anyio.sleep(0.001)
            slowest = max(slowest, time.thread_time() - began)

    async with served() as client, anyio.create_task_group() as tasks:
        file = await uploaded(client, lines("a") + b"\n" + line)
        tasks.start_soon(watch)
        batch = await client.batches.create(
            input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h"
        )
        failed = await ended(client, batch.id, "failed")
        tasks.cancel_scope.cancel()
    assert failed.errors is not None
    assert failed.errors.data is not None
    assert [(error.code, error.line) for error in failed.errors.data] == [("invalid_json_line", 2)]
    assert slowest < 1, "every stream stood still"


async def test_what_was_written_of_an_answer_file_is_written_anew(tmp_path: Path) -> None:
    """A server that ended between the files and the end of the batch."""
    config = StoreConfig(path=tmp_path / "store.db")
    state = fake_state(store=make_store(config))
    async with served(state) as client:
        batch = await begun(client, lines("a", "b"))
        await ended(client, batch.id, "completed")
        file = (await client.batches.retrieve(batch.id)).output_file_id
        whole = (await client.files.content(file or "")).content
    answers = [batches.StoredResult(place, True, line) for place, line in enumerate(whole.splitlines(keepends=True), 1)]

    def back(db: sqlite3.Connection) -> None:
        row = batches.load(db, batch.id)
        assert row is not None
        batches.update(db, batch.id, row.object.replace(b'"completed"', b'"finalizing"', 1))
        batches.add_answers(db, batch.id, answers)

    await state.store.write(back)
    await state.store.close()
    state = fake_state(store=make_store(config))
    async with served(state) as client:
        done = await ended(client, batch.id, "completed")
        assert (await client.files.content(done.output_file_id or "")).content == whole
        assert len([each async for each in client.files.list(purpose="batch_output")]) == 1
    await state.store.close()
