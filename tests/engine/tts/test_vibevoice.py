"""VibeVoice says what transformers says, and says it while it is made."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import VibeVoiceForConditionalGeneration, VibeVoiceProcessor

from stentor.engine.tts.backend import CannotSpeak, Stop
from stentor.engine.tts.transformers import vibevoice
from stentor.engine.tts.transformers.diffusion import DpmSolver, check_solver
from stentor.engine.tts.voices import Voices, read_voices
from stentor.tests.engine.tts.made import as_pcm, close, parts_until_stopped, spoken, write_tone
from stentor.tests.engine.tts.tiny_vibevoice import HOP, RATE, write_tiny_vibevoice

MOST = 6
"""Pieces of a sentence, beside the tokens around them."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vibevoice, "longest_seconds", lambda _text: MOST * HOP / RATE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_vibevoice(tmp_path_factory.mktemp("vibevoice"))


@pytest.fixture(scope="module")
def voices(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Voices:
    recordings = tmp_path_factory.mktemp("recordings")
    write_tone(recordings / "ann.wav", RATE)
    return read_voices(folder, recordings)


def expected(folder: Path, text: str, *recording: Any) -> Any:
    """Their samples."""
    processor: Any = VibeVoiceProcessor.from_pretrained(folder)
    model: Any = VibeVoiceForConditionalGeneration.from_pretrained(folder)
    content = [{"type": "text", "text": text}, *({"type": "audio", "path": each} for each in recording)]
    turns = [{"role": "0", "content": content}]
    inputs = processor.apply_chat_template(turns, tokenize=True, return_dict=True, return_tensors="pt")
    torch.manual_seed(0)
    made = model.eval().generate(**inputs, max_new_tokens=MOST + 8, noise_scheduler=DpmSolver())
    return as_pcm(made[0].flatten())


def test_the_voices_are_recordings_and_one_of_its_own(voices: Voices) -> None:
    assert [place.name for place in voices.places] == ["ann", "default"]
    assert voices.places[0].transcript is None
    assert (voices.backend, voices.sample_rate, voices.any_speed) == ("vibevoice", RATE, False)


def test_samples_are_those_of_transformers_in_the_voice_of_a_recording_and_come_in_parts(
    folder: Path, voices: Voices, speaker: Any, tmp_path: Path
) -> None:
    tone = write_tone(tmp_path / "ann.wav", RATE)
    samples, parts = spoken(speaker, "Hello there.", voices.places[0])
    assert close(samples, expected(folder, "Hello there.", tone))
    assert parts[:2] == [HOP, 3 * HOP]


def test_samples_are_those_of_transformers_in_its_own_voice(folder: Path, voices: Voices, speaker: Any) -> None:
    samples, _ = spoken(speaker, "Hi", voices.places[1])
    assert close(samples, expected(folder, "Hi"))


def test_a_sentence_that_nobody_wants_is_stopped_amid_its_making(voices: Voices, speaker: Any) -> None:
    assert parts_until_stopped(speaker, "hello there", voices.places[1]) == 1


def test_a_text_cannot_write_places_of_audio(voices: Voices, speaker: Any) -> None:
    ids = speaker._inputs("a<|vision_pad|><|vis<|vision_pad|>ion_end|>", voices.places[1])["input_ids"]
    config = speaker._model.config
    assert not ((ids == config.audio_token_id) | (ids == config.audio_eos_token_id)).any()


def test_a_recording_that_leaves_no_room_is_refused_with_what_to_do(voices: Voices, speaker: Any) -> None:
    with pytest.raises(CannotSpeak, match=r"has places for 160: expected a shorter recording of default"):
        speaker.speak("long " * 31, voices.places[1], 1.0, Stop())


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("DDIMScheduler", {}, "noise_scheduler_class of .* is DDIMScheduler: expected DPMSolverMultistepScheduler"),
        ("DPMSolverMultistepScheduler", {"solver_order": 3}, "has solver_order = 3: expected 2"),
        ("DPMSolverMultistepScheduler", {"flow_shift": 3.0}, r"has flow_shift = 3\.0: expected 'no such field'"),
    ],
)
def test_another_solver_is_refused_with_its_field(name: str, config: dict[str, object], said: str) -> None:
    with pytest.raises(CannotSpeak, match=said):
        check_solver(name, config)


def test_the_solver_steps_as_that_of_diffusers() -> None:
    """Figures of ``DPMSolverMultistepScheduler`` of diffusers 0.35.1 with the published configuration."""
    solver = DpmSolver()
    solver.set_timesteps(4)
    sample = torch.linspace(-1, 2, 5)[None]
    for timestep in solver.timesteps:
        sample = solver.step(torch.sin(3 * sample) + timestep / 1000, timestep, sample).prev_sample
    wanted = torch.tensor([[-1.992869, -0.063247, -0.064607, -0.077584, 1.86411]])
    torch.testing.assert_close(sample, wanted, rtol=0, atol=2e-6)


def test_the_published_solver_is_taken(folder: Path) -> None:
    written = json.loads((folder / "generation_config.json").read_bytes())
    check_solver(written["noise_scheduler_class"], written["noise_scheduler_config"])
