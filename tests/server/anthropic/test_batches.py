"""Anthropic's batches through its SDK: answered by the runner of all batches, and read as results by name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx2
import pytest
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse

from stentor.server.app.application import create_answering_app, create_app
from stentor.server.app.state import ServerState
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.config import StoreConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.server.storage.opening import make_store
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import HELLO, in_memory, until
from stentor.tests.wire.validate import check_object

pytestmark = pytest.mark.anyio
BATCHES = "/v1/messages/batches"
KEYS = AccessControl(Keyring((KeyDigest(b"one"), KeyDigest(b"two")), ()))


def request(name: str, **params: Any) -> Any:
    return {"custom_id": name, "params": {"model": "fake", "max_tokens": 9, "messages": HELLO, **params}}


def sdk(state: ServerState, key: str = "none") -> anthropic.AsyncAnthropic:
    client: Any = httpx2.AsyncClient(transport=httpx2.ASGITransport(create_app(state)), base_url="http://test")
    return anthropic.AsyncAnthropic(base_url="http://test", api_key=key, max_retries=0, http_client=client)


@asynccontextmanager
async def served(state: ServerState, key: str = "none") -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anyio.create_task_group() as tasks, sdk(state, key) as client:
        tasks.start_soon(state.batches.run, create_answering_app(state))
        yield client
        tasks.cancel_scope.cancel()


async def ended(client: anthropic.AsyncAnthropic, batch: str) -> MessageBatch:
    with anyio.fail_after(60):
        while (found := await client.messages.batches.retrieve(batch)).processing_status != "ended":
            await anyio.sleep(0.01)
    return found


async def results(client: anthropic.AsyncAnthropic, batch: str) -> dict[str, MessageBatchIndividualResponse]:
    return {each.custom_id: each async for each in await client.messages.batches.results(batch)}


async def test_a_batch_is_answered_and_its_results_are_read_by_name() -> None:
    engine = FakeEngine(answer=says("Yes."))
    async with served(fake_state(engine)) as client:
        batches = client.messages.batches
        batch = await batches.create(requests=[request("a"), request("b", max_tokens=-1), request("c", model="gone")])
        assert (batch.processing_status, batch.request_counts.processing, batch.results_url) == ("in_progress", 3, None)
        done = await ended(client, batch.id)
        assert done.request_counts.model_dump() == {
            "processing": 0,
            "succeeded": 1,
            "errored": 2,
            "canceled": 0,
            "expired": 0,
        }
        assert done.ended_at is not None
        assert (done.expires_at - done.created_at).total_seconds() == 86400
        found = await results(client, batch.id)
        assert found["a"].result.type == "succeeded"
        assert found["a"].result.message.content[0].text == "Yes."  # type: ignore[union-attr]
        errors = [found[name].result for name in ("b", "c")]
        assert [error.error.error.type for error in errors] == ["invalid_request_error", "not_found_error"]  # type: ignore[union-attr]
        assert (await batches.delete(batch.id)).model_dump() == {"id": batch.id, "type": "message_batch_deleted"}
        for gone in (batches.retrieve(batch.id), batches.delete(batch.id), batches.cancel(batch.id)):
            with pytest.raises(anthropic.NotFoundError):
                await gone
        left = await client.get("/v1/files", cast_to=httpx2.Response)
        assert left.json()["data"] == []
    assert engine.submitted[0][1] == 100, "whoever waits at a connection goes first"


async def test_what_is_sent_is_what_the_sdk_declares() -> None:
    state = fake_state()
    async with served(state), in_memory(state) as client:
        sent = await client.post(BATCHES, json={"requests": [request("a"), request("b", max_tokens=-1)]})
        name = check_object(MessageBatch, sent.content).id
        with anyio.fail_after(60):
            while (found := await client.get(f"{BATCHES}/{name}")).json()["ended_at"] is None:
                await anyio.sleep(0.01)
        url = check_object(MessageBatch, found.content).results_url
        assert url is not None
        lines = (await client.get(url)).text.splitlines()
        types = [check_object(MessageBatchIndividualResponse, line).result.type for line in lines]
        assert types == ["succeeded", "errored"]


async def test_a_cancelled_batch_tells_what_was_not_made() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with served(fake_state(engine)) as client:
        batches = client.messages.batches
        batch = await batches.create(requests=[request(f"r{number}") for number in range(3)])
        await until(lambda: engine.live)
        with pytest.raises(anthropic.APIStatusError) as refused:
            await batches.delete(batch.id)
        assert refused.value.status_code == 409
        assert refused.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
        with pytest.raises(anthropic.AnthropicError):
            await batches.results(batch.id)
        assert (await batches.cancel(batch.id)).processing_status in ("canceling", "ended")
        done = await ended(client, batch.id)
        assert (done.request_counts.canceled, done.request_counts.succeeded) == (3, 0)
        assert done.cancel_initiated_at is not None
        assert {each.result.type for each in (await results(client, batch.id)).values()} == {"canceled"}


async def test_lists_come_by_pages_forwards_and_backwards_and_hold_no_batches_of_the_other_kind() -> None:
    async with sdk(fake_state()) as client:
        batches = client.messages.batches
        names = [(await batches.create(requests=[request("a")])).id for _ in range(5)][::-1]
        assert [each.id async for each in batches.list(limit=2)] == names
        assert [each.id for each in (await batches.list(limit=2, after_id=names[1])).data] == names[2:4]
        before = await batches.list(limit=2, before_id=names[3])
        assert ([each.id for each in before.data], before.has_more) == (names[1:3], True)
        assert (await client.get("/v1/batches", cast_to=httpx2.Response)).json()["data"] == []
        for query in ({"after_id": "x"}, {"before_id": "x"}, {"after_id": names[0], "before_id": names[1]}):
            with pytest.raises(anthropic.BadRequestError):
                await batches.list(**query)  # type: ignore[arg-type]


async def test_the_routes_of_openai_s_batches_do_not_know_them() -> None:
    async with in_memory(fake_state()) as client:
        name = (await client.post(BATCHES, json={"requests": [request("a")]})).json()["id"]
        assert (await client.get(f"/v1/batches/{name}")).status_code == 404
        assert (await client.post(f"/v1/batches/{name}/cancel")).status_code == 404


async def test_another_key_sees_none_of_them() -> None:
    state = fake_state(access=KEYS)
    async with sdk(state, "one") as owner, sdk(state, "two") as other:
        name = (await owner.messages.batches.create(requests=[request("a")])).id
        batches = other.messages.batches
        assert (await batches.list()).data == []
        for asked in (batches.retrieve(name), batches.cancel(name), batches.delete(name), batches.results(name)):
            with pytest.raises(anthropic.NotFoundError):
                await asked


async def test_a_batch_survives_the_server(tmp_path: Path) -> None:
    config = StoreConfig(tmp_path / "store.db")
    store = make_store(config)
    async with sdk(fake_state(store=store)) as client:
        name = (await client.messages.batches.create(requests=[request("a"), request("b")])).id
    await store.close()
    store = make_store(config)
    async with served(fake_state(store=store)) as client:
        assert (await ended(client, name)).request_counts.succeeded == 2
        assert sorted(await results(client, name)) == ["a", "b"]
    await store.close()


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([], "requests"),
        ("a", "requests"),
        ([request("a"), request("a")], "earlier request"),
        ([request("")], "custom_id"),
        ([request("x" * 65)], "custom_id"),
        ([request("a b")], "custom_id"),
        ([{"custom_id": "a"}], "params"),
        ([{"custom_id": "a", "params": []}], "params"),
        ([request("a", stream=True)], "stream"),
    ],
)
async def test_a_batch_that_cannot_be_is_refused_at_once(requests: Any, said: str) -> None:
    async with in_memory(fake_state()) as client:
        refused = await client.post(BATCHES, json={"requests": requests})
        assert (refused.status_code, refused.json()["type"]) == (400, "error")
        assert said in refused.json()["error"]["message"]


async def test_a_batch_that_finds_no_place_leaves_no_file() -> None:
    async with in_memory(fake_state(storing=StoreConfig(max_batches=1))) as client:
        assert (await client.post(BATCHES, json={"requests": [request("a")]})).status_code == 200
        refused = await client.post(BATCHES, json={"requests": [request("a")]})
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        assert len((await client.get("/v1/files")).json()["data"]) == 1
