"""Chat completions that are stored: read, listed, changed and deleted through the SDK, by their caller alone."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from stentor.protocols.common.limits import Limits
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.config import StoreConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat
from stentor.server.storage.opening import make_store
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import CHAT, HELLO, chunks_of, in_memory, sdk, until
from stentor.tests.wire.validate import CHAT_EXTENSIONS, check_object

pytestmark = pytest.mark.anyio
KEYS = AccessControl(Keyring((KeyDigest(b"one"), KeyDigest(b"two")), ()))
WEATHER = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALLS = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


async def made(client: openai.AsyncOpenAI, **fields: Any) -> ChatCompletion:
    given: dict[str, Any] = {"model": "fake", "messages": HELLO, "store": True, "max_tokens": 3, **fields}
    answer = await client.chat.completions.create(**given)
    assert isinstance(answer, ChatCompletion)
    return answer


async def test_a_stored_chat_is_what_was_sent_until_it_is_deleted() -> None:
    async with sdk(fake_state()) as client:
        sent = await made(client, metadata={"of": "mine"}, logprobs=True)
        assert sent.metadata == {"of": "mine"}
        assert await client.chat.completions.retrieve(sent.id) == sent
        changed = await client.chat.completions.update(sent.id, metadata={"of": "yours", "more": "é"})
        assert changed.metadata == {"of": "yours", "more": "é"}
        assert changed == sent.model_copy(update={"metadata": changed.metadata})
        assert await client.chat.completions.retrieve(sent.id) == changed
        assert (await client.chat.completions.delete(sent.id)).model_dump() == {
            "id": sent.id,
            "deleted": True,
            "object": "chat.completion.deleted",
        }
        for gone in (
            client.chat.completions.retrieve(sent.id),
            client.chat.completions.delete(sent.id),
            client.chat.completions.update(sent.id, metadata={}),
            client.chat.completions.messages.list(sent.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await gone


async def test_what_is_not_to_be_stored_is_not() -> None:
    async with sdk(fake_state()) as client:
        for store in (None, False):
            await made(client, store=store, metadata={"a": "b"})
        assert (await client.chat.completions.list()).data == []


async def test_lists_come_by_pages_in_both_orders_and_by_model_and_metadata() -> None:
    async with sdk(fake_state()) as client:
        names = []
        for number in range(5):
            metadata = {"number": str(number), "odd": str(number % 2)}
            names.append((await made(client, metadata=metadata, model=("fake", "fake/model")[number // 3])).id)
        chats = client.chat.completions
        assert [each.id async for each in chats.list(limit=2)] == names
        assert [each.id async for each in chats.list(limit=2, order="desc")] == names[::-1]
        assert [each.id async for each in chats.list(after=names[1], limit=1)] == names[2:]
        assert [each.id async for each in chats.list(model="fake/model")] == names[3:]
        assert [each.id async for each in chats.list(metadata={"odd": "1"})] == [names[1], names[3]]
        assert [each.id async for each in chats.list(metadata={"odd": "1", "number": "3"})] == [names[3]]
        assert (await chats.list(metadata={'odd") OR 1=1 --': "1"})).data == []


async def test_a_page_holds_no_more_bytes_than_a_body_may() -> None:
    async with sdk(fake_state(limits=Limits(max_body_bytes=1500))) as client:
        names = [(await made(client)).id for _ in range(5)]
        page = await client.chat.completions.list()
        assert 1 <= len(page.data) < 5
        assert page.has_more
        assert [each.id async for each in client.chat.completions.list()] == names


async def test_the_messages_of_a_chat_come_as_they_were_sent() -> None:
    sent: list[dict[str, Any]] = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ]  # fmt: skip
    async with sdk(fake_state()) as client:
        name = (await made(client, messages=sent)).id
        listing = client.chat.completions.messages
        found = [each.to_dict() async for each in listing.list(name, limit=3)]
        assert [each["id"] for each in found] == [f"{name}-{place}" for place in range(4)]
        assert [each["role"] for each in found] == ["system", "user", "assistant", "tool"]
        assert (found[0]["content"], found[0]["content_parts"]) == ("Be short.", None)
        assert (found[1]["content"], found[1]["content_parts"]) == (None, sent[1]["content"])
        assert found[2]["tool_calls"] == sent[2]["tool_calls"]
        backwards = [each.id async for each in listing.list(name, limit=1, order="desc")]
        assert backwards == [each["id"] for each in found[::-1]]
        for after in ("nothing", f"{name}-9", f"{name}-x", "-1"):
            with pytest.raises(openai.BadRequestError) as refused:
                await listing.list(name, after=after)
            assert refused.value.param == "after"


@pytest.mark.parametrize("said", ["All is well.", CALLS])
async def test_a_streamed_chat_is_stored_as_what_was_streamed(said: str) -> None:
    state = fake_state(FakeEngine(answer=says(said)), output=OutputFormat(tools=TOOL_FORMATS["hermes"]))
    async with in_memory(state) as client:
        body = {"messages": HELLO, "store": True, "stream": True, "n": 2, "tools": WEATHER, "metadata": {"a": "b"}}
        chunks = chunks_of((await client.post(CHAT, json=body)).text)
        got = await client.get(f"{CHAT}/{chunks[0]['id']}")
        stored = check_object(ChatCompletion, got.content, CHAT_EXTENSIONS)
    assert {chunk["id"] for chunk in chunks} == {stored.id}
    assert stored.metadata == {"a": "b"}
    assert stored.created == chunks[0]["created"]
    for choice in stored.choices:
        deltas = [each["delta"] for chunk in chunks for each in chunk["choices"] if each["index"] == choice.index]
        assert (choice.message.content or "") == "".join(delta.get("content") or "" for delta in deltas)
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert bool(calls) == (said == CALLS)
        assert [call.id for call in choice.message.tool_calls or ()] == [call["id"] for call in calls if "id" in call]


async def test_a_stream_that_fails_is_not_stored() -> None:
    engine = FakeEngine(delay=0.001)
    async with in_memory(fake_state(engine)) as client:
        body = {"messages": HELLO, "store": True, "stream": True}
        sending = asyncio.create_task(client.post(CHAT, json=body))
        await until(lambda: engine.live)
        engine.failure = "killed"
        assert '"error"' in (await sending).text
        assert (await client.get(CHAT)).json()["data"] == []


async def test_another_key_sees_none_of_them() -> None:
    state = fake_state(access=KEYS)
    async with sdk(state, "one") as owner, sdk(state, "two") as other:
        name = (await made(owner)).id
        assert (await other.chat.completions.list()).data == []
        for asked in (
            other.chat.completions.retrieve(name),
            other.chat.completions.update(name, metadata={"a": "b"}),
            other.chat.completions.delete(name),
            other.chat.completions.messages.list(name),
        ):
            with pytest.raises(openai.NotFoundError):
                await asked
        with pytest.raises(openai.BadRequestError):
            await other.chat.completions.list(after=name)
        assert (await owner.chat.completions.retrieve(name)).metadata == {}


async def test_a_request_that_names_itself_again_is_stored_again() -> None:
    async with sdk(fake_state()) as client:
        names = {(await made(client, extra_body={"request_id": "same"})).id for _ in range(2)}
        assert len(names) == 2


async def test_they_survive_the_server(tmp_path: Path) -> None:
    config = StoreConfig(tmp_path / "store.db")
    store = make_store(config)
    async with sdk(fake_state(store=store)) as client:
        sent = await made(client, metadata={"a": "b"})
    await store.close()
    again = make_store(config)
    async with sdk(fake_state(store=again)) as client:
        assert await client.chat.completions.retrieve(sent.id) == sent
        assert [each.content async for each in client.chat.completions.messages.list(sent.id)] == ["hello"]
    await again.close()


async def test_the_oldest_make_room_for_new_ones() -> None:
    config = StoreConfig(max_bytes=12_000)
    async with sdk(fake_state(storing=config, store=make_store(config))) as client:
        names = [(await made(client)).id for _ in range(12)]
        left = [each.id async for each in client.chat.completions.list()]
        assert 0 < len(left) < 12
        assert left == names[-len(left) :]


async def test_an_answer_that_the_store_has_no_room_for_is_sent_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = StoreConfig(max_bytes=500)
    async with sdk(fake_state(storing=config, store=make_store(config))) as client:
        sent = await made(client)
        assert sent.choices[0].message.content
        assert "a chat completion could not be stored" in caplog.text
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.retrieve(sent.id)


@pytest.mark.parametrize(
    "metadata", [{"a": 1}, {"a": None}, {"x" * 65: "b"}, {"a": "x" * 513}, {str(n): "" for n in range(17)}, "a", ["a"]]
)
async def test_metadata_that_cannot_be_kept_is_refused(metadata: Any) -> None:
    async with in_memory(fake_state()) as client:
        body = {"messages": HELLO, "store": True, "metadata": metadata}
        refused = await client.post(CHAT, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "metadata")
        name = (await client.post(CHAT, json={**body, "metadata": None, "max_tokens": 1})).json()["id"]
        again = await client.post(f"{CHAT}/{name}", json={"metadata": metadata})
        assert (again.status_code, again.json()["error"]["param"]) in {(400, "metadata"), (400, "metadata.a")}


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "order=up", "after=nothing", "metadata[a]=" + "x" * 513])
async def test_a_list_that_cannot_be_is_refused(query: str) -> None:
    async with in_memory(fake_state()) as client:
        refused = await client.get(f"{CHAT}?{query}")
    assert refused.status_code == 400
    assert json.loads(refused.text)["error"]["param"] == query.partition("=")[0].removesuffix("[a]")


@pytest.mark.parametrize("body", [{}, {"metadata": {"a": "b"}}])
async def test_a_path_of_another_server_below_chat_completions_is_no_stored_chat(body: dict[str, Any]) -> None:
    async with in_memory(fake_state()) as client:
        refused = await client.post(f"{CHAT}/derender", json=body)
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "invalid_request_error")
    assert "derender" in refused.json()["error"]["message"]
