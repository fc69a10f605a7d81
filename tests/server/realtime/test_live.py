"""The Live API on a WebSocket, by the openai SDK through the listener that really serves."""

import asyncio
import base64
from typing import Any

import pytest
import websockets

from stentor.server.audio.g711 import encode
from stentor.server.config.config import RealtimeConfig
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.realtime.live_client import ANSWER, RATE, SPOKEN, LiveClient, connected, live_server
from stentor.tests.server.realtime.sounds import Model, silence, words
from stentor.tests.server.realtime.test_text_sessions import prompt_of
from stentor.tests.server.responses.sockets import serving

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning"),
]
STORY = "One more sentence of this story. " * 40


def engine_that(text: str) -> FakeEngine:
    return FakeEngine(answer=says(text), max_model_len=4096)


async def test_a_caller_speaks_and_is_answered_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that(ANSWER)
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        session = await client.start(instructions="Be brief.")
        assert (session["model"], session["instructions"], session["status"]) == ("fake", "Be brief.", "active")
        assert session["audio"] == {"format": {"type": "audio/pcm", "rate": RATE}, "output": {"voice": "joe"}}
        await client.speak()
        used = await client.until("session.usage.updated")
        assert 0 < used["context_window"]["usage_ratio"] < 1
        assert client.transcript("input") == "w1 w2"
        assert client.transcript("output") == ANSWER, "it has been heard by then"
        closed = await client.close()
    assert prompt_of(engine).startswith("<system>Be brief.\n")
    assert prompt_of(engine).endswith("<user>w1 w2\n<assistant>")
    assert abs(len(client.audio) - 2 * RATE) < RATE / 50, "two sentences of half a second"
    assert (closed["reason"], closed["client_event_id"], closed["session"]) == ("close_requested", "the end", session)
    assert closed["usage"]["seconds"] >= used["usage"]["seconds"] > 5.9, "of audio that came at once"
    spoken = client.of("session.input_transcript.delta")
    assert spoken[-1]["end_ms"] <= client.of("session.output_transcript.delta")[0]["start_ms"]
    with pytest.raises(websockets.exceptions.ConnectionClosedOK):
        await client.until("nothing")


async def test_the_last_word_of_an_answer_is_told_whatever_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor.tests.server.realtime.session_fakes.SECONDS_A_SENTENCE", 0.1234)
    async with live_server(monkeypatch, engine_that("Yes it is.")) as (_, address), connected(address) as client:
        await client.start()
        await client.speak()
        await client.until("session.usage.updated")
    assert client.transcript("output") == "Yes it is."


async def test_an_interruption_ends_the_answer_and_what_was_not_heard_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that(STORY)
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        await client.start()
        await client.speak()
        while len(client.transcript("output")) < 40:
            await client.until("session.output_transcript.delta")
        await client.speak(words(3, rate=RATE))
        await client.until("session.usage.updated")
        said = client.transcript("output")
        heard = len(client.audio)
        await asyncio.sleep(0.3)
        await client.connection.session.input_audio.unmute()
        await client.until("session.input_audio.unmuted")
        assert (client.transcript("output"), len(client.audio)) == (said, heard), "nothing follows an interruption"
        await client.speak(silence(5000, RATE))
        while not client.transcript("output")[len(said) :]:
            await client.until("session.output_transcript.delta")
    assert STORY.startswith(said)
    assert said != STORY
    history = prompt_of(engine).split("<assistant>")[1]
    assert history.startswith(said)
    assert len(history) < len(said) + 60, "the model knows how far it was heard"


async def test_muted_audio_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    hears = Model()
    async with live_server(monkeypatch, hears=hears) as (_, address), connected(address) as client:
        await client.start()
        await client.connection.session.input_audio.mute(event_id="hush")
        assert (await client.until("session.input_audio.muted"))["client_event_id"] == "hush"
        await client.speak()
        await client.connection.session.input_audio.unmute()
        assert "client_event_id" not in await client.until("session.input_audio.unmuted")
        assert not hears.calls
        await client.speak()
        first = await client.until("session.input_transcript.delta")
        assert first["start_ms"] >= len(SPOKEN) / 2 / RATE * 1000 - 400, "the silence has its time"


@pytest.mark.parametrize(
    ("format", "bytes_a_second"),
    [
        ({"type": "audio/pcm", "rate": 16000}, 32_000),
        ({"type": "audio/pcmu", "rate": 8000}, 8000),
        ({"type": "audio/pcma", "rate": 8000}, 8000),
    ],
    ids=["16 kHz", "pcmu", "pcma"],
)
async def test_audio_has_the_format_of_the_session_both_ways(
    monkeypatch: pytest.MonkeyPatch, format: dict[str, Any], bytes_a_second: int
) -> None:
    rate = format["rate"]
    async with live_server(monkeypatch, engine_that("Yes.")) as (_, address), connected(address) as client:
        assert (await client.start(audio={"format": format}))["audio"]["format"] == format
        audio = words(1, rate=rate) + silence(5000, rate)
        if format["type"] != "audio/pcm":
            audio = encode("pcmu" if format["type"] == "audio/pcmu" else "pcma", audio)
        for half in (audio[: bytes_a_second // 4 | 1], audio[bytes_a_second // 4 | 1 :]):  # in the middle of a sample
            await client.speak(half)
        await client.until("session.input_transcript.delta")
        while len(client.audio) < bytes_a_second * 0.45:
            await client.until("session.output_audio.delta")
        await client.close()
    assert abs(len(client.audio) - bytes_a_second / 2) <= bytes_a_second / 50


async def test_history_and_appended_context_are_known_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that("Yes.")
    history = [
        {"role": "developer", "content": [{"text": "Be kind."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi."}], "status": "completed", "type": "message"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
    ]
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        assert (await client.start(input=history))["input"] == history
        await client.connection.session.instructions.append(content="Be brief.", delegation_id=None, event_id="a")
        await client.connection.session.thinking.append(content="It rains.", delegation_id=None, event_id="b")
        for kind, event_id in (("instructions", "a"), ("thinking", "b")):
            event = await client.until(f"session.{kind}.appended")
            assert (event["client_event_id"], event["start_ms"]) == (event_id, event["end_ms"])
        await client.connection.session.update(session={"delegation": None}, event_id="c")
        assert (await client.until("session.updated"))["client_event_id"] == "c"
        assert not engine.streams, "neither asks for speech"
        await client.connection.session.commentary.append(content="The taxi is here.", delegation_id=None)
        await client.until("session.commentary.appended")
        await client.until("session.output_transcript.delta")
    assert prompt_of(engine).startswith("<system>Be kind.\n")
    assert prompt_of(engine).endswith(
        "<user>Hi.\n<assistant>Hello.\n<system>Be brief.\n"
        "<system>For your information only; do not say it now: It rains.\n"
        "<system>Tell the user now, in your own words: The taxi is here.\n<assistant>"
    )


async def test_commentary_waits_for_the_caller_and_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that("Yes.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        await client.start()
        await client.speak(words(1, 2, rate=RATE))
        for content in ("A.", "B."):
            await client.connection.session.commentary.append(content=content, delegation_id=None)
            await client.until("session.commentary.appended")
        assert not engine.streams, "while the caller speaks"
        await client.speak(silence(5000, RATE))
        await client.until("session.usage.updated")
        await client.close()
    assert len(engine.streams) == 1, "one answer to all of it"
    assert "A.\n" in prompt_of(engine)
    assert "B.\n" in prompt_of(engine)


async def test_errors_name_the_field_and_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live_server(monkeypatch) as (_, address), connected(address) as client:
        error = await client.refused(type="session.input_audio.mute", event_id="early")
        assert (error["code"], error["param"], error["client_event_id"]) == ("session_not_started", "type", "early")
        for session, param, code in REFUSED_SESSIONS:
            error = await client.refused(type="session.start", session={"model": "fake", **session}, event_id="x")
            assert (error["param"], error["code"], error["client_event_id"]) == (param, code, "x"), error
        assert (await client.refused(type="session.start", session={}))["param"] == "session.model"
        await client.start()
        for event, param, code in REFUSED_EVENTS:
            error = await client.refused(**event, event_id="y")
            assert (error["param"], error["code"], error["client_event_id"]) == (param, code, "y"), error
        await client.speak()
        await client.until("session.output_audio.delta")


REFUSED_SESSIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"voice": "joe"}, "session.voice", "unknown_parameter"),
    ({"audio": {"input": {}}}, "session.audio.input", "unknown_parameter"),
    ({"audio": {"output": {"voice": "nobody"}}}, "session.audio.output.voice", "invalid_value"),
    ({"audio": {"output": {"voice": {"id": "nobody"}}}}, "session.audio.output.voice", "invalid_value"),
    ({"audio": {"format": {"type": "audio/pcm", "rate": 8000}}}, "session.audio.format.rate", "invalid_value"),
    ({"delegation": {"type": "decisions", "decisions": {}}}, "session.delegation.type", "unsupported"),
    ({"store": True}, "session.store", "unsupported"),
    ({"triggers": [{}]}, "session.triggers", "unsupported"),
    ({"client": {"data_channel": {}}}, "session.client", "unsupported"),
    ({"input": [{"role": "user", "content": []}]}, "session.input[0].content", "invalid_value"),
    (
        {"input": [{"role": "user", "content": [{"text": "x", "type": "output_text"}]}]},
        "session.input[0].content[0].type",
        "invalid_value",
    ),
    (
        {"input": [{"role": "user", "content": [{"text": "x"}]}] * 129},
        "session.input",
        "array_above_max_length",
    ),
]
REFUSED_EVENTS: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "session.start", "session": {"model": "fake"}}, "type", "invalid_event"),
    ({"type": "session.nothing"}, "type", "invalid_value"),
    ({"type": "session.input_audio.append", "audio": "not base64!"}, "audio", "invalid_value"),
    ({"type": "session.commentary.append", "content": "x"}, "delegation_id", "missing_required_parameter"),
    ({"type": "session.close", "reason": "x"}, "reason", "unknown_parameter"),
    ({"type": "session.update", "session": {"instructions": "x"}}, "session.instructions", "unknown_parameter"),
    (
        {"type": "session.update", "session": {"delegation": {"type": "responses"}}},
        "session.delegation.type",
        "invalid_value",
    ),
    ({"type": "session.output_audio.fixture.play", "audio": ""}, "type", "unsupported"),
    ({"type": "decision.create"}, "type", "unsupported"),
    ({"type": "transport.dtmf.send", "event": "1"}, "type", "unsupported"),
]


async def test_one_event_cannot_grow_to_more_audio_than_a_session_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live_server(monkeypatch) as (_, address), connected(address) as client:
        await client.start(audio={"format": {"type": "audio/pcmu", "rate": 8000}})
        audio = base64.b64encode(bytes(4 << 20)).decode()
        error = await client.refused(type="session.input_audio.append", audio=audio)
        assert (error["param"], error["code"]) == ("audio", "string_above_max_length")


async def test_an_answer_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that("This is unspeakable.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        await client.start()
        await client.speak()
        error = (await client.until("error"))["error"]
        assert error["message"]
        assert "client_event_id" not in error


@pytest.mark.parametrize("starts", [True, False])
async def test_a_session_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch, starts: bool) -> None:
    limit = RealtimeConfig(max_seconds=0.3)
    async with live_server(monkeypatch, realtime=limit) as (_, address), connected(address) as client:
        if starts:
            await client.start()
            assert (await client.until("session.closed"))["reason"] == "expired"
        else:
            assert (await client.until("error"))["error"]["code"] == "session_expired"


async def test_a_server_that_cannot_hear_or_speak_says_so() -> None:
    async with serving(fake_state(engine_that("Yes."))) as address, connected(address) as client:
        error = await client.refused(type="session.start", session={"model": "fake"})
        assert error["code"] == "unsupported"
        assert "--transcription-model" in error["message"]


async def test_what_runs_ends_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(answer=says("word ", repeat=True), delay=0.01, max_model_len=4096)
    async with live_server(monkeypatch, engine) as (state, address):
        async with connected(address) as client:
            await client.start()
            await client.speak()
            while not engine.live:
                await asyncio.sleep(0.01)
        while engine.live or state.admission.live_requests:
            await asyncio.sleep(0.01)


def test_the_client_holds_events_against_the_sdk() -> None:
    client = LiveClient.__new__(LiveClient)
    client.events = []
    with pytest.raises(AssertionError):
        client.take({"type": "session.input_audio.muted", "event_id": "a", "more": 1})
