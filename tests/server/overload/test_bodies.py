"""The bytes of all bodies together, and templates that queue: bounded, with answers that say so."""

import asyncio
import json
from typing import Any

import anyio
import httpx
import openai
import pytest

from stentor.server.config import OverloadConfig
from stentor.server.overload.bodies import FREE_BYTES, BodiesFull, HeldBodies
from stentor.server.state import ServerState
from stentor.server.text.errors import TemplateError, TemplatesWait
from stentor.server.text.pool import TokenizerPool
from stentor.tests.fakes import FakeEngine, byte_tokenizer, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory, on_loopback, until

pytestmark = pytest.mark.anyio

KiB = 1 << 10
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def rejections(state: ServerState, reason: str) -> float:
    return float(state.metrics.rejected[reason]._value.get())


def body_of(size: int, **fields: Any) -> bytes:
    body = {"prompt": "abc", "max_tokens": 4, **fields}
    return json.dumps(body).encode().ljust(size)


async def test_a_body_counts_from_its_first_byte_to_its_end_but_for_what_is_free() -> None:
    bodies = HeldBodies(100)
    with bodies.share() as share:
        assert share.add(FREE_BYTES) == FREE_BYTES
        assert bodies.bytes == 0
        assert share.add(70) == FREE_BYTES + 70
        assert bodies.bytes == 70
        with bodies.share() as other:
            other.add(FREE_BYTES + 30)
            assert bodies.bytes == 100
            with pytest.raises(BodiesFull) as full:
                other.add(1)
        assert "100 bytes" in str(full.value)
        assert bodies.bytes == 70
    assert bodies.bytes == 0


async def test_a_body_alone_has_room_whatever_its_size_and_none_has_beside_it() -> None:
    bodies = HeldBodies(100)
    with bodies.share() as share:
        for _ in range(3):
            share.add(FREE_BYTES + 500)
        with bodies.share() as other, pytest.raises(BodiesFull):
            other.add(FREE_BYTES + 1)
    assert bodies.bytes == 0


async def test_without_a_bound_all_are_held() -> None:
    bodies = HeldBodies(0)
    with bodies.share() as first, bodies.share() as second:
        first.add(1 << 40)
        second.add(1 << 40)


async def test_a_large_body_too_many_is_refused_unread_and_small_ones_still_pass() -> None:
    engine = FakeEngine()
    state = fake_state(engine, overload=OverloadConfig(max_held_body_bytes=512 * KiB))
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        go = asyncio.Event()

        async def halves() -> Any:
            whole = body_of(600 * KiB)
            yield whole[: 500 * KiB]
            await go.wait()
            yield whole[500 * KiB :]

        slow = asyncio.create_task(client.post(COMPLETIONS, content=halves()))
        await until(lambda: state.bodies.bytes > 400 * KiB)
        refused = await client.post(COMPLETIONS, content=body_of(300 * KiB))
        assert refused.status_code == 429
        assert (refused.headers["connection"], refused.headers["retry-after"]) == ("close", "2")
        error = refused.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "bodies_full", None)
        assert rejections(state, "bodies_full") == 1
        assert (await client.post(COMPLETIONS, content=body_of(FREE_BYTES))).status_code == 200
        go.set()
        # 600 KiB less what is free are more than all may hold: it is alone again
        assert (await slow).status_code == 200
        assert state.bodies.bytes == 0
        assert (await client.post(COMPLETIONS, content=body_of(300 * KiB))).status_code == 200


async def test_a_stream_holds_no_body_and_a_client_that_leaves_none_either() -> None:
    engine = FakeEngine(delay=0.02)
    state = fake_state(engine, overload=OverloadConfig(max_held_body_bytes=512 * KiB))
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        content = body_of(500 * KiB, max_tokens=60, stream=True)
        async with client.stream("POST", COMPLETIONS, content=content) as response:
            assert await anext(response.aiter_bytes())
            assert engine.live
            assert state.bodies.bytes == 0

        async def never_ends() -> Any:
            yield b" " * 300 * KiB
            await anyio.sleep_forever()

        gone = asyncio.create_task(client.post(COMPLETIONS, content=never_ends()))
        await until(lambda: state.bodies.bytes > 200 * KiB)
        gone.cancel()
        await until(lambda: state.bodies.bytes == 0)


# ---- templates


async def test_slow_templates_of_requests_hold_up_no_others() -> None:
    pool = TokenizerPool(byte_tokenizer(), max_pending=4, max_foreign=8, render_seconds=0.3)
    options: Any = {"add_generation_prompt": False, "continue_final_message": False}
    slow = [asyncio.create_task(pool.render_chat(HELLO, chat_template=ENDLESS, **options)) for _ in range(9)]
    await until(lambda: pool._foreign.pid is not None)
    async with asyncio.timeout(0.3):
        assert len(await pool.encode("x" * 5000)) == 5000
    with pytest.raises(TemplatesWait):
        await pool.render_chat(HELLO, chat_template="{{ 1 }}", **options)
    for task in slow[1:]:
        task.cancel()
    await until(lambda: pool._foreign_waiting == 1)
    assert await pool.render_chat(HELLO, chat_template="{{ 1 }}", **options) == [49]
    results = await asyncio.gather(*slow, return_exceptions=True)
    assert isinstance(results[0], TemplateError)
    pool.close()


async def test_a_template_too_many_gets_429_and_the_sdk_says_why() -> None:
    pool = TokenizerPool(byte_tokenizer(), max_foreign=0, render_seconds=0.5)
    state = fake_state(pool=pool)
    async with in_memory(state) as client:
        sdk = openai.AsyncOpenAI(base_url="http://server/v1", api_key="x", http_client=client, max_retries=0)  # type: ignore[arg-type]
        slow = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "chat_template": ENDLESS}))
        await until(lambda: pool._foreign_waiting == 1)
        with pytest.raises(openai.RateLimitError, match="wait to be rendered") as refused:
            await sdk.chat.completions.create(
                model="fake",
                messages=[{"role": "user", "content": "hello"}],
                extra_body={"chat_template": "{{ 1 }}"},
            )
        assert refused.value.code == "templates_full"
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert rejections(state, "templates_full") == 1
        assert (await slow).status_code == 400
    pool.close()
