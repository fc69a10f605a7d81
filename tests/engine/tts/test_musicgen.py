"""MusicGen plays what transformers plays."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.tts.backend import Stopped
from stentor.engine.tts.voices import Voices
from stentor.tests.engine.tts.made import as_pcm, close, spoken, stopped
from stentor.tests.engine.tts.tiny_musicgen import RATE, transformers, write_tiny_musicgen


@pytest.fixture(scope="module", params=[1, 2], ids=["one channel", "two channels"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_musicgen(tmp_path_factory.mktemp("musicgen"), request.param)


def test_its_one_voice_takes_whole_texts(voices: Voices) -> None:
    assert [place.name for place in voices.places] == ["default"]
    assert (voices.backend, voices.sample_rate, voices.any_speed, voices.whole_texts) == ("musicgen", RATE, False, True)


def test_samples_are_those_of_transformers_with_the_same_seed(folder: Path, voices: Voices, speaker: Any) -> None:
    model: Any = transformers.MusicgenForConditionalGeneration.from_pretrained(folder).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(folder)("a calm piano.", return_tensors="pt")
    samples, parts = spoken(speaker, "a calm piano.", voices.places[0])
    torch.manual_seed(0)
    with torch.inference_mode():
        wave = model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    assert close(samples, as_pcm(wave[0].mean(dim=0)))
    assert len(parts) == 1
    assert len(samples) > 0


def test_music_that_nobody_wants_is_not_made(voices: Voices, speaker: Any) -> None:
    with pytest.raises(Stopped):
        speaker.speak("a calm piano.", voices.places[0], 1.0, stopped())
