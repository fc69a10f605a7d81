"""The access log: one line for every request, with its id, and nothing that was private in it."""

import asyncio
import json
import logging
import re
from typing import Any

import pytest
from msgspec.structs import replace

from stentor.engine.processes.logs import set_up_logging
from stentor.server.app.state import ServerState
from stentor.server.config.config import ObserveConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.server.observability.observer import open_observer
from stentor.server.observability.request import current_request_id
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory, until
from stentor.tests.server.middleware.keyrings import keyring

pytestmark = pytest.mark.anyio


@pytest.fixture
def access(caplog: pytest.LogCaptureFixture) -> Any:
    logger = logging.getLogger("stentor.access")
    before = logger.level
    logging.getLogger("stentor").setLevel(logging.ERROR)
    yield lambda: [
        {"request_id": record.__dict__["request_id"], **record.__dict__["fields"]}
        for record in caplog.records
        if record.name == "stentor.access"
    ]
    logger.setLevel(before)
    logging.getLogger("stentor").setLevel(logging.NOTSET)


def logged(engine: FakeEngine | None = None) -> ServerState:
    state = fake_state(engine)
    observer = open_observer(ObserveConfig(access_log=True), state.metrics, "fake/model")
    return replace(state, observer=observer)


async def test_every_request_has_a_line_at_its_end_whatever_the_level(access: Any, caplog: Any) -> None:
    engine = FakeEngine()
    async with in_memory(logged(engine)) as client:
        body = {"messages": HELLO, "max_tokens": 5, "stream": True}
        await client.post(CHAT, json=body, headers={"x-request-id": "one"})
        await client.post(COMPLETIONS, json={"prompt": ["abc", "de"], "max_tokens": 3, "request_id": "two"})
        await client.get("/health?api_key=sesame", headers={"x-request-id": "three"})
    chat, completions, health = access()
    assert chat.pop("seconds") > 0
    assert chat == {
        "request_id": "one",
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "prompt_tokens": len(engine.streams[0].prompt),
        "output_tokens": 5,
    }
    assert (completions["request_id"], completions["prompt_tokens"], completions["output_tokens"]) == ("two", 5, 6)
    assert (health["path"], health["prompt_tokens"]) == ("/health", 0), "a query may hold a key"
    assert re.search(r"POST /v1/chat/completions 200 in \d+\.\d{3} s, \d+ \+ 5 tokens\n", caplog.text)
    assert engine.names == ["one", "two", "two"], "the engine knows a request by the name that the client sees"


async def test_errors_have_their_code_and_a_client_that_left_is_499(access: Any) -> None:
    engine = FakeEngine(delay=0.01)
    state = logged(engine)
    async with in_memory(state) as client:
        await client.get("/nowhere")
        await client.post(CHAT, json={"messages": HELLO, "max_tokens": "many"})
        engine.gate.clear()
        left = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "max_tokens": 5}))
        await until(lambda: engine.live)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        engine.gate.set()
        state.admission.draining = True
        await client.post(CHAT, json={"messages": HELLO})
    seen = [(line["status"], line.get("error")) for line in access()]
    assert seen.pop(1)[0] == 400
    assert seen == [(404, "unknown_url"), (499, None), (503, "draining")]


async def test_a_key_is_told_by_its_place_and_never_by_itself(access: Any, caplog: Any) -> None:
    state = fake_state(access=AccessControl(keyring("first-key", "second-key", admin=("admin-key",))))
    observer = open_observer(ObserveConfig(access_log=True), state.metrics, "fake/model")
    state = replace(state, observer=observer)
    async with in_memory(state) as client:
        for key in ("second-key", "admin-key", "wrong-key"):
            await client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    seen = [(line["status"], line.get("key"), line.get("error")) for line in access()]
    assert seen == [(200, "api-2", None), (200, "admin-1", None), (401, None, "invalid_api_key")]
    assert "-key" not in caplog.text
    assert state.metrics.rejected["auth"]._value.get() == 1


async def test_a_stream_that_fails_half_way_says_so_and_why(access: Any, caplog: Any) -> None:
    engine = FakeEngine(delay=0.01)
    async with in_memory(logged(engine)) as client:
        logging.getLogger("stentor").setLevel(logging.WARNING)
        request = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "max_tokens": 90, "stream": True}))
        await until(lambda: engine.live and engine.streams[0].steps > 2)
        engine.failure = "killed"
        response = await request
    assert response.status_code == 200
    why = "0xdeadbeef in /srv/secret/worker.py"
    assert f"the engine could not finish a request: {why}" in caplog.text
    assert why not in response.text
    (line,) = access()
    assert (line["status"], line["error"]) == (200, "generation_failed")


@pytest.mark.parametrize("style", ["text", "json"])
async def test_a_line_cannot_be_forged_and_tells_nothing_of_a_prompt(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, style: Any
) -> None:
    secret = "prompt-that-is-secret"
    root, uvicorn, ours = logging.getLogger(), logging.getLogger("uvicorn"), logging.getLogger("stentor")
    before = root.handlers[:], root.level, uvicorn.level, ours.level
    root.handlers = []
    engine = FakeEngine()

    def fail(prompt: list[int], _index: int) -> list[int]:
        raise ValueError(f"what was said: {secret} {prompt}")

    try:
        set_up_logging("debug", style, "server", current_request_id)
        state = logged(engine)
        async with in_memory(state) as client:
            await client.get("/a%0a12:00:00%20ERROR%20%20%20server:%20forged%1b[2K" + "x" * 999)
            message = [{"role": "user", "content": secret}]
            await client.post(CHAT, json={"messages": message, "max_tokens": 3})
            await client.post(CHAT, json={"messages": message, "temperature": secret})
            engine.answer = fail
            failed = await client.post(CHAT, json={"messages": message}, headers={"x-request-id": "broken"})
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])
        uvicorn.setLevel(before[2])
        ours.setLevel(before[3])
        logging.getLogger("stentor.access").setLevel(logging.NOTSET)
    written = capfd.readouterr().err
    assert failed.status_code == 500
    assert secret not in written
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", written)
    lines = written.splitlines()
    assert all("x" * 200 not in line for line in lines), "a path is cut"
    if style == "json":
        entries = [json.loads(line) for line in lines]
        (error,) = [entry for entry in entries if entry["level"] == "error"]
        assert (error["message"], error["request_id"]) == ("a request failed", "broken")
        assert "ValueError" in error["exception"]
        assert [entry["status"] for entry in entries if entry["logger"] == "stentor.access"] == [404, 200, 400, 500]
    else:
        assert not [line for line in lines if re.match(r"[\d:]+ ERROR +server: forged", line)]
        assert [line for line in lines if line.endswith(" server: a request failed (request broken)")]
