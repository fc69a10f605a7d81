"""Callers who speak to the real server with the demo models, by its protocol and through the openai SDK.

Turns are found by the time of the audio, however fast it comes.
"""

import asyncio
import base64
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import openai
import pytest
from websockets.asyncio.client import connect

from stentor.loadtest.server_process import ServerProcess
from stentor.loadtest.voice.clips import SENTENCES, spoken
from stentor.loadtest.voice.loop import QUESTIONS, measure
from stentor.loadtest.voice.realtime import RealtimeClient, Speech, session, speech_of
from stentor.loadtest.voice.sessions import measure as measure_sessions
from stentor.loadtest.voice.transcription import Normalizer, word_errors
from stentor.server.audio.g711 import encode
from stentor.tests.e2e.processes import below, worker_of
from stentor.tests.e2e.test_realtime import Session
from stentor.tests.server.realtime.wire import Ledger, part_of
from stentor.tests.support.metrics import metric
from stentor.tests.support.whole_audio import resample

pytest.importorskip("piper", reason="the demo's voice needs the extra `speech`")
pytestmark = [
    # the SDK opens its connection in a way that its library frowns upon
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning"),
]

DELTA = "conversation.item.input_audio_transcription.delta"
COMPLETED = "conversation.item.input_audio_transcription.completed"
STOPPED = "input_audio_buffer.speech_stopped"
QUESTION = "What is the capital of France?"
SPEED = 8.0
"""How many times faster than it is spoken audio is sent."""
SECOND = 48_000
"""Bytes of pcm at 24 kHz."""
PIECE = SECOND // 10
HEARS: dict[str, Any] = {"transcription": {"model": "whisper-1"}}
QUICK: dict[str, Any] = {"turn_detection": {"type": "server_vad", "silence_duration_ms": 200}}
WRITTEN = {"type": "transcription", "audio": {"input": {"transcription": {}, "turn_detection": None}}}


@pytest.fixture(scope="module")
def sentences() -> list[Speech]:
    return [speech_of(clip.path, clip.text) for clip in spoken((SENTENCES[13], SENTENCES[12]), natural=False)]


@pytest.fixture
def speaker(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def clip(server: ServerProcess) -> bytes:
    """The question as pcm, with silence around it."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client:
        said = client.audio.speech.create(model="tts-1", voice="alloy", input=QUESTION, response_format="pcm").content
    return bytes(SECOND // 2) + said + bytes(SECOND)


def errors_in(said: str, heard: str) -> float:
    normalizer = Normalizer()
    return word_errors(normalizer.words(said), normalizer.words(heard)).rate


def check_all(client: RealtimeClient) -> None:
    """Every event against the SDK's types and the order of the protocol."""
    ledger = Ledger()
    for event in client.events:
        ledger.take(event.body)


def transcription_worker(server: ServerProcess) -> int:
    return worker_of(server.pid, 1)


@pytest.mark.proof  # a minute of conversation
def test_a_caller_is_answered_aloud_and_interrupts_the_answer(server: ServerProcess) -> None:
    before = metric(server.port, "realtime_interruptions_total")
    figures = asyncio.run(measure(server.port, 200, turns=2, interruptions=2))
    assert figures.turns == 2
    assert figures.interruptions >= 1, "each answer had ended before it was interrupted"
    assert figures.audio_events_after <= 1, "the answer went on after it was interrupted"
    assert metric(server.port, "realtime_turn_latency_seconds_count") >= 2
    assert metric(server.port, "realtime_interruptions_total") - before == figures.interruptions


@pytest.mark.proof
def test_callers_at_once_are_transcribed_while_they_speak(server: ServerProcess) -> None:
    found = asyncio.run(measure_sessions(server, sessions=3, seconds=6))
    assert found["commits"] >= 3
    assert (found["unfinished"], found["failed"]) == (0, 0)
    assert found["word_error_rate"] <= 0.15
    assert metric(server.port, "realtime_transcription_lag_seconds_count") >= found["commits"]


@pytest.mark.proof(each="detection")
@pytest.mark.parametrize("detection", [{"type": "server_vad", "silence_duration_ms": 300}, {"type": "semantic_vad"}])
def test_turns_are_found_where_they_are_spoken(
    server: ServerProcess, sentences: list[Speech], detection: dict[str, Any]
) -> None:
    async def run() -> None:
        settings = {"type": "transcription", "audio": {"input": {"transcription": {}, "turn_detection": detection}}}
        async with session(server.port, "intent=transcription", **settings) as client:
            client.speed = SPEED
            said_ms = 0.0
            for speech in sentences:
                since = len(client.events)
                await client.be_silent(lambda: False, 0.8 / SPEED)
                await client.speak(speech.pcm)
                await client.be_silent(lambda: client.first(STOPPED, since) is not None, 20)  # noqa: B023
                completed = await client.wait(COMPLETED, since)
                stopped = await client.wait(STOPPED, since)
                started = await client.wait("input_audio_buffer.speech_started", since)
                assert errors_in(speech.text, completed.body["transcript"]) <= 0.2
                length = stopped.body["audio_end_ms"] - started.body["audio_start_ms"]
                assert speech.voiced_ms - 200 < length < speech.ms + 300 + 4500
                assert started.body["audio_start_ms"] >= said_ms
                said_ms = stopped.body["audio_end_ms"]
            check_all(client)

    asyncio.run(run())


def test_audio_that_comes_all_at_once_is_heard_without_more_of_it(
    server: ServerProcess, sentences: list[Speech]
) -> None:
    """A client that sends a file and waits: the judgement comes after the last of it."""

    async def run() -> None:
        detection = {"type": "semantic_vad", "eagerness": "high"}
        settings = {"type": "transcription", "audio": {"input": {"transcription": {}, "turn_detection": detection}}}
        async with session(server.port, "intent=transcription", **settings) as client:
            client.speed = SPEED
            await client.append(sentences[0].pcm + bytes(48 * 1500))
            completed = await client.wait(COMPLETED)
            assert errors_in(sentences[0].text, completed.body["transcript"]) <= 0.2
            check_all(client)

    asyncio.run(run())


def test_a_worker_that_dies_in_the_middle_of_a_turn_costs_the_session_nothing(
    server: ServerProcess, sentences: list[Speech]
) -> None:
    async def run() -> None:
        async with session(server.port, "intent=transcription", **WRITTEN) as client:
            client.speed = SPEED
            for number, speech in enumerate(sentences, 1):
                half = len(speech.pcm) // 4 * 2
                await client.speak(speech.pcm[:half])
                if number == 1:
                    os.kill(transcription_worker(server), signal.SIGKILL)
                await client.speak(speech.pcm[half:])
                await client.send(type="input_audio_buffer.commit")
                completed = await client.wait(COMPLETED, item_id=(await _item(client, number)))
                assert errors_in(speech.text, completed.body["transcript"]) <= 0.2
            assert client.error is None
            check_all(client)

    async def _item(client: RealtimeClient, number: int) -> str:
        since, item_id = 0, ""
        for _ in range(number):
            event = await client.wait("input_audio_buffer.committed", since)
            since, item_id = client.events.index(event) + 1, event.body["item_id"]
        return item_id

    asyncio.run(run())


@pytest.mark.proof  # in a turn: the test before
def test_an_answer_goes_on_aloud_when_the_worker_of_the_chat_model_dies(server: ServerProcess) -> None:
    async def run() -> None:
        (question,) = (speech_of(clip.path, clip.text) for clip in spoken(QUESTIONS[:1]))
        detection = {"type": "server_vad", "silence_duration_ms": 200}
        settings = {"type": "realtime", "max_output_tokens": 40, "audio": {"input": {"turn_detection": detection}}}
        async with session(server.port, "intent=realtime", **settings) as client:
            client.speed = SPEED
            await client.speak(question.pcm)
            await client.be_silent(lambda: client.first(STOPPED) is not None, 30)
            await client.wait("response.output_audio_transcript.delta")
            os.kill(worker_of(server.pid, 0), signal.SIGKILL)
            done = await client.wait("response.done", seconds=60)
            assert done.body["response"]["status"] in ("completed", "incomplete")
            assert client.first("response.output_audio.delta") is not None
            assert client.error is None
            check_all(client)

    asyncio.run(run())


def test_a_client_of_vllm_is_served_in_its_own_dialect(server: ServerProcess, sentences: list[Speech]) -> None:
    speech = sentences[0]

    async def run() -> list[dict[str, Any]]:
        import soxr

        samples = soxr.resample(np.frombuffer(speech.pcm, "<i2"), 24_000, 16_000)
        pcm = samples.astype("<i2").tobytes()
        received = []
        async with connect(f"ws://127.0.0.1:{server.port}/v1/realtime", compression=None, proxy=None) as socket:
            received.append(json.loads(await socket.recv()))
            for message in (
                {"type": "session.update", "model": "whisper-1"},
                {"type": "input_audio_buffer.commit"},
                *(
                    {"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm[at : at + 8000]).decode()}
                    for at in range(0, len(pcm), 8000)
                ),
                {"type": "input_audio_buffer.commit", "final": True},
            ):
                await socket.send(json.dumps(message))
            while received[-1]["type"] not in ("transcription.done", "error"):
                received.append(json.loads(await socket.recv()))
        return received

    created, *deltas, done = asyncio.run(run())
    assert created["type"] == "session.created"
    assert isinstance(created["id"], str)
    assert isinstance(created["created"], int)
    assert "".join(delta["delta"] for delta in deltas) == done["text"]
    assert errors_in(speech.text, done["text"]) <= 0.2
    assert done["usage"]["total_tokens"] == done["usage"]["prompt_tokens"] + done["usage"]["completion_tokens"] > 0


# ---- through the SDK


@contextmanager
def sdk_session(client: openai.OpenAI, **update: Any) -> Iterator[Session]:
    with client.realtime.connect(model="demo") as connection:
        opened = Session(connection)
        opened.until("session.created")
        settings: Any = {"type": "realtime", "instructions": "Answer in one short sentence.", "max_output_tokens": 40}
        settings |= update
        connection.session.update(session=settings)
        opened.until("session.updated")
        yield opened


def say(opened: Session, audio: bytes) -> None:
    for begin in range(0, len(audio), PIECE):
        piece = base64.b64encode(audio[begin : begin + PIECE]).decode()
        opened.connection.input_audio_buffer.append(audio=piece)


def audio_of(opened: Session, response: str) -> bytes:
    deltas = [
        event["delta"]
        for event in opened.ledger.events
        if event["type"] == "response.output_audio.delta" and event["response_id"] == response
    ]
    return b"".join(map(base64.b64decode, deltas))


def test_a_question_is_heard_and_answered_aloud(speaker: openai.OpenAI, clip: bytes) -> None:
    with sdk_session(speaker, audio={"input": HEARS | QUICK}) as opened:
        say(opened, clip)
        started = opened.until("input_audio_buffer.speech_started")
        stopped = opened.until("input_audio_buffer.speech_stopped")
        assert 0 <= started["audio_start_ms"] <= 500
        assert abs(stopped["audio_end_ms"] - (len(clip) / SECOND - 1) * 1000) < 500
        done = opened.until("response.done")["response"]
        assert done["status"] in ("completed", "incomplete")
        (message,) = done["output"]
        transcript = message["content"][0]["transcript"]
        assert "Paris" in transcript
        spoken = audio_of(opened, done["id"])
        assert len(spoken) > SECOND / 2
        assert max(spoken) > 0
        kinds = part_of(opened.ledger.events, done["id"])
        assert kinds.index("response.output_audio_transcript.delta") < kinds.index("response.output_audio.delta")
        (heard,) = [
            event["transcript"]
            for event in opened.ledger.events
            if event["type"] == "conversation.item.input_audio_transcription.completed"
        ]
        assert heard.strip() == QUESTION


def test_speech_interrupts_and_the_answer_is_cut_where_it_was_heard(speaker: openai.OpenAI, clip: bytes) -> None:
    with sdk_session(speaker, audio={"input": QUICK}, max_output_tokens=150) as opened:
        ask: Any = [{"type": "input_text", "text": "Tell me a long story about a ship."}]
        opened.connection.conversation.item.create(item={"type": "message", "role": "user", "content": ask})
        opened.connection.response.create()
        opened.until("response.output_audio.delta")
        say(opened, clip)
        done = opened.until("response.done")["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        item = done["output"][0]
        opened.connection.conversation.item.truncate(item_id=item["id"], content_index=0, audio_end_ms=400)
        opened.until("conversation.item.truncated")
        opened.connection.conversation.item.retrieve(item_id=item["id"])
        kept = opened.until("conversation.item.retrieved")["item"]["content"][0]["transcript"]
        whole = item["content"][0]["transcript"]
        assert whole.startswith(kept)
        assert 0 < len(kept) < len(whole)
        assert opened.until("response.done")["response"]["status"] in ("completed", "incomplete")


def test_telephone_audio_and_turns_that_the_client_ends(speaker: openai.OpenAI, clip: bytes) -> None:
    telephone = encode("pcmu", resample(clip, 24_000, 8000))
    format = {"format": {"type": "audio/pcmu"}}
    with sdk_session(speaker, audio={"input": {**format, "turn_detection": None}, "output": format}) as opened:
        say(opened, telephone)
        opened.connection.input_audio_buffer.commit()
        opened.until("conversation.item.done")
        opened.connection.response.create()
        done = opened.until("response.done")["response"]
        assert "Paris" in done["output"][0]["content"][0]["transcript"]
        assert len(audio_of(opened, done["id"])) > 4000
        assert not any("transcription" in kind for kind in opened.ledger.kinds)


def test_a_transcription_session_writes_down_what_it_hears(speaker: openai.OpenAI, clip: bytes) -> None:
    with speaker.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        opened = Session(connection)
        effective = opened.until("session.created")["session"]
        assert effective["type"] == "transcription"
        say(opened, clip)
        completed = opened.until("conversation.item.input_audio_transcription.completed")
        assert completed["transcript"].strip() == QUESTION
        deltas = [event.get("delta", "") for event in opened.ledger.events if event["type"].endswith("tion.delta")]
        assert "".join(deltas) == completed["transcript"]


@pytest.mark.proof  # in a turn: a worker that dies in the middle of one, above
def test_a_session_goes_on_when_a_worker_dies_under_it(
    server: ServerProcess, speaker: openai.OpenAI, clip: bytes
) -> None:
    with sdk_session(speaker, audio={"input": QUICK}, output_modalities=["text"]) as opened:
        say(opened, clip[: len(clip) // 2])
        for worker in below(server.pid, "worker"):
            os.kill(worker, signal.SIGKILL)
        say(opened, clip[len(clip) // 2 :])
        done = opened.until("response.done")["response"]
        assert "Paris" in json.dumps(done["output"])
