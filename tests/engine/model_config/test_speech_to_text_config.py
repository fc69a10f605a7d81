"""What is read of a Speech2Text's config.json, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Speech2TextConfig

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.speech.speech_to_text import speech_to_text_config_from_hf


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    Speech2TextConfig().save_pretrained(tmp_path)
    saved: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
    empty: dict[str, Any] = {}
    for found in (saved, empty):
        ours = speech_to_text_config_from_hf(found, {})
        assert (ours.source_positions, ours.max_position, ours.eos_token_ids) == (750, 448, (2,))
        assert (ours.mel_bins, ours.kernels, ours.conv_channels, ours.head) == (80, (5, 5), 1024, "")
        assert [len(stack.layers.layers) for stack in (ours.encoder_stack, ours.decoder_stack)] == [12, 6]
        assert (ours.num_heads, ours.decoder_input.scale, ours.decoder_input.first) == (4, 16.0, 2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"input_channels": 2}, "input_channels is 2, expected 1"),
        ({"pad_token_id": 0}, "pad_token_id is 0"),
        ({"num_conv_layers": 3}, r"conv_kernel_sizes is \[5, 5\], expected 3 odd widths"),
        ({"conv_kernel_sizes": [4, 5]}, r"conv_kernel_sizes is \[4, 5\]"),
        ({"conv_channels": 33}, "conv_channels is 33, expected an even number"),
        ({"activation_function": "tanh"}, "activation_function is 'tanh'"),
        ({"decoder_attention_heads": 7}, "256 dimensions do not divide among 7 heads of the decoder"),
    ],
)
def test_what_cannot_be_served_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        speech_to_text_config_from_hf(changes, {})
