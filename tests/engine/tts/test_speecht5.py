"""SpeechT5 says what transformers says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import SpeechT5ForTextToSpeech, SpeechT5HifiGan, SpeechT5Tokenizer

from stentor.engine.loading.companions import companions_in
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.tts.backend import CannotSpeak, Stop, Stopped
from stentor.engine.tts.transformers.speecht5 import SpeechT5Synthesizer
from stentor.engine.tts.voices import Voices, read_voices
from stentor.tests.engine.tts.made import as_pcm, close, spoken, stopped
from stentor.tests.engine.tts.tiny_speecht5 import RATE, SPEAKER_DIM, write_tiny_speecht5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_speecht5(tmp_path_factory.mktemp("speecht5"))


def test_the_voices_are_its_x_vectors(folder: Path, voices: Voices) -> None:
    assert [place.name for place in voices.places] == ["ann", "bob"]
    assert (voices.backend, voices.sample_rate, voices.any_speed) == ("speecht5", RATE, False)
    assert companions_in(folder) == [], "the vocoder is within the checkpoint"


def test_samples_are_those_of_transformers_with_the_same_seed(folder: Path, voices: Voices, speaker: Any) -> None:
    model: Any = SpeechT5ForTextToSpeech.from_pretrained(folder)
    vocoder: Any = SpeechT5HifiGan.from_pretrained(folder / "vocoder")
    ids = SpeechT5Tokenizer.from_pretrained(folder)("Hello there.", return_tensors="pt")["input_ids"]
    for voice in voices.places:
        samples, parts = spoken(speaker, "Hello there.", voice)
        vector = load_file(folder / "voices" / f"{voice.name}.safetensors")["xvector"]
        torch.manual_seed(0)
        assert close(samples, as_pcm(model.eval().generate_speech(ids, vector, vocoder=vocoder.eval())))
        assert len(parts) == 1


def test_a_sentence_that_nobody_wants_is_not_made(voices: Voices, speaker: Any) -> None:
    with pytest.raises(Stopped):
        speaker.speak("Hello there.", voices.places[0], 1.0, stopped())


def test_a_sentence_beyond_the_model_s_positions_is_refused(voices: Voices, speaker: Any) -> None:
    with pytest.raises(CannotSpeak, match="letters, and the model has places for 40"):
        speaker.speak("the lazy dog " * 4, voices.places[0], 1.0, Stop())


def copy_of(folder: Path, target: Path) -> Path:
    """With links to its files, and no voices."""
    (target / "voices").mkdir(parents=True)
    for file in folder.iterdir():
        if file.name != "voices":
            (target / file.name).symlink_to(file)
    return target


def test_what_is_no_x_vector_is_refused(folder: Path, tmp_path: Path) -> None:
    copied = copy_of(folder, tmp_path / "copy")
    with pytest.raises(CheckpointError, match=r"holds no voice: expected NAME\.safetensors; or name a folder"):
        read_voices(copied)
    save_file({"a": torch.zeros(3)}, copied / "voices" / "eve.safetensors")
    with pytest.raises(
        CannotSpeak, match=rf"shape \[3\], where the x-vector of a speaker is expected: \[{SPEAKER_DIM}\]"
    ):
        SpeechT5Synthesizer(read_voices(copied).places, 1)


def test_a_speecht5_that_does_not_speak_is_refused_and_a_vocoder_is_fetched(folder: Path, tmp_path: Path) -> None:
    copied = copy_of(folder, tmp_path / "copy")
    (copied / "vocoder").unlink()
    assert companions_in(copied) == ["microsoft/speecht5_hifigan"]
    described = json.loads((folder / "config.json").read_bytes())
    (copied / "config.json").unlink()
    (copied / "config.json").write_text(json.dumps({**described, "architectures": ["SpeechT5ForSpeechToText"]}))
    with pytest.raises(CheckpointError, match=r"architectures in .* expected \['SpeechT5ForTextToSpeech'\]"):
        read_voices(copied)
