"""A full queue, a deadline and the end of a server, as a client meets them."""

import asyncio
import json
import threading
from typing import Any

import anyio
import httpx
import openai
import pytest

from stentor.server.app.state import ServerState
from stentor.server.config.limits import OverloadConfig
from stentor.server.overload.queue_slots import QueueSlot
from stentor.server.text.pool import INLINE_CHARS, TokenizerPool
from stentor.tests.fakes import FakeEngine, byte_tokenizer, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, events_of, in_memory, on_loopback, until

pytestmark = pytest.mark.anyio


def state_of(engine: FakeEngine, **overload: Any) -> ServerState:
    return fake_state(engine, overload=OverloadConfig(**overload))


def closed_engine() -> FakeEngine:
    """One that does nothing until its gate is opened."""
    engine = FakeEngine()
    engine.gate.clear()
    return engine


def body(**fields: Any) -> dict[str, Any]:
    return {"prompt": "abc", "max_tokens": 4, **fields}


def rejections(state: ServerState, reason: str) -> float:
    return float(state.metrics.rejected[reason]._value.get())


def cut_off(state: ServerState, reason: str) -> float:
    return float(state.metrics.cut_off[reason]._value.get())


# ---- the queue


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_request_that_finds_the_queue_full_is_refused_before_its_body_is_read(path: str) -> None:
    engine = closed_engine()
    state = state_of(engine, max_queued_requests=2)
    async with in_memory(state) as client, anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(lambda: client.post(COMPLETIONS, json=body()))
        await until(lambda: len(engine.streams) == 2)
        refused = await client.post(path, content=b"no JSON at all")
        engine.gate.set()
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    error = refused.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "queue_full", None)
    assert rejections(state, "queue_full") == 1
    assert (state.admission.queue.requests, state.admission.queue.tokens, state.admission.live_requests) == (0, 0, 0)


async def test_bodies_that_do_not_come_keep_no_place_in_the_queue_and_one_that_comes_too_late_finds_none() -> None:
    engine = FakeEngine()
    state = state_of(engine, max_queued_requests=2)
    content = json.dumps(body()).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: server\r\ncontent-length: {len(content)}\r\n\r\n".encode()
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client, anyio.create_task_group() as tasks:
        slow = [await asyncio.open_connection("127.0.0.1", httpx.URL(url).port) for _ in range(3)]
        for _, writer in slow:
            writer.write(head + content[:1])
        await until(lambda: state.admission.live_requests == 3)
        assert (await client.post(COMPLETIONS, json=body())).status_code == 200
        engine.gate.clear()
        for _ in range(2):
            tasks.start_soon(lambda: client.post(COMPLETIONS, json=body()))
        await until(lambda: state.admission.queue.requests == 2)
        reader, writer = slow[0]
        writer.write(content[1:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 429")
        assert rejections(state, "queue_full") == 1
        engine.gate.set()
        for _, writer in slow:
            writer.close()
    await until(lambda: state.admission.live_requests == 0)
    assert state.admission.queue.requests == 0


async def test_a_request_that_generates_makes_room_for_the_next() -> None:
    engine = FakeEngine(delay=0.01)
    state = state_of(engine, max_queued_requests=1)
    async with in_memory(state) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: client.post(COMPLETIONS, json=body(max_tokens=200, n=3)))
        await until(lambda: engine.streams and not state.admission.queue.requests)
        assert (await client.post(COMPLETIONS, json=body())).status_code == 200
        assert engine.live
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_beyond_the_tokens_that_may_wait_are_refused(stream: bool) -> None:
    engine = closed_engine()
    state = state_of(engine, max_queued_tokens=20)
    async with in_memory(state) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: client.post(COMPLETIONS, json=body(prompt=["a" * 5, "b" * 10])))
        await until(lambda: len(engine.streams) == 2)
        assert state.admission.queue.tokens == 15
        refused = await client.post(COMPLETIONS, json=body(prompt=["cc", "d" * 9], stream=stream))
        assert state.admission.queue.tokens == 15, "what the refused one had counted is given back"
        engine.gate.set()
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_tokens_full")
    assert int(refused.headers["retry-after"]) >= 1
    assert rejections(state, "queue_tokens_full") == 1
    assert (state.admission.queue.requests, state.admission.queue.tokens) == (0, 0)


async def test_a_prompt_longer_than_all_that_may_wait_is_served_when_it_is_alone() -> None:
    state = state_of(FakeEngine(), max_queued_tokens=5)
    async with in_memory(state) as client:
        assert (await client.post(COMPLETIONS, json=body(prompt="a" * 50))).status_code == 200
    assert state.admission.queue.tokens == 0


@pytest.mark.parametrize(
    "fields", [{"prompt": ""}, {"temperature": 9}, {"prompt": ["a", "b" * 600]}, {"max_tokens": 0}, {"stream": True}]
)
async def test_whatever_a_request_comes_to_its_permit_is_given_back(fields: dict[str, Any]) -> None:
    engine = FakeEngine()
    state = state_of(engine, max_queued_requests=1, max_queued_tokens=1000)
    async with in_memory(state) as client:
        for _ in range(3):
            assert (await client.post(COMPLETIONS, json=body(**fields))).status_code != 429
    assert (state.admission.queue.requests, state.admission.queue.tokens) == (0, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_permit_of_a_client_that_goes_away_is_given_back(stream: bool) -> None:
    engine = closed_engine()
    state = state_of(engine, max_queued_requests=1, max_queued_tokens=10)
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                await client.post(COMPLETIONS, json=body(stream=stream), timeout=httpx.Timeout(60, read=0.2))
            await until(lambda: not state.admission.queue.requests)
            assert (state.admission.queue.tokens, engine.live) == (0, 0)


async def test_a_connection_is_of_use_after_a_large_body_that_was_refused_unread() -> None:
    engine = closed_engine()
    state = state_of(engine, max_queued_requests=1)
    async with (
        on_loopback(state) as url,
        httpx.AsyncClient(base_url=url) as client,
        httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=1)) as other,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(lambda: client.post(COMPLETIONS, json=body()))
        await until(lambda: engine.streams)
        for _ in range(2):
            refused = await other.post(COMPLETIONS, content=bytes(1 << 20))
            assert refused.status_code == 429
        engine.gate.set()
        await until(lambda: not state.admission.live_requests)
        assert (await other.post(COMPLETIONS, json=body())).status_code == 200


# ---- deadlines


async def test_the_deadline_covers_the_wait_for_the_tokenizer() -> None:
    gate = threading.Event()
    pool = TokenizerPool(byte_tokenizer(), threads=1, max_pending=1)
    state = fake_state(pool=pool, overload=OverloadConfig(request_timeout=30.0))
    standing_still = asyncio.create_task(pool.run(lambda: gate.wait(30)))
    await asyncio.sleep(0)
    async with in_memory(state) as client:
        soon = {"x-request-timeout": "0.2"}
        late = await client.post(COMPLETIONS, json=body(prompt="a" * 2 * INLINE_CHARS), headers=soon)
        assert (late.status_code, state.admission.live_requests) == (504, 0)
        gate.set()
        await standing_still
        assert (await client.post(COMPLETIONS, json=body(prompt="a" * 2 * INLINE_CHARS))).status_code == 200
    pool.close()


async def test_the_sdk_of_openai_does_not_begin_again_what_was_too_late_but_what_was_refused() -> None:
    engine = closed_engine()
    state = state_of(engine, request_timeout=30.0, max_queued_requests=1)
    async with (
        on_loopback(state) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=1) as client,
        anyio.create_task_group() as tasks,
    ):
        with pytest.raises(openai.InternalServerError, match="did not end within"):
            await client.completions.create(model="fake", prompt="abc", extra_headers={"x-request-timeout": "0.3"})
        assert len(engine.streams) == 1
        engine.gate.set()
        taken = state.admission.queue.enter()
        tasks.start_soon(_give_back_once_one_was_refused, state, taken)
        answer = await client.completions.create(model="fake", prompt="abc", max_tokens=3)
        assert answer.usage is not None
        assert rejections(state, "queue_full") == 1


async def _give_back_once_one_was_refused(state: ServerState, taken: QueueSlot) -> None:
    await until(lambda: rejections(state, "queue_full"))
    taken.close()


async def test_a_whole_answer_that_takes_too_long_is_a_504_that_is_not_to_be_retried() -> None:
    engine = closed_engine()
    state = state_of(engine, request_timeout=0.1)
    async with in_memory(state) as client:
        late = await client.post(COMPLETIONS, json=body())
    assert (late.status_code, late.headers["x-should-retry"]) == (504, "false")
    error = late.json()["error"]
    assert (error["type"], error["code"]) == ("timeout_error", "deadline_exceeded")
    assert "0.1 seconds" in error["message"]
    assert (engine.live, state.admission.live_requests, state.admission.queue.requests) == (0, 0, 0)
    assert cut_off(state, "deadline_exceeded") == 1


async def test_a_stream_that_takes_too_long_ends_with_an_error_event() -> None:
    engine = FakeEngine()
    state = state_of(engine)

    async def pace() -> None:
        if engine.streams[0].steps > 2:
            (context,) = state.admission._live
            assert context._scope is not None
            context._scope.deadline = anyio.current_time()
            await anyio.sleep_forever()

    engine.pace = pace  # type: ignore[method-assign]
    async with in_memory(state) as client:
        late = await client.post(
            COMPLETIONS, json=body(max_tokens=400, stream=True), headers={"x-request-timeout": "3600"}
        )
    assert late.status_code == 200
    events = events_of(late.text)
    assert len(events) > 2
    assert json.loads(events[-1])["error"]["code"] == "deadline_exceeded"
    assert "[DONE]" not in events
    await until(lambda: not engine.live)
    assert cut_off(state, "deadline_exceeded") == 1


async def test_a_stream_whose_time_is_up_before_its_first_token_gets_the_status() -> None:
    engine = closed_engine()
    state = state_of(engine, request_timeout=0.1)
    async with in_memory(state) as client:
        late = await client.post(CHAT, json={"messages": HELLO, "stream": True})
    assert late.status_code == 504
    assert engine.live == 0


async def test_a_client_cannot_take_more_time_than_the_operator_gives() -> None:
    state = state_of(closed_engine(), request_timeout=0.1)
    async with in_memory(state) as client:
        with anyio.fail_after(30):
            late = await client.post(COMPLETIONS, json=body(), headers={"x-request-timeout": "60"})
    assert late.status_code == 504


async def test_a_header_that_is_no_time_is_refused_by_name() -> None:
    async with in_memory(state_of(FakeEngine())) as client:
        refused = await client.post(COMPLETIONS, json=body(), headers={"x-request-timeout": "soon"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-request-timeout")


async def test_the_deadline_covers_a_body_that_does_not_come() -> None:
    state = state_of(FakeEngine(), request_timeout=0.2)
    async with on_loopback(state) as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\n{")
        async with asyncio.timeout(30):
            assert b" 504 " in await reader.readline()
        writer.close()
    assert state.admission.live_requests == 0


# ---- the end of a server


async def test_a_draining_server_refuses_and_lets_go_of_the_connection() -> None:
    state = state_of(FakeEngine())
    state.admission.draining = True
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        refused = await client.post(COMPLETIONS, json=body())
        health, ping = await client.get("/health"), await client.get("/ping")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert (refused.headers["connection"], int(refused.headers["retry-after"]) >= 1) == ("close", True)
    assert (health.status_code, ping.status_code) == (503, 200)
    assert rejections(state, "draining") == 1


async def test_requests_that_are_cut_off_get_an_error_each_in_its_shape() -> None:
    engine = FakeEngine(delay=0.01)
    state = state_of(engine)
    answers: dict[bool, httpx.Response] = {}

    async def ask(client: httpx.AsyncClient, stream: bool) -> None:
        answers[stream] = await client.post(COMPLETIONS, json=body(max_tokens=400, stream=stream))

    async with (
        on_loopback(state) as url,
        httpx.AsyncClient(base_url=url) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ask, client, False)
        tasks.start_soon(ask, client, True)
        await until(lambda: len(engine.streams) == 2 and not state.admission.queue.requests)
        state.admission.cut_off()
        assert await state.admission.drained(30.0)
        await until(lambda: len(answers) == 2)
    assert (answers[False].status_code, answers[True].status_code) == (503, 200)
    assert answers[False].json()["error"]["code"] == "shutting_down"
    assert answers[False].headers["connection"] == "close"
    last = events_of(answers[True].text)[-1]
    assert json.loads(last)["error"]["code"] == "shutting_down"
    assert engine.live == 0
    assert cut_off(state, "shutting_down") == 2
