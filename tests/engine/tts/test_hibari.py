"""Hibari voices say what their package says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.tts import english, process
from stentor.engine.tts.backend import CannotSpeak, Stop, Stopped, Synthesizer
from stentor.engine.tts.hibari import HibariSynthesizer
from stentor.engine.tts.voices import Voices, read_voices
from stentor.protocols.ipc.speech import StartSpeech, VoicePlace
from stentor.tests.engine.tts.made import stopped

hibari = pytest.importorskip("hibari")

FOLDER = Path(hibari.__file__).parent / "assets"


@pytest.fixture(scope="module")
def voices() -> Sequence[VoicePlace]:
    return read_voices(FOLDER).places


@pytest.fixture(scope="module")
def speaker(voices: Sequence[VoicePlace]) -> Synthesizer:
    """Loaded as the speech process loads it."""
    made = process.load(StartSpeech("hibari", tuple(voices), 1, "error"))
    assert isinstance(made, Synthesizer)
    return made


def test_the_package_s_own_voice_is_found_in_its_folder_and_by_its_file(voices: Sequence[VoicePlace]) -> None:
    place = VoicePlace("heart", str(FOLDER / "hibari.onnx"), language="en-us")
    assert voices == (place,)
    assert read_voices(FOLDER / "hibari.onnx") == Voices("hibari", (place,), 24000)


@pytest.mark.parametrize("speed", [0.5, 1.0, 4.0])
def test_samples_are_those_of_the_package_with_the_same_seed(
    voices: Sequence[VoicePlace], speaker: Synthesizer, speed: float
) -> None:
    text = "It's 9:30am; Dr. Smith paid $3.20 for a zyxbot."
    samples = np.frombuffer(speaker.speak(text, voices[0], speed, Stop()), "<i2")
    wave = hibari.Hibari(g2p=speaker._english["en-us"]._read)(text, speed=speed, seed=0)  # type: ignore[attr-defined]
    wanted = (np.clip(wave, -1.0, 1.0) * 32767).astype("<i2")
    assert samples.shape == wanted.shape
    assert np.abs(samples.astype(int) - wanted).max() <= 1
    assert np.abs(samples).max() > 3000


def test_text_without_a_sound_is_silent(voices: Sequence[VoicePlace], speaker: Synthesizer) -> None:
    assert speaker.speak("你好", voices[0], 1.0, Stop()) == b""


@pytest.mark.parametrize("text", ["a-" * 130, "9" * 65, "1e" * 60])
def test_a_word_that_the_front_end_would_be_busy_with_is_spoken_in_parts(speaker: Any, text: str) -> None:
    phonemes = speaker._english["en-us"](text)
    assert 40 < len(phonemes) < 3000


def test_a_sentence_that_nobody_wants_is_not_made(voices: Sequence[VoicePlace], speaker: Synthesizer) -> None:
    with pytest.raises(Stopped):
        speaker.speak("hello", voices[0], 1.0, stopped())


def write_folder(folder: Path, voices: dict[str, Any], *files: str) -> Path:
    (folder / "voices.json").write_text(json.dumps(voices))
    (folder / "vocab.json").write_text("{}")
    for name in files:
        (folder / name).touch()
    return folder


def test_voices_whose_models_are_there_are_served_with_their_kind_of_english(tmp_path: Path) -> None:
    known = {"a": {"file": "a.onnx"}, "b": {"file": "b.onnx", "british": True}, "c": {"file": "c.onnx"}}
    places = read_voices(write_folder(tmp_path, known, "a.onnx", "b.onnx")).places
    assert [(place.name, place.language) for place in places] == [("a", "en-us"), ("b", "en-gb")]


def test_a_folder_whose_models_are_missing_or_others_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": {"file": "a.onnx"}}, "other.onnx")
    with pytest.raises(CheckpointError, match=r"voices\.json names a\.onnx, and none of them is there"):
        read_voices(tmp_path)
    with pytest.raises(CheckpointError, match=r"and other\.onnx is none of them"):
        read_voices(tmp_path / "other.onnx")


def test_without_the_front_end_the_way_to_install_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, {"a": {"file": "a.onnx"}}, "a.onnx")
    monkeypatch.setattr(english.importlib.util, "find_spec", lambda _name: None)  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"hibari and onnxruntime cannot be imported: .*'stentor\[english\]'"):
        read_voices(tmp_path)


def test_a_graph_of_another_model_is_refused_in_one_line() -> None:
    place = VoicePlace("heart", str(FOLDER / "oov.onnx"), language="en-us")
    with pytest.raises(CannotSpeak, match=r"takes chars and gives .*, where a voice of Hibari takes ids, speed"):
        HibariSynthesizer([place], 1)
