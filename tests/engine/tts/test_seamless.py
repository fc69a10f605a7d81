"""SeamlessM4T says what transformers says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.tts.backend import CannotSpeak, Stop, Stopped
from stentor.engine.tts.voices import Voices, read_voices
from stentor.tests.engine.tts.made import as_pcm, close, spoken, stopped
from stentor.tests.engine.tts.tiny_seamless import write_tiny_seamless


@pytest.fixture(scope="module", params=["v2", ""], ids=["second", "first"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_seamless(tmp_path_factory.mktemp("seamless"), request.param)


def test_its_voices_are_the_languages_that_it_speaks(voices: Voices) -> None:
    assert [place.name for place in voices.places] == ["eng", "deu"]
    assert (voices.backend, voices.sample_rate, voices.any_speed) == ("seamless", 16_000, False)


def test_samples_are_those_of_transformers(folder: Path, voices: Voices, speaker: Any) -> None:
    named = json.loads((folder / "config.json").read_bytes())["architectures"][0]
    model: Any = getattr(transformers, named).from_pretrained(folder).eval()
    for name, table in json.loads((folder / "generation_config.json").read_bytes()).items():
        setattr(model.generation_config, name, table)
    ids = transformers.AutoTokenizer.from_pretrained(folder)("hello there.", return_tensors="pt")["input_ids"]
    found = []
    for voice in voices.places:
        samples, parts = spoken(speaker, "hello there.", voice)
        torch.manual_seed(0)
        with torch.inference_mode():
            wave, lengths = model.generate(ids, tgt_lang=voice.name)
        assert close(samples, as_pcm(wave.reshape(-1)[: int(lengths)]))
        assert len(parts) == 1
        found.append(samples.tobytes())
    assert len({*found}) == 2


def test_a_sentence_that_nobody_wants_is_not_made_and_one_of_no_words_is_silent(voices: Voices, speaker: Any) -> None:
    with pytest.raises(Stopped):
        speaker.speak("hello there.", voices.places[0], 1.0, stopped())
    assert speaker.speak("", voices.places[0], 1.0, Stop()) == b""


def test_a_sentence_beyond_the_places_of_the_model_is_refused(voices: Voices, speaker: Any) -> None:
    with pytest.raises(CannotSpeak, match="a sentence has 102 tokens, and the model has places for 64"):
        speaker.speak("a" * 100, voices.places[0], 1.0, Stop())


def test_a_checkpoint_that_speaks_no_language_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(folder / "config.json")
    with pytest.raises(CheckpointError, match=r"generation_config.json names no language"):
        read_voices(tmp_path)
