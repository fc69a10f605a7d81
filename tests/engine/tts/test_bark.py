"""Bark says what transformers says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BarkModel, BarkProcessor

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.tts import process
from stentor.engine.tts.backend import CannotSpeak, Stop, Stopped
from stentor.engine.tts.voices import Voices, read_voices
from stentor.protocols.ipc.speech import StartSpeech
from stentor.tests.engine.tts.made import as_pcm, close, spoken, stopped
from stentor.tests.engine.tts.tiny_bark import RATE, write_tiny_bark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bark(tmp_path_factory.mktemp("bark"))


def test_its_voices_are_one_of_its_own_and_the_presets_whose_files_are_there(voices: Voices) -> None:
    assert [place.name for place in voices.places] == ["default", "v2/ann", "v2/bob"]
    assert (voices.backend, voices.sample_rate, voices.any_speed) == ("bark", RATE, False)


def test_samples_are_those_of_transformers_with_the_same_seed(folder: Path, voices: Voices, speaker: Any) -> None:
    model: Any = BarkModel.from_pretrained(folder).eval()
    processor: Any = BarkProcessor.from_pretrained(folder)
    found = []
    for voice in voices.places:
        samples, parts = spoken(speaker, "hello there.", voice)
        inputs = processor("hello there.", voice_preset=None if voice.style is None else voice.name, max_length=24)
        torch.manual_seed(0)
        assert close(samples, as_pcm(model.generate(**inputs)[0]))
        assert len(parts) == 1
        found.append(samples.tobytes())
    assert len({*found}) == 3


def test_a_sentence_that_nobody_wants_is_not_made(voices: Voices, speaker: Any) -> None:
    with pytest.raises(Stopped):
        speaker.speak("hello there.", voices.places[0], 1.0, stopped())


def test_a_sentence_of_no_words_is_silent_and_one_of_too_many_is_spoken_in_halves(voices: Voices, speaker: Any) -> None:
    own = voices.places[0]
    assert speaker.speak("", own, 1.0, Stop()) == b""
    whole = speaker.speak("the lazy dog the lazy dog " * 2, own, 1.0, Stop())
    halves = [
        speaker.speak(text, own, 1.0, Stop()) for text in ("the lazy dog the lazy dog", " the lazy dog the lazy dog ")
    ]
    assert whole == b"".join(halves)
    assert all(halves)


def copy_of(folder: Path, target: Path, **presets: Any) -> Path:
    """With links to its files, and other presets."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).symlink_to(file)
    told = target / "speaker_embeddings_path.json"
    known = json.loads(told.read_bytes())
    told.unlink()
    told.write_text(json.dumps({**known, **presets}))
    return target


def test_what_is_no_preset_is_refused(folder: Path, tmp_path: Path) -> None:
    parts = {part: f"eve_{part}.npy" for part in ("semantic_prompt", "coarse_prompt", "fine_prompt")}
    copied = copy_of(folder, tmp_path / "wrong", eve=parts)
    ann = json.loads((folder / "speaker_embeddings_path.json").read_bytes())["v2/ann"]
    for part, file in parts.items():
        (copied / file).symlink_to(folder / ann[part])
    (copied / parts["coarse_prompt"]).unlink()
    for array, what in (
        (np.full((2, 5), 16), "int64 of shape [2, 5]"),
        (np.zeros((3, 5), int), "int64 of shape [3, 5]"),
        (np.zeros((2, 5)), "float64 of shape [2, 5]"),
    ):
        np.save(copied / parts["coarse_prompt"], array)
        with pytest.raises(CannotSpeak) as told:
            process.load(StartSpeech("bark", read_voices(copied).places, 1, "error"))
        assert f"{what}, where 2 rows of whole numbers from 0 to 15 are expected" in str(told.value)
    (copied / parts["coarse_prompt"]).write_bytes(b"no array")
    with pytest.raises(CannotSpeak, match="cannot be read"):
        process.load(StartSpeech("bark", read_voices(copied).places, 1, "error"))


@pytest.mark.parametrize("path", ["../secret.npy", "/etc/passwd"])
def test_files_of_a_preset_lie_within_the_folder(folder: Path, tmp_path: Path, path: str) -> None:
    copied = copy_of(folder, tmp_path / "copy", eve={"semantic_prompt": path})
    with pytest.raises(CheckpointError, match=r"for eve, expected a file within"):
        read_voices(copied)
