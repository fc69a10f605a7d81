"""What a Moonshine says of itself, and what is refused of it."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.speech.moonshine import moonshine_config_from_hf
from stentor.engine.model_config.speech.moonshine_streaming import moonshine_streaming_config_from_hf

TINY: dict[str, Any] = {
    "architectures": ["MoonshineForConditionalGeneration"],
    "hidden_size": 288,
    "max_position_embeddings": 194,
    "partial_rotary_factor": 0.9,
    "rope_theta": 10000.0,
    "eos_token_id": 2,
    "vocab_size": 32768,
}
"""Of the published one, what differs from transformers' defaults or has another name there."""


def test_the_published_sizes_are_read() -> None:
    config = moonshine_config_from_hf(TINY, {})
    assert (config.head_dim, config.rope.rotary_dim, config.rope.interleaved) == (36, 32, True)
    assert (config.samples, config.source_positions, config.slot_blocks) == (480_000, 1248, 78)
    assert config.cross_group.cached_bytes(1, 1) == 1248 * 6 * 288 * 2
    assert [config.positions(samples) for samples in (0, 895, 896 + 383, 480_000)] == [1, 1, 2, 1248]
    assert config.eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_num_attention_heads": 4}, "encoder_num_attention_heads is 4, expected 8"),
        ({"decoder_num_key_value_heads": 2}, "decoder_num_key_value_heads is 2, expected 8"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is off"),
        ({"hidden_size": 100}, "100 dimensions do not divide among 8 heads"),
        ({"decoder_hidden_act": "tanh"}, "decoder_hidden_act is 'tanh', expected one of gelu, silu, swish, relu"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "of the kind 'linear', expected 'default'"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        moonshine_config_from_hf({**TINY, **changes}, {})


STREAMING: dict[str, Any] = {"architectures": ["MoonshineStreamingForConditionalGeneration"], "encoder_config": {}}


def test_a_streaming_one_has_a_window_a_layer_and_a_head() -> None:
    config = moonshine_streaming_config_from_hf(STREAMING, {})
    assert [(layer.attention.window, layer.attention.ahead) for layer in config.encoder.layers] == [
        *((16, 3), (16, 3), (16, 0)),
        *((16, 0), (16, 3), (16, 3)),
    ]
    assert (config.head, config.rope.rotary_dim, config.source_positions) == ("proj_out", 32, 1500)
    assert [config.positions(samples) for samples in (0, 80, 321, 480_000)] == [1, 1, 2, 1500]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_config": {"frame_ms": 10.0}}, "frames have 160 samples, expected 80"),
        ({"encoder_config": {"sliding_windows": [[16, 4]]}}, "sliding_windows has 1 entries for 6 layers"),
        ({"encoder_config": {"sliding_windows": [[0, 4]]}}, r"sliding_windows holds '\[0, 4\]', expected pairs"),
        ({"encoder_config": {"num_key_value_heads": 2}}, "encoder_config's num_key_value_heads is 2, expected 8"),
        ({"head_dim": 64}, "head_dim is another"),
        ({"max_position_embeddings": 1000}, "max_position_embeddings is 1000, expected 1500"),
    ],
)
def test_what_a_streaming_one_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        moonshine_streaming_config_from_hf({**STREAMING, **changes}, {})
