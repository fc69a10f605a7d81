"""What a Voxtral Realtime says of itself, and what is wrong with it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.speech.voxtral_realtime import (
    VoxtralRealtimeConfig,
    voxtral_realtime_config_from_hf,
)
from stentor.tests.engine.tiny_voxtral import write_voxtral


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_voxtral(tmp_path_factory.mktemp("voxtral"))


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def test_positions_follow_the_samples(folder: Path) -> None:
    config = open_checkpoint(folder).streamed
    assert isinstance(config, VoxtralRealtimeConfig)
    assert (config.step, config.first, config.frames) == (1280, 1320, 8)
    assert (config.vocab_size, config.max_position, config.delay) == (90, 128, 3)
    assert (config.encoder.window, config.encoder.num_heads, config.encoder.head_dim) == (13, 2, 16)
    assert config.decoder.tie_embeddings
    assert all(layer.attention.window for layer in config.decoder.layers)


def test_a_model_of_another_kind_is_told_apart(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    with pytest.raises(CheckpointError, match="a speech recognition model"):
        _ = checkpoint.decoder
    with pytest.raises(CheckpointError):
        _ = checkpoint.encoder_decoder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("audio_config"), "text_config or audio_config is missing"),
        (lambda c: c["audio_config"].update(hidden_act="relu"), "audio_config's hidden_act is 'relu'"),
        (lambda c: c.update(projector_hidden_act="relu"), "projector_hidden_act is 'relu'"),
        (lambda c: c.update(audio_length_per_tok=7), "audio_length_per_tok is 7, expected twice"),
        (lambda c: c["audio_config"].update(num_mel_bins=-1), "num_mel_bins is '-1'"),
        (lambda c: c["text_config"].update(vocab_size="x"), "vocab_size is 'x'"),
        (lambda c: c["audio_config"].update(rope_parameters={"rope_type": "yarn"}), "rotary positions|factor"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    config = read(folder)
    change(config)
    with pytest.raises(ConfigError, match=message):
        voxtral_realtime_config_from_hf(config)
