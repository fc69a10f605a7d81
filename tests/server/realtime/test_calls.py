"""Sessions over WebRTC, by a real client through the listener that really serves: who is let in, what is heard, said,
and cut off."""

import asyncio
import contextlib
import json
import math
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from stentor.engine.tts.backend import Part
from stentor.engine.tts.client import SpeechClient
from stentor.engine.tts.voices import Voices
from stentor.protocols.ipc.speech import SpeechPiece, VoicePlace
from stentor.server.api.realtime.connections import calls
from stentor.server.api.realtime.connections.calls import Call
from stentor.server.api.realtime.connections.playback import CallPlayer
from stentor.server.api.realtime.connections.serving import RealtimeServing
from stentor.server.api.realtime.listening.hypotheses import Hypothesis, TranscriptionSettings
from stentor.server.app.state import ServerState
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.config import RealtimeConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.server.tts.model import SpeechModel
from stentor.tests.fakes import FakeEngine, says
from stentor.tests.server.harness import until
from stentor.tests.server.realtime.session_fakes import VOICE_RATE, FakeVoice, voice_state
from stentor.tests.server.realtime.sounds import LoudnessDetector
from stentor.tests.server.responses.sockets import serving

pytest.importorskip("aiortc", reason="the extra `webrtc` is not installed")

from stentor.tests.server.realtime.rtc_client import CALLS, RATE, Client, loopback

__all__ = ["loopback"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("loopback")]

LOUD = 1000
ANSWER = "This is the first sentence. And this is the second one."
STORY = "One more sentence of this story. " * 40


def tone(ms: int, rate: int = RATE, hertz: int = 440) -> bytes:
    count = rate * ms // 1000
    return struct.pack(f"<{count}h", *(int(9000 * math.sin(2 * math.pi * hertz * at / rate)) for at in range(count)))


class LoudVoice(FakeVoice):
    """Says every sentence as half a second of one tone."""

    async def synthesize(self, text: str, voice: str, speed: float, _on_part: Part) -> SpeechPiece:
        await asyncio.sleep(0)
        return SpeechPiece(0, tone(500, VOICE_RATE), 0.0)


def loud_speech() -> SpeechModel:
    voices = Voices("piper", (VoicePlace("joe", "joe.onnx"),), VOICE_RATE)
    return SpeechModel(("fake-voice",), voices, cast(SpeechClient, LoudVoice()))


def loudest(pcm: bytes) -> int:
    return max(map(abs, memoryview(pcm).cast("h")), default=0)


heard: list[int] = []
"""Milliseconds of each turn that was transcribed."""


async def _measure(pcm: bytes, settings: TranscriptionSettings, *, continued: str, final: bool) -> Hypothesis:
    await asyncio.sleep(0)
    if final:
        heard.append(len(pcm) // 32)
    return Hypothesis(" something"[len(continued) :])


@asynccontextmanager
async def answering(
    monkeypatch: pytest.MonkeyPatch, answer: str = ANSWER, limits: dict[str, Any] | None = None, **fields: Any
) -> AsyncIterator[tuple[ServerState, str]]:
    """A server with an ear for loudness, and its address."""
    heard.clear()
    monkeypatch.setattr(RealtimeServing, "transcriber", lambda self, caller: _measure)
    monkeypatch.setattr("stentor.server.api.realtime.connections.serving.SpeechProbabilities", LoudnessDetector)
    engine = FakeEngine(answer=says(answer), max_model_len=4096)
    state = voice_state(engine, speech=loud_speech(), **fields)
    assert state.auxiliary.speech is not None
    speaking = asyncio.create_task(state.auxiliary.speech.run())
    try:
        async with serving(state, **(limits or {})) as address:
            yield state, address
            await state.for_realtime.calls.close()
    finally:
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)


@asynccontextmanager
async def dialled(address: str, session: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Client]:
    client = Client(address)
    try:
        yield await client.dial(session, **options)
        client.check()
    finally:
        await client.hang_up()


@pytest.mark.alone  # sound has its time
async def test_a_caller_speaks_and_is_answered_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(monkeypatch) as (state, address), dialled(address) as client:
        assert client.answer is not None
        assert client.answer.headers["content-type"] == "application/sdp"
        assert client.answer.headers["location"].startswith(f"{CALLS}/rtc_")
        client.microphone.waiting = tone(800)
        await client.until("input_audio_buffer.speech_started")
        await client.until("input_audio_buffer.committed")
        await client.until("output_audio_buffer.started")
        await client.when(lambda: "response.done" in client.kinds())  # which may have come before the first sound
        stopped = await client.until("output_audio_buffer.stopped")
        done = next(event for event in client.events if event["type"] == "response.done")
        assert done["response"]["status"] == "completed"
        assert stopped["response_id"] == done["response"]["id"]
        assert "response.output_audio.delta" not in client.kinds()
        told = len(client.loudness)
        await client.when(lambda: len(client.loudness) > told + 20)  # what its own buffer holds back
        spoken = sum(loud > LOUD for loud in client.loudness)
        assert 48 <= spoken <= 54, "two sentences of half a second"
        assert abs(heard[0] - 800 - 300) < 150, "with what comes before it"
        assert state.metrics.server.connections is not None
        assert len(state.for_realtime.calls) == 1


@pytest.mark.alone  # sound has its time
async def test_who_begins_to_speak_silences_the_answer_which_is_cut_off_where_it_was_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller_is_heard = asyncio.Event()
    before = behind = 0
    hear, play = Call._take_audio, CallPlayer.next_frame

    def hearing(call: Call, pcm: bytes) -> None:
        if loudest(pcm) > LOUD:
            caller_is_heard.set()
        hear(call, pcm)

    def playing(player: CallPlayer, size: int) -> bytes:
        nonlocal before, behind
        frame = play(player, size)
        behind += caller_is_heard.is_set() and any(frame)
        before += not caller_is_heard.is_set() and any(frame)
        return frame

    monkeypatch.setattr(Call, "_take_audio", hearing)
    monkeypatch.setattr(CallPlayer, "next_frame", playing)
    async with answering(monkeypatch, STORY) as (_, address), dialled(address) as client:
        client.say(type="response.create")
        await client.until("output_audio_buffer.started")
        await client.when(lambda: sum(loud > LOUD for loud in client.loudness) >= 60)
        client.microphone.waiting = tone(600)
        await client.until("input_audio_buffer.speech_started")
        truncated = await client.until("conversation.item.truncated")
        told = len(client.loudness)
        await client.when(lambda: len(client.loudness) > told + 30)
        assert before >= 60, "frames of 20 ms"
        assert behind <= 15, "from the first sound of the caller on, which may be heard late and with what followed it"
        done = next(event for event in client.events if event["type"] == "response.done")
        assert done["response"]["status_details"]["reason"] == "turn_detected"
        assert "output_audio_buffer.cleared" in client.kinds()
        listened = 20 * sum(loud > LOUD for loud in client.loudness)
        assert abs(truncated["audio_end_ms"] - listened) <= 100 + listened / 50
        client.say(type="conversation.item.retrieve", item_id=truncated["item_id"])
        item = (await client.until("conversation.item.retrieved"))["item"]
        kept = item["content"][0]["transcript"]
        assert STORY.startswith(kept)
        assert 0 < len(kept) < len(STORY) / 4


@pytest.mark.alone  # sound has its time
@pytest.mark.proof
async def test_the_caller_s_client_silences_an_answer_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = RealtimeConfig(audio_ahead=60)
    async with answering(monkeypatch, STORY, realtime=ahead) as (_, address), dialled(address) as client:
        client.say(type="response.create")
        await client.until("output_audio_buffer.started")
        await client.when(lambda: "response.done" in client.kinds())
        client.say(type="output_audio_buffer.clear")
        await client.until("output_audio_buffer.cleared")
        truncated = await client.until("conversation.item.truncated")
        assert truncated["audio_end_ms"] < 500 * STORY.count(".")
        count = len(client.loudness)
        await client.when(lambda: len(client.loudness) > count + 40)
        listened = 20 * sum(loud > LOUD for loud in client.loudness)
        assert abs(truncated["audio_end_ms"] - listened) <= 100 + listened / 50
        assert "output_audio_buffer.stopped" not in client.kinds()


@pytest.mark.alone  # sound has its time
@pytest.mark.proof
async def test_ten_lost_packets_of_a_hundred_are_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(monkeypatch) as (_, address), dialled(address) as client:
        client.lose(0.1)
        client.microphone.waiting = tone(2000)
        await client.until("input_audio_buffer.speech_stopped")
        await client.until("output_audio_buffer.stopped")
        assert client.lost >= 5
        assert client.kinds().count("input_audio_buffer.speech_started") == 1, "no hole is heard as silence"
        assert abs(heard[0] - 2000 - 300) < 150, "and none is left out"


async def test_a_client_secret_makes_the_call_that_it_was_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = AccessControl(keys=Keyring([KeyDigest(b"secret")]))
    async with answering(monkeypatch, access=keys) as (state, address):
        given = {
            "type": "realtime",
            "instructions": "Be brief.",
            "audio": {"output": {"format": {"type": "audio/pcmu"}}},
        }
        value, _ = state.access.secrets.make(
            state.access.keys.caller([(b"authorization", b"Bearer secret")]),  # type: ignore[arg-type]
            json.dumps(_session(state, given)).encode(),
            60,
        )
        client = Client(address)
        refused = await client.post("v=0")
        assert refused.status_code == 401
        headers = {"authorization": f"Bearer {value}"}
        await client.dial(headers=headers)
        session = client.events[0]["session"]
        assert session["instructions"] == "Be brief."
        assert session["audio"]["output"]["format"]["type"] == "audio/pcm", "the call has its own"
        await client.hang_up()


def _session(state: ServerState, given: dict[str, Any]) -> Any:
    import msgspec

    return msgspec.to_builtins(RealtimeServing(state.for_realtime).asked(given))


async def test_a_form_brings_the_session_with_the_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    session = {"type": "realtime", "model": "fake", "output_modalities": ["text"], "instructions": "Hm."}
    async with answering(monkeypatch, "Yes.") as (_, address), dialled(address, session) as client:
        assert client.events[0]["session"]["output_modalities"] == ["text"]
        client.say(type="response.create")
        assert (await client.until("response.output_text.done"))["text"] == "Yes."


async def test_a_call_is_hung_up_by_whom_it_belongs_to(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = AccessControl(keys=Keyring([KeyDigest(b"secret"), KeyDigest(b"other")]))
    mine = {"authorization": "Bearer secret"}
    async with answering(monkeypatch, access=keys) as (state, address), dialled(address, headers=mine) as client:
        import httpx

        assert client.answer is not None
        url = f"http://{address}{client.answer.headers['location']}/hangup"
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.post(url, headers={"authorization": "Bearer other"})).status_code == 404
            assert (await http.post(url, headers=mine)).status_code == 200
            assert (await http.post(url, headers=mine)).status_code == 404
        assert not len(state.for_realtime.calls)
        await client.when(lambda: client.connection.connectionState == "closed")


async def test_a_server_that_shuts_down_says_so_before_it_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(monkeypatch) as (state, address), dialled(address) as client:
        await state.for_realtime.calls.close()
        assert (await client.until("error"))["error"]["code"] == "shutting_down"
        await client.when(lambda: client.connection.connectionState == "closed")


async def test_a_server_that_drains_takes_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(monkeypatch) as (state, address):
        state.admission.draining = True
        client = Client(address)
        refused = await client.post("v=0")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        await client.hang_up()


async def test_a_call_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(monkeypatch) as (state, address):
        async with dialled(address):
            assert b'stentor:realtime_sessions{kind="realtime",model_name="fake/model"} 1.0' in state.metrics.render()
        await until(lambda: not len(state.for_realtime.calls))
        assert b'stentor:realtime_sessions{kind="realtime",model_name="fake/model"} 0.0' in state.metrics.render()


async def test_a_call_that_nobody_comes_to_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CONNECT_SECONDS", 0.1)
    async with answering(monkeypatch) as (state, address):
        client = Client(address)
        assert (await client.post(await client.offer())).status_code == 201
        connections = state.metrics.server.connections
        assert connections is not None
        await until(lambda: not len(state.for_realtime.calls))
        await until(lambda: connections.open == 0)
        await client.hang_up()


async def test_calls_are_counted_with_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(monkeypatch, limits={"max_connections": 2}) as (_, address), dialled(address):
        client = Client(address)
        offer = await client.offer()
        refused = await client.post(offer)
        while refused.status_code == 201:  # the connections that brought the offers before may still be open
            refused = await client.post(offer)
        assert refused.status_code in (429, 503)
        await client.hang_up()


def _two_free_ports() -> int:
    """The first of two that follow one another."""
    while True:
        with socket.socket(type=socket.SOCK_DGRAM) as first, socket.socket(type=socket.SOCK_DGRAM) as second:
            first.bind(("0.0.0.0", 0))
            low: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("0.0.0.0", low + 1))
                return low


async def test_a_port_of_the_range_is_taken_and_the_address_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    low = _two_free_ports()
    realtime = RealtimeConfig(webrtc_address="127.0.0.1", webrtc_ports=(low, low + 1))
    async with answering(monkeypatch, realtime=realtime) as (_, address), dialled(address) as client:
        assert client.answer is not None
        named = [line.split() for line in client.answer.text.splitlines() if line.startswith("a=candidate:")]
        assert {words[4] for words in named} == {"127.0.0.1"}
        assert {words[5] for words in named} <= {str(low), str(low + 1)}
        others = [Client(address) for _ in range(2)]
        statuses = [(await other.post(await other.offer())).status_code for other in others]
        assert statuses == [201, 429]
        for other in others:
            await other.hang_up()


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        ("", "is required"),
        ("hello", "begins with `v=0`"),
        ("v=0\r\n" + "a=x\r\n" * 2000, "lines"),
        ("v=0\r\n" + "a" * 40_000, "characters"),
        ("v=0\r\nm=video 9 UDP/TLS/RTP/SAVPF 96\r\n", "offer no video"),
    ],
)
async def test_an_offer_that_cannot_be_answered_is_refused(
    monkeypatch: pytest.MonkeyPatch, offer: str, why: str
) -> None:
    async with answering(monkeypatch) as (state, address):
        client = Client(address)
        for session in (None, {"type": "realtime"}):
            refused = await client.post(offer, session)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "sdp"
            assert why in refused.json()["error"]["message"]
        assert not len(state.for_realtime.calls)
        await client.hang_up()


async def test_without_aiortc_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "available", lambda: False)
    async with answering(monkeypatch) as (_, address):
        client = Client(address)
        refused = await client.post("v=0")
        assert refused.status_code == 400
        assert "pip install stentor[webrtc]" in refused.json()["error"]["message"]
        await client.hang_up()
