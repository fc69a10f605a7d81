"""Encoder-decoders without timestamps against transformers: tiny random ones of every kind of shape."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stentor.engine.layers.audio.kaldi_mel import KaldiMel
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.model_config.speech.encoder_decoder import EncoderDecoderConfig
from stentor.tests.parity.encoder_decoder_checks import check_decoder, check_encoder, check_greedy, outputs_from
from stentor.tests.parity.test_whisper import sound
from stentor.tests.parity.transcribers import (
    START,
    tiny,
    tiny_canary,
    tiny_cohere,
    tiny_seamless,
    tiny_speech2text,
    tiny_streaming,
    transformers,
)
from stentor.tests.parity.whispers import PagedEncoderDecoder

KINDS: dict[str, Callable[[], Any]] = {
    "as published": tiny,
    "with biases": partial(tiny, attention_bias=True),
    "other activations": partial(tiny, encoder_hidden_act="silu", decoder_hidden_act="gelu"),
    "a deep decoder": partial(tiny, decoder_num_hidden_layers=3, encoder_num_hidden_layers=1),
    "streaming": tiny_streaming,
    "streaming, of one size": partial(tiny_streaming, encoder={"hidden_size": 48}),
    "canary": tiny_canary,
    "canary, scaled and without biases": partial(
        tiny_canary,
        {"scale_input": True, "attention_bias": False, "convolution_bias": False},
        {"attention_bias": False, "hidden_act": "gelu"},
    ),
    "cohere": tiny_cohere,
    "cohere, tied": partial(tiny_cohere, {"conv_kernel_size": 9}, tie_word_embeddings=True),
    "speech2text": tiny_speech2text,
    "speech2text, untied and with other sizes": partial(
        tiny_speech2text,
        num_conv_layers=3,
        conv_kernel_sizes=[3, 7, 5],
        encoder_attention_heads=2,
        activation_function="gelu",
        scale_embedding=False,
        tie_word_embeddings=False,
    ),
    "seamless": tiny_seamless,
    "seamless, deeper": partial(tiny_seamless, num_adapter_layers=2, adaptor_kernel_size=4, adaptor_stride=4),
    "seamless, first": partial(tiny_seamless, "ForSpeechToText"),
    "seamless, with all its parts": partial(tiny_seamless, "v2Model", current_modality="speech"),
    "streaming, tied": partial(tiny_streaming, tie_word_embeddings=True, encoder={"attention_bias": True}),
}
EXTRACTORS: dict[str, Any] = {
    "canary": transformers.ParakeetFeatureExtractor,
    "cohere_asr": transformers.CohereAsrFeatureExtractor,
}
SECONDS = (0.7, 1.402, 0.01)
"""The last is shorter than a position."""


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    model = KINDS[request.param]()
    folder = tmp_path_factory.mktemp("moonshine")
    model.save_pretrained(folder)
    return model, folder


def inputs_of(model: Any, pcm: bytes) -> dict[str, torch.Tensor]:
    """The inputs of the model's own processor, of audio filled with silence to one position."""
    samples = torch.from_numpy(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768)
    if model.config.model_type in EXTRACTORS:
        extract = EXTRACTORS[model.config.model_type](feature_size=model.config.encoder_config.num_mel_bins)
        found = extract(
            torch.nn.functional.pad(samples, (0, max(0, 1600 - len(samples)))).numpy(), sampling_rate=16_000
        )
        return {name: torch.as_tensor(found[name]) for name in ("input_features", "attention_mask")}
    if model.config.model_type == "speech_to_text":
        bins = model.config.input_feat_per_channel
        extract = transformers.Speech2TextFeatureExtractor(feature_size=bins, num_mel_bins=bins)
        padded = torch.nn.functional.pad(samples, (0, max(0, 560 - len(samples))))
        return {"input_features": extract(padded.numpy(), sampling_rate=16_000, return_tensors="pt").input_features}
    if model.config.model_type.startswith("seamless"):
        bins = model.config.feature_projection_input_dim // 2
        extract = transformers.SeamlessM4TFeatureExtractor(feature_size=bins, num_mel_bins=bins)
        frames = (max(560, len(samples)) - 400) // 160 + 1
        whole = torch.nn.functional.pad(samples, (0, max(0, 560 - len(samples))))[: frames // 2 * 320 + 240]
        return dict(extract(whole.numpy(), sampling_rate=16_000, return_tensors="pt"))
    if model.config.model_type == "moonshine":
        return {"input_values": torch.nn.functional.pad(samples, (0, max(0, 895 - len(samples)))).unsqueeze(0)}
    padded = torch.nn.functional.pad(samples, (0, -len(samples) % 80)).unsqueeze(0)
    mask = (torch.arange(padded.shape[1]) < max(len(samples), 80)).long().unsqueeze(0)
    return {"input_values": padded, "attention_mask": mask}


def logits_of(model: Any, pcm: bytes, tokens: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        made = model(**inputs_of(model, pcm), decoder_input_ids=torch.tensor([list(tokens)]))
    found: torch.Tensor = made.logits[0]
    return found


def encoded_by(model: Any, pcm: bytes) -> torch.Tensor:
    """The encoder output that the decoder attends to, without padding."""
    if model.config.model_type.startswith("seamless"):
        joined: torch.Tensor = model.speech_encoder(**inputs_of(model, pcm)).last_hidden_state[0]
        return joined
    made = model.model.encoder(**inputs_of(model, pcm))
    found: torch.Tensor = made.last_hidden_state[0]
    if getattr(made, "attention_mask", None) is not None:
        found = found[made.attention_mask[0].bool()]
    decoder = model.model.decoder
    if model.config.model_type == "moonshine_streaming":
        found = found + decoder.pos_emb.weight[: len(found)]
    return decoder.proj(found) if hasattr(decoder, "proj") else found


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_encoder_and_decoder_are_transformers(pair: tuple[Any, Path], packed: bool) -> None:
    model, folder = pair
    ours = PagedEncoderDecoder(folder, packed=packed)
    windows = [sound(seconds, seed) for seed, seconds in enumerate(SECONDS)]
    with torch.inference_mode():
        expected = [encoded_by(model, pcm) for pcm in windows]
    assert isinstance(ours.config, EncoderDecoderConfig)
    assert [len(one) for one in expected] == [ours.config.positions(len(pcm) // 2) for pcm in windows]
    check_encoder(ours, windows, expected)

    def logits(row: int, tokens: Sequence[int]) -> torch.Tensor:
        return logits_of(model, windows[row], tokens)

    check_decoder(ours, windows, logits, outputs_from(START, 21), atol=2e-4)


def test_greedy_tokens_are_transformers(pair: tuple[Any, Path]) -> None:
    model, folder = pair
    ours = PagedEncoderDecoder(folder)
    windows = [sound(seconds, 4 + seed) for seed, seconds in enumerate(SECONDS)]
    check_greedy(ours, windows, lambda row, tokens: logits_of(model, windows[row], tokens), [START], 8)


def test_half_a_minute_has_as_many_positions_as_transformers_makes_of_it() -> None:
    model = tiny(encoder_num_hidden_layers=1)
    with torch.inference_mode():
        positions = model.model.encoder(torch.zeros(1, 480_000)).last_hidden_state.shape[1]
    assert positions == 1248


def test_a_config_as_published_is_read(tmp_path: Path) -> None:
    """Names of transformers 4, with a rotary factor beside the heads."""
    tiny(rope_theta=10000.0, partial_rotary_factor=0.9).save_pretrained(tmp_path)
    config = open_checkpoint(tmp_path).encoder_decoder
    assert (config.source_positions, config.max_position, config.eos_token_ids) == (1248, 64, (2,))


def test_features_of_seamless_are_those_of_its_extractor() -> None:
    samples = torch.from_numpy(np.frombuffer(sound(0.255, 3), "<i2").astype(np.float32) / 32768)
    extracted = transformers.SeamlessM4TFeatureExtractor()(samples.numpy(), sampling_rate=16_000, return_tensors="pt")
    found = KaldiMel(80, torch.device("cpu"), sampled=True)(samples)
    torch.testing.assert_close(found, extracted["input_features"].reshape(-1, 80), atol=1e-4, rtol=1e-4)
