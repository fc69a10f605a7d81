"""Files and batches through the SDK: what is brought is kept, worked off, counted, cancelled, and gone on with."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest

from stentor.server.app.application import create_answering_app, create_app
from stentor.server.app.state import ServerState
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.config import StoreConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.server.storage.opening import make_store
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import until

pytestmark = pytest.mark.anyio
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def lines(*names: str, body: dict[str, Any] | None = None, url: str = "/v1/chat/completions") -> bytes:
    rows = [{"custom_id": name, "method": "POST", "url": url, "body": body or CHAT} for name in names]
    return "\n".join(json.dumps(row) for row in rows).encode()


@asynccontextmanager
async def served(state: ServerState | None = None, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    state = state or fake_state()
    transport = httpx.ASGITransport(create_app(state))
    async with (
        anyio.create_task_group() as tasks,
        openai.AsyncOpenAI(
            base_url="http://test/v1",
            api_key=key,
            max_retries=0,
            http_client=httpx.AsyncClient(transport=transport, base_url="http://test"),  # type: ignore[arg-type]
        ) as client,
    ):
        tasks.start_soon(state.batches.run, create_answering_app(state))
        yield client
        tasks.cancel_scope.cancel()


async def uploaded(client: openai.AsyncOpenAI, data: bytes) -> str:
    return (await client.files.create(file=("in.jsonl", data), purpose="batch")).id


async def begun(client: openai.AsyncOpenAI, data: bytes, **fields: Any) -> openai.types.Batch:
    given: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **fields}
    return await client.batches.create(input_file_id=await uploaded(client, data), **given)


async def ended(client: openai.AsyncOpenAI, batch: str, *states: str) -> openai.types.Batch:
    with anyio.fail_after(60):
        while (found := await client.batches.retrieve(batch)).status not in states:
            await anyio.sleep(0.01)
    return found


async def read(client: openai.AsyncOpenAI, file: str | None) -> list[dict[str, Any]]:
    assert file is not None
    return [json.loads(line) for line in (await client.files.content(file)).text.splitlines()]


async def test_files_come_back_as_they_were_brought() -> None:
    data = bytes(range(256)) * 3000
    async with served() as client:
        first = await client.files.create(file=("a.bin", data), purpose="user_data")
        second = await client.files.create(file=("b.jsonl", b""), purpose="batch")
        assert (first.bytes, first.filename, first.purpose, first.status) == (
            len(data),
            "a.bin",
            "user_data",
            "processed",
        )
        assert (await client.files.content(first.id)).content == data
        assert (await client.files.content(second.id)).content == b""
        assert [file.id async for file in client.files.list(limit=1)] == [second.id, first.id]
        assert [file.id async for file in client.files.list(order="asc", purpose="batch")] == [second.id]
        assert (await client.files.retrieve(first.id)) == first
        assert (await client.files.delete(first.id)).deleted
        for gone in (client.files.retrieve(first.id), client.files.delete(first.id), client.files.content(first.id)):
            with pytest.raises(openai.NotFoundError):
                await gone


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "fine-tune"}}, "purpose"),
        ({"files": {"file": ("a", b"x")}}, "purpose"),
        ({"data": {"purpose": "batch"}, "files": {"other": ("a", b"x")}}, "file"),
        ({"json": {"purpose": "batch"}}, "file"),
        ({"files": {"file": ("a", b"x" * 2000)}, "data": {"purpose": "batch"}}, "file"),
        ({"files": {"file": ("a", b"x" * 200_000)}, "data": {"purpose": "batch"}}, "file"),
        ({"content": b"no form", "headers": {"content-type": "multipart/form-data; boundary=x"}}, "file"),
        ({"content": b"no form", "headers": {"content-type": "multipart/form-data"}}, "file"),
    ],
)
async def test_an_upload_that_cannot_be_kept_says_why(given: dict[str, Any], field: str) -> None:
    transport = httpx.ASGITransport(create_app(fake_state(storing=StoreConfig(max_file_bytes=1000))))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post("/v1/files", **given)
    assert answer.status_code in (400, 413), answer.text
    assert answer.json()["error"]["param"] == field


async def test_a_batch_is_worked_off_and_its_answers_lie_in_the_order_of_its_requests() -> None:
    names = [f"r{i}" for i in range(70)]
    async with served() as client:
        batch = await begun(client, lines(*names), metadata={"of": "mine"})
        assert (batch.status, batch.metadata, batch.object) == ("validating", {"of": "mine"}, "batch")
        done = await ended(client, batch.id, "completed")
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (70, 70, 0)
        assert done.error_file_id is None
        rows = await read(client, done.output_file_id)
        assert [row["custom_id"] for row in rows] == names
        for row in rows:
            answer = openai.types.chat.ChatCompletion.model_validate(row["response"]["body"], strict=True)
            assert answer.choices[0].finish_reason == "length"
            assert row["response"]["status_code"] == 200
            assert row["response"]["request_id"]
        assert [each.id async for each in client.batches.list()] == [batch.id]


async def test_requests_that_are_refused_lie_in_a_file_of_their_own() -> None:
    data = lines("good") + b"\n" + lines("bad", body={**CHAT, "temperature": 9})
    async with served() as client:
        done = await ended(client, (await begun(client, data)).id, "completed")
        assert [row["custom_id"] for row in await read(client, done.output_file_id)] == ["good"]
        (bad,) = await read(client, done.error_file_id)
        assert bad["custom_id"] == "bad"
        assert bad["response"]["body"]["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty_file"),
        (b"\n\n", "empty_file"),
        (b"no json", "invalid_json_line"),
        (lines("a", "a"), "duplicate_custom_id"),
        (lines("a", url="/v1/completions"), "mismatched_url"),
        (lines("a", body={**CHAT, "stream": True}), "invalid_json_line"),
    ],
)
async def test_a_file_that_cannot_be_worked_on_fails_with_its_lines(data: bytes, code: str) -> None:
    async with served() as client:
        failed = await ended(client, (await begun(client, data)).id, "failed")
        assert failed.errors is not None
        assert failed.errors.data is not None
        assert failed.errors.data[0].code == code
        assert failed.output_file_id is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"endpoint": "/metrics"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    ],
)
async def test_a_batch_that_cannot_be_begun_says_which_field(fields: dict[str, Any], param: str) -> None:
    async with served() as client:
        given: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        given |= {"input_file_id": await uploaded(client, lines("a")), **fields}
        with pytest.raises(openai.BadRequestError) as caught:
            await client.batches.create(**given)
        assert caught.value.param == param


async def test_a_cancelled_batch_keeps_the_answers_that_it_has() -> None:
    state = fake_state(FakeEngine(delay=0.05))
    async with served(state) as client:
        batch = await begun(client, lines(*map(str, range(2000))))
        with anyio.fail_after(60):
            while not (await client.batches.retrieve(batch.id)).request_counts.completed:  # type: ignore[union-attr]
                await anyio.sleep(0.02)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        done = await ended(client, batch.id, "cancelled")
        assert done.request_counts is not None
        assert 0 < done.request_counts.completed < 2000
        assert len(await read(client, done.output_file_id)) == done.request_counts.completed
        after = await begun(client, lines("next"))
        await ended(client, after.id, "completed")
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(after.id)
        with pytest.raises(openai.NotFoundError):
            await client.batches.cancel("batch_none")


async def test_a_batch_that_waits_is_cancelled_before_it_begins() -> None:
    state = fake_state(FakeEngine(delay=0.05))
    async with served(state) as client:
        first = await begun(client, lines(*map(str, range(2000))))
        second = await begun(client, lines("a"))
        await client.batches.cancel(second.id)
        await client.batches.cancel(first.id)
        assert (await ended(client, second.id, "cancelled")).output_file_id is None


async def test_more_batches_than_may_be_open_are_told_to_wait() -> None:
    state = fake_state(FakeEngine(delay=0.05), storing=StoreConfig(max_batches=1))
    async with served(state) as client:
        first = await begun(client, lines(*map(str, range(500))))
        with pytest.raises(openai.RateLimitError) as caught:
            await begun(client, lines("a"))
        assert caught.value.code == "batches_full"
        await client.batches.cancel(first.id)


async def test_each_key_sees_its_own_files_and_batches_alone() -> None:
    access = AccessControl(Keyring((KeyDigest(b"one"), KeyDigest(b"two")), ()))
    state = fake_state(access=access)
    async with served(state, "one") as client:
        batch = await begun(client, lines("a"))
        done = await ended(client, batch.id, "completed")
        assert await read(client, done.output_file_id)
        other = client.with_options(api_key="two")
        assert [each async for each in other.batches.list()] == []
        assert [each async for each in other.files.list()] == []
        for refused in (
            other.batches.retrieve(batch.id),
            other.batches.cancel(batch.id),
            other.files.content(done.output_file_id or ""),
            other.files.delete(batch.input_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                await refused
        with pytest.raises(openai.BadRequestError):
            await other.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
            )


async def test_what_a_server_left_its_next_one_finishes_without_asking_twice(tmp_path: Path) -> None:
    config = StoreConfig(path=tmp_path / "store.db")
    engine = FakeEngine(delay=0.02)
    state = fake_state(engine, store=make_store(config))
    async with served(state) as client:
        batch = await begun(client, lines(*map(str, range(300))))
        with anyio.fail_after(60):
            while not (await client.batches.retrieve(batch.id)).request_counts.completed:  # type: ignore[union-attr]
                await anyio.sleep(0.02)
    await state.store.close()
    asked = len(engine.streams)
    assert asked < 300
    again = FakeEngine()
    state = fake_state(again, store=make_store(config))
    async with served(state) as client:
        done = await ended(client, batch.id, "completed")
        assert done.request_counts is not None
        assert done.request_counts.completed == 300
        rows = await read(client, done.output_file_id)
        assert [row["custom_id"] for row in rows] == [str(i) for i in range(300)]
    assert 0 < len(again.streams) < 300
    await state.store.close()


async def test_what_an_engine_that_is_given_up_leaves_of_a_batch_the_next_server_makes(tmp_path: Path) -> None:
    config = StoreConfig(path=tmp_path / "store.db")
    engine = FakeEngine()
    engine.gate.clear()
    state = fake_state(engine, store=make_store(config))
    async with served(state) as client:
        batch = await begun(client, lines("a", "b"))
        await until(lambda: engine.live == 2)
        engine.failure, engine.fault = "no worker can be kept", "engine"
        engine.gate.set()
        await until(lambda: not state.admission.live_requests)
    await state.store.close()
    state = fake_state(FakeEngine(), store=make_store(config))
    async with served(state) as client:
        done = await ended(client, batch.id, "completed")
        assert done.request_counts is not None
        assert (done.request_counts.completed, done.request_counts.failed) == (2, 0)
    await state.store.close()
