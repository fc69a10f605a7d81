"""What is kept of responses: retrieved, replayed, continued, cancelled and deleted, by their caller alone."""

import asyncio
import json
import sqlite3
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList

from stentor.server.api.responses import running
from stentor.server.api.responses.events import ResponseFrames
from stentor.server.common.errors import ShutDown
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.config import StoreConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.server.state import event_log
from stentor.server.storage import responses as table
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory, until
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.wire.responses import check_stream
from stentor.tests.wire.validate import check_event, check_object, frames_of

pytestmark = pytest.mark.anyio


async def create(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post(RESPONSES, json={"input": "hello", "max_output_tokens": 8, **body})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_a_stored_response_is_what_was_sent_and_is_gone_once_deleted() -> None:
    async with in_memory(fake_state()) as client:
        sent = await create(client, metadata={"kind": "test"})
        got = await client.get(f"{RESPONSES}/{sent['id']}")
        assert got.json() == sent
        check_object(Response, got.content, EXTENSIONS)
        gone = await client.delete(f"{RESPONSES}/{sent['id']}")
        assert gone.json() == {"id": sent["id"], "object": "response", "deleted": True}
        assert (await client.get(f"{RESPONSES}/{sent['id']}")).status_code == 404
        assert (await client.delete(f"{RESPONSES}/{sent['id']}")).status_code == 404


async def test_what_is_not_stored_cannot_be_asked_for_while_it_runs_either() -> None:
    engine = FakeEngine(delay=0.01)
    state = fake_state(engine)
    async with in_memory(state) as client:
        body = {"input": "hello", "stream": True, "store": False}
        task = asyncio.create_task(client.post(RESPONSES, json=body))
        await until(lambda: engine.live == 1)
        assert list(state.responses) == []
        engine.delay = 0
        assert check_stream((await task).text, EXTENSIONS)["status"] == "incomplete"


async def test_what_is_not_to_be_stored_is_not() -> None:
    async with in_memory(fake_state()) as client:
        sent = await create(client, store=False)
        assert (await client.get(f"{RESPONSES}/{sent['id']}")).status_code == 404
        refused = await client.post(RESPONSES, json={"input": "and?", "previous_response_id": sent["id"]})
        assert refused.status_code == 400  # as OpenAI answers: what is missing is no resource of the path
        assert refused.json()["error"]["param"] == "previous_response_id"
        assert refused.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("background", [False, True])
async def test_a_stream_can_be_read_again_from_any_event(background: bool) -> None:
    async with in_memory(fake_state()) as client:
        body = {"input": "hello", "stream": True, "max_output_tokens": 8, "background": background}
        first = (await client.post(RESPONSES, json=body)).text
        answer = check_stream(first, EXTENSIONS)
        url = f"{RESPONSES}/{answer['id']}"
        assert (await client.get(url, params={"stream": True})).text == first
        assert (await client.get(url)).json() == answer
        frames = frames_of(first)
        for after in (0, 3, len(frames) - 2, len(frames) + 5):
            again = await client.get(url, params={"stream": "true", "starting_after": after})
            assert frames_of(again.text) == frames[after + 1 : -1] + frames[-1:], after


async def test_a_response_that_was_not_streamed_has_no_events_to_read() -> None:
    async with in_memory(fake_state()) as client:
        sent = await create(client)
        refused = await client.get(f"{RESPONSES}/{sent['id']}", params={"stream": "true"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")


async def test_a_background_response_is_queued_then_runs_without_its_client() -> None:
    engine = FakeEngine(answer=says("All done."))
    engine.gate.clear()
    async with in_memory(fake_state(engine)) as client:
        sent = await create(client, background=True, max_output_tokens=None)
        assert sent["status"] == "queued"
        url = f"{RESPONSES}/{sent['id']}"
        assert (await client.get(url)).json()["status"] == "queued"
        reading = asyncio.create_task(client.get(url, params={"stream": "true"}))
        engine.gate.set()
        answer = check_stream((await reading).text, EXTENSIONS)
        assert answer["output"][0]["content"][0]["text"] == "All done."
        assert (await client.get(url)).json() == answer


async def test_a_background_response_is_cancelled_and_nothing_runs_on() -> None:
    engine = FakeEngine(delay=0.01)
    async with in_memory(fake_state(engine)) as client:
        sent = await create(client, background=True, max_output_tokens=None)
        await until(lambda: engine.live == 1)
        url = f"{RESPONSES}/{sent['id']}"
        cancelled = (await client.post(f"{url}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert engine.live == 0
        assert (await client.get(url)).json() == cancelled
        assert (await client.post(f"{url}/cancel")).json() == cancelled
        ended = frames_of((await client.get(url, params={"stream": "true"})).text)
        assert json.loads(ended[-2].data)["response"]["status"] == "cancelled"


async def test_only_what_runs_in_the_background_can_be_cancelled() -> None:
    async with in_memory(fake_state()) as client:
        sent = await create(client)
        refused = await client.post(f"{RESPONSES}/{sent['id']}/cancel")
        assert refused.status_code == 400


async def test_deleting_a_running_response_ends_it() -> None:
    engine = FakeEngine(delay=0.01)
    async with in_memory(fake_state(engine)) as client:
        sent = await create(client, background=True, max_output_tokens=None)
        await until(lambda: engine.live == 1)
        assert (await client.delete(f"{RESPONSES}/{sent['id']}")).status_code == 200
        assert engine.live == 0
        assert (await client.get(f"{RESPONSES}/{sent['id']}")).status_code == 404


async def test_a_turn_goes_on_from_the_one_before_without_its_instructions() -> None:
    engine = FakeEngine(answer=says("Yes."))
    async with in_memory(fake_state(engine)) as client:
        first = await create(client, input="Is it?", instructions="Be brief.")
        second = await create(client, input="Sure?", previous_response_id=first["id"])
        third = await create(client, input="Really?", previous_response_id=second["id"])
    prompts = [bytes(stream.prompt).decode() for stream in engine.streams]
    assert prompts[0] == "<system>Be brief.\n<user>Is it?\n<assistant>"
    assert prompts[1] == "<user>Is it?\n<assistant>Yes.\n<user>Sure?\n<assistant>"
    assert prompts[2] == "<user>Is it?\n<assistant>Yes.\n<user>Sure?\n<assistant>Yes.\n<user>Really?\n<assistant>"
    assert third["previous_response_id"] == second["id"]
    assert third["instructions"] is None


async def test_input_items_come_in_pages() -> None:
    items = [{"role": "user", "content": f"number {number}"} for number in range(5)]
    async with in_memory(fake_state()) as client:
        sent = await create(client, input=items)
        url = f"{RESPONSES}/{sent['id']}/input_items"
        page = (await client.get(url)).json()
        check_object(ResponseItemList, page)
        texts = [item["content"][0]["text"] for item in page["data"]]
        assert texts == [f"number {number}" for number in (4, 3, 2, 1, 0)]
        first = (await client.get(url, params={"limit": 2, "order": "asc"})).json()
        assert first["has_more"] is True
        assert first["last_id"] == first["data"][-1]["id"]
        rest = (await client.get(url, params={"order": "asc", "after": first["last_id"]})).json()
        assert [item["content"][0]["text"] for item in rest["data"]] == [f"number {number}" for number in (2, 3, 4)]
        assert rest["has_more"] is False
        for wrong in ({"limit": 0}, {"limit": "x"}, {"order": "up"}, {"after": "msg_0"}):
            assert (await client.get(url, params=wrong)).status_code == 400, wrong


async def test_an_item_reference_stands_for_the_stored_item() -> None:
    engine = FakeEngine(answer=says("Yes."))
    async with in_memory(fake_state(engine)) as client:
        first = await create(client, input="Is it?")
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        await create(client, input=[reference, {"role": "user", "content": "Sure?"}])
        missing = await client.post(RESPONSES, json={"input": [{"type": "item_reference", "id": "msg_none"}]})
    assert bytes(engine.streams[1].prompt).decode() == "<assistant>Yes.\n<user>Sure?\n<assistant>"
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "input[0].id")


async def test_what_one_key_has_stored_is_not_there_for_another() -> None:
    keys = Keyring(api=(KeyDigest(b"one"), KeyDigest(b"two")))
    engine = FakeEngine(answer=says("Yes."))
    async with in_memory(fake_state(engine, access=AccessControl(keys=keys))) as client:
        mine, theirs = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        sent = (await client.post(RESPONSES, json={"input": "Is it?"}, headers=mine)).json()
        conversation = (await client.post("/v1/conversations", json={}, headers=mine)).json()["id"]
        item = sent["output"][0]["id"]
        url = f"{RESPONSES}/{sent['id']}"
        assert (await client.get(url, headers=mine)).status_code == 200
        for method, path in (
            ("GET", url),
            ("GET", f"{url}?stream=true"),
            ("GET", f"{url}/input_items"),
            ("POST", f"{url}/cancel"),
            ("DELETE", url),
            ("GET", f"/v1/conversations/{conversation}"),
            ("GET", f"/v1/conversations/{conversation}/items"),
            ("DELETE", f"/v1/conversations/{conversation}"),
        ):
            assert (await client.request(method, path, headers=theirs)).status_code == 404, path
        for body, status in (
            ({"input": "and?", "previous_response_id": sent["id"]}, 400),
            ({"input": "and?", "conversation": conversation}, 404),
            ({"input": [{"type": "item_reference", "id": item}]}, 404),
        ):
            assert (await client.post(RESPONSES, json=body, headers=theirs)).status_code == status, body
        assert (await client.get(url, headers=mine)).status_code == 200


async def test_a_client_that_goes_away_leaves_a_cancelled_response() -> None:
    engine = FakeEngine(delay=0.01)
    state = fake_state(engine)
    async with in_memory(state) as client:
        task = asyncio.create_task(client.post(RESPONSES, json={"input": "hello", "stream": True}))
        await until(lambda: engine.live == 1 and any(live.log and live.log.end > 4 for live in state.responses))
        (live,) = state.responses
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: engine.live == 0)
        await until(lambda: not list(state.responses))
        stored = (await client.get(f"{RESPONSES}/{live.response.id}")).json()
        assert stored["status"] == "cancelled"
        assert stored["output"][0]["status"] == "incomplete"


async def test_a_client_that_goes_away_while_its_response_is_written_leaves_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_log, "FULL_BYTES", 500)
    engine = FakeEngine(delay=0.001)
    state = fake_state(engine)
    write, written, gone = state.store.write, asyncio.Event(), asyncio.Event()

    async def slow(work: Any) -> Any:
        found = await write(work)
        if list(state.responses):
            written.set()
            await gone.wait()
        return found

    monkeypatch.setattr(state.store, "write", slow)
    async with in_memory(state) as client:
        task = asyncio.create_task(client.post(RESPONSES, json={"input": "hello", "stream": True}))
        await written.wait()
        (live,) = state.responses
        task.cancel()
        await asyncio.sleep(0.1)
        gone.set()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not list(state.responses))
        await asyncio.sleep(0.3)
        assert (await client.get(f"{RESPONSES}/{live.response.id}")).json()["status"] == "cancelled"


@pytest.mark.parametrize("failures", [2, 9])
async def test_the_end_of_a_background_response_is_stored_as_soon_as_the_store_can(
    failures: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "STORE_PAUSES", (0.05, 0.01))
    state = fake_state()

    def fails(*args: Any) -> bool:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise sqlite3.OperationalError("database or disk is full")
        return finish(*args)

    finish = table.finish
    monkeypatch.setattr(table, "finish", fails)
    async with in_memory(state) as client:
        found = sent = await create(client, background=True)
        for _ in range(100):
            found = (await client.get(f"{RESPONSES}/{sent['id']}")).json()
            if found["status"] not in ("queued", "in_progress"):
                break
            await asyncio.sleep(0.02)
        assert found["status"] == "incomplete"
        assert failures < 0


async def test_one_key_leaves_others_room_in_the_background() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    access = AccessControl(Keyring((KeyDigest(b"one"), KeyDigest(b"two"), KeyDigest(b"three")), ()))
    state = fake_state(engine, access=access, storing=StoreConfig(max_background=4))
    statuses: dict[str, list[int]] = {}
    async with in_memory(state) as client:
        for key in ("one", "two", "three"):
            for _ in range(3):
                answer = await client.post(
                    RESPONSES, json={"input": "hello", "background": True}, headers={"authorization": f"Bearer {key}"}
                )
                statuses.setdefault(key, []).append(answer.status_code)
        engine.gate.set()
        await until(lambda: not list(state.responses))
    assert statuses == {"one": [200, 200, 429], "two": [200, 429, 429], "three": [200, 429, 429]}
    await until(lambda: not state.responses._background)
    assert state.responses._shares.total == 0


async def test_no_more_run_in_the_background_than_may() -> None:
    engine = FakeEngine(delay=0.01)
    state = fake_state(engine, storing=StoreConfig(max_background=1))
    async with in_memory(state) as client:
        sent = await create(client, background=True, max_output_tokens=None)
        refused = await client.post(RESPONSES, json={"input": "hello", "background": True})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "background_full")
        await client.post(f"{RESPONSES}/{sent['id']}/cancel")


async def test_a_stream_that_breaks_off_ends_with_an_event_of_its_own_kind() -> None:
    """A server with a file in which it goes on later leaves a background response unfinished when it ends."""
    frames = ResponseFrames(7)
    frames.encode([b'{"type":"response.created"}', b'{"type":"response.queued"}'])
    (reported,) = frames_of(frames.error(ShutDown()))
    assert reported.event == "error"
    event = check_event(ResponseStreamEvent, reported.data)
    assert (event.code, event.sequence_number) == ("shutting_down", 9)


async def test_a_response_that_is_cancelled_before_anything_was_said_has_a_whole_stream() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    state = fake_state(engine)
    async with in_memory(state) as client:
        task = asyncio.create_task(client.post(RESPONSES, json={"input": "hello", "stream": True}))
        await until(lambda: engine.live == 1)
        (live,) = state.responses
        live.cancel()
        kinds = [frame.event for frame in frames_of((await task).text)]
        assert kinds == ["response.created", "response.incomplete", None]


async def test_a_conversation_keeps_pictures_as_they_came() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, picture]}]
    async with in_memory(fake_state()) as client:
        made = await client.post("/v1/conversations", json={"items": items})
        listed = await client.get(f"/v1/conversations/{made.json()['id']}/items")
    assert listed.json()["data"][0]["content"] == [items[0]["content"][0], {**picture, "file_id": None}]
