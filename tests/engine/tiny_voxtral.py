"""A Voxtral Realtime of random weights."""

from pathlib import Path

import numpy as np
import torch
from transformers import VoxtralRealtimeConfig, VoxtralRealtimeFeatureExtractor, VoxtralRealtimeForConditionalGeneration

VOCAB, BOS, PAD = 90, 1, 32
STEP = 1280
"""Samples of one position."""


def write_voxtral(folder: Path, seed: int = 0) -> Path:
    """A folder with config.json and float32 safetensors."""
    config = VoxtralRealtimeConfig(
        text_config={
            "model_type": "voxtral_realtime_text",
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 128,
            "sliding_window": 20,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "initializer_range": 0.4,
        },
        audio_config={
            "model_type": "voxtral_realtime_encoder",
            "num_mel_bins": 128,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 16,
            "sliding_window": 13,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "initializer_range": 0.3,
        },
        default_num_delay_tokens=3,
    )
    torch.manual_seed(seed)
    model = VoxtralRealtimeForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        if "ada_rms_norm" in name or "norm.weight" in name:
            torch.nn.init.normal_(parameter, 0.5, 0.3)
    model.save_pretrained(folder)
    return folder


def speech(positions: int, seed: int = 0) -> bytes:
    """Noise and tones that end in silence, of so many positions."""
    rng = np.random.default_rng(seed)
    times = np.arange(positions * STEP) / 16_000
    values = sum(np.sin(2 * np.pi * rng.uniform(100, 3000) * times) for _ in range(4)) * 1500
    values = values * (np.sin(times * 7) > 0) + rng.normal(0, 300, len(times))
    values[-400:] = 0
    return values.astype("<i2").tobytes()


def features_of(pcm: bytes) -> torch.Tensor:
    """The features that transformers makes of a whole clip."""
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768
    extractor = VoxtralRealtimeFeatureExtractor(feature_size=128)
    features: torch.Tensor = extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features
    return features
