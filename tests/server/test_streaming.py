"""Streams over a real socket: the SDK, disconnects, keep-alives, errors in the middle."""

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest
from openai import APIError, AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk

from stentor.server.app.application import create_app
from stentor.server.http import sse
from stentor.tests.fakes import ANSWER, FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, events_of, in_memory, on_loopback, until

pytestmark = [pytest.mark.anyio, pytest.mark.sampled]


async def test_the_sdk_streams_chat_and_completions() -> None:
    async with (
        on_loopback(fake_state()) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["fake/model", "fake"]
        assert (await client.models.retrieve("fake/model")).id == "fake/model"
        stream = await client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == ANSWER.encode()[:24].decode()
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 24
        completion = await client.completions.create(model="fake", prompt="hi", max_tokens=24)
        assert completion.choices[0].text == text


async def to_end(stream: AsyncStream[ChatCompletionChunk]) -> None:
    async for _ in stream:
        pass


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("prompts", ["one", "many"])
@pytest.mark.parametrize("moment", ["queued", "running"])
async def test_a_client_that_goes_away_frees_its_place(stream: bool, path: str, prompts: str, moment: str) -> None:
    engine = FakeEngine(delay=0.005, max_model_len=4096)
    if moment == "queued":
        engine.gate.clear()
    state = fake_state(engine)
    prompt = "hi" if prompts == "one" else ["a", "b", "c"]
    body: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": prompt}
    async with on_loopback(state) as url:
        request = _connect_and_post(url, path, {**body, "max_tokens": 1000, "stream": stream})
        reader, writer = await request
        await until(lambda: engine.live)
        if moment == "running" and stream:
            assert b"200 OK" in await reader.readline()
        elif moment == "running":
            await until(lambda: engine.streams[0].steps > 2)
        writer.transport.abort()
        await until(lambda: not engine.live and not state.admission.live_requests)
        assert all(one.aborted for one in engine.streams)
        engine.gate.set()
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.post(CHAT, json={"messages": HELLO, "max_tokens": 2})).status_code == 200
    assert b'finished_reason="abort",model_name="fake/model"} ' in state.metrics.render()


async def _connect_and_post(
    url: str, path: str, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    writer.write(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    await writer.drain()
    return reader, writer


async def test_a_client_that_does_not_read_holds_nothing_up_and_can_still_leave() -> None:
    engine = FakeEngine(max_model_len=10**6)
    engine.burst = 64
    engine.answer = lambda _prompt, _index: [120] * 900_000
    state = fake_state(engine)
    async with on_loopback(state) as url:
        _, writer = await _connect_and_post(url, CHAT, {"messages": HELLO, "stream": True, "logprobs": True})
        await until(lambda: engine.live)
        await asyncio.sleep(0.2)
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/health")).status_code == 200
        assert engine.live, "the stream is held back by its reader, not finished"
        writer.transport.abort()
        await until(lambda: not engine.live and not state.admission.live_requests)


async def test_comments_keep_a_queued_and_a_slow_stream_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.03)
    engine = FakeEngine()
    engine.gate.clear()
    state = fake_state(engine)
    text = ""
    async with (
        on_loopback(state) as url,
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", CHAT, json={"messages": HELLO, "max_tokens": 3, "stream": True}) as response,
    ):
        assert response.status_code == 200
        async for piece in response.aiter_text():
            text += piece
            if text.count(": keep-alive\n\n") == 3:
                engine.gate.set()
    assert text.startswith(": keep-alive\n\n" * 3)
    assert events_of(text)[-1] == "[DONE]"


async def test_a_lively_stream_has_no_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.5)
    engine = FakeEngine(delay=0.01)
    async with in_memory(fake_state(engine)) as client:
        response = await client.post(CHAT, json={"messages": HELLO, "max_tokens": 60, "stream": True})
    assert ": keep-alive" not in response.text


async def test_the_frames_of_one_engine_step_come_in_one_write() -> None:
    engine = FakeEngine()
    engine.burst = 4
    sent: list[bytes] = []
    body = json.dumps({"messages": HELLO, "max_tokens": 8, "n": 8, "stream": True}).encode()

    async def receive() -> dict[str, Any]:
        if not sent and body:
            sent.append(b"")
            return {"type": "http.request", "body": body}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        if message.get("body"):
            sent.append(message["body"])

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [(b"host", b"here")], "query_string": b""}
    await create_app(fake_state(engine))(scope, receive, send)
    assert len(sent) == 1 + 2 + 1, "two steps, then the end"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_engine_that_dies_in_the_middle_ends_streams_with_an_error_and_wholes_with_a_500(path: str) -> None:
    engine = FakeEngine(delay=0.005, max_model_len=4096)
    state = fake_state(engine)
    body: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": ["a", "b"]}
    body["max_tokens"] = 1000
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        streamed = asyncio.create_task(client.post(path, json={**body, "stream": True}))
        whole = asyncio.create_task(client.post(path, json=body))
        sequences = 2 if path == CHAT else 4
        await until(lambda: engine.live == sequences and all(stream.steps > 2 for stream in engine.streams))
        engine.failure = "killed by signal 9"
        response = await asyncio.wait_for(streamed, 60)
        events = events_of(response.text)
        assert response.status_code == 200
        assert json.loads(events[-1])["error"]["type"] == "server_error"
        assert len(events) > 1
        assert not any("error" in json.loads(event) for event in events[:-1])
        response = await asyncio.wait_for(whole, 60)
        assert response.status_code == 500
        assert "secret" not in response.text
        assert "0xdead" not in response.text
        later = await client.post(path, json={**body, "stream": True})
        assert later.status_code == 503
        assert later.headers["retry-after"]
    assert state.admission.live_requests == 0


async def test_the_sdk_raises_on_an_error_frame() -> None:
    engine = FakeEngine(delay=0.005, max_model_len=4096)
    async with (
        on_loopback(fake_state(engine)) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "hi"}], max_tokens=1000, stream=True
        )
        await anext(stream)
        engine.failure = "killed by signal 9"
        with pytest.raises(APIError, match="generation failed"):
            await to_end(stream)


async def test_a_mistake_of_our_own_is_a_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()

    def broken(_prompt: list[int], _index: int) -> list[int]:
        raise RuntimeError("/srv/secret 0xdeadbeef")

    engine.answer = broken
    caplog.set_level(logging.ERROR, "stentor")
    async with in_memory(fake_state(engine)) as client:
        for stream in (True, False):
            response = await client.post(CHAT, json={"messages": HELLO, "stream": stream})
            assert response.status_code == 500
            assert "secret" not in response.text
            assert response.headers["x-request-id"]
            assert response.json()["error"]["type"] == "server_error"
    traces = [getattr(record, "trace", "") for record in caplog.records]
    assert len(traces) == 2
    for trace in traces:
        assert "builtins.RuntimeError" in trace
        assert "in broken" in trace, "the log says where"
