from typing import Any

import numpy as np
import pytest
import torch
import transformers as untyped_transformers

from stentor.engine.layers.audio.log_mel import LogMel, mel_filters

transformers: Any = untyped_transformers
WINDOW = 480_000


def noise(samples: int, seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    time = np.arange(samples) / 16000
    values = 9000 * np.sin(2 * np.pi * 440 * time) * np.exp(-time / 3) + rng.normal(0, 300, samples)
    return values.clip(-32768, 32767).astype("<i2").tobytes()


@pytest.mark.parametrize("bins", [80, 128])
def test_features_are_those_of_transformers(bins: int) -> None:
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins)
    assert np.abs(extractor.mel_filters - mel_filters(bins).numpy()).max() < 1e-8
    windows = [noise(16000 * 7), noise(1), noise(WINDOW, 2), noise(WINDOW + 999, 3), b""]
    found = LogMel(bins, torch.device("cpu"))(windows, WINDOW)
    assert found.shape == (5, 3000, bins)
    for pcm, ours in zip(windows, found, strict=True):
        samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
        theirs = extractor(samples if len(samples) else np.zeros(1, np.float32), sampling_rate=16000)
        assert np.abs(ours.T.numpy() - theirs.input_features[0]).max() < 1e-5


def test_half_a_sample_at_the_end_is_left_out() -> None:
    mel = LogMel(80, torch.device("cpu"))
    pcm = noise(4000)
    assert torch.equal(mel([pcm + b"\x55"], WINDOW), mel([pcm], WINDOW))
