"""A server that ends under a background response, wherever it is, and another one on the same store."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stentor.server.api.responses import resuming, running
from stentor.server.api.responses.resuming import keep_resuming, resume_unfinished
from stentor.server.app.state import ServerState
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.common.suspects import MOST_LOSSES
from stentor.server.config.config import StoreConfig
from stentor.server.config.limits import OverloadConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.server.parsing.output import settle_output
from stentor.server.storage import responses as table
from stentor.server.storage.opening import opened_store
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory, until
from stentor.tests.server.responses.restarting import dies, until_written
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.wire.responses import check_stream
from stentor.tests.wire.validate import assert_same_answer, frames_of

pytestmark = pytest.mark.anyio

WRITES = (
    "<think>Hm, 😀?</think>Let me see. "
    '<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich"}}</tool_call>'
    '<tool_call>{"name": "run", "arguments": {"input": "x"}}</tool_call>'
)
BODY: dict[str, Any] = {
    "input": "hello",
    "background": True,
    "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
    "tools": [{"type": "function", "name": "get_weather"}, {"type": "custom", "name": "run"}],
}
OUTPUT = settle_output("deepseek_r1", "hermes", "", "")


async def server(path: Path, engine: FakeEngine, **fields: Any) -> ServerState:
    return fake_state(engine, store=await opened_store(StoreConfig(path)), output=OUTPUT, **fields)


def writes(steps: int | None, text: str = WRITES) -> FakeEngine:
    """An engine that stops after some steps."""
    engine = FakeEngine(answer=says(text), max_model_len=2048)
    if steps is not None:
        left = steps

        async def pace() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                engine.gate.clear()
            await engine.gate.wait()

        engine.pace = pace  # type: ignore[method-assign]
    return engine


@pytest.fixture(scope="module")
async def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed server answers."""
    state = await server(tmp_path_factory.mktemp("undisturbed") / "store.db", writes(None))
    async with in_memory(state) as client:
        begun = (await client.post(RESPONSES, json=BODY)).json()["id"]
        answer = check_stream((await client.get(f"{RESPONSES}/{begun}?stream=true")).text, EXTENSIONS)
    await dies(state)
    return answer


@pytest.mark.parametrize(
    ("steps", "burst"),
    [
        *((0, 1), (2, 7), (9, 1), (17, 7), (33, 1), (90, 7), (140, 1)),
        *(pytest.param(*each, marks=pytest.mark.proof) for each in ((0, 7), (2, 1), (9, 7), (17, 1), (33, 7), (90, 1))),
        pytest.param(140, 7, marks=pytest.mark.proof),
    ],
)
async def test_wherever_it_ends_the_log_goes_on_without_a_gap(
    tmp_path: Path, undisturbed: dict[str, Any], steps: int, burst: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "FLUSH_SECONDS", 0.01)
    engine = writes(steps)
    engine.burst = burst
    first = await server(tmp_path / "store.db", engine)
    async with in_memory(first) as client:
        begun = (await client.post(RESPONSES, json=BODY)).json()["id"]
        url = f"{RESPONSES}/{begun}"
        await until(lambda: not engine.gate.is_set() or not list(first.responses))
        await until_written(first)
    await dies(first)
    other = writes(None)
    second = await server(tmp_path / "store.db", other)
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        text = (await client.get(f"{url}?stream=true")).text
        answer = check_stream(text, EXTENSIONS)
        assert (await client.get(url)).json() == answer
        again = frames_of((await client.get(f"{url}?stream=true&starting_after=4")).text)
        assert again == frames_of(text)[5:]
    assert not other.submitted or other.submitted == engine.submitted, "the seed is the one that was drawn"
    assert_same_answer(undisturbed, answer, ("id", "call_id", "created_at", "completed_at", "encrypted_content"))
    await dies(second)


async def test_a_store_that_fails_for_a_while_under_a_response_does_not_cancel_it(
    tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "FLUSH_SECONDS", 0.001)
    engine = writes(5)
    state = await server(tmp_path / "store.db", engine)
    failed: list[bool] = []

    def fails(*_: Any) -> None:
        failed.append(True)
        raise sqlite3.OperationalError("database or disk is full")

    async with in_memory(state) as client:
        begun = (await client.post(RESPONSES, json=BODY)).json()["id"]
        await until(lambda: not engine.gate.is_set())
        with monkeypatch.context() as patch:
            patch.setattr(table, "add_events", fails)
            engine.gate.set()  # for one more step
            await until(lambda: len(failed) > 1)
        del engine.pace
        engine.gate.set()
        answer = check_stream((await client.get(f"{RESPONSES}/{begun}?stream=true")).text, EXTENSIONS)
    assert_same_answer(undisturbed, answer, ("id", "call_id", "created_at", "completed_at", "encrypted_content"))
    await dies(state)


async def test_a_server_ends_though_its_store_takes_no_end_of_a_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = await server(tmp_path / "store.db", writes(None))
    tried: list[bool] = []

    def fails(*_: Any) -> None:
        tried.append(True)
        raise sqlite3.OperationalError("database or disk is full")

    async with in_memory(state) as client:
        begun = (await client.post(RESPONSES, json=BODY)).json()["id"]
        with monkeypatch.context() as patch:
            patch.setattr(table, "finish", fails)
            await until(lambda: bool(tried))
            async with asyncio.timeout(10):
                await state.responses.close()
    await dies(state)
    second = await server(tmp_path / "store.db", writes(None))
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        assert check_stream((await client.get(f"{RESPONSES}/{begun}?stream=true")).text, EXTENSIONS)["id"] == begun
    await dies(second)


async def test_what_a_reader_has_seen_stays_as_it_was(tmp_path: Path) -> None:
    engine = writes(60)
    first = await server(tmp_path / "store.db", engine)
    async with in_memory(first) as client:
        begun = (await client.post(RESPONSES, json=BODY)).json()["id"]
        await until(lambda: not engine.gate.is_set())
        (live,) = first.responses
        assert live.log is not None
        events: list[bytes] = []

        async def read() -> None:
            async for batch in live.log.read():  # type: ignore[union-attr]
                events.extend(batch)

        reading = asyncio.create_task(read())
        await until(lambda: len(events) > 10)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await dies(first)
    other = writes(None)
    second = await server(tmp_path / "store.db", other)
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        text = (await client.get(f"{RESPONSES}/{begun}?stream=true")).text
    assert other.submitted == engine.submitted, "the seed is the one that was drawn"
    assert [frame.data.encode() for frame in frames_of(text)[: len(events)]] == events
    await dies(second)


async def test_a_model_that_would_have_said_something_else_fails_the_response_and_takes_nothing_back(
    tmp_path: Path,
) -> None:
    engine = writes(60)
    first = await server(tmp_path / "store.db", engine)
    async with in_memory(first) as client:
        begun = (await client.post(RESPONSES, json=BODY)).json()["id"]
        await until(lambda: not engine.gate.is_set())
        await until_written(first)
    await dies(first)
    second = await server(tmp_path / "store.db", writes(None))
    second = replace(second, chat=replace(second.chat, output=settle_output("none", "none", "", "")))
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        text = (await client.get(f"{RESPONSES}/{begun}?stream=true")).text
        answer = check_stream(text, EXTENSIONS)
        assert (await client.get(f"{RESPONSES}/{begun}")).json()["status"] == "failed"
    assert answer["status"] == "failed"
    assert "started again" in answer["error"]["message"]
    await dies(second)


async def test_the_response_of_a_key_that_is_gone_fails_and_one_of_a_key_that_is_there_goes_on(tmp_path: Path) -> None:
    both = AccessControl(keys=Keyring(api=(KeyDigest(b"one"), KeyDigest(b"two"))))
    engine = writes(20)
    first = await server(tmp_path / "store.db", engine, access=both)
    begun = {}
    async with in_memory(first) as client:
        for key in ("one", "two"):
            sent = await client.post(RESPONSES, json=BODY, headers={"authorization": f"Bearer {key}"})
            begun[key] = sent.json()["id"]
        await until(lambda: not engine.gate.is_set())
    await dies(first)
    second = await server(
        tmp_path / "store.db", writes(None), access=AccessControl(keys=Keyring(api=(KeyDigest(b"two"),)))
    )
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        headers = {"authorization": "Bearer two"}
        text = (await client.get(f"{RESPONSES}/{begun['two']}?stream=true", headers=headers)).text
        assert check_stream(text, EXTENSIONS)["status"] == "completed"
    await dies(second)
    third = await server(tmp_path / "store.db", writes(None), access=both)
    async with in_memory(third) as client:
        headers = {"authorization": "Bearer one"}
        assert (await client.get(f"{RESPONSES}/{begun['one']}", headers=headers)).json()["status"] == "failed"
    await dies(third)


async def begun_in(path: Path, engine: FakeEngine, count: int) -> list[str]:
    """Responses that a server began before it died."""
    first = await server(path, engine)
    async with in_memory(first) as client:
        names = [(await client.post(RESPONSES, json=BODY)).json()["id"] for _ in range(count)]
        await until(lambda: not engine.gate.is_set())
        await until_written(first)
    await dies(first)
    return names


async def test_more_than_may_wait_at_once_are_gone_on_with_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "_MOST_SECONDS", 0.01)
    names = await begun_in(tmp_path / "store.db", writes(20), 5)
    other = writes(None)
    other.gate.clear()
    second = await server(tmp_path / "store.db", other, overload=OverloadConfig(max_queued_requests=1))
    resuming_all = asyncio.create_task(resume_unfinished(second.for_responses))
    await asyncio.sleep(0.2)
    other.gate.set()
    await resuming_all
    async with in_memory(second) as client:
        for name in names:
            text = (await client.get(f"{RESPONSES}/{name}?stream=true")).text
            assert check_stream(text, EXTENSIONS)["status"] == "completed"
    await dies(second)


async def test_what_cannot_be_read_any_more_is_dropped_and_the_others_go_on(tmp_path: Path) -> None:
    broken, whole_one = await begun_in(tmp_path / "store.db", writes(20), 2)
    second = await server(tmp_path / "store.db", writes(None))
    sql = "UPDATE response_events SET events = x'00', steps = x'00' WHERE response = ?"
    await second.store.write(lambda db: db.execute(sql, (broken,)))
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        assert (await client.get(f"{RESPONSES}/{broken}")).status_code == 404
        text = (await client.get(f"{RESPONSES}/{whole_one}?stream=true")).text
        assert check_stream(text, EXTENSIONS)["status"] == "completed"
    await dies(second)


async def test_what_has_not_been_gone_on_with_yet_cannot_be_cancelled_yet_and_is_not_begun_twice(
    tmp_path: Path,
) -> None:
    (name,) = await begun_in(tmp_path / "store.db", writes(20), 1)
    second = await server(tmp_path / "store.db", writes(25))
    async with in_memory(second) as client:
        early = await client.post(f"{RESPONSES}/{name}/cancel")
        assert (early.status_code, early.json()["error"]["code"]) == (503, "starting")
        await resume_unfinished(second.for_responses)
        (live,) = second.responses
        await resume_unfinished(second.for_responses)
        assert list(second.responses) == [live]
        assert (await client.post(f"{RESPONSES}/{name}/cancel")).json()["status"] == "cancelled"
    await dies(second)


async def test_a_response_under_which_the_last_engine_is_given_up_goes_on_with_the_next_server(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    engine = writes(20)
    first = await server(tmp_path / "store.db", engine)
    async with in_memory(first) as client:
        name = (await client.post(RESPONSES, json=BODY)).json()["id"]
        await until(lambda: not engine.gate.is_set())
        engine.failure, engine.fault = "no worker can be kept", "engine"
        engine.gate.set()
        await until(lambda: not list(first.responses))
        assert (await client.get(f"{RESPONSES}/{name}")).json()["status"] in ("queued", "in_progress")
    await dies(first)
    second = await server(tmp_path / "store.db", writes(None))
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        answer = check_stream((await client.get(f"{RESPONSES}/{name}?stream=true")).text, EXTENSIONS)
    assert_same_answer(undisturbed, answer, ("id", "call_id", "created_at", "completed_at", "encrypted_content"))
    await dies(second)


async def test_a_response_whose_engine_is_given_up_goes_on_with_another_of_several(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    engine = writes(20)
    engine.fault = "engine"
    state = await server(tmp_path / "store.db", engine)
    resuming_all = asyncio.create_task(keep_resuming(state.for_responses))
    async with in_memory(state) as client:
        name = (await client.post(RESPONSES, json=BODY)).json()["id"]
        await until(lambda: not engine.gate.is_set())

        async def fail_once() -> None:
            """The stream ends with its engine; the next one has another."""
            await engine.gate.wait()
            if len(engine.streams) == 1:
                engine.failure = "no worker can be kept"
                asyncio.get_running_loop().call_soon(setattr, engine, "failure", None)

        engine.pace = fail_once  # type: ignore[method-assign]
        engine.gate.set()
        await until(lambda: len(engine.streams) == 2)
        answer = check_stream((await client.get(f"{RESPONSES}/{name}?stream=true")).text, EXTENSIONS)
    assert engine.submitted[0] == engine.submitted[1], "the seed is the one that was drawn"
    assert_same_answer(undisturbed, answer, ("id", "call_id", "created_at", "completed_at", "encrypted_content"))
    state.admission.draining = True
    state.responses.leave()
    await resuming_all
    await dies(state)


def lethal(harmless: int) -> FakeEngine:
    """One that is given up under a stream after so many others."""
    engine = writes(None)

    async def pace() -> None:
        if len(engine.streams) > harmless:
            engine.failure, engine.fault = "no worker can be kept", "engine"

    engine.pace = pace  # type: ignore[method-assign]
    return engine


async def test_a_response_under_which_engine_after_engine_is_given_up_fails_and_the_one_beside_it_goes_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    engine = writes(0)
    first = await server(path, engine)
    async with in_memory(first) as client:
        names = [(await client.post(RESPONSES, json=BODY)).json()["id"] for _ in range(2)]
        await until(lambda: len(engine.streams) == 2)
        engine.failure, engine.fault = "no worker can be kept", "engine"
        engine.gate.set()
        await until(lambda: not list(first.responses))
    await dies(first)
    for harmless in (1, *[0] * (MOST_LOSSES - 2)):
        engine = lethal(harmless)
        state = await server(path, engine)
        await resume_unfinished(state.for_responses)
        await until(lambda: not list(state.responses))  # noqa: B023
        assert len(engine.streams) == harmless + 1, "one at a time"
        await dies(state)
    last = await server(path, writes(None))
    await resume_unfinished(last.for_responses)
    assert not list(last.responses)
    async with in_memory(last) as client:
        answers = [(await client.get(f"{RESPONSES}/{name}")).json() for name in names]
    assert [answer["status"] for answer in answers] == ["completed", "failed"]
    assert "not tried again" in answers[1]["error"]["message"]
    await dies(last)


async def test_engines_that_are_given_up_under_a_response_that_goes_on_between_are_no_reason_to_fail_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "FLUSH_SECONDS", 0.01)
    path = tmp_path / "store.db"
    name = ""
    for steps in (5, 10, 15, 20):
        engine = writes(steps)
        state = await server(path, engine)
        async with in_memory(state) as client:
            if steps == 5:
                name = (await client.post(RESPONSES, json=BODY)).json()["id"]
            else:
                await resume_unfinished(state.for_responses)
            await until(lambda: not engine.gate.is_set())  # noqa: B023
            engine.failure, engine.fault = "no worker can be kept", "engine"
            engine.gate.set()
            await until(lambda: not list(state.responses))  # noqa: B023
        await dies(state)
    last = await server(path, writes(None))
    await resume_unfinished(last.for_responses)
    async with in_memory(last) as client:
        answer = check_stream((await client.get(f"{RESPONSES}/{name}?stream=true")).text, EXTENSIONS)
    assert answer["status"] == "completed"
    await dies(last)


@pytest.mark.parametrize("closed", ["paused", "draining"])
async def test_responses_that_no_server_takes_just_now_are_left_for_later(
    tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "_MOST_SECONDS", 0.01)
    (name,) = await begun_in(tmp_path / "store.db", writes(20), 1)
    second = await server(tmp_path / "store.db", writes(None))
    setattr(second.admission, closed, True)
    resuming_all = asyncio.create_task(resume_unfinished(second.for_responses))
    await asyncio.sleep(0.03)
    assert not resuming_all.done()
    setattr(second.admission, closed, False)
    await resuming_all
    async with in_memory(second) as client:
        text = (await client.get(f"{RESPONSES}/{name}?stream=true")).text
        assert check_stream(text, EXTENSIONS)["status"] == "completed"
    await dies(second)


@pytest.mark.parametrize("steps", [6, 30])
async def test_a_compaction_goes_on_on_another_server_and_so_does_the_answer_behind_it(
    tmp_path: Path, steps: int
) -> None:
    text = "Hm.</think>Greeted Ada."
    engine = writes(None, text)
    first = await server(tmp_path / "store.db", engine)
    async with in_memory(first) as client:
        before = (await client.post(RESPONSES, json={"input": "I am Ada."})).json()["id"]
        pausing = writes(steps, text)
        engine.pace = pausing.pace  # type: ignore[method-assign]
        managed = [{"type": "compaction", "compact_threshold": 1}]
        body = {"previous_response_id": before, "input": "Who?", "background": True, "context_management": managed}
        begun = (await client.post(RESPONSES, json=body)).json()["id"]
        await until(lambda: not pausing.gate.is_set())
        await until_written(first)
    await dies(first)
    other = writes(None, text)
    second = await server(tmp_path / "store.db", other)
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        answer = check_stream((await client.get(f"{RESPONSES}/{begun}?stream=true")).text, EXTENSIONS)
        assert [item["type"] for item in answer["output"]] == ["compaction", "reasoning", "message"]
        prompt = bytes(other.streams[-1].prompt).decode()
    assert [prompt.count(said) for said in ("I am Ada.", "Who?", "Greeted Ada.")] == [1, 1, 1]
    await dies(second)


async def test_a_compaction_goes_on_on_another_server_with_what_it_stands_for(tmp_path: Path) -> None:
    body = {"input": [{"role": "user", "content": "I am Ada."}, {"type": "compaction_trigger"}], "background": True}
    engine = writes(6, "Hm.</think>Greeted Ada.")
    first = await server(tmp_path / "store.db", engine)
    async with in_memory(first) as client:
        begun = (await client.post(RESPONSES, json=body)).json()["id"]
        await until(lambda: not engine.gate.is_set())
        await until_written(first)
    await dies(first)
    other = writes(None, "Hm.</think>Greeted Ada.")
    second = await server(tmp_path / "store.db", other)
    await resume_unfinished(second.for_responses)
    async with in_memory(second) as client:
        answer = check_stream((await client.get(f"{RESPONSES}/{begun}?stream=true")).text, EXTENSIONS)
        assert [item["type"] for item in answer["output"]] == ["compaction"]
        more = {"previous_response_id": begun, "input": "Who?"}
        assert (await client.post(RESPONSES, json=more)).status_code == 200
        prompt = bytes(other.streams[-1].prompt).decode()
    assert "I am Ada." in prompt
    assert "Greeted Ada." in prompt
    await dies(second)
