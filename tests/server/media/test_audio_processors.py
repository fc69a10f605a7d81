"""Sounds as models that hear are given them: what transformers' own processors make of them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from PIL import Image
from safetensors.numpy import load

from stentor.server.media.decoding.decode_video import DecodedVideo, VideoFacts
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.media.processors.processor_classes import ProcessorError
from stentor.server.media.processors.waveforms import OmniASRProcessor
from stentor.server.media.refusal import Refusal
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.tests.server.audio.voices import tone
from stentor.tests.support import audio_models

transformers: Any = untyped_transformers
pytest.importorskip("mistral_common")


def samples(seconds: float) -> Any:
    return np.frombuffer(tone(seconds), "<i2").astype(np.float32) / 32768


def check(found: bytes, expected: Mapping[str, Any]) -> None:
    tensors = load(found)
    assert tensors.keys() == expected.keys()
    for name, values in tensors.items():
        assert values == pytest.approx(np.asarray(expected[name]), abs=1e-4), "by numpy, and there by torch"


def test_voxtral_hears_pieces_of_half_a_minute(tmp_path: Path) -> None:
    audio_models.voxtral(tmp_path)
    processor = ModelProcessor(tmp_path)
    assert processor.written == {"audio": "[AUDIO]"}
    for seconds, pieces in ((1.5, 1), (31.0, 2)):
        heard = processor.audio(samples(seconds))
        assert heard.replacement == "[AUDIO]" * (375 * pieces)
        own = transformers.VoxtralProcessor.from_pretrained(tmp_path)
        arguments = {**own._merge_kwargs()["audio_kwargs"]}
        features = own._retrieve_input_features([samples(seconds)], **arguments)
        check(heard.payload, {"input_features": features})


@pytest.mark.parametrize("seconds", [0.1, 0.5, 2.345, 3.0])
def test_qwen3_asr_hears_second_by_second(tmp_path: Path, seconds: float) -> None:
    audio_models.qwen3_asr(tmp_path)
    heard = ModelProcessor(tmp_path).audio(samples(seconds))
    own = transformers.AutoProcessor.from_pretrained(tmp_path)
    inputs = own(text="<|audio_pad|>", audio=samples(seconds), return_tensors="pt")
    tensors = {name: inputs[name] for name in ("input_features", "input_features_mask")}
    check(heard.payload, tensors)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode(heard.replacement, False) == inputs["input_ids"][0].tolist()


@pytest.mark.parametrize("family", ["audio_flamingo", "glm_asr", "music_flamingo"])
def test_windows_that_are_filled_up_are_counted_as_one(tmp_path: Path, family: str) -> None:
    getattr(audio_models, family)(tmp_path)
    processor = ModelProcessor(tmp_path)
    own = transformers.AutoProcessor.from_pretrained(tmp_path)
    for seconds in (2.5, 5.5):
        heard = processor.audio(samples(seconds))
        inputs = own(text=own.audio_token, audio=samples(seconds), return_tensors="pt")
        check(heard.payload, {name: inputs[name] for name in ("input_features", "input_features_mask")})
        assert load_tokenizer(tmp_path).encode(heard.replacement, False) == inputs["input_ids"][0].tolist()
    with pytest.raises(Refusal, match=r"it takes (600|655|1200) seconds at most"):
        processor.audio(np.zeros(16_000 * 1300, np.float32))


def test_gemma3n_hears_half_a_minute_and_says_why_it_sees_nothing(tmp_path: Path) -> None:
    audio_models.gemma3n(tmp_path)
    processor = ModelProcessor(tmp_path)
    assert processor.written == {"audio": "<audio_soft_token>"}
    assert processor.missing == {"image": "timm, which encodes them, is not installed"}
    heard = processor.audio(samples(2.345))
    own = transformers.Gemma3nAudioFeatureExtractor()
    inputs = own([samples(2.345)], return_tensors="np")
    check(heard.payload, {name: inputs[name] for name in ("input_features", "input_features_mask")})
    assert heard.replacement == "\n\n<start_of_audio>" + "<audio_soft_token>" * 188 + "<end_of_audio>\n\n"
    with pytest.raises(Refusal, match="it takes 30 seconds at most"):
        processor.audio(np.zeros(16_000 * 30 + 1, np.float32))


def test_a_sound_that_is_shorter_than_a_frame_is_refused(tmp_path: Path) -> None:
    audio_models.gemma3n(tmp_path)
    with pytest.raises(Refusal, match="refuses the sound: it is too short"):
        ModelProcessor(tmp_path).audio(samples(0.01))


def test_granite_speech_hears_what_torchaudio_would_make(tmp_path: Path) -> None:
    audio_models.granite_speech(tmp_path)
    heard = ModelProcessor(tmp_path).audio(samples(1.234))
    sound = torch.from_numpy(samples(1.234).copy())
    window = torch.hann_window(400)
    power = torch.stft(sound, 512, 160, 400, window, center=True, return_complex=True).abs() ** 2
    edges = torch.linspace(0, 2595 * math.log10(1 + 8000 / 700), 10)
    hertz = 700 * (10 ** (edges / 2595) - 1)
    slopes = hertz[None] - torch.linspace(0, 8000, 257)[:, None]
    width = hertz.diff()
    filters = torch.minimum(-slopes[:, :-2] / width[:-1], slopes[:, 2:] / width[1:]).clamp(min=0)
    loud = (filters.T @ power).T.clamp(min=1e-10).log10()
    loud = torch.maximum(loud, loud.max() - 8) / 4 + 1
    pairs = loud[: len(loud) // 2 * 2].reshape(1, -1, 16)
    check(heard.payload, {"input_features": pairs})
    assert heard.replacement == "<|audio|>" * (-(-pairs.shape[1] // 6) * 2)


def of_kaldi(values: Any, *, bins: int, joined: int, step: int) -> torch.Tensor:
    """[1, frames, joined · bins]: log-mel frames as Kaldi defines them, beside each other at each ``step``."""
    sound = torch.zeros(max(400, len(values)), dtype=torch.float64)
    sound[: len(values)] = torch.from_numpy(values.astype(np.float64))
    frames = sound.unfold(0, 400, 160)
    frames = frames - frames.mean(1, keepdim=True)
    frames = frames - 0.97 * torch.cat([frames[:, :1], frames[:, :-1]], dim=1)
    window = torch.hamming_window(400, periodic=False, dtype=torch.float64)
    power = torch.fft.rfft(frames * window, 512).abs() ** 2
    mels = 1127 * (1 + torch.arange(257) * 16_000 / 512 / 700).log()
    low, high = (1127 * math.log(1 + hertz / 700) for hertz in (20, 8000))
    edges = torch.linspace(low, high, bins + 2, dtype=torch.float64)
    rising, falling = (mels[:, None] - edges[:-2]) / edges.diff()[:-1], (edges[2:] - mels[:, None]) / edges.diff()[1:]
    loud = (power @ torch.minimum(rising, falling).clamp(min=0)).clamp(min=2.0**-23).log()
    count, front = -(-len(loud) // step), (joined - 1) // 2
    filled = torch.cat([*[loud[:1]] * front, loud, *[loud[-1:]] * (joined + step)])
    return torch.stack([filled[step * place : step * place + joined].flatten() for place in range(count)])[None]


@pytest.mark.parametrize("seconds", [0.01, 0.9, 1.234])
def test_fun_asr_hears_the_frames_of_kaldi_five_beside_each_other(tmp_path: Path, seconds: float) -> None:
    audio_models.fun_asr_nano(tmp_path)
    heard = ModelProcessor(tmp_path).audio(samples(seconds))
    expected = of_kaldi(samples(seconds), bins=8, joined=5, step=4)
    count = expected.shape[1]
    check(heard.payload, {"input_features": expected, "input_features_mask": torch.ones(1, count)})
    assert heard.replacement == "<|object_ref_start|>" * count


@pytest.mark.parametrize(("seconds", "tokens"), [(0.01, 1), (0.9, 2), (1.234, 3)])
def test_fun_asr_for_vllm_hears_samples_as_integers_and_takes_the_first_eighth(
    tmp_path: Path, seconds: float, tokens: int
) -> None:
    audio_models.funasr(tmp_path)
    heard = ModelProcessor(tmp_path).audio(samples(seconds))
    expected = of_kaldi(samples(seconds) * 32_768, bins=80, joined=7, step=6)
    check(heard.payload, {"input_features": expected, "input_features_mask": torch.ones(1, expected.shape[1])})
    assert heard.replacement == "<|AUDIO|>" * tokens


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cmvn_file": "am.mvn"}, "frontend_conf.cmvn_file is 'am.mvn', expected None"),
        ({"window": "povey"}, "frontend_conf.window is 'povey', expected 'hamming'"),
        ({"lfr_m": 5}, "its frames are 5 of 80 bins, expected 7 of 80"),
    ],
)
def test_frames_of_fun_asr_of_another_form_are_refused(tmp_path: Path, change: dict[str, object], why: str) -> None:
    audio_models.funasr(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "frontend_conf": {**told["frontend_conf"], **change}}))
    with pytest.raises(ProcessorError, match=why):
        ModelProcessor(tmp_path)


def test_fun_asr_hears_no_more_than_its_table_of_positions(tmp_path: Path) -> None:
    audio_models.fun_asr_nano(tmp_path)
    with pytest.raises(Refusal, match=r"it takes 81.92 seconds at most"):
        ModelProcessor(tmp_path).audio(np.zeros(16_000 * 83, np.float32))


@pytest.mark.parametrize("seconds", [0.01, 1.9, 4.5, 9.03])
def test_moss_hears_windows_with_the_seconds_between_their_tokens(tmp_path: Path, seconds: float) -> None:
    audio_models.moss(tmp_path)
    heard = ModelProcessor(tmp_path).audio(samples(seconds))
    own = transformers.MossTranscribeDiarizeProcessor.from_pretrained(tmp_path)
    inputs = own(text=own.audio_token, audio=samples(seconds), return_tensors="pt")
    expected = {name: inputs[name] for name in ("input_features", "input_features_mask")}
    check(heard.payload, {**expected, "padding_mask": np.ones((1, 1))})
    assert load_tokenizer(tmp_path).encode(heard.replacement, False) == inputs["input_ids"][0].tolist()


@pytest.mark.parametrize("seconds", [0.01, 1.0, 1.37])
def test_vibevoice_hears_samples_at_one_loudness_and_its_own_rate(tmp_path: Path, seconds: float) -> None:
    audio_models.vibevoice(tmp_path)
    processor = ModelProcessor(tmp_path)
    assert processor.written == {"audio": "<|box_start|>"}
    heard = processor.audio(samples(seconds))
    given = samples(seconds).astype(np.float64)
    wave = np.fft.irfft(np.fft.rfft(given), len(given) * 3 // 2) * 1.5
    own = transformers.VibeVoiceAcousticTokenizerFeatureExtractor.from_pretrained(tmp_path)
    expected = np.asarray(own(wave, sampling_rate=24_000)["input_values"])
    (found,) = load(heard.payload).values()
    assert found.shape == expected.shape
    assert heard.replacement == "<|box_start|>" * (found.shape[2] // 3200)
    inside = slice(200, len(wave) - 200)  # another filter's ends are others
    difference = (found - expected)[0, 0, inside]
    assert seconds < 0.1 or np.sqrt(np.mean(difference**2)) < 0.02 * 10 ** (-25 / 20)
    assert not found[0, 0, len(wave) :].any(), "silence behind it"


def test_vibevoice_takes_the_loudness_and_the_token_of_its_files(tmp_path: Path) -> None:
    audio_models.vibevoice(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"normalize_audio": false, "sampling_rate": 16000}')
    codec = {"acoustic_tokenizer_encoder_config": {"downsampling_ratios": [4, 100]}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vibevoice_asr", **codec}))
    heard = ModelProcessor(tmp_path).audio(samples(0.1))
    check(heard.payload, {"input_values": samples(0.1)[None, None]})
    assert heard.replacement == "<|box_start|>" * 4


def test_a_model_that_sees_and_hears_takes_all_of_it(tmp_path: Path) -> None:
    audio_models.qwen3_omni(tmp_path)
    processor = ModelProcessor(tmp_path)
    assert processor.written == {"image": "<|image_pad|>", "video": "<|video_pad|>", "audio": "<|audio_pad|>"}
    heard = processor.audio(samples(2.345))
    tensors = load(heard.payload)
    assert tensors.keys() == {"input_features", "feature_attention_mask"}
    assert tensors["input_features"].shape == (1, 8, 234)
    assert (heard.replacement, heard.grid) == ("<|audio_pad|>" * (2 * 13 + 5), None)
    picture = processor.image(Image.new("RGB", (32, 16)), {}, alone=True)
    assert (picture.replacement, picture.grid) == ("<|image_pad|>" * 8, (1, 2, 4))
    frames = np.zeros((4, 16, 32, 3), np.uint8)
    video = processor.video(DecodedVideo(frames, [0, 1, 2, 3], VideoFacts(4, 2.0, 32, 16)))
    assert (video.replacement, video.grid) == ("<|video_pad|>" * 16, (2, 2, 4))
    assert video.interval == 13, "a second between pairs of frames"


@pytest.mark.parametrize("seconds", [0.01, 1.0, 1.37])
def test_omniasr_hears_normed_samples_and_counts_its_encoder_s_positions(tmp_path: Path, seconds: float) -> None:
    audio_models.omniasr(tmp_path)
    heard = ModelProcessor(tmp_path).audio(samples(seconds))
    filled = np.pad(samples(seconds), (0, max(0, 220 - len(samples(seconds)))))
    found = transformers.OmniASRFeatureExtractor.from_pretrained(tmp_path)(filled, sampling_rate=16_000)
    check(heard.payload, {"input_values": found["input_values"]})
    encoder = transformers.OmniASRAudioConfig(**json.loads((tmp_path / "config.json").read_text())["audio_config"])
    with torch.device("meta"):
        model = transformers.OmniASRAudioModel(encoder)
    assert heard.replacement == "<extra_id_1>" * model._get_subsampling_output_length(torch.tensor(len(filled)))


def test_omniasr_hears_no_other_rate(tmp_path: Path) -> None:
    audio_models.omniasr(tmp_path)
    transformers.OmniASRFeatureExtractor(sampling_rate=8000).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="sampling_rate is 8000, expected 16000"):
        OmniASRProcessor.of(tmp_path)


@pytest.mark.parametrize("seconds", [0.03, 1.0, 1.37])
def test_nemotron_transcribe_hears_frames_that_fill_whole_embeddings(tmp_path: Path, seconds: float) -> None:
    audio_models.nemotron_transcribe(tmp_path)
    processor = ModelProcessor(tmp_path)
    assert processor.written == {"audio": "<|audio|>"}
    heard = processor.audio(samples(seconds))
    own = transformers.NemotronAsrStreamingFeatureExtractor.from_pretrained(tmp_path)
    found = own(samples(seconds), sampling_rate=16_000, return_tensors="np")
    missing = -found["input_features"].shape[1] % 8
    features = np.pad(found["input_features"], ((0, 0), (0, missing), (0, 0)))
    mask = np.pad(found["attention_mask"], ((0, 0), (0, missing)))
    tensors = load(heard.payload)
    assert (tensors["input_features_mask"] == mask).all()
    assert np.abs(tensors["input_features"] - features).max() < 1e-3, "the window of torch is rounded otherwise"
    assert heard.replacement == "<unk>" * -(-int(mask.sum()) // 8)
