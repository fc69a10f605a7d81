"""The voices of a module's ``folder``, and the backend that speaks them. A module with others defines its own."""

from pathlib import Path
from typing import Any

import pytest

from stentor.engine.tts import process
from stentor.engine.tts.voices import Voices, read_voices
from stentor.protocols.ipc.speech import StartSpeech


@pytest.fixture(scope="module")
def voices(folder: Path) -> Voices:
    return read_voices(folder)


@pytest.fixture(scope="module")
def speaker(voices: Voices) -> Any:
    return process.load(StartSpeech(voices.backend, voices.places, 1, "error"))
