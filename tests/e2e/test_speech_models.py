"""A real server of voices that transformers' modules speak, in the voice of a recording, through the openai package."""

import io
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import openai
import pytest

from stentor.engine.tts import process
from stentor.engine.tts.voices import read_voices
from stentor.loadtest.server_process import ServerProcess
from stentor.protocols.ipc.speech import StartSpeech
from stentor.tests.e2e.made_up import EXACT, describe_talker
from stentor.tests.engine.tts.made import close, spoken, write_tone
from stentor.tests.engine.tts.tiny_csm import write_tiny_csm
from stentor.tests.engine.tts.tiny_dia import write_tiny_dia
from stentor.tests.engine.tts.tiny_vibevoice import write_tiny_vibevoice

pytestmark = pytest.mark.proof(each="family")  # without a server: tests/engine/tts

FAMILIES: Final[dict[str, tuple[Callable[[Path], Path], int]]] = {
    "csm": (write_tiny_csm, 24000),
    "dia": (write_tiny_dia, 1200),
    "vibevoice": (write_tiny_vibevoice, 1000),
}
"""A writer of a tiny checkpoint, and its rate."""
TEXT = "Hello there."


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sentence_is_streamed_in_the_voice_of_a_recording(tmp_path: Path, family: str) -> None:
    write, rate = FAMILIES[family]
    folder, recordings = write(tmp_path / "voice"), tmp_path / "recordings"
    recordings.mkdir()
    write_tone(recordings / "ann.wav", rate)
    (recordings / "ann.txt").write_text("As it was said.")
    arguments = [
        *(*describe_talker(tmp_path), *EXACT, "--speech-model", str(folder), "--speech-model-name", "tts-1"),
        *("--speech-voices", str(recordings), "--speech-threads", "1"),
    ]
    with (
        ServerProcess(arguments) as server,
        openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client,
    ):
        sent = client.audio.speech.create(model="tts-1", voice="ann", input=TEXT, response_format="wav").read()
        with pytest.raises(openai.BadRequestError, match=r"`speed`: the voices of this model speak at a speed of 1"):
            client.audio.speech.create(model="tts-1", voice="ann", input=TEXT, speed=2.0)
        with pytest.raises(openai.BadRequestError, match=r"`voice`: there is no voice `eve`; there are `ann`"):
            client.audio.speech.create(model="tts-1", voice="eve", input=TEXT)
    voices = read_voices(folder, recordings)
    wanted, _ = spoken(process.load(StartSpeech(voices.backend, voices.places, 1, "error")), TEXT, voices.places[0])
    with wave.open(io.BytesIO(sent)) as opened:
        assert opened.getframerate() == rate
        samples = np.frombuffer(opened.readframes(len(wanted) + 1), "<i2")
    assert close(samples, wanted)
