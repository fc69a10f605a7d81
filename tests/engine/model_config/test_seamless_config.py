"""What is read of the speech encoder of a SeamlessM4T's config.json, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import SeamlessM4TConfig, SeamlessM4Tv2Config

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.speech.fast_conformer import KeyDistances
from stentor.engine.model_config.speech.seamless import seamless_config_from_hf


@pytest.mark.parametrize(("version", "kind"), [("", SeamlessM4TConfig), ("v2", SeamlessM4Tv2Config)])
def test_defaults_are_those_of_transformers(version: str, kind: Any, tmp_path: Path) -> None:
    kind().save_pretrained(tmp_path)
    saved: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
    empty: dict[str, Any] = {}
    for found in (saved, empty):
        ours = seamless_config_from_hf(f"SeamlessM4T{version}Model", found, {})
        assert (ours.source_positions, ours.max_position, ours.eos_token_ids) == (188, 448, (3,))
        assert (ours.mel_bins, ours.num_heads, ours.decoder_input.scale, ours.decoder_input.first) == (80, 16, 32.0, 1)
        assert (ours.encoder.layers, ours.encoder.intermediate_size, ours.encoder.width) == (24, 4096, 31)
        assert ours.encoder.keys == (KeyDistances(64, 8) if version else None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"position_embeddings_type": "rotary"}, "position_embeddings_type is 'rotary', expected 'relative_key'"),
        ({"speech_encoder_chunk_size": 100}, "speech_encoder_chunk_size is 100, expected at least 1499"),
        ({"conv_depthwise_kernel_size": 4}, "conv_depthwise_kernel_size is 4, expected an odd number"),
        ({"feature_projection_input_dim": 161}, "feature_projection_input_dim is 161"),
        ({"adaptor_kernel_size": 8, "adaptor_stride": 4}, "adaptor_kernel_size is 8 and adaptor_stride 4"),
        ({"add_adapter": False}, "add_adapter is off"),
        ({"speech_encoder_attention_heads": 7}, "1024 dimensions do not divide among 7 heads of the speech encoder"),
        ({"speech_encoder_hidden_act": "tanh"}, "speech_encoder_hidden_act is 'tanh'"),
    ],
)
def test_what_cannot_be_served_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        seamless_config_from_hf("SeamlessM4Tv2Model", changes, {})
