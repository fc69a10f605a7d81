"""VITS voices say what transformers says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import VitsModel, VitsTokenizer

from stentor.engine.tts import process
from stentor.engine.tts.backend import CannotSpeak, Stop, Stopped, Synthesizer
from stentor.engine.tts.transformers.vits import VitsSynthesizer
from stentor.engine.tts.voices import read_voices
from stentor.protocols.ipc.speech import StartSpeech, VoicePlace
from stentor.tests.engine.tts.made import stopped
from stentor.tests.engine.tts.tiny_vits import write_tiny_vits


@pytest.fixture(scope="module", params=[1, 3])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    speakers: int = request.param
    return write_tiny_vits(tmp_path_factory.mktemp("vits"), speakers)


@pytest.fixture(scope="module")
def voices(folder: Path) -> Sequence[VoicePlace]:
    return read_voices(folder).places


@pytest.fixture(scope="module")
def speaker(voices: Sequence[VoicePlace]) -> Synthesizer:
    """Loaded as the speech process loads it."""
    made = process.load(StartSpeech("vits", tuple(voices), 1, "error"))
    assert isinstance(made, Synthesizer)
    return made


@pytest.fixture(scope="module")
def theirs(folder: Path) -> tuple[Any, Any]:
    """Their model and tokenizer."""
    return VitsModel.from_pretrained(folder).eval(), VitsTokenizer.from_pretrained(folder)


def expected(theirs: tuple[Any, Any], text: str, speaker: int | None, rate: float) -> Any:
    model, tokenizer = theirs
    torch.manual_seed(0)
    with torch.no_grad():
        wave = model(**tokenizer(text, return_tensors="pt"), speaker_id=speaker, speaking_rate=rate).waveform[0].numpy()
    return np.clip(wave * 32767, -32767, 32767)


@pytest.mark.parametrize(("speed", "place"), [(1.0, 0), (0.5, -1), (2.0, -1)])
def test_samples_are_those_of_transformers_with_the_same_seed(
    voices: Sequence[VoicePlace], speaker: Synthesizer, theirs: tuple[Any, Any], speed: float, place: int
) -> None:
    voice = voices[place]
    samples = np.frombuffer(speaker.speak("Hello, it's me.", voice, speed, Stop()), "<i2")
    wanted = expected(theirs, "Hello, it's me.", voice.speaker, speed)
    assert samples.shape == wanted.shape
    assert np.abs(samples - wanted).max() <= 2
    assert np.abs(wanted).max() > 50


def test_equal_text_gives_equal_samples_and_another_voice_gives_others(
    voices: Sequence[VoicePlace], speaker: Synthesizer
) -> None:
    first = speaker.speak("the same", voices[0], 1.0, Stop())
    speaker.speak("something else", voices[0], 1.0, Stop())
    assert speaker.speak("the same", voices[0], 1.0, Stop()) == first
    if len(voices) > 1:
        assert speaker.speak("the same", voices[1], 1.0, Stop()) != first


def test_text_without_a_letter_that_it_knows_is_silent(voices: Sequence[VoicePlace], speaker: Synthesizer) -> None:
    assert speaker.speak("123 456", voices[0], 1.0, Stop()) == b""


class Later(Stop):
    """Is set while the work goes on: when it is looked at for the tenth time."""

    looks = 0

    @property
    def is_set(self) -> bool:
        self.looks += 1
        return self.looks >= 10


def test_a_sentence_that_nobody_wants_is_stopped_before_and_amid_its_making(
    voices: Sequence[VoicePlace], speaker: Synthesizer
) -> None:
    with pytest.raises(Stopped):
        speaker.speak("hello", voices[0], 1.0, stopped())
    later = Later()
    with pytest.raises(Stopped):
        speaker.speak("hello", voices[0], 1.0, later)
    assert later.looks == 10


def test_weights_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    (write_tiny_vits(tmp_path) / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(CannotSpeak, match="cannot be loaded") as said:
        VitsSynthesizer([VoicePlace("default", str(tmp_path))], 1)
    assert "\n" not in str(said.value)
