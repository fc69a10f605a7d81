"""Whole runs against a real server: when requests are sent, what is answered, what is recorded."""

import asyncio
import contextlib
import copy
import io
import os
import signal
from collections import Counter
from typing import Any

import msgspec
import pytest

from stentor.loadtest.serving import run
from stentor.loadtest.serving.api import APIS
from stentor.loadtest.serving.arrivals import Stage, plan
from stentor.loadtest.serving.driver import Load
from stentor.loadtest.serving.http import Address, HttpClient
from stentor.loadtest.serving.lengths import constant
from stentor.loadtest.serving.meter import Meter, ProgressLine
from stentor.loadtest.serving.run import Outcome, measure_async
from stentor.loadtest.serving.workload import Random
from stentor.loadtest.tool import ToolError
from stentor.tests.loadtest.serving.scripted import DONE, END, HEAD, Asked, Script, Write, serving, token, tokens

pytestmark = pytest.mark.anyio

WORKLOAD = Random(0, constant(6), constant(4), constant(1), constant(0))


class Seen(ProgressLine):
    """Remembers what it is to show."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.meters: list[Meter] = []

    def show(self, meter: Meter, seconds: float) -> None:
        self.meters.append(copy.copy(meter))


async def _run(script: Script, api: str = "completions", view: Seen | None = None, **options: Any) -> Outcome:
    load = Load(
        address=Address("http", "127.0.0.1", script.port),
        api=APIS[api],
        **{"workload": WORKLOAD, "stages": [Stage(concurrency=2, requests=6)], "timeout": 5.0, **options},
    )
    return await asyncio.wait_for(measure_async(load, view), 60)


def _ramp(text: str, requests: int | None = None, seconds: float | None = None) -> list[Stage]:
    return plan(ramp=text, requests=requests, seconds=seconds)


async def _slow(asked: Asked, write: Write) -> None:
    await write(HEAD + token())
    await asyncio.sleep(0.02)
    await write(token() + DONE + END)


async def test_a_run_gathers_all_that_a_reader_needs() -> None:
    async with serving() as script:
        outcome = await _run(script, limits={"ttft": 5000.0})
    result = outcome.result
    assert not outcome.interrupted
    assert (result.target.model, result.target.api, result.target.server) == ("scripted", "completions", "script/1")
    assert len(result.requests) == 6
    for request in result.requests:
        assert (request.prompt_tokens, request.output_tokens) == (7, 4)
        assert request.ttft is not None
        assert 0 < request.ttft <= request.e2e
        assert request.ttft + sum(request.itl) <= request.e2e + 1e-6
        assert (request.finish_reason, request.error, len(request.itl)) == ("length", None, 3)
        assert 0 <= request.scheduled <= request.start
    assert result.metrics_before == {"stentor:requests_total": 0.0}
    assert result.metrics_after == {"stentor:requests_total": 6.0}
    assert result.summary.output_tokens == 24
    assert result.summary.goodput_share == 1.0
    assert result.client_seconds > 0
    assert result.workload["stages"][0]["concurrency"] == 2
    assert result.machine["cores"] >= 1


async def test_the_same_seed_asks_the_same_whatever_the_concurrency() -> None:
    asked = []
    for concurrency in (1, 5):
        async with serving() as script:
            await _run(script, stages=[Stage(concurrency=concurrency, requests=10)])
            asked.append(Counter(one.body["prompt"] for one in script.prompts))
    assert asked[0] == asked[1]
    assert len(asked[0]) == 10


async def test_users_ask_one_after_the_other() -> None:
    async with serving(_slow) as script:
        result = (await _run(script, stages=[Stage(concurrency=3, requests=12)])).result
    assert (script.peak, result.summary.peak_concurrency, len(result.requests)) == (3, 3, 12)


async def test_arrivals_do_not_wait_for_answers() -> None:
    async with serving(_slow) as script:
        stage = Stage(rate=400.0, burstiness=float("inf"), requests=20)
        result = (await _run(script, stages=[stage])).result
    assert script.peak > 3
    scheduled = [request.scheduled for request in result.requests]
    assert scheduled == pytest.approx([0.0025 * number + scheduled[0] for number in range(20)], abs=1e-5)
    assert all(request.start >= request.scheduled for request in result.requests)


async def test_a_cap_makes_arrivals_wait_and_their_lateness_is_seen() -> None:
    async with serving(_slow) as script:
        stage = Stage(rate=1000.0, requests=12)
        result = (await _run(script, stages=[stage], max_concurrency=2)).result
    assert script.peak == 2
    assert max(request.start - request.scheduled for request in result.requests) > 0.05


@pytest.mark.parametrize("stage", [Stage(concurrency=2, seconds=0.4), Stage(rate=50.0, seconds=0.4)])
async def test_a_duration_ends_the_sending_and_waits_for_answers(stage: Stage) -> None:
    async with serving(_slow) as script:
        for _ in range(10):  # who is late on a busy machine sends late
            result = (await _run(script, stages=[stage])).result
            assert len(result.requests) < 80
            assert result.summary.errors == 0
            if len(result.requests) > 3 and max(request.start for request in result.requests) < 0.6:
                return
    pytest.fail("it goes on sending, or has hardly begun")


async def test_a_ramp_of_users_widens_narrows_and_names_its_stages() -> None:
    async with serving(_slow) as script:
        result = (await _run(script, stages=_ramp("concurrency:1,4,2", requests=24))).result
    assert Counter(request.stage for request in result.requests) == {f"concurrency={n}": 8 for n in (1, 4, 2)}
    for width in (1, 4, 2):
        assert _overlap([one for one in result.requests if one.stage == f"concurrency={width}"]) <= width
    assert script.peak == 4


def _overlap(requests: list[Any]) -> int:
    edges = sorted(edge for one in requests for edge in ((one.start, 1), (one.start + one.e2e, -1)))
    now = peak = 0
    for _, step in edges:
        now += step
        peak = max(peak, now)
    return peak


async def test_a_ramp_of_rates_is_timed() -> None:
    async with serving() as script:
        result = (await _run(script, stages=_ramp("rate:40,160", seconds=1.2))).result
    counts = Counter(request.stage for request in result.requests)
    assert 3 < counts["rate=40"] < counts["rate=160"]


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_a_conversation_waits_for_each_answer_and_sends_it_back(api: str) -> None:
    workload = msgspec.structs.replace(WORKLOAD, turns=constant(3), think=constant(0.4))
    async with serving() as script:
        result = (await _run(script, api, workload=workload, stages=[Stage(concurrency=1, requests=4)])).result
    answer = " 0 1 2 3"
    if api == "chat":
        talks = [one.body["messages"] for one in script.prompts]
        assert [[said["role"] for said in talk] for talk in talks[:3]] == [
            ["user"],
            ["user", "assistant", "user"],
            ["user", "assistant", "user", "assistant", "user"],
        ]
        assert talks[2][:3] == talks[1]
        assert {talks[2][1]["content"], talks[2][3]["content"]} == {answer}
    else:
        texts = [one.body["prompt"] for one in script.prompts]
        assert texts[1].startswith(f"{texts[0]}\n{answer}\n")
    first, second, third = result.requests[:3]
    for before, after in ((first, second), (second, third)):
        assert after.start >= before.start + before.e2e + 0.399
    assert result.requests[3].start < third.start + third.e2e + 0.399, "another session does not think first"


async def test_a_budget_cuts_the_last_conversation() -> None:
    workload = msgspec.structs.replace(WORKLOAD, turns=constant(4))
    async with serving() as script:
        result = (await _run(script, workload=workload, stages=[Stage(concurrency=1, requests=6)])).result
    assert len(result.requests) == len(script.prompts) == 6


async def test_what_warms_up_is_neither_counted_nor_asked_again() -> None:
    async with serving() as script:
        result = (await _run(script, warmup=3)).result
    assert len(result.requests) == 6
    assert result.metrics_before == {"stentor:requests_total": 3.0}
    prompts = [one.body["prompt"] for one in script.prompts]
    assert not set(prompts[:3]) & set(prompts[3:])
    assert result.summary.peak_concurrency == 2


async def test_failures_are_counted_by_kind_and_do_not_end_the_run() -> None:
    async def mixed(asked: Asked, write: Write) -> bool:
        number = len(script.prompts) % 3
        if number == 0:
            await write(b"HTTP/1.1 503 Busy\r\nx-request-id: busy-1\r\ncontent-length: 4\r\n\r\nfull")
        elif number == 1:
            await write(HEAD + token())
            return True
        else:
            await tokens(asked, write)
        return False

    async with serving(mixed) as script:
        result = (await _run(script, stages=[Stage(concurrency=1, requests=9)])).result
    summary = result.summary
    assert (summary.requests, summary.completed, summary.errors) == (9, 3, 6)
    assert summary.errors_by_kind == {"http 503": 3, "truncated": 3}
    assert {(request.error_kind, request.request_id) for request in result.requests} == {
        ("http 503", "busy-1"),
        ("truncated", ""),
        (None, ""),
    }


async def test_a_server_that_goes_away_is_not_hammered() -> None:
    async def gone(asked: Asked, write: Write) -> bool:
        return True

    async with serving(gone) as script:
        result = (await _run(script, stages=[Stage(concurrency=2, seconds=0.35)])).result
    assert set(result.summary.errors_by_kind) == {"connection"}
    assert 2 <= result.summary.errors <= 10


async def test_sigint_ends_the_run_and_keeps_what_has_completed() -> None:
    async def some(asked: Asked, write: Write) -> None:
        if len(script.prompts) <= 4:
            return await tokens(asked, write)
        await write(HEAD + token())
        if len(script.prompts) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    async with serving(some) as script:
        outcome = await _run(script, stages=[Stage(concurrency=2, requests=50)])
    assert outcome.interrupted
    assert (outcome.result.summary.completed, outcome.result.summary.errors) == (4, 0)


async def test_a_run_that_cannot_begin_says_why() -> None:
    async with serving() as script:
        port = script.port
    script.port = port
    with pytest.raises(ToolError, match=r"no answer from http://127\.0\.0\.1:\d+/v1/models: Connection refused"):
        await _run(script)

    async def refuse(asked: Asked, write: Write) -> None:
        await write(b"HTTP/1.1 400 Bad\r\ncontent-length: 3\r\n\r\nbad")

    async with serving(refuse) as script:
        with pytest.raises(ToolError, match="every warm-up request failed, the first with http 400: bad"):
            await _run(script, warmup=2)


async def test_an_interrupted_warm_up_leaves_nothing_that_counts() -> None:
    async def second_interrupts(asked: Asked, write: Write) -> None:
        if len(script.prompts) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        await tokens(asked, write)

    async with serving(second_interrupts) as script:
        outcome = await _run(script, warmup=3, stages=[Stage(concurrency=1, requests=3)])
    assert len(script.prompts) == 2
    assert outcome.interrupted
    assert outcome.result.requests == []
    assert outcome.result.summary.completed == 0


async def test_counters_that_do_not_come_keep_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "METRICS_SECONDS", 0.05)

    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read()
        writer.transport.abort()
        left.set()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        client = HttpClient(Address("http", *server.sockets[0].getsockname()), {}, timeout=3600.0)
        async with asyncio.timeout(60):
            assert await run.scrape(client) == {}
            await left.wait()
        client.close()
    await asyncio.sleep(0)


async def test_a_view_is_shown_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "VIEW_SECONDS", 0.05)
    async with serving(_slow) as script:
        await _run(script, view=(view := Seen()), stages=[Stage(concurrency=1, requests=16)])
    assert len(view.meters) >= 2
    last = view.meters[-1]
    assert 1 <= last.completed <= 16
    assert {meter.in_flight for meter in view.meters} <= {0, 1}
    assert last.ttft
    assert last.gaps
