"""Translation sessions on a WebSocket, by the openai SDK through the listener that really serves."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import openai
import pytest
import websockets
from openai.types.realtime import RealtimeTranslationServerEvent

from stentor.protocols.common.errors import BadRequest
from stentor.server.api.realtime.connections.translation_dialect import language_name
from stentor.server.common.errors import GenerationFailed
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.config import RealtimeConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.realtime.live_client import RATE, LiveClient, live_server
from stentor.tests.server.realtime.sounds import Model, silence, words
from stentor.tests.server.realtime.test_text_sessions import prompt_of
from stentor.tests.server.realtime.wire import EXTENSIONS
from stentor.tests.server.responses.sockets import serving
from stentor.tests.wire.validate import check_event

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning"),
]
PAUSE = silence(5000, RATE)
GERMAN = {"audio": {"output": {"language": "de"}}}
TRANSCRIBED = {"audio": {"input": {"transcription": {"model": "fake-whisper"}}}}


class TranslationClient(LiveClient):
    """A connection of the SDK, whose every event is held against its own types."""

    def take(self, event: dict[str, Any]) -> None:
        check_event(RealtimeTranslationServerEvent, event, EXTENSIONS)
        assert event.get("elapsed_ms", 0) % 200 == 0
        assert event["event_id"] not in [other["event_id"] for other in self.events]
        self.events.append(event)

    async def speak(self, audio: bytes = words(1, 2, rate=RATE) + PAUSE) -> None:
        await self.send(type="session.input_audio_buffer.append", audio=base64.b64encode(audio).decode())

    async def update(self, session: dict[str, Any]) -> dict[str, Any]:
        await self.send(type="session.update", session=session)
        updated: dict[str, Any] = (await self.until("session.updated"))["session"]
        return updated

    async def close(self) -> dict[str, Any]:
        await self.send(type="session.close", event_id="the end")
        return await self.until("session.closed")


@asynccontextmanager
async def connected(address: str, key: str = "unused", model: str = "gpt-realtime-translate") -> AsyncIterator[Any]:
    sdk = openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key=key, max_retries=0)
    async with sdk, sdk.realtime.translations.connect(model=model) as connection:
        yield TranslationClient(cast(Any, connection))


def engine_that(text: str) -> FakeEngine:
    return FakeEngine(answer=says(text), max_model_len=4096)


async def test_what_is_said_is_told_and_spoken_in_another_language(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that("Eins zwei.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        begun = (await client.until("session.created"))["session"]
        assert (begun["type"], begun["model"]) == ("translation", "fake/model"), "the one that is served"
        assert begun["audio"] == {
            "input": {"noise_reduction": None, "transcription": None},
            "output": {"language": "en"},
        }
        changed = await client.update({"audio": {**GERMAN["audio"], **TRANSCRIBED["audio"]}})
        assert changed["audio"]["output"] == {"language": "de"}
        assert changed["audio"]["input"]["transcription"] == {"model": "fake-whisper"}
        await client.speak()
        await client.close()
    assert client.transcript("input") == "w1 w2"
    assert client.transcript("output") == "Eins zwei."
    assert abs(len(client.audio) - RATE) < RATE / 50, "a sentence of half a second"
    prompt = prompt_of(engine)
    assert prompt.startswith("<system>You are an interpreter. You translate what a speaker says into German.")
    assert prompt.endswith("<user>Translate into German:\n\nw1 w2\n<assistant>")
    assert engine.streams[-1].params.max_tokens == 32 + len("w1 w2"), "a model that repeats itself is cut off"
    first = client.of("session.output_audio.delta")[0]
    assert (first["sample_rate"], first["channels"], first["format"]) == (RATE, 1, "pcm16")
    assert first["elapsed_ms"] >= 5800, "of audio that came at once"
    with pytest.raises(websockets.exceptions.ConnectionClosedOK):
        await client.until("nothing")


async def test_turns_are_translated_alone_and_in_order_and_none_interrupts_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_that("Ja. Nein.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        await client.update(TRANSCRIBED)
        for number in (1, 2, 3):
            await client.speak(words(number, rate=RATE) + PAUSE)
        await client.close()
    assert client.transcript("input") == "w1 w2 w3", "turns are set apart"
    assert client.transcript("output") == "Ja. Nein. Ja. Nein. Ja. Nein."
    assert abs(len(client.audio) - 6 * RATE) < RATE / 20, "each has been spoken to its end"
    assert prompt_of(engine).endswith("\n\nw3\n<assistant>")
    assert "w2" not in prompt_of(engine)


async def test_the_end_brings_what_was_still_being_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live_server(monkeypatch, engine_that("Eins.")) as (_, address), connected(address) as client:
        await client.speak(words(1, 2, rate=RATE))
        await client.close()
    assert client.transcript("output") == "Eins."
    assert client.audio
    assert not client.of("session.input_transcript.delta"), "transcription is not configured"


async def test_silence_is_not_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that("Eins.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        await client.speak(PAUSE)
        await client.close()
    assert not engine.streams
    assert [event["type"] for event in client.events] == ["session.created", "session.closed"]


async def test_an_update_holds_for_the_turns_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that("Eins.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        noise = {"type": "far_field", "strength": 0.5}
        shown = await client.update({"audio": {"input": {"noise_reduction": noise}, **GERMAN["audio"]}})
        assert shown["audio"]["input"]["noise_reduction"] == noise
        await client.speak()
        await client.until("session.output_audio.delta")
        assert "into German" in prompt_of(engine)
        shown = await client.update({"audio": {"input": {"noise_reduction": None}, "output": {"language": "pt-BR"}}})
        assert shown["audio"] == {
            "input": {"noise_reduction": None, "transcription": None},
            "output": {"language": "pt-BR"},
        }
        await client.speak()
        await client.close()
    assert "into Portuguese (pt-BR)" in prompt_of(engine)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "session.nothing"}, "type", "invalid_value"),
    ({"type": "response.create"}, "type", "invalid_value"),
    ({"type": "session.input_audio_buffer.append", "audio": "not base64!"}, "audio", "invalid_value"),
    ({"type": "session.input_audio_buffer.append"}, "audio", "missing_required_parameter"),
    ({"type": "session.close", "reason": "x"}, "reason", "unknown_parameter"),
    ({"type": "session.update", "session": {"instructions": "x"}}, "session.instructions", "unknown_parameter"),
    ({"type": "session.update", "session": {"model": "fake"}}, "session.model", "unknown_parameter"),
    (
        {"type": "session.update", "session": {"audio": {"output": {"language": "xx"}}}},
        "session.audio.output.language",
        "invalid_value",
    ),
    (
        {"type": "session.update", "session": {"audio": {"output": {"voice": "joe"}}}},
        "session.audio.output.voice",
        "unknown_parameter",
    ),
    (
        {"type": "session.update", "session": {"audio": {"input": {"turn_detection": None}}}},
        "session.audio.input.turn_detection",
        "unknown_parameter",
    ),
    (
        {"type": "session.update", "session": {"audio": {"input": {"noise_reduction": {"type": "x"}}}}},
        "session.audio.input.noise_reduction.type",
        "invalid_value",
    ),
]


async def test_errors_name_the_field_and_the_event_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live_server(monkeypatch) as (_, address), connected(address) as client:
        for event, param, code in REFUSED:
            error = await client.refused(**event, event_id="y")
            assert (error["param"], error["code"], error["event_id"]) == (param, code, "y"), error
        assert (await client.update({}))["audio"]["output"] == {"language": "en"}


async def test_a_turn_that_is_not_understood_is_told_and_the_next_one_is_translated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hears = Model()
    hears.error = GenerationFailed()
    async with live_server(monkeypatch, engine_that("Eins."), hears) as (_, address), connected(address) as client:
        await client.update(TRANSCRIBED)
        await client.speak()
        assert (await client.until("error"))["error"]["event_id"] is None
        hears.error = None
        await client.speak()
        await client.close()
    assert len(client.of("error")) == 1
    assert client.transcript("output") == "Eins."


async def test_a_translation_that_cannot_be_spoken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that("This is unspeakable.")
    async with live_server(monkeypatch, engine) as (_, address), connected(address) as client:
        await client.speak()
        assert (await client.until("error"))["error"]["message"]
        await client.close()


def test_languages_are_known_by_codes_tags_and_names() -> None:
    for given, name in [
        ("de", "German"),
        ("pt-BR", "Portuguese (pt-BR)"),
        ("zh-Hant-TW", "Chinese (zh-Hant-TW)"),
        ("French", "French"),
        ("yue", "Cantonese"),
    ]:
        assert language_name(given, "x") == name
    for given in ("", "xx", "en-; ignore all", "en, or rather German"):
        with pytest.raises(BadRequest) as refused:
            language_name(given, "x")
        assert refused.value.param == "x"


async def test_a_client_secret_opens_sessions_of_its_kind_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    access = AccessControl(keys=Keyring([KeyDigest(b"secret")]))
    async with (
        live_server(monkeypatch, access=access) as (_, address),
        openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="secret", max_retries=0) as sdk,
    ):
        made = await sdk.realtime.translations.client_secrets.create(
            session=cast(Any, {"model": "gpt-realtime-translate", **GERMAN}),
            expires_after={"anchor": "created_at", "seconds": 60},
        )
        assert made.session.type == "translation"
        assert made.session.audio.output is not None
        assert made.session.audio.output.language == "de"
        async with connected(address, made.value) as client:
            session = (await client.until("session.created"))["session"]
            assert (session["model"], session["audio"]["output"]) == ("fake/model", {"language": "de"})
        other = (await sdk.realtime.client_secrets.create(session={"type": "realtime"})).value
        for key, path in ((other, "realtime/translations"), (made.value, "realtime")):
            with pytest.raises(websockets.exceptions.InvalidStatus, match=r"40[13]"):
                await websockets.connect(
                    f"ws://{address}/v1/{path}", additional_headers={"authorization": f"Bearer {key}"}, proxy=None
                )
        for session, param in (
            ({}, "session.model"),
            ({"model": "x", "audio": {"output": {"language": "xx"}}}, "session.audio.output.language"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await sdk.realtime.translations.client_secrets.create(session=cast(Any, session))
            assert refused.value.param == param


async def test_a_session_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = RealtimeConfig(max_seconds=0.2)
    async with live_server(monkeypatch, realtime=limit) as (_, address), connected(address) as client:
        assert (await client.until("error"))["error"]["code"] == "session_expired"


async def test_a_server_that_cannot_hear_says_so() -> None:
    async with serving(fake_state(engine_that("Yes."))) as address, connected(address) as client:
        error = (await client.until("error"))["error"]
        assert error["code"] == "unsupported"
        assert "--transcription-model" in error["message"]


async def test_what_runs_ends_with_the_connection_also_while_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(answer=says("word ", repeat=True), delay=0.01, max_model_len=4096)
    async with live_server(monkeypatch, engine) as (state, address):
        async with connected(address) as client:
            await client.speak()
            while not engine.live:
                await asyncio.sleep(0.01)
            await client.send(type="session.close")
        while engine.live or state.admission.live_requests:
            await asyncio.sleep(0.01)
