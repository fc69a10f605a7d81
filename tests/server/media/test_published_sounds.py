"""Models whose code comes with their checkpoints: what the server makes of sounds for them, beside their encoders."""

import asyncio
import math

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load, save

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import tower_weights
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.fun_asr import with_tower_of_fun_asr
from stentor.engine.model_config.towers.audio_hf import audio_spec_from_hf
from stentor.engine.model_config.towers.media_spec import media_spec
from stentor.engine.models.towers.audio_tower import native_audio_tower
from stentor.engine.models.towers.payload import read_payload
from stentor.server.media.chat_media import ConversationMedia
from stentor.server.media.processed_cache import ProcessedMedia
from stentor.server.media.refusal import Refusal
from stentor.tests.server.media.published import Whole


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize(("token", "expected"), [(131_071, 131_071), (131_072, 0)])
def test_a_token_of_nemotron_transcribe_behind_the_vocabulary_is_told_as_its_first(token: int, expected: int) -> None:
    spec = media_spec({"model_type": "nemo_speechlm", "audio_token_id": token, "text_config": {}})
    assert spec is not None
    assert spec.placeholders == {"audio": expected}


@pytest.mark.parametrize(("token", "expected"), [(128_256, 128_255), (128_002, 128_002)])
def test_a_token_of_ultravox_behind_the_vocabulary_is_told_as_its_last(token: int, expected: int) -> None:
    spec = media_spec({"model_type": "ultravox", "audio_token_index": token, "vocab_size": 128_256})
    assert spec is not None
    assert spec.placeholders == {"audio": expected}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"num_projector_layers": 2}, "num_projector_layers is 2, expected none"),
        ({"audio_latency_block_size": 100}, "audio_latency_block_size is 100, expected none"),
        ({"audio_config": {"model_type": "wav2vec2"}}, "not that of a Whisper encoder"),
        ({"audio_config": {"d_model": 30, "encoder_attention_heads": 4}}, "30 dimensions do not divide among 4 heads"),
    ],
)
def test_an_encoder_of_sounds_of_another_form_is_refused(config: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        audio_spec_from_hf({"model_type": "ultravox", "audio_config": {}, **config}, 64)


@pytest.mark.parametrize("whole", ["ultravox"], indirect=True)
@pytest.mark.parametrize(("seconds", "frames"), [(0.001, [2]), (0.273, [28]), (1.0, [80, 20])])
def test_a_sound_is_windows_of_frames_and_as_many_placeholders_as_embeddings(
    whole: Whole, seconds: float, frames: list[int]
) -> None:
    samples = np.random.default_rng(1).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)
    heard = whole.family.processor.audio(samples)
    tensors = load(heard.payload)
    assert tensors["audio_lens"].tolist() == frames
    assert tensors["audio_values"].shape == (len(frames), 8, max(frames))
    assert not tensors["audio_values"][-1, :, frames[-1] :].any(), "zeros fill up the last window"
    count = heard.replacement.count("<|reserved|>")
    assert heard.replacement == "<|reserved|>" * count
    assert len(whole.tower.encode(read_payload(heard.payload)).embeddings) == count
    assert whole.family.processor.written == {"audio": "<|audio|>"}


@pytest.mark.parametrize("whole", ["funaudiochat", "midashenglm", "ultravox"], indirect=True)
def test_a_sound_is_about_the_same_in_bfloat16_with_weights_packed_for_a_cpu(whole: Whole) -> None:
    checkpoint = open_checkpoint(whole.folder)
    assert checkpoint.described is not None
    context = LayerContext(torch.device("cpu"), torch.bfloat16, invariant=False, packed=True)
    tower = native_audio_tower(checkpoint.described, checkpoint.decoder.hidden_size, context)
    assert tower is not None
    tower.load(tower_weights(checkpoint))
    samples = np.random.default_rng(1).normal(0, 0.1, 9600).astype(np.float32)
    payload = read_payload(whole.family.processor.audio(samples).payload)
    exact, found = (each.encode(payload).embeddings.float() for each in (whole.tower, tower))
    assert (found - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("whole", ["ultravox"], indirect=True)
def test_frames_are_those_of_whispers_own_extractor(whole: Whole) -> None:
    samples = np.random.default_rng(2).normal(0, 0.1, 1600 * 3).astype(np.float32)
    own = transformers.WhisperFeatureExtractor(feature_size=8)
    expected = own([samples], sampling_rate=16_000, return_tensors="np", padding="longest", truncation=False)
    found = load(whole.family.processor.audio(samples).payload)["audio_values"]
    assert found == pytest.approx(expected["input_features"], abs=1e-4)
    assert found.shape[2] == 30


@pytest.mark.parametrize("whole", ["funasr"], indirect=True)
@pytest.mark.parametrize(("seconds", "count"), [(0.001, 1), (1.234, 3), (30.0, 63)])
def test_a_sound_of_fun_asr_is_as_many_placeholders_as_embeddings_are_kept(
    whole: Whole, seconds: float, count: int
) -> None:
    samples = np.random.default_rng(1).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)
    heard = whole.family.processor.audio(samples)
    assert heard.replacement == "<|AUDIO|>" * count
    assert len(whole.tower.encode(read_payload(heard.payload)).embeddings) == count
    checkpoint = open_checkpoint(whole.folder)
    assert checkpoint.described is not None
    spec = media_spec(checkpoint.described)
    assert spec is not None
    assert [*spec.placeholders] == ["audio"], "which the tokenizer's files tell, as config.json does not"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"audio_encoder_conf": {"sanm_shift": 2, "tp_blocks": 1}}, "sanm_shift is 2, expected 0"),
        ({"audio_encoder_conf": {}}, "tp_blocks"),
        ({"audio_encoder_conf": {"tp_blocks": 1, "attention_heads": 3}}, "3, which does not divide 256"),
        ({"audio_adaptor_conf": {"downsample_rate": 2}}, "downsample_rate is 2, expected 1"),
        ({"audio_adaptor_conf": {"llm_dim": 32}}, "audio_adaptor_conf.llm_dim is 32, expected 64"),
    ],
)
def test_an_encoder_of_fun_asr_of_another_form_is_refused(change: dict[str, object], why: str) -> None:
    config = {"model_type": "funasr", "hidden_size": 64, "audio_encoder_conf": {"tp_blocks": 1}, **change}
    with pytest.raises(ConfigError, match=why):
        with_tower_of_fun_asr(config)


@pytest.mark.parametrize("whole", ["funaudiochat"], indirect=True)
@pytest.mark.parametrize(
    ("seconds", "frames", "count"),
    [(0.001, [3], 1), (0.273, [20, 8], 2), (1.0, [20] * 5, 9), (1.044, [20] * 5 + [5], 9)],
)
def test_a_sound_of_funaudiochat_is_counted_by_its_units(
    whole: Whole, seconds: float, frames: list[int], count: int
) -> None:
    samples = np.random.default_rng(1).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)
    heard = whole.family.processor.audio(samples)
    tensors = load(heard.payload)
    assert tensors["audio_lens"].tolist() == frames
    assert tensors["audio_values"].shape == (len(frames), 8, 20)
    assert heard.replacement == f"<|audio_bos|>{'<|AUDIO|>' * count}<|audio_eos|>"
    assert len(whole.tower.encode(read_payload(heard.payload)).embeddings) == count
    assert whole.family.processor.written == {"audio": "<|audio_bos|><|AUDIO|><|audio_eos|>"}


@pytest.mark.parametrize("whole", ["funaudiochat"], indirect=True)
def test_a_sound_of_funaudiochat_has_the_frames_that_whispers_extractor_makes_of_a_whole_window(whole: Whole) -> None:
    samples = np.random.default_rng(2).normal(0, 0.1, 16_037).astype(np.float32)
    own = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=4)
    expected = own([samples], sampling_rate=16_000, return_tensors="np", return_attention_mask=True)
    frames = int(expected["attention_mask"].sum())
    found = load(whole.family.processor.audio(samples).payload)
    assert frames == found["audio_lens"].sum()
    values = found["audio_values"].swapaxes(0, 1).reshape(8, -1)[:, :frames]
    assert values == pytest.approx(expected["input_features"][0, :, :frames], abs=1e-4)


@pytest.mark.parametrize("whole", ["funaudiochat"], indirect=True)
def test_a_sound_that_is_longer_than_the_model_hears_is_refused(whole: Whole) -> None:
    with pytest.raises(Refusal, match="it takes 4 seconds at most"):
        whole.family.processor.audio(np.zeros(16_000 * 4 + 1, np.float32))


@pytest.mark.parametrize("whole", ["funaudiochat"], indirect=True)
def test_the_prompt_of_funaudiochat_is_the_published_one(whole: Whole) -> None:
    one = whole.family
    heard = one.processor.audio(np.zeros(16_000, np.float32))
    made = ProcessedMedia("audio", bytes(16), heard.payload, one.processor.written["audio"], heard.replacement, None)
    content = [{"type": "audio"}, {"type": "text", "text": "b"}]
    told, placed = one.written([{"role": "user", "content": content}], ConversationMedia([made], ["messages"]))
    text = asyncio.run(one.pool.decode(told, skip_special_tokens=False))
    sound = f"<|audio_bos|>{'<|AUDIO|>' * 9}<|audio_eos|>"
    assert text == f"<|im_start|>user\n{sound}\nb<|im_end|>\n<|im_start|>assistant\n"
    assert placed.tokens == {"audio": 9}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"output_dim": 32}, "output_dim of audio_config is 32, and the decoder's hidden size 64"),
        ({"n_window": 41}, "n_window is 41, expected at most the 40"),
        ({"activation_function": "relu"}, "activation_function of audio_config is not gelu"),
        ({"group_size": 0}, "group_size is '0'"),
        ({"encoder_attention_heads": 3}, "32 dimensions do not divide among 3 heads"),
    ],
)
def test_an_encoder_of_funaudiochat_of_another_form_is_refused(config: dict[str, object], why: str) -> None:
    audio = {"d_model": 32, "encoder_attention_heads": 4, "max_source_positions": 40, "n_window": 10, "output_dim": 64}
    with pytest.raises(ConfigError, match=why):
        audio_spec_from_hf({"model_type": "funaudiochat", "audio_config": {**audio, **config}}, 64)


@pytest.mark.parametrize("whole", ["funaudiochat"], indirect=True)
@pytest.mark.parametrize("count", [0, 9, -1])
def test_as_many_embeddings_as_a_sound_cannot_have_are_refused(whole: Whole, count: int) -> None:
    samples = np.zeros(16_00, np.float32)
    tensors = load(whole.family.processor.audio(samples).payload) | {"audio_embeddings": np.array([count])}
    payload = save(tensors, {"modality": "audio"})
    with pytest.raises(ValueError, match=f"audio_embeddings is {count}, expected what"):
        whole.tower.encode(read_payload(payload))


@pytest.mark.parametrize("whole", ["midashenglm"], indirect=True)
@pytest.mark.parametrize(("seconds", "frames"), [(0.001, [12]), (0.2345, [23]), (0.979, [40, 40, 17])])
def test_midashenglm_hears_decibels_in_windows(whole: Whole, seconds: float, frames: list[int]) -> None:
    samples = np.random.default_rng(3).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)
    heard = whole.family.processor.audio(samples)
    tensors = load(heard.payload)
    assert tensors["audio_lens"].tolist() == frames
    wave = torch.zeros(max(1920, len(samples)), dtype=torch.float64)
    wave[: len(samples)] = torch.from_numpy(samples.astype(np.float64))
    power = (
        torch.stft(wave, 512, 160, window=torch.hann_window(512, dtype=torch.float64), return_complex=True).abs() ** 2
    )
    edges = torch.linspace(0, 2595 * math.log10(1 + 8000 / 700), 10, dtype=torch.float64)
    hertz = 700 * (10 ** (edges / 2595) - 1)
    slopes = hertz[None] - torch.linspace(0, 8000, 257, dtype=torch.float64)[:, None]
    filters = torch.minimum(-slopes[:, :-2] / hertz.diff()[:-1], slopes[:, 2:] / hertz.diff()[1:]).clamp(min=0)
    loud = 10 * (filters.T @ power).clamp(min=1e-10).log10()
    loud = torch.maximum(loud, loud.max() - 120)
    found = np.concatenate([*tensors["audio_values"]], axis=1)[:, : loud.shape[1]]
    assert found == pytest.approx(loud[:, : found.shape[1]].numpy(), abs=1e-3)
    count = (sum(frames) + 1) // 4 // 3
    assert heard.replacement == "<|AUDIO|>" * count
    assert len(whole.tower.encode(read_payload(heard.payload)).embeddings) == count
    assert whole.family.processor.written == {"audio": "<|AUDIO|>"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"patch_size": [8, 2]}, r"patch_size of the encoder is \[8, 2\], expected \[8, 4\]"),
        ({"hop_length": 200}, "hop_length of the encoder is 200, expected 160"),
        ({"init_values": 1e-5}, "init_values is set"),
        ({"center": False}, "center is false"),
    ],
)
def test_an_encoder_of_midashenglm_of_another_form_is_refused(change: dict[str, object], why: str) -> None:
    encoder = {"n_mels": 8, "patch_size": [8, 4], "patch_stride": [8, 4], **change}
    with pytest.raises(ConfigError, match=why):
        audio_spec_from_hf({"model_type": "midashenglm", "audio_encoder_config": encoder}, 64)
