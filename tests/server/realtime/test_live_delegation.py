"""Tasks that the model of a Live session hands over to the client, by the openai SDK."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from stentor.tests.fakes import EOS, Answer, FakeEngine
from stentor.tests.server.realtime.live_client import RATE, LiveClient, connected, live_server
from stentor.tests.server.realtime.sounds import silence, words
from stentor.tests.server.realtime.test_text_sessions import prompt_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning"),
]
CALL = '<tool_call>\n{"name": "delegate", "arguments": {}}\n</tool_call>'


def in_turn(*answers: str) -> Answer:
    """One after the other, for one prompt after the other."""
    left = list(answers)

    def answer(_prompt: list[int], _index: int) -> Sequence[int]:
        return [*left.pop(0).encode(), EOS]

    return answer


def engine_that(*answers: str) -> FakeEngine:
    return FakeEngine(answer=in_turn(*answers), max_model_len=8192)


async def delegated(client: LiveClient, **session: Any) -> str:
    """The id of what the model delegates once it is spoken to."""
    await client.start(**session)
    await client.speak()
    event = await client.until("session.delegation.created")
    assert event["delegation"]["target"] == "client"
    assert event["offset_ms"] >= client.of("session.input_transcript.delta")[-1]["start_ms"]
    id: str = event["delegation"]["id"]
    return id


async def test_a_task_is_delegated_acknowledged_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that(CALL, "I will look.", "It is sunny.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        id = await delegated(client, delegation={"type": "client"})
        while client.transcript("output") != "I will look.":
            await client.until("session.output_transcript.delta")
        acknowledged = prompt_of(engine)
        await client.connection.session.commentary.append(content="Sun, 20 degrees.", delegation_id=id, event_id="r")
        assert (await client.until("session.commentary.appended"))["client_event_id"] == "r"
        while client.transcript("output") != "I will look. It is sunny.":
            await client.until("session.output_transcript.delta")
    assert "The backend works on it." in acknowledged
    assert "delegate" not in acknowledged.split("<user>")[0], "an acknowledgement delegates nothing"
    assert '"delegate"' in prompt_of(engine, 0).split("<user>")[0]
    assert "From the backend: Tell the user now, in your own words: Sun, 20 degrees." in prompt_of(engine)


async def test_a_result_that_comes_first_is_told_in_place_of_an_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_that(CALL, "It is sunny.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        id = await delegated(client, delegation={"type": "client", "acknowledgement_delay_ms": 200})
        await client.connection.session.commentary.append(content="Sun.", delegation_id=id)
        while client.transcript("output") != "It is sunny.":
            await client.until("session.output_transcript.delta")
        await asyncio.sleep(0.3)
    assert len(engine.streams) == 2


async def test_a_task_that_is_delegated_with_words_needs_no_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that(f"One moment. {CALL}")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        await delegated(client)
        await client.until("session.usage.updated")
        await asyncio.sleep(0.1)
    assert len(engine.streams) == 1
    assert client.transcript("output") == "One moment."


async def test_the_delay_of_acknowledgements_changes_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that(CALL)
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        assert (await client.start())["delegation"] == {"type": "client", "acknowledgement_delay_ms": 0}
        later: Any = {"type": "client", "acknowledgement_delay_ms": 60_000}
        await client.connection.session.update(session={"delegation": later})
        assert (await client.until("session.updated"))["session"]["delegation"] == later
        await client.speak()
        await client.until("session.usage.updated")
        await asyncio.sleep(0.1)
    assert len(engine.streams) == 1


async def test_the_model_goes_on_while_the_client_works(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that(f"One moment. {CALL}", "Yes.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        id = await delegated(client)
        await client.connection.session.thinking.append(content="Half done.", delegation_id=id)
        await client.until("session.thinking.appended")
        await client.speak(words(3, rate=RATE) + silence(5000, RATE))
        await client.until("session.usage.updated")
        while "Yes." not in client.transcript("output"):
            await client.until("session.output_transcript.delta")
    assert "From the backend: For your information only; do not say it now: Half done." in prompt_of(engine)


async def test_context_of_a_delegation_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live_server(monkeypatch) as (_, address), connected(address) as client:
        await client.start()
        for kind in ("instructions", "thinking", "commentary"):
            error = await client.refused(
                type=f"session.{kind}.append", content="x", delegation_id="dlg_of_nobody", event_id="z"
            )
            assert (error["param"], error["code"]) == ("delegation_id", "delegation_not_found")
            assert error["client_event_id"] == "z"
        assert json.dumps(client.events).count("appended") == 0
