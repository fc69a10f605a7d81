"""Dia says what transformers says, and says it while it is made."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DacModel, DiaFeatureExtractor, DiaForConditionalGeneration, DiaProcessor, DiaTokenizer

from stentor.engine.loading.companions import companions_in
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.tts.backend import CannotSpeak, Stop
from stentor.engine.tts.transformers import dia
from stentor.engine.tts.transformers.context import ContextDecoder, dac_context
from stentor.engine.tts.voices import Voices, read_voices
from stentor.tests.engine.tts.made import as_pcm, close, parts_until_stopped, spoken, write_tone
from stentor.tests.engine.tts.tiny_dia import CODES, DELAYS, HOP, RATE, write_tiny_dia

MOST = 90
"""Frames of a sentence."""
KINDS = {
    "delay_pattern": DELAYS,
    "eos_token_id": CODES,
    "pad_token_id": CODES + 1,
    "bos_token_id": CODES + 2,
    "text_kwargs": {"padding": False, "truncation": False},
    "sampling_rate": RATE,
}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dia, "longest_seconds", lambda _text: MOST * HOP / RATE)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("recordings") / "ann.wav"
    write_tone(file, RATE)
    file.with_suffix(".txt").write_text("As it was said.")
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dia(tmp_path_factory.mktemp("dia"))


@pytest.fixture(scope="module")
def voices(folder: Path, recording: Path) -> Voices:
    return read_voices(folder, recording.parent)


def expected(folder: Path, text: str, recording: Any = None) -> Any:
    """Their samples."""
    processor: Any = DiaProcessor(
        DiaFeatureExtractor.from_pretrained(folder),
        DiaTokenizer.from_pretrained(folder),
        DacModel.from_pretrained(folder / "codec"),
    )
    model: Any = DiaForConditionalGeneration.from_pretrained(folder)
    inputs = processor(text=text, audio=recording, **KINDS)
    torch.manual_seed(0)
    made = model.eval().generate(**inputs, max_new_tokens=MOST + max(DELAYS))
    before = None
    if recording is not None:
        before = processor.get_audio_prompt_len(inputs["decoder_attention_mask"], **KINDS)
    return as_pcm(processor.decode(made, audio_prompt_len=before, **KINDS))


def test_the_voices_are_recordings_and_one_of_its_own(folder: Path, voices: Voices) -> None:
    assert [place.name for place in voices.places] == ["ann", "default"]
    assert (voices.backend, voices.sample_rate, voices.any_speed) == ("dia", RATE, False)
    assert companions_in(folder) == [], "the codec is within the checkpoint"


def test_samples_are_those_of_transformers_in_the_voice_of_a_recording(
    folder: Path, voices: Voices, speaker: Any, tmp_path: Path
) -> None:
    tone = write_tone(tmp_path / "ann.wav", RATE)
    samples, _ = spoken(speaker, "Hello there.", voices.places[0])
    assert close(samples, expected(folder, "[S1] As it was said. [S1] Hello there.", tone))


def test_samples_are_those_of_transformers_in_its_own_voice_and_come_in_parts(
    folder: Path, voices: Voices, speaker: Any
) -> None:
    samples, parts = spoken(speaker, "Hello there.", voices.places[1])
    assert close(samples, expected(folder, "[S1] Hello there."))
    assert parts[0] == round(0.3 * RATE) - dac_context([4, 2]) * HOP
    assert len(parts) > 1


@pytest.mark.parametrize("cuts", [[1] * 60, [20, 20, 20], [60]])
def test_a_codec_decodes_in_parts_what_it_decodes_at_once(speaker: Any, cuts: list[int]) -> None:
    codes = torch.randint(CODES, (1, 60, len(DELAYS)), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        whole = speaker._decoded(codes)
        stream = ContextDecoder(speaker._decoded, dac_context([4, 2]), HOP)
        parts = torch.cat([*(stream.push(part) for part in codes.split(cuts, dim=1)), stream.finish()])
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)
    assert whole.abs().max() > 0.1


def test_the_published_codec_s_frames_depend_on_ten_before_and_behind() -> None:
    assert dac_context([8, 8, 4, 2]) == 10


def test_a_sentence_that_nobody_wants_is_stopped_amid_its_making(voices: Voices, speaker: Any) -> None:
    assert parts_until_stopped(speaker, "Hello there.", voices.places[1]) == 1


def test_a_recording_that_leaves_no_room_is_refused_with_what_to_do(voices: Voices, speaker: Any) -> None:
    with pytest.raises(CannotSpeak, match=r"the model has places for 128, .* expected a shorter recording"):
        speaker.speak("long " * 30, voices.places[0], 1.0, Stop())


def test_a_checkpoint_without_the_name_of_its_codec_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(folder / "config.json")
    with pytest.raises(CheckpointError, match=r"names no codec: no processor_config\.json or audio_tokenizer_config"):
        read_voices(tmp_path)
