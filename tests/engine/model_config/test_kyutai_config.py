"""What is read of a Kyutai speech-to-text model's config.json, and what is refused."""

import json
from typing import Any

import pytest
from transformers import KyutaiSpeechToTextConfig

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.spec.attention import AttentionSpec
from stentor.engine.model_config.speech.kyutai import KyutaiConfig, kyutai_config_from_hf


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("kyutai")
    KyutaiSpeechToTextConfig().save_pretrained(folder)
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def read(plain: dict[str, Any], **changes: Any) -> KyutaiConfig:
    return kyutai_config_from_hf({**plain, **changes})


def test_defaults_are_those_of_transformers(plain: dict[str, Any]) -> None:
    theirs: Any = KyutaiSpeechToTextConfig()
    codec = {name: value for name, value in plain["codec_config"].items() if name in ("model_type", "rope_parameters")}
    for ours in (read(plain), kyutai_config_from_hf({"codec_config": codec})):
        mixer = ours.decoder.layers[0].mixer
        assert isinstance(mixer, AttentionSpec)
        assert (mixer.window, mixer.heads, mixer.head_dim) == (theirs.sliding_window, 32, theirs.head_dim)
        assert (len(ours.decoder.layers), ours.decoder.norm_eps) == (theirs.num_hidden_layers, theirs.rms_norm_eps)
        assert (ours.frame, ours.step, ours.first) == (theirs.frame_size, 1280, 20)
        assert (ours.stored_text, ours.begin_row, ours.begin_token) == (theirs.vocab_size, theirs.bos_token_id, 4001)
        assert (ours.codebooks, ours.codebook_size, ours.begin_code) == (32, 2049, 2048)
        assert theirs.audio_pad_token_id is not None
        assert ours.stored_rows == theirs.audio_pad_token_id + 1


@pytest.mark.parametrize(
    ("changes", "codec", "expected"),
    [
        ({"codec_config": None}, {}, "codec_config is missing"),
        ({"ffn_dim": 11}, {}, "ffn_dim is 11, expected an even number"),
        ({"hidden_act": "tanh"}, {}, "hidden_act is 'tanh'"),
        ({"tie_word_embeddings": True}, {}, "tie_word_embeddings is true"),
        ({"num_codebooks": 31, "bos_token_id": 4000}, {}, "num_quantizers is 32, expected num_codebooks, 31"),
        ({"codebook_vocab_size": 2049, "audio_bos_token_id": 2049}, {}, "audio_bos_token_id is '2049'"),
        ({"bos_token_id": 1 << 20}, {}, "bos_token_id is '1048576'"),
        ({}, {"model_type": "encodec"}, "model_type is encodec, expected mimi"),
        ({}, {"sampling_rate": 16000}, "sampling_rate is 16000, expected 24000"),
        ({}, {"audio_channels": 2}, "audio_channels is 2"),
        ({}, {"use_causal_conv": False}, "use_causal_conv is False"),
        ({}, {"pad_mode": "reflect"}, "pad_mode is 'reflect'"),
        ({}, {"codebook_size": 4096}, "codebook_size is 4096, expected at most codebook_vocab_size, 2049"),
        ({}, {"frame_rate": 25}, "frame_rate is 25, expected 12.5"),
        ({}, {"upsampling_ratios": [7, 5]}, "a frame of the codec has 70 samples, expected a multiple of 3"),
        ({}, {"upsampling_ratios": "8"}, "upsampling_ratios is '8'"),
    ],
)
def test_what_cannot_be_served_is_refused(
    plain: dict[str, Any], changes: dict[str, Any], codec: dict[str, Any], expected: str
) -> None:
    whole = {**plain, "codec_config": {**plain["codec_config"], **codec}, **changes}
    with pytest.raises(ConfigError, match=expected):
        kyutai_config_from_hf(whole)
