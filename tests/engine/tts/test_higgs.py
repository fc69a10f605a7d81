"""Higgs Audio V2 says what transformers says, and says it while it is made."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoTokenizer,
    DacFeatureExtractor,
    HiggsAudioV2ForConditionalGeneration,
    HiggsAudioV2Processor,
)

from stentor.engine.loading.companions import companions_in
from stentor.engine.loading.kind import kind_of
from stentor.engine.tts.backend import CannotSpeak, Stop
from stentor.engine.tts.transformers import higgs
from stentor.engine.tts.transformers.context import ContextDecoder, dac_context
from stentor.engine.tts.voices import Voices, read_voices
from stentor.tests.engine.tts.made import as_pcm, close, parts_until_stopped, spoken, write_tone
from stentor.tests.engine.tts.tiny_higgs import (
    CODEBOOKS,
    CODES,
    HOP,
    RATE,
    HiggsAudioV2TokenizerModel,
    write_tiny_higgs,
)

MOST = 40
"""Frames of a sentence."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(higgs, "longest_seconds", lambda _text: MOST * HOP / RATE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_higgs(tmp_path_factory.mktemp("higgs"))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("recordings") / "ann.wav"
    write_tone(file, RATE)
    file.with_suffix(".txt").write_text("As it was said.")
    return file


@pytest.fixture(scope="module")
def voices(folder: Path, recording: Path) -> Voices:
    return read_voices(folder, recording.parent)


def expected(folder: Path, text: str, recording: Any = None) -> Any:
    """Their samples."""
    codec: Any = HiggsAudioV2TokenizerModel.from_pretrained(folder / "codec")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    processor: Any = object.__new__(HiggsAudioV2Processor)  # it would look for its codec's class, which is not there
    processor.feature_extractor, processor.tokenizer = DacFeatureExtractor(sampling_rate=RATE, hop_length=1), tokenizer
    processor.audio_tokenizer, processor.audio_token = codec.eval(), "<|AUDIO_OUT|>"
    processor.audio_delay_token = "<|reserved_special_token_6|>"
    processor.audio_stream_bos_id, processor.audio_stream_eos_id = CODES, CODES + 1
    model: Any = HiggsAudioV2ForConditionalGeneration.from_pretrained(folder)
    said = [("system", "Generate audio following instruction."), ("scene", "Audio is recorded from a quiet room.")]
    said += [] if recording is None else [("user", "As it was said.")]
    turns: list[Any] = [{"role": role, "content": [{"type": "text", "text": each}]} for role, each in said]
    if recording is not None:
        turns.append({"role": "assistant", "content": [{"type": "audio"}]})
    turns.append({"role": "user", "content": [{"type": "text", "text": text}]})
    written = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    kwargs = {"return_tensors": "pt", "sampling_rate": RATE, "add_special_tokens": False}
    inputs = processor(text=written, audio=recording, **kwargs)
    torch.manual_seed(0)
    with torch.inference_mode():
        made = model.eval().generate(**inputs, max_new_tokens=MOST + CODEBOOKS)
    return as_pcm(processor.decode(made))


def test_the_voices_are_recordings_and_one_of_its_own(folder: Path, voices: Voices) -> None:
    assert [place.name for place in voices.places] == ["ann", "default"]
    assert (voices.backend, voices.sample_rate, voices.any_speed) == ("higgs", RATE, False)
    assert companions_in(folder) == [], "the codec is within the checkpoint"
    assert kind_of(folder) == "speech"


@pytest.mark.parametrize("text", ["Hello there.", "No."])
def test_samples_are_those_of_transformers_in_its_own_voice_and_come_in_parts(
    folder: Path, voices: Voices, speaker: Any, text: str
) -> None:
    samples, parts = spoken(speaker, text, voices.places[1])
    assert close(samples, expected(folder, text))
    assert len(parts) > 1


def test_samples_are_those_of_transformers_in_the_voice_of_a_recording(
    folder: Path, voices: Voices, speaker: Any, tmp_path: Path
) -> None:
    tone = write_tone(tmp_path / "ann.wav", RATE)
    samples, _ = spoken(speaker, "Hello there.", voices.places[0])
    assert close(samples, expected(folder, "Hello there.", tone))


@pytest.mark.parametrize("cuts", [[1] * 40, [25, 15]])
def test_a_codec_decodes_in_parts_what_it_decodes_at_once(speaker: Any, cuts: list[int]) -> None:
    codes = torch.randint(CODES, (1, 40, CODEBOOKS), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        whole = speaker._decoded(codes)
        stream = ContextDecoder(speaker._decoded, dac_context([8, 5, 4, 2]), HOP)
        parts = torch.cat([*(stream.push(part) for part in codes.split(cuts, dim=1)), stream.finish()])
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)
    assert whole.abs().max() > 0.05


def test_a_sentence_that_nobody_wants_is_stopped_amid_its_making(voices: Voices, speaker: Any) -> None:
    assert parts_until_stopped(speaker, "Hello there.", voices.places[1]) == 1


def test_a_recording_that_leaves_no_room_is_refused_with_what_to_do(voices: Voices, speaker: Any) -> None:
    with pytest.raises(CannotSpeak, match=r"the model has 512: expected a shorter recording of ann"):
        speaker.speak("long " * 100, voices.places[0], 1.0, Stop())
