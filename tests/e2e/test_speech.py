"""Speech through the OpenAI SDK against the real server, process and voice."""

import base64
import io
import json
import os
import signal
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import openai
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.processes import below, eventually
from stentor.tests.support.metrics import metric

pytest.importorskip("piper")

SENTENCE = "I am a voice, and I can say whatever you like."
TEXT = f"Hello there. How are you? {SENTENCE}"
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")


def decoded(data: bytes, format: str) -> tuple[float, float]:
    """Seconds, and the loudest sample of [0, 1]."""
    if format == "pcm":
        samples = np.frombuffer(data, np.int16) / 32768
        return len(samples) / 24000, float(np.abs(samples).max())
    with av.open(io.BytesIO(data), "r") as container:
        frames = [frame.to_ndarray().astype(np.float64).ravel() for frame in container.decode(audio=0)]
        rate = container.streams.audio[0].rate
        kind = container.streams.audio[0].format.name
    samples = np.concatenate(frames) / (32768 if kind.startswith("s16") else 1)
    return len(samples) / rate, float(np.abs(samples).max())


@pytest.mark.proof(each="format")  # without a voice: tests/server/tts/test_route.py
@pytest.mark.parametrize("format", FORMATS)
def test_speech_is_streamed_to_a_file_in_every_format(client: openai.OpenAI, tmp_path: Path, format: Any) -> None:
    file = tmp_path / f"speech.{format}"
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT, response_format=format
    ) as response:
        assert response.headers["content-type"].startswith("audio/")
        response.stream_to_file(file)
    seconds, peak = decoded(file.read_bytes(), format)
    assert 4 < seconds < 9
    assert 0.3 < peak <= 1.2  # a lossy format overshoots


def test_a_wav_says_the_voice_s_own_rate(client: openai.OpenAI) -> None:
    data = client.audio.speech.create(model="tts-1", voice="alloy", input="Yes.", response_format="wav").read()
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (22050, 1, 2)


def test_speed_makes_it_shorter_and_longer(client: openai.OpenAI) -> None:
    def seconds(speed: float) -> float:
        data = client.audio.speech.create(
            model="tts-1", voice="alloy", input=SENTENCE, response_format="pcm", speed=speed
        ).read()
        return len(data) / 48000

    slow, usual, fast = seconds(0.5), seconds(1.0), seconds(2.0)
    assert slow > 1.4 * usual  # the voice draws how long each sound lasts
    assert usual > 1.4 * fast


def test_events_carry_the_same_file_and_end_with_what_it_cost(server: ServerProcess) -> None:
    body = {
        "model": "tts-1",
        "voice": {"id": "alloy"},
        "input": TEXT,
        "response_format": "flac",
        "stream_format": "sse",
    }
    response = httpx.post(f"http://127.0.0.1:{server.port}/v1/audio/speech", json=body, timeout=60)
    assert response.headers["content-type"].startswith("text/event-stream")
    *frames, end = response.text.strip().split("\n\n")
    assert end == "data: [DONE]"
    events = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    assert events[-1]["type"] == "speech.audio.done"
    seconds, _ = decoded(b"".join(base64.b64decode(event["audio"]) for event in events[:-1]), "flac")
    usage = events[-1]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens"] == pytest.approx(seconds * 20, abs=1)
    assert 10 < usage["input_tokens"] < len(TEXT)


def test_voices_are_listed_and_the_model_too(client: openai.OpenAI, server: ServerProcess) -> None:
    listed = httpx.get(f"http://127.0.0.1:{server.port}/v1/audio/voices").json()
    assert listed == {"voices": [{"id": "en_US-joe-medium", "name": "en_US-joe-medium"}]}
    assert {"demo", "tts-1"} <= {model.id for model in client.models.list()}
    data = client.audio.speech.create(model="tts-1", voice="en_US-joe-medium", input="Yes.", response_format="pcm")
    assert len(data.read()) > 10000


def test_an_unknown_voice_and_a_model_of_another_kind_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="en_US-joe-medium") as refused:
        client.audio.speech.create(model="tts-1", voice="nobody", input="Yes.")
    assert refused.value.param == "voice"
    with pytest.raises(openai.BadRequestError, match="use `tts-1`"):
        client.audio.speech.create(model="demo", voice="alloy", input="Yes.")
    with pytest.raises(openai.NotFoundError):
        client.audio.speech.create(model="other", voice="alloy", input="Yes.")


def test_a_stream_goes_on_when_the_speech_process_is_killed(client: openai.OpenAI, server: ServerProcess) -> None:
    (before,) = below(server.pid, "speech")
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT * 2, response_format="pcm"
    ) as response:
        pieces = response.iter_bytes()
        data = next(pieces)
        os.kill(before, signal.SIGKILL)
        data += b"".join(pieces)
    assert 8 < len(data) / 48000 < 18
    eventually(lambda: below(server.pid, "speech") not in ([], [before]), 60, "another follows")


@pytest.mark.proof  # who is served first: tests/server/tts/test_{fairness,model}.py
def test_ten_at_once_are_all_served(client: openai.OpenAI) -> None:
    def one(number: int) -> int:
        text = f"I am number {number}. " * 4
        return len(client.audio.speech.create(model="tts-1", voice="alloy", input=text, response_format="pcm").read())

    with ThreadPoolExecutor(10) as threads:
        assert min(threads.map(one, range(10))) > 48000 * 2.5


def test_the_first_sound_comes_before_the_text_has_been_spoken_and_who_goes_away_then_leaves_nothing_running(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    """The whole text is more sound than fits between server and client."""
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT * 80, response_format="pcm"
    ) as response:
        pieces = response.iter_bytes()  # with which the response would be closed
        next(pieces)
        assert metric(server.port, "speech_requests_running") == 1
    eventually(lambda: metric(server.port, "speech_requests_running") == 0, 60, "nothing is spoken any more")
