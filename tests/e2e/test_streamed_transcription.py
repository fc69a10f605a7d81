"""A real server with a streaming transcription model, of random weights: files and both realtime dialects."""

import base64
import io
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from websockets.sync.client import ClientConnection, connect

from stentor.loadtest.processes import alive, tree
from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.made_up import describe
from stentor.tests.e2e.processes import below, eventually
from stentor.tests.engine.tiny_voxtral import speech, write_voxtral
from stentor.tests.server.asr.tekken import write_tekken
from stentor.tests.server.asr.test_http import wav

pytestmark = pytest.mark.proof  # within one process: server/asr/test_stream_engine.py

SPEECH = speech(50, 9)
PIECE = 3200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = write_voxtral(tmp_path_factory.mktemp("voxtral"), seed=3)
    write_tekken(folder, left_pad=4)
    arguments = [*describe(tmp_path_factory.mktemp("chat")), "--dtype", "float32"]
    hearing = ["--transcription-model", str(folder), "--transcription-model-name", "voxtral"]
    with ServerProcess([*arguments, *hearing]) as running:
        yield running


@pytest.fixture(scope="module")
def written(server: ServerProcess) -> str:
    """What the server makes of the speech as a file."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client:
        file = ("clip.wav", io.BytesIO(wav(SPEECH)))
        text = client.audio.transcriptions.create(model="voxtral", file=file).text
        with client.audio.transcriptions.create(model="voxtral", file=file, stream=True) as events:
            deltas = "".join(event.delta for event in events if event.type == "transcript.text.delta")
        assert deltas == text
        with pytest.raises(openai.BadRequestError, match="use json or text"):
            client.audio.transcriptions.create(model="voxtral", file=file, response_format="srt")
    assert len(text.split()) > 5
    return text


def tell(socket: ClientConnection, kind: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": kind, **fields}))


def say(socket: ClientConnection) -> None:
    for at in range(0, len(SPEECH), PIECE):
        audio = base64.b64encode(SPEECH[at : at + PIECE]).decode()
        tell(socket, "input_audio_buffer.append", audio=audio)


def read(socket: ClientConnection, last: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] != last:
        found.append(json.loads(socket.recv(30)))
        assert found[-1]["type"] != "error", found[-1]
    return found


def test_vllms_dialect_writes_what_is_written_of_the_file(server: ServerProcess, written: str) -> None:
    with connect(f"ws://127.0.0.1:{server.port}/v1/realtime") as socket:
        tell(socket, "session.update", model="voxtral")
        tell(socket, "input_audio_buffer.commit")
        say(socket)
        early = read(socket, "transcription.delta")
        tell(socket, "input_audio_buffer.commit", final=True)
        events = early + read(socket, "transcription.done")
    assert events[-1]["text"] == written
    assert "".join(event["delta"] for event in events if event["type"] == "transcription.delta") == written


def test_a_transcription_session_tells_the_text_of_a_turn_before_it_is_committed(server: ServerProcess) -> None:
    update = {"type": "transcription", "audio": {"input": {"turn_detection": None, "transcription": {}}}}
    with connect(f"ws://127.0.0.1:{server.port}/v1/realtime?intent=transcription") as socket:
        tell(socket, "session.update", session=update)
        say(socket)
        kind = "conversation.item.input_audio_transcription"
        early = read(socket, f"{kind}.delta")
        tell(socket, "input_audio_buffer.commit")
        events = early + read(socket, f"{kind}.completed")
    joined = "".join(event["delta"] for event in events if event["type"] == f"{kind}.delta")
    assert joined == events[-1]["transcript"] != ""


def test_told_to_end_a_server_of_several_models_finishes_what_runs_and_leaves_no_process(server: ServerProcess) -> None:
    """The last test of this server."""
    processes = tree(server.pid)
    assert len(below(server.pid, "engine")) == 2
    body = {"model": "made-up", "prompt": [5], "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"http://127.0.0.1:{server.port}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(server.pid, signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert server.wait(60) == 0
    eventually(lambda: not any(map(alive, processes)), 60, "all processes end")
