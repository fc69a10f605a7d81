"""What is held for all clients together, and templates that queue: bounded, with answers that say so."""

import asyncio
import json
import os
import signal
import socket
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import openai
import pytest

from stentor.engine.worker.memory import memory_limit
from stentor.protocols.common.decoding import decoded_bytes
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.server.app.state import ServerState
from stentor.server.common.fair_queue import current_owner
from stentor.server.config.limits import DEFAULT_CHARS, OverloadConfig
from stentor.server.overload.memory_budget import (
    FREE_BYTES,
    SMALL,
    TOKEN_BYTES,
    MemoryBudget,
    MemoryFull,
    default_budget,
)
from stentor.server.text.errors import TemplateError, TemplatesWait
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.templates import template_process
from stentor.server.text.templates.template_process import RenderJob, TemplateProcess
from stentor.tests.engine.machines import write_files
from stentor.tests.fakes import FakeEngine, byte_tokenizer, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory, on_loopback, until

pytestmark = pytest.mark.anyio

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30
PATIENT = 120.0
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def rejections(state: ServerState, reason: str) -> float:
    return float(state.metrics.rejected[reason]._value.get())


def body_of(size: int, **fields: Any) -> bytes:
    body = {"prompt": "abc", "max_tokens": 4, **fields}
    return json.dumps(body).encode().ljust(size)


async def test_a_share_counts_from_its_first_byte_to_its_end_but_for_what_is_free() -> None:
    budget = MemoryBudget(8 * MiB)
    with budget.share() as share:
        assert share.add(FREE_BYTES) == FREE_BYTES
        assert budget.bytes == 0
        assert share.add(4 * MiB) == FREE_BYTES + 4 * MiB
        assert budget.bytes == 4 * MiB
        with budget.share() as other:
            other.add(FREE_BYTES + 3 * MiB)
            assert budget.bytes == 7 * MiB
            with pytest.raises(MemoryFull) as full:
                other.add(1)
        assert f"{7 * MiB} bytes" in str(full.value)
        assert budget.bytes == 4 * MiB
        share.set(FREE_BYTES + MiB)
        assert budget.bytes == MiB
    assert budget.bytes == 0
    share.add(MiB)
    assert budget.bytes == 0, "what is over holds nothing"


async def test_a_part_is_kept_for_small_shares() -> None:
    budget = MemoryBudget(8 * MiB)
    with budget.share() as large, budget.share() as small:
        large.add(FREE_BYTES + 7 * MiB)
        small.add(FREE_BYTES + 8 * MiB // SMALL)
        with pytest.raises(MemoryFull):
            small.add(1)


async def test_what_never_fits_is_the_clients_fault_and_names_the_field() -> None:
    with MemoryBudget(8 * MiB).share() as share:
        with pytest.raises(BadRequest) as refused:
            share.add(FREE_BYTES + 7 * MiB + 1, "prompt")
        assert (refused.value.status, refused.value.code) == (413, "request_too_large")
        assert (refused.value.param, share.size) == ("prompt", 0)


async def test_without_a_bound_all_are_held() -> None:
    budget = MemoryBudget(0)
    with budget.share() as first, budget.share() as second:
        first.add(1 << 40)
        second.add(1 << 40)


@pytest.mark.parametrize(
    ("total", "file", "text", "expected"),
    [
        (24 * GiB, "", "", 1 * GiB),
        (24 * GiB, "memory.max", "max", 1 * GiB),
        (24 * GiB, "memory.max", str(2 * GiB), GiB // 2),
        (24 * GiB, "system.slice/memory.max", str(2 * GiB), GiB // 2),
        (24 * GiB, "memory/memory.limit_in_bytes", str(GiB), GiB // 4),
        (24 * GiB, "memory/memory.limit_in_bytes", "9223372036854771712", 1 * GiB),
        (2 * GiB, "memory.max", str(8 * GiB), GiB // 2),
        (GiB // 8, "memory.max", "max", 64 * MiB),
    ],
)
def test_the_budget_is_a_quarter_of_the_memory_that_there_is(
    tmp_path: Path, total: int, file: str, text: str, expected: int
) -> None:
    files = {
        "proc/meminfo": f"MemTotal:       {total >> 10} kB\nMemFree:        1 kB",
        "proc/self/cgroup": "4:memory:/\n0::/system.slice/stentor.service",
    }
    if file:
        used = file.replace("max", "current").replace("limit", "usage")
        files |= {f"sys/fs/cgroup/{file}": text, f"sys/fs/cgroup/{used}": "0"}
    write_files(tmp_path, files)
    assert default_budget(memory_limit(tmp_path)) == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [' + b",".join(b"%d" % (number + 300) for number in range(50_000)) + b"]}",
        b'{"a": [' + b",".join(b'{"k%d": 0}' % number for number in range(20_000)) + b"]}",
        b'{"a": "' + b"x" * (1 << 20) + b'"}',
        b'{"a": "' + b"x" * (1 << 20) + 'é"}'.encode(),
        b'{"a": "' + b"x" * (1 << 20) + '😀"}'.encode(),
        b'{"a": "' + b"x" * (1 << 20) + b'\\ud83d\\ude00"}',
    ],
    ids=["numbers", "objects", "text", "accent", "emoji", "escape"],
)
def test_what_decoding_takes_is_known_before_and_not_overrated(body: bytes) -> None:
    decoder = msgspec.json.Decoder()
    tracemalloc.start()
    decoded = decoder.decode(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decoded
    assert peak <= decoded_bytes(body, Limits()) + 1024 <= 3 * peak


async def test_a_body_counts_with_what_is_decoded_of_it_and_a_prompt_until_its_answer_has_ended() -> None:
    engine = FakeEngine(max_model_len=1 << 18)
    engine.gate.clear()
    state = fake_state(engine)
    prompt = list(range(3, 250)) * 400
    async with in_memory(state) as client:
        body = json.dumps({"prompt": prompt, "max_tokens": 4}).encode()
        asked = asyncio.create_task(client.post(COMPLETIONS, content=body))
        await until(lambda: engine.live)
        body_bytes = len(body) + decoded_bytes(body, state.admission.limits) - FREE_BYTES
        assert state.admission.memory.bytes == body_bytes + TOKEN_BYTES * len(prompt) - FREE_BYTES
        engine.gate.set()
        assert (await asked).status_code == 200
    assert state.admission.memory.bytes == 0


async def test_a_large_body_too_many_is_refused_unread_and_small_ones_still_pass() -> None:
    engine = FakeEngine()
    state = fake_state(engine, overload=OverloadConfig(max_inflight_bytes=2 * MiB))
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        go = asyncio.Event()

        async def halves() -> Any:
            whole = body_of(450 * KiB)
            yield whole[: 400 * KiB]
            await go.wait()
            yield whole[400 * KiB :]

        slow = asyncio.create_task(client.post(COMPLETIONS, content=halves()))
        await until(lambda: state.admission.memory.bytes > 300 * KiB)
        refused = await client.post(COMPLETIONS, content=body_of(350 * KiB))
        assert refused.status_code == 429
        assert (refused.headers["connection"], refused.headers["retry-after"]) == ("close", "2")
        error = refused.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "memory_full", None)
        assert rejections(state, "memory_full") == 1
        assert (await client.post(COMPLETIONS, content=body_of(FREE_BYTES))).status_code == 200
        go.set()
        assert (await slow).status_code == 200
        assert state.admission.memory.bytes == 0
        assert (await client.post(COMPLETIONS, content=body_of(300 * KiB))).status_code == 200


async def test_a_stream_holds_no_body_and_a_client_that_leaves_none_either() -> None:
    engine = FakeEngine(delay=0.02)
    state = fake_state(engine, overload=OverloadConfig(max_inflight_bytes=2 * MiB))
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        content = body_of(400 * KiB, max_tokens=60, stream=True)
        async with client.stream("POST", COMPLETIONS, content=content) as response:
            assert await anext(response.aiter_bytes())
            assert engine.live
            assert state.admission.memory.bytes == 0

        async def never_ends() -> Any:
            yield b" " * 300 * KiB
            await anyio.sleep_forever()

        gone = asyncio.create_task(client.post(COMPLETIONS, content=never_ends()))
        await until(lambda: state.admission.memory.bytes > 200 * KiB)
        gone.cancel()
        await until(lambda: state.admission.memory.bytes == 0)


# ---- templates


class Killer:
    """Kills both processes that a template's rendering may have, once they have the job: it is given up then, which is
    sooner than by its time."""

    def __init__(self, pool: TokenizerPool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before the rendering."""
        self._pool = pool
        self._received = vars(template_process)["receive"]
        self._answers = 0
        """Awaited so far: a process greets, and then has a job."""
        monkeypatch.setattr(template_process, "receive", self._receive)

    def _receive(self, connection: socket.socket, kind: Any, deadline: float) -> Any:
        self._answers += 1
        if self._answers == 4:
            self._kill()
        return self._received(connection, kind, deadline)

    def _kill(self) -> None:
        assert self._pool._foreign.pid is not None
        os.kill(self._pool._foreign.pid, signal.SIGKILL)

    async def give_up(self, rendering: "asyncio.Task[Any]") -> None:
        await until(lambda: self._answers >= 2)
        self._kill()
        await until(rendering.done)


async def test_slow_templates_of_requests_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = TokenizerPool(byte_tokenizer(), max_pending=4, max_foreign=8, render_seconds=PATIENT)
    pool._foreign = TemplateProcess({}, PATIENT, DEFAULT_CHARS)
    killer = Killer(pool, monkeypatch)
    options: Any = {"add_generation_prompt": False, "continue_final_message": False}
    slow = [asyncio.create_task(pool.render_chat(HELLO, chat_template=ENDLESS, **options)) for _ in range(9)]
    await until(lambda: pool._foreign.pid is not None)
    assert len(await pool.encode("x" * 5000)) == 5000
    assert not slow[0].done()
    with pytest.raises(TemplatesWait):
        await pool.render_chat(HELLO, chat_template="{{ 1 }}", **options)
    for task in slow[1:]:
        task.cancel()
    await until(lambda: len(pool._foreign_turns) == 1)
    following = asyncio.create_task(pool.render_chat(HELLO, chat_template="{{ 1 }}", **options))
    await killer.give_up(slow[0])
    assert isinstance(slow[0].exception(), TemplateError)
    assert await following == [49]
    pool.close()


async def test_templates_of_one_owner_keep_out_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = TokenizerPool(byte_tokenizer(), max_foreign=4)
    may_end, rendered = threading.Event(), []

    def render(job: RenderJob) -> str:
        may_end.wait(30)
        rendered.append(job.chat_template)
        return ""

    monkeypatch.setattr(pool._foreign, "render", render)
    options: Any = {"add_generation_prompt": False, "continue_final_message": False}

    def ask(owner: str, *templates: str) -> list[asyncio.Task[list[int]]]:
        current_owner.set(owner)
        return [asyncio.create_task(pool.render_chat(HELLO, chat_template=each, **options)) for each in templates]

    many = ask("a", *(f"a{number}" for number in range(5)))
    await asyncio.sleep(0)
    other = ask("b", "b0", "b1")
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(*other)
    ended = await asyncio.gather(*many, return_exceptions=True)
    assert rendered == ["a0", "a1", "b0", "a2", "b1"]
    assert [isinstance(error, TemplatesWait) for error in ended] == [False, False, False, True, True]
    assert len(pool._foreign_turns) == 0
    pool.close()


async def test_a_template_too_many_gets_429_and_the_sdk_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = TokenizerPool(byte_tokenizer(), max_foreign=0, render_seconds=PATIENT)
    pool._foreign = TemplateProcess({}, PATIENT, DEFAULT_CHARS)
    killer = Killer(pool, monkeypatch)
    state = fake_state(pool=pool)
    async with in_memory(state) as client:
        sdk = openai.AsyncOpenAI(base_url="http://server/v1", api_key="x", http_client=client, max_retries=0)  # type: ignore[arg-type]
        slow = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "chat_template": ENDLESS}))
        await until(lambda: len(pool._foreign_turns) == 1)
        with pytest.raises(openai.RateLimitError, match="wait to be rendered") as refused:
            await sdk.chat.completions.create(
                model="fake",
                messages=[{"role": "user", "content": "hello"}],
                extra_body={"chat_template": "{{ 1 }}"},
            )
        assert refused.value.code == "templates_full"
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert rejections(state, "templates_full") == 1
        await killer.give_up(slow)
        assert slow.result().status_code == 400
    pool.close()
