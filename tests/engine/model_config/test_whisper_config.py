import math
from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.speech.whisper import (
    WhisperConfig,
    checked_whisper,
    whisper_config_from_ct2,
    whisper_config_from_hf,
)
from stentor.tests.engine.plain_shapes import plain_shapes

LARGE: dict[str, Any] = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "activation_function": "gelu",
    "vocab_size": 51866,
    "d_model": 1280,
    "num_mel_bins": 128,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_layers": 4,
    "decoder_attention_heads": 20,
    "decoder_ffn_dim": 5120,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "bos_token_id": 50257,
    "eos_token_id": 50257,
    "begin_suppress_tokens": [220, 50256],
    "median_filter_width": 7,
}
"""large-v3-turbo."""
GENERATION: dict[str, Any] = {
    "alignment_heads": [[2, 4], [2, 11], [3, 3], [3, 6], [3, 11], [3, 14]],
    "begin_suppress_tokens": [220, 50257],
    "suppress_tokens": [1, 2, 7],
    "lang_to_id": {"<|en|>": 50259, "<|de|>": 50261},
    "eos_token_id": 50257,
}


def test_the_turbo_model_is_read() -> None:
    config = whisper_config_from_hf(LARGE, GENERATION)
    assert (config.hidden_size, config.mel_bins, config.encoder_layers, config.num_layers) == (1280, 128, 32, 4)
    assert (config.head_dim, config.num_heads, config.max_position) == (64, 20, 448)
    assert (config.frames, config.samples) == (3000, 480_000)
    assert config.suppressed == (1, 2, 7)
    assert config.suppressed_first == (220, 50257), "what the generation config says counts"
    assert config.aligning_heads == config.alignment_heads == ((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14))
    shapes = plain_shapes(config)
    assert sum(map(math.prod, shapes.values())) == pytest.approx(809e6, rel=0.01), "809 million parameters"


def test_without_a_generation_config_the_upper_half_aligns() -> None:
    config = whisper_config_from_hf({**LARGE, "decoder_attention_heads": 2, "decoder_layers": 3}, {})
    assert config.suppressed_first == (220, 50256)
    assert config.suppressed == ()
    assert config.aligning_heads == ((1, 0), (1, 1), (2, 0), (2, 1))


@pytest.mark.parametrize(
    ("changes", "generation", "message"),
    [
        ({"activation_function": "relu"}, {}, "activation_function is 'relu', expected 'gelu'"),
        ({"scale_embedding": True}, {}, "scale_embedding is set"),
        ({"tie_word_embeddings": False}, {}, "tie_word_embeddings is off"),
        ({"decoder_attention_heads": 7}, {}, "1280 dimensions do not divide among 7 heads of the decoder"),
        ({"d_model": "many"}, {}, "d_model is 'many', expected a whole number"),
        ({"median_filter_width": 4}, {}, "median_filter_width is 4, expected an odd number"),
        ({}, {"alignment_heads": [[4, 0]]}, "alignment_heads names head 0 of layer 4, of 20 in 4"),
        ({}, {"alignment_heads": [[1, 2, 3]]}, r"alignment_heads holds '\[1, 2, 3\]', expected pairs"),
        ({}, {"alignment_heads": 5}, "alignment_heads holds '5', expected pairs"),
        ({}, {"suppress_tokens": [51866]}, "the token 51866 is named, of a vocabulary of 51866"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], generation: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        whisper_config_from_hf({**LARGE, **changes}, generation)


def test_a_config_needs_layers_and_heads_in_ctranslate2s_file_too() -> None:
    shapes: dict[str, tuple[int, ...]] = {"decoder/embeddings/weight": (100, 8)}
    with pytest.raises(ConfigError, match="it has 0 encoder and 0 decoder layers"):
        whisper_config_from_ct2({}, shapes, (2, 2), None)
    with pytest.raises(ConfigError, match="decoder/embeddings/weight has the shape None, expected 2 dimensions"):
        whisper_config_from_ct2({}, {}, (2, 2), None)
    with pytest.raises(ConfigError, match="8 dimensions do not divide among 0 heads of the encoder"):
        checked_whisper(
            WhisperConfig(
                architecture="W",
                vocab_size=100,
                hidden_size=8,
                source_positions=10,
                num_layers=1,
                num_heads=2,
                max_position=10,
                mel_bins=80,
                encoder_layers=1,
                encoder_heads=0,
                encoder_intermediate_size=8,
                intermediate_size=8,
            )
        )
