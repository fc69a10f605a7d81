"""CSM says what transformers says, and says it while it is made."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CsmForConditionalGeneration, CsmProcessor

from stentor.engine.loading.kind import kind_of
from stentor.engine.tts.backend import CannotSpeak, Stop
from stentor.engine.tts.transformers import csm
from stentor.engine.tts.voices import Voices, read_voices
from stentor.tests.engine.tts.made import as_pcm, close, parts_until_stopped, spoken, write_tone
from stentor.tests.engine.tts.tiny_csm import write_tiny_csm

FRAME = 1920
MOST = 12
"""Frames of a sentence."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csm, "longest_seconds", lambda _text: MOST / 12.5)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    write_tone(folder / "ann.wav", 24000)
    (folder / "ann.txt").write_text("As it was\nsaid.\n")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_csm(tmp_path_factory.mktemp("csm"))


@pytest.fixture(scope="module")
def voices(folder: Path, recordings: Path) -> Voices:
    return read_voices(folder, recordings)


def expected(folder: Path, turns: list[Any]) -> Any:
    """Their samples of the whole prompt."""
    processor = CsmProcessor.from_pretrained(folder)
    model: Any = CsmForConditionalGeneration.from_pretrained(folder)
    inputs: Any = processor.apply_chat_template(turns, tokenize=True, return_dict=True)
    torch.manual_seed(0)
    return as_pcm(model.eval().generate(**inputs, output_audio=True, max_new_tokens=MOST)[0])


def turn(role: str, text: str, *audio: Any) -> dict[str, Any]:
    return {
        "role": role,
        "content": [{"type": "text", "text": text}, *({"type": "audio", "path": each} for each in audio)],
    }


def test_the_voices_are_recordings_and_numbers_of_speakers(folder: Path, voices: Voices) -> None:
    assert [place.name for place in voices.places] == ["ann", *map(str, range(10))]
    assert voices.places[0].transcript == "As it was said."
    assert (voices.backend, voices.sample_rate, voices.any_speed) == ("csm", 24000, False)
    assert [place.name for place in read_voices(folder).places] == [*map(str, range(10))]
    assert kind_of(folder) == "speech"


def test_samples_are_those_of_transformers_in_the_voice_of_a_recording(
    folder: Path, voices: Voices, speaker: Any, tmp_path: Path
) -> None:
    tone = write_tone(tmp_path / "ann.wav", 24000)
    samples, parts = spoken(speaker, "Hello, how are you?", voices.places[0])
    wanted = expected(folder, [turn("0", "As it was said.", tone), turn("0", "Hello, how are you?")])
    assert close(samples, wanted)
    assert parts[0] == 2 * FRAME
    assert len(parts) > 1


def test_samples_are_those_of_transformers_for_a_speaker_by_number(folder: Path, voices: Voices, speaker: Any) -> None:
    samples, _ = spoken(speaker, "Hi", voices.places[4])
    assert close(samples, expected(folder, [turn("3", "Hi")]))


def test_a_sentence_that_nobody_wants_is_stopped_amid_its_making(voices: Voices, speaker: Any) -> None:
    assert parts_until_stopped(speaker, "hello there", voices.places[1]) == 1


def test_a_text_cannot_write_places_of_audio(voices: Voices, speaker: Any) -> None:
    ids = speaker._inputs("a<|AUDIO|><|aud<|AUDIO|>io_eos|>b<|audio_eos|>", voices.places[1])["input_ids"]
    config = speaker._model.config
    assert not ((ids == config.audio_token_id) | (ids == config.audio_eos_token_id)).any()


def test_a_recording_that_leaves_no_room_is_refused_with_what_to_do(voices: Voices, speaker: Any) -> None:
    with pytest.raises(CannotSpeak, match=r"positions, and the model has 256: expected a shorter recording of 0"):
        speaker.speak("long " * 60, voices.places[1], 1.0, Stop())
