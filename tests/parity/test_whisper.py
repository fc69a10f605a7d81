"""Whisper against transformers: tiny random ones of every kind of shape, and the demo model."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.download.hub import DEMO_TRANSCRIPTION_MODEL, resolve_model
from stentor.engine.model_config.speech.encoder_decoder import EncoderDecoderConfig
from stentor.engine.models.speech.alignment import token_times
from stentor.tests.engine.loading.tiny_ct2 import write_whisper
from stentor.tests.parity.encoder_decoder_checks import check_decoder, check_encoder, check_greedy
from stentor.tests.parity.whispers import SHAPE, VOCAB, PagedEncoderDecoder, real, tiny, transformers, whisper_of

KINDS: dict[str, dict[str, Any]] = {
    "a decoder": {},
    "128 bins": {"num_mel_bins": 128},
    "a distilled decoder": {"decoder_layers": 1},
    "positions that fill blocks": {"max_source_positions": 64},
}


def sound(seconds: float, seed: int) -> bytes:
    """Something that has pitch, noise and silence, s16le at 16 kHz."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * 16000)) / 16000
    tone = np.sin(2 * math.pi * (200 + 90 * seed) * time * (1 + 0.2 * time)) * (np.sin(9 * time) > -0.3)
    return (6000 * tone + rng.normal(0, 400, len(time))).astype("<i2").tobytes()


def features(model: Any, pcm: bytes) -> torch.Tensor:
    config = model.config
    extractor = transformers.WhisperFeatureExtractor(
        feature_size=config.num_mel_bins, chunk_length=1, sampling_rate=16000
    )
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    wanted = 2 * config.max_source_positions * 160
    found = extractor(samples, sampling_rate=16000, max_length=wanted, return_tensors="pt").input_features
    assert found.shape[2] == 2 * config.max_source_positions
    return torch.as_tensor(found)


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    model = tiny(**KINDS[request.param])
    folder = tmp_path_factory.mktemp("whisper")
    model.save_pretrained(folder)
    return model, folder


def test_a_window_that_is_encoded_in_pieces_is_the_same(
    pair: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bitwise: sharing the device must not change a transcript."""
    monkeypatch.setattr("stentor.engine.models.encoder_stack._LEAST_PIECE", 7)
    monkeypatch.setattr("stentor.engine.models.encoder_stack._VALUES_A_PIECE", 1)
    model = PagedEncoderDecoder(pair[1], packed=True).model
    pauses: list[None] = []
    with torch.inference_mode():
        whole = model.encoder([sound(1.4, 2)])
        pieces = model.encoder([sound(1.4, 2)], lambda: pauses.append(None))
    assert torch.equal(pieces.rows, whole.rows)
    parts = -(-model.config.source_positions // 7)
    assert len(pauses) == 3 + 3 * parts * SHAPE["encoder_layers"]


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_encoder_and_decoder_are_transformers(pair: tuple[Any, Path], packed: bool) -> None:
    model, folder = pair
    ours = PagedEncoderDecoder(folder, packed=packed)
    windows = [sound(0.7, 1), sound(1.4, 2), sound(0.0, 3)]
    with torch.inference_mode():
        expected = [model.model.encoder(features(model, pcm)).last_hidden_state[0] for pcm in windows]
    check_encoder(ours, windows, expected)

    @torch.inference_mode()
    def logits(row: int, tokens: Sequence[int]) -> torch.Tensor:
        made = model(encoder_outputs=(expected[row][None],), decoder_input_ids=torch.tensor([[*tokens]]))
        return torch.as_tensor(made.logits[0])

    prompts = [[151, 7, 9, 11, 33], [151], list(range(20, 40))]
    check_decoder(ours, windows, logits, prompts, last=[[190], [3, 4], [199]], atol=2e-4)


def test_greedy_tokens_are_transformers(pair: tuple[Any, Path]) -> None:
    model, folder = pair
    ours = PagedEncoderDecoder(folder)
    windows = [sound(0.9, seed) for seed in (4, 5, 6)]

    @torch.inference_mode()
    def logits(row: int, tokens: Sequence[int]) -> torch.Tensor:
        made = model(features(model, windows[row]), decoder_input_ids=torch.tensor([[*tokens]]))
        return torch.as_tensor(made.logits[0])

    check_greedy(ours, windows, logits, [151, 9], 30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16])
def test_a_checkpoint_of_ctranslate2_is_the_same_model(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path / "hf")
    vocabulary = [f"token {number}" for number in range(VOCAB)]
    vocabulary[150] = "<|endoftext|>"
    config = {"suppress_ids": [3, 4], "suppress_ids_begin": [5], "alignment_heads": [[1, 2]], "lang_ids": [160, 161]}
    state = model.state_dict()
    found = open_checkpoint(write_whisper(tmp_path / "ct2", state, (3, 4), dtype, config, vocabulary))
    wanted = whisper_of(open_checkpoint(tmp_path / "hf"))
    assert found.format == "ct2"
    assert found.dtype == str(dtype).removeprefix("torch.")
    assert found.defaults.eos_token_ids == whisper_of(found).eos_token_ids == (150,)
    reported = (whisper_of(found).suppressed, whisper_of(found).suppressed_first, whisper_of(found).alignment_heads)
    assert reported == ((3, 4), (5,), ((1, 2),))
    for name in (
        "vocab_size",
        "hidden_size",
        "mel_bins",
        "source_positions",
        "encoder_heads",
        "num_heads",
        "num_layers",
    ):
        assert getattr(whisper_of(found), name) == getattr(wanted, name), name
    results = []
    for folder in ("hf", "ct2"):
        ours = PagedEncoderDecoder(tmp_path / folder)
        ours.listen([sound(0.8, 7)])
        results.append(ours.step([[151, 9, 8]])[0])
    exact = dtype == torch.float32
    torch.testing.assert_close(results[1], results[0], atol=1e-6 if exact else 0.3, rtol=1e-6 if exact else 0.05)


@pytest.mark.parametrize(
    ("dtype", "packed"), [(torch.bfloat16, True), (torch.bfloat16, False), (torch.float16, False)], ids=str
)
def test_half_precision_stays_near(pair: tuple[Any, Path], dtype: torch.dtype, packed: bool) -> None:
    _, folder = pair
    outs = []
    for ours in (PagedEncoderDecoder(folder), PagedEncoderDecoder(folder, dtype=dtype, packed=packed)):
        ours.listen([sound(0.8, 7)])
        outs.append(ours.step([[151, 9, 8, 40]])[0])
    assert outs[1].dtype == torch.float32
    assert (outs[1] - outs[0]).abs().max() < 0.05 * outs[0].abs().max()


@pytest.fixture(scope="module")
def demo() -> Path:
    return resolve_model(DEMO_TRANSCRIPTION_MODEL)


@pytest.mark.proof  # as it is served: tests/e2e/test_transcription.py
def test_the_demo_model_is_transformers(demo: Path) -> None:
    checkpoint = open_checkpoint(demo)
    model = real(checkpoint)
    ours = PagedEncoderDecoder(demo)
    pcm = sound(11.0, 2)
    extractor = transformers.WhisperFeatureExtractor(feature_size=80)
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    with torch.inference_mode():
        wanted = model.model.encoder(extractor(samples, sampling_rate=16000, return_tensors="pt").input_features)[0]
        encoded = ours.model.encoder([pcm]).rows.unsqueeze(0)
        torch.testing.assert_close(encoded, wanted, atol=1e-3, rtol=1e-3)
        ours.listen([pcm])
        tokens = [50257, 50362, 1169, 2068, 7586, 21831]
        expected = model(encoder_outputs=(wanted,), decoder_input_ids=torch.tensor([tokens])).logits[0]
    found = torch.cat([ours.step([tokens[:4]])[0], ours.step([tokens[4:]])[0]])
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    assert whisper_of(checkpoint).eos_token_ids == (50256,)
    assert whisper_of(checkpoint).suppressed_first == (220, 50256)
    assert len(whisper_of(checkpoint).aligning_heads) == 8


def test_alignment_is_transformers_and_openais(pair: tuple[Any, Path]) -> None:
    model, folder = pair
    ours = PagedEncoderDecoder(folder)
    pcm, frames = sound(0.7, 8), 35
    ours.listen([sound(0.3, 9), pcm])
    tokens, start = [151, 12, 30, 45, 60, 61, 99, 12, 13], 2
    ours.step([[151, 4, 5], tokens])
    found = ours.model.align(tokens, start, frames, ours.hidden, ours.queries, 3, ours.place_of[1], ours.places)
    with torch.inference_mode():
        output = model(
            features(model, pcm), decoder_input_ids=torch.tensor([tokens]), output_attentions=True, return_dict=True
        )
    assert isinstance(ours.config, EncoderDecoderConfig)
    heads = ours.config.aligning_heads
    weights = torch.stack([output.cross_attentions[layer][0, head] for layer, head in heads])[..., :frames]
    weights = weights / weights.sum(-1, keepdim=True)  # OpenAI's softmax is over what is audio
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    from transformers.models.whisper import generation_whisper as theirs

    matrix = theirs._median_filter((weights - mean) / deviation, 7).mean(0)[start - 1 :]
    texts, times = theirs._dynamic_time_warping(-matrix.double().numpy())
    jumps = np.pad(np.diff(texts), (1, 0), constant_values=1).astype(bool)
    assert found.times == pytest.approx((times[jumps] * 0.02).tolist(), abs=1e-9)
    likely = output.logits[0, start - 1 : -1, :150].softmax(-1)
    expected = [float(row[token]) for row, token in zip(likely, tokens[start:], strict=True)]
    assert found.probabilities == pytest.approx(expected, rel=1e-3, abs=1e-7)
    assert len(found.times) == len(found.probabilities) + 1 == len(tokens) - start + 1


def test_token_times_are_transformers_own(pair: tuple[Any, Path]) -> None:
    model, folder = pair
    ours = PagedEncoderDecoder(folder)
    pcm, frames, begun = sound(0.7, 8), 35, 2
    tokens = [151, 12, 30, 45, 60, 61, 99, 12, 13]
    with torch.inference_mode():
        output = model(
            features(model, pcm), decoder_input_ids=torch.tensor([tokens]), output_attentions=True, return_dict=True
        )
    generated = _Generated(cross_attentions=(output.cross_attentions,), sequences=torch.tensor([tokens]))
    assert isinstance(ours.config, EncoderDecoderConfig)
    heads = ours.config.aligning_heads
    wanted = model._extract_token_timestamps(generated, heads, num_frames=2 * frames, num_input_ids=begun)[0]
    weights = torch.stack([output.cross_attentions[layer][0, head] for layer, head in heads])
    found = token_times(weights[:, begun:, :frames], 0, 7)
    assert found == pytest.approx(wanted[begun:-1].tolist(), abs=1e-6)


class _Generated(dict[str, Any]):
    """What generate() returns, as far as its timestamps need it."""

    def __getattr__(self, name: str) -> Any:
        return self[name]
