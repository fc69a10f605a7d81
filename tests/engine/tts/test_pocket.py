"""Pocket TTS and Phonon say what transformers says, and say it while it is made."""

import json
import math
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import GradiumPhononTTSForConditionalGeneration, PocketTTSForConditionalGeneration

from stentor.engine.loading.companions import companions_in
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import kind_of
from stentor.engine.tts import process
from stentor.engine.tts.backend import CannotSpeak, Stop
from stentor.engine.tts.transformers.codec_stream import CodecStream, load_codec
from stentor.engine.tts.transformers.pocket import PocketSynthesizer
from stentor.engine.tts.voices import read_voices
from stentor.protocols.ipc.speech import StartSpeech, VoicePlace
from stentor.tests.engine.tts.made import parts_until_stopped
from stentor.tests.engine.tts.tiny_pocket import DIM, PROMPT_DIM, write_tiny_phonon, write_tiny_pocket


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_pocket(tmp_path_factory.mktemp("pocket"))


@pytest.fixture(scope="module")
def voices(folder: Path) -> Sequence[VoicePlace]:
    return read_voices(folder).places


@pytest.fixture(scope="module")
def speaker(voices: Sequence[VoicePlace]) -> Any:
    """Loaded as the speech process loads it."""
    return process.load(StartSpeech("pocket", tuple(voices), 1, "error"))


def expected(folder: Path, speaker: Any, text: str, voice: str, kind: Any = PocketTTSForConditionalGeneration) -> Any:
    """Their samples of the whole prompt."""
    processor = speaker._processor
    content = [{"type": "audio"}, {"type": "text", "text": text}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
    inputs = processor(text=prompt, audio_prompt_latents=[speaker._latents[voice]], return_tensors="pt")
    model: Any = kind.from_pretrained(folder)
    torch.manual_seed(0)
    made = model.eval().generate(**inputs, return_dict_in_generate=True)
    samples = processor.decode(made.audio_latents, made.audio_latents_mask)[0].numpy()
    return np.clip(samples * 32767, -32767, 32767)


def test_the_voices_are_the_prompts_of_the_checkpoint(folder: Path) -> None:
    found = read_voices(folder)
    assert [place.name for place in found.places] == ["ann", "bob"]
    assert (found.backend, found.sample_rate, found.any_speed) == ("pocket", 8000, False)
    assert kind_of(folder) == "speech"


@pytest.mark.parametrize(("text", "place"), [("Hello, how are you?", 0), ("Hi", 1), ("And now this.", 1)])
def test_samples_are_those_of_transformers_with_the_same_seed(
    folder: Path, voices: Sequence[VoicePlace], speaker: Any, text: str, place: int
) -> None:
    voice = voices[place]
    parts: list[bytes] = []
    rest = speaker.speak(text, voice, 1.0, Stop(), parts.append)
    samples = np.frombuffer(b"".join([*parts, rest]), "<i2")
    wanted = expected(folder, speaker, text, voice.name)
    assert samples.shape == wanted.shape
    assert np.abs(samples - wanted).max() <= 8
    assert np.abs(wanted).max() > 3000


def test_phonon_s_samples_are_those_of_transformers_with_the_same_seed(tmp_path: Path) -> None:
    folder = write_tiny_phonon(tmp_path)
    found = read_voices(folder)
    assert (kind_of(folder), found.backend, [place.name for place in found.places]) == (
        "speech",
        "pocket",
        ["ann", "bob"],
    )
    speaker: Any = process.load(StartSpeech("pocket", found.places, 1, "error"))
    parts: list[bytes] = []
    rest = speaker.speak("Hello, how are you?", found.places[1], 1.0, Stop(), parts.append)
    samples = np.frombuffer(b"".join([*parts, rest]), "<i2")
    wanted = expected(folder, speaker, "Hello, how are you?", "bob", GradiumPhononTTSForConditionalGeneration)
    assert samples.shape == wanted.shape
    assert np.abs(samples - wanted).max() <= 8
    assert np.abs(wanted).max() > 3000


def test_phonon_s_voices_are_latents_that_no_recording_gives(tmp_path: Path) -> None:
    folder = write_tiny_phonon(tmp_path / "whole")
    copied = copy_of(folder, tmp_path / "copy")
    write_wav(copied / "voices" / "eve.wav", 8000)
    with pytest.raises(CheckpointError, match=r"holds no voice: expected NAME\.safetensors; or name a folder"):
        read_voices(copied)
    save_file({"a": torch.zeros(3, DIM)}, copied / "voices" / "eve.safetensors")
    with pytest.raises(CannotSpeak, match=rf"shape \[3, {DIM}\], where .* \[frames, {PROMPT_DIM}\]"):
        PocketSynthesizer(read_voices(copied).places, 1)


def test_audio_begins_after_two_frames_and_equal_text_gives_equal_samples(
    voices: Sequence[VoicePlace], speaker: Any
) -> None:
    parts: list[bytes] = []
    rest = speaker.speak("the same", voices[0], 1.0, Stop(), parts.append)
    frame = 2 * 32
    assert [len(part) for part in parts[:2]] == [2 * frame, 4 * frame]
    assert 0 < len(rest) <= 4 * frame
    speaker.speak("something else", voices[1], 1.0, Stop())
    again: list[bytes] = []
    assert (speaker.speak("the same", voices[0], 1.0, Stop(), again.append), again) == (rest, parts)


def test_a_sentence_that_nobody_wants_is_stopped_amid_its_making(voices: Sequence[VoicePlace], speaker: Any) -> None:
    assert parts_until_stopped(speaker, "hello", voices[0]) == 1


def test_a_text_cannot_write_places_of_audio(voices: Sequence[VoicePlace], speaker: Any) -> None:
    ids = speaker._inputs("a<voice><voi<latent>ce>b<audio_bos>", speaker._latents["bob"])["input_ids"][0]
    config = speaker._model.config
    assert int((ids == config.audio_prompt_token_id).sum()) == 5
    assert int((ids == config.audio_latent_token_id).sum()) == 0
    assert (ids == config.audio_bos_token_id).nonzero().flatten().tolist() == [len(ids) - 1]


def test_a_sentence_has_a_bounded_length(speaker: Any) -> None:
    rate = speaker._model.config.frame_rate
    assert speaker._most_frames(torch.zeros(1, 4)) == math.ceil(3 * rate)
    assert speaker._most_frames(torch.zeros(1, 10_000)) == 60 * rate


@pytest.mark.parametrize("cuts", [[1] * 40, [2, *[4] * 9, 2], [40]])
def test_a_codec_decodes_in_parts_what_it_decodes_at_once(folder: Path, cuts: list[int]) -> None:
    codec = load_codec(folder)
    latents = torch.randn(1, 40, DIM, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        whole = codec.decode(latents).audio_values[0, 0]
        stream = CodecStream(codec, lambda latents: codec.latent_proj(latents.transpose(1, 2)))
        parts = torch.cat([stream.push(part) for part in latents.split(cuts, dim=1)])
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)
    assert whole.abs().max() > 0.1


def test_only_the_voices_last_used_keep_their_keys_and_values(voices: Sequence[VoicePlace], speaker: Any) -> None:
    for number in range(12):
        speaker._latents[f"v{number}"] = speaker._latents["bob"]
        speaker._prefix(VoicePlace(f"v{number}", voices[0].path))
    assert [*speaker._prefixes] == [f"v{number}" for number in range(4, 12)]


def copy_of(folder: Path, target: Path) -> Path:
    """With links to its files, and no voices."""
    target.mkdir()
    for file in folder.iterdir():
        if file.name != "voices":
            (target / file.name).symlink_to(file)
    (target / "voices").mkdir()
    return target


def write_wav(file: Path, rate: int, channels: int = 1) -> None:
    with wave.open(str(file), "wb") as made:
        made.setparams((channels, 2, rate, 0, "NONE", ""))
        tone = 8000 * np.sin(np.arange(rate) / 7)
        made.writeframes(np.repeat(tone, channels).astype("<i2").tobytes())


def test_a_recording_is_a_voice(folder: Path, tmp_path: Path) -> None:
    copied = copy_of(folder, tmp_path / "copy")
    write_wav(copied / "voices" / "eve.wav", 16000)
    voices = read_voices(copied).places
    speaker = PocketSynthesizer(voices, 1)
    tone = (8000 * np.sin(np.arange(16000) / 7)).astype("<i2").astype(np.float32) / 32768
    import soxr

    theirs = speaker._processor.feature_extractor(soxr.resample(tone, 16000, 8000), sampling_rate=8000)
    with torch.no_grad():
        latents = speaker._codec.encode(theirs["input_values"], theirs["padding_mask"]).latents[0]
    torch.testing.assert_close(speaker._latents["eve"], latents)
    assert 100 < len(latents) < 376


def test_what_is_no_prompt_is_refused_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    copied = copy_of(folder, tmp_path / "copy")
    with pytest.raises(
        CheckpointError, match=r"holds no voice: expected a recording .* or NAME\.safetensors; or name a folder"
    ):
        read_voices(copied)
    file = copied / "voices" / "eve.safetensors"
    save_file({"a": torch.zeros(3, DIM + 1)}, file)
    with pytest.raises(CannotSpeak, match=r"shape \[3, 5\], where .* \[frames, 4\] with up to 376 frames"):
        PocketSynthesizer(read_voices(copied).places, 1)
    save_file({"a": torch.zeros(3, DIM), "b": torch.zeros(1)}, file)
    with pytest.raises(CannotSpeak, match=r"holds 2 tensors, where one"):
        PocketSynthesizer(read_voices(copied).places, 1)
    file.unlink()
    write_wav(copied / "voices" / "eve.wav", 8000, channels=2)
    with pytest.raises(CannotSpeak, match="not of 16 bits and one channel"):
        PocketSynthesizer(read_voices(copied).places, 1)


def test_a_codec_in_another_repository_is_fetched_with_the_model(folder: Path, tmp_path: Path) -> None:
    assert companions_in(folder) == [], "a folder within the checkpoint"
    copied = copy_of(folder, tmp_path / "copy")
    (copied / "processor_config.json").unlink()
    for codec, wanted in (({"audio_tokenizer_name_or_path": "owner/codec"}, ["owner/codec"]), ({}, [])):
        (copied / "processor_config.json").write_text(json.dumps({"audio_tokenizer": codec}))
        assert companions_in(copied) == wanted
    with pytest.raises(CheckpointError, match="names no codec"):
        read_voices(copied)
