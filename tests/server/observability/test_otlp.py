"""Traces as a collector gets them, and a server that does not mind what the collector does."""

import asyncio
import logging
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from msgspec.structs import replace

from stentor.server.app.state import ServerState
from stentor.server.config.config import ObserveConfig
from stentor.server.observability import otlp
from stentor.server.observability.export_queue import BATCH, ExportQueue
from stentor.server.observability.observer import Observer, open_observer
from stentor.server.observability.otlp import traces_url
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory, until
from stentor.tests.server.observability.collector import Collector, attributes

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


def traced(url: str, engine: FakeEngine | None = None) -> ServerState:
    state = fake_state(engine)
    observer = open_observer(ObserveConfig(otlp_endpoint=url), state.metrics, "fake/model")
    return replace(state, observer=observer)


async def ask(state: ServerState, path: str, body: dict[str, Any], **headers: str) -> int:
    async with in_memory(state) as client:
        return (await client.post(path, json=body, headers=headers)).status_code


def test_an_address_without_a_path_gets_otlps_own() -> None:
    assert traces_url("http://c:4318") == traces_url("http://c:4318/") == "http://c:4318/v1/traces"
    assert traces_url("https://c/tenant/v1/traces") == "https://c/tenant/v1/traces"


async def test_a_request_is_a_span_with_its_phases_below_it(collector: Collector) -> None:
    engine = FakeEngine()
    engine.cached_tokens = 4
    state = traced(collector.url, engine)
    body = {"messages": HELLO, "max_tokens": 6, "n": 2, "stream": True}
    before = time.time_ns()
    await ask(state, CHAT, body, traceparent=f"00-{TRACE}-{PARENT}-01", **{"x-request-id": "abc"})
    state.observer.close()
    after = time.time_ns()
    assert collector.paths == ["/v1/traces"]
    assert collector.resources[0]["service.name"] == "stentor"
    (root,) = collector.roots()
    assert (root.name, root.trace_id.hex(), root.parent_span_id.hex()) == (f"POST {CHAT}", TRACE, PARENT)
    seen = attributes(root)
    prompt_tokens = len(engine.streams[0].prompt)
    assert seen == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": CHAT,
        "stentor.request_id": "abc",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "stentor",
        "gen_ai.request.model": "fake/model",
        "gen_ai.response.model": "fake/model",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.choice.count": 2,
        "gen_ai.usage.input_tokens": prompt_tokens,
        "gen_ai.usage.output_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.response.finish_reasons": ["length", "length"],
    }
    assert before <= root.start_time_unix_nano <= root.end_time_unix_nano <= after
    phases = {span.name: span for span in collector.below(root)}
    assert list(phases) == ["prompt", "queue", "prefill", "decode"]
    assert all(span.trace_id == root.trace_id for span in phases.values())
    assert phases["prompt"].start_time_unix_nano == root.start_time_unix_nano
    queue, prefill = phases["queue"], phases["prefill"]
    assert abs(queue.end_time_unix_nano - queue.start_time_unix_nano - 500_000_000) < 1000, "as the engine said"
    assert abs(prefill.end_time_unix_nano - prefill.start_time_unix_nano - 250_000_000) < 1000
    assert queue.end_time_unix_nano == prefill.start_time_unix_nano


async def test_a_caller_that_does_not_sample_is_not_traced_and_probes_never_are(collector: Collector) -> None:
    state = traced(collector.url)
    async with in_memory(state) as client:
        for path in ("/health", "/ping", "/metrics"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/v1/models", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})).status_code == 200
        for broken in ("garbage", f"00-{'0' * 32}-{PARENT}-01", "é"):
            await client.get("/version", headers={b"traceparent": broken.encode()})
    state.observer.close()
    assert [span.name for span in collector.spans] == ["GET /version"] * 3
    assert all(not span.parent_span_id for span in collector.spans)


async def test_errors_and_clients_that_go_away_are_traced(collector: Collector) -> None:
    engine = FakeEngine(delay=0.01)
    state = traced(collector.url, engine)
    assert await ask(state, CHAT, {"messages": "?"}) == 400
    async with in_memory(state) as client:
        assert (await client.request("LOOK", "/nowhere")).status_code == 404
    engine.gate.clear()
    cut_off = asyncio.create_task(ask(state, CHAT, {"messages": HELLO, "max_tokens": 6}))
    await until(lambda: engine.live)
    cut_off.cancel()
    await asyncio.gather(cut_off, return_exceptions=True)
    engine.gate.set()
    engine.failure = "killed"
    assert await ask(state, COMPLETIONS, {"prompt": "a"}) == 503
    state.observer.close()
    bad, missing, gone, failed = collector.roots()
    assert (attributes(bad)["http.response.status_code"], bad.status.code) == (400, 0), "the client's fault is no error"
    assert "http.route" not in attributes(missing), "a client's own path is no route"
    assert (missing.name, attributes(missing)["http.request.method"]) == ("HTTP", "_OTHER"), "nor is its method one"
    assert attributes(gone)["http.response.status_code"] == 499
    assert [span.name for span in collector.below(gone)] == ["prompt", "queue"]
    assert attributes(gone)["gen_ai.response.finish_reasons"] == ["abort"]
    assert (attributes(failed)["error.type"], failed.status.code) == ("failed", 2)


async def test_no_prompt_and_no_answer_is_sent(collector: Collector) -> None:
    state = traced(collector.url)
    secret = "prompt-that-is-secret"
    await ask(state, CHAT, {"messages": [{"role": "user", "content": secret}], "max_tokens": 40, "user": secret})
    await ask(state, COMPLETIONS, {"prompt": secret, "stop": [secret], "max_tokens": 4, "echo": True})
    await ask(state, CHAT, {"messages": [{"role": "user", "content": secret, secret: 1}], secret: secret})
    state.observer.close()
    assert len(collector.roots()) == 3
    assert all(secret.encode() not in span.SerializeToString() for span in collector.spans)
    assert all("Héllo".encode() not in span.SerializeToString() for span in collector.spans)


async def test_a_collector_that_hangs_holds_up_nobody_and_what_does_not_fit_is_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "120")
    collector.gate.clear()
    state = traced(collector.url)
    queue = state.metrics.server.traces
    assert isinstance(queue, ExportQueue)
    queue._capacity = 20
    async with in_memory(state) as client:
        for _ in range(60):
            assert (await client.get("/version")).status_code == 200
        page = (await client.get("/metrics")).text
    assert collector.paths == [], "it was waited for"
    lost = queue.dropped_full
    assert 60 - 20 - BATCH <= lost <= 40, "beside those that wait, one batch may be on its way"
    assert f'stentor:traces_dropped_total{{model_name="fake/model",reason="queue_full"}} {lost}.0' in page
    collector.gate.set()
    await until(lambda: queue.exported == 60 - lost)
    state.observer.close()
    assert queue.exported == len(collector.spans) == 60 - lost


async def test_a_collector_that_is_not_there_costs_no_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        state = traced(f"http://user:password@127.0.0.1:{nobody.getsockname()[1]}/x?key=1")
        async with in_memory(state) as client:
            for _ in range(3):
                assert (await client.get("/version")).status_code == 200
        with caplog.at_level(logging.INFO):
            state.observer.close()
        traces = state.metrics.server.traces
        assert traces is not None
        await until(lambda: traces.dropped_failed == 3)
    assert "password" not in caplog.text
    assert "key=1" not in caplog.text


async def test_the_end_of_a_server_does_not_wait_for_a_collector_that_hangs(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "120")
    collector.gate.clear()
    state = traced(collector.url)
    await ask(state, COMPLETIONS, {"prompt": "x", "max_tokens": 1})
    monkeypatch.setattr(otlp, "_CLOSE_SECONDS", 0.1)
    state.observer.close()
    assert collector.paths == [], "it was waited for"


async def test_one_who_is_told_and_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    reported: list[object] = []

    def fail(_record: object) -> None:
        raise RuntimeError("no")

    state = fake_state(observer=Observer([fail, reported.append]))
    assert await ask(state, CHAT, {"messages": HELLO, "max_tokens": 1}) == 200
    assert len(reported) == 1
    assert "a request could not be recorded" in caplog.text


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    program = (
        "import sys, stentor.server.main.commands, stentor.server.app.lifecycle\n"
        "from stentor.server.config.config import ObserveConfig\n"
        "from stentor.tests.fakes import fake_state\n"
        "from stentor.server.observability.observer import open_observer\n"
        "state = fake_state(); open_observer(ObserveConfig(access_log=True), state.metrics, 'm')\n"
        "assert not [name for name in sys.modules if name.startswith(('opentelemetry', 'google.protobuf'))]"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True)
