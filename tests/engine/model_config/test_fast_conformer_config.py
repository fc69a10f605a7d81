"""What a Canary and a Cohere Transcribe say of themselves, and what is refused of them."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.speech.fast_conformer import (
    CausalSpec,
    FastConformerSpec,
    canary_config_from_hf,
    cohere_asr_config_from_hf,
)
from stentor.engine.model_config.speech.framewise import (
    LanguagePromptSpec,
    nemotron_3_5_asr_config_from_hf,
    nemotron_asr_config_from_hf,
)


def test_the_published_sizes_are_transformers_defaults() -> None:
    canary, cohere = canary_config_from_hf({}, {}), cohere_asr_config_from_hf({}, {})
    assert (canary.encoder.layers, canary.encoder.hidden_size, canary.encoder.mel_bins) == (32, 1024, 128)
    assert (cohere.encoder.layers, cohere.encoder.hidden_size, cohere.encoder.mel_bins) == (48, 1280, 128)
    assert (canary.head, canary.decoder_input.positions, canary.project) == ("", "", False)
    assert canary.decoder_input.sinusoids == "open"
    assert (cohere.head, cohere.decoder_input.positions, cohere.project) == ("proj_out", "model.decoder.pos_emb", True)
    for config in (canary, cohere):
        assert (config.source_positions, config.max_position, config.decoder_input.rows) == (375, 448, 1024)
        assert [config.positions(samples) for samples in (0, 16_000, 480_000)] == [2, 13, 375]
        assert (config.eos_token_ids, config.head_bias, config.head_dim) == ((3,), "proj_out", 128)


def test_an_encoder_config_leaves_out_the_defaults_of_parakeet() -> None:
    """transformers writes only what differs from them."""
    encoder = canary_config_from_hf({"encoder_config": {"num_mel_bins": 128}}, {}).encoder
    assert (encoder.layers, encoder.mel_bins, encoder.scaled) == (24, 128, True)


def test_a_causal_encoder_sees_the_published_chunks() -> None:
    streaming, told = nemotron_asr_config_from_hf({}, {}), nemotron_3_5_asr_config_from_hf({}, {})
    for config in (streaming, told):
        assert isinstance(config.encoder, FastConformerSpec)
        assert config.encoder.causal == CausalSpec(14, 5)
        assert (config.encoder.sampled_bins, config.source_positions) == (11, 376)
    assert (told.blank, told.languages) == (13_087, LanguagePromptSpec(128, 2048, 101))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"default_prompt_id": 128}, "default_prompt_id is 128, expected one of the 128 of num_prompts"),
        ({"encoder_config": {"sliding_window": 0}}, "sliding_window is '0', expected a whole number from 1"),
        ({"encoder_config": {"default_num_lookahead_tokens": -1}}, "default_num_lookahead_tokens is '-1', expected"),
    ],
)
def test_a_causal_encoder_without_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nemotron_3_5_asr_config_from_hf(changes, {})


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("encoder.pre_encode.conv.0.weight", "model.encoder.subsampling.layers.0.weight"),
        (
            "model.encoder.layers.3.self_attn.linear_pos.weight",
            "model.encoder.layers.3.self_attn.relative_k_proj.weight",
        ),
        ("encoder.layers.3.conv.batch_norm.running_var", "model.encoder.layers.3.conv.norm.running_var"),
        (
            "transf_decoder._decoder.layers.1.second_sub_layer.key_net.bias",
            "model.decoder.layers.1.encoder_attn.k_proj.bias",
        ),
        ("transf_decoder._embedding.position_embedding.pos_enc", "model.decoder.pos_emb.weight"),
        ("encoder_decoder_proj.bias", "model.decoder.proj.bias"),
        ("log_softmax.mlp.layer0.weight", "proj_out.weight"),
        ("model.decoder.layers.1.encoder_attn.k_proj.bias", "model.decoder.layers.1.encoder_attn.k_proj.bias"),
    ],
)
def test_names_of_published_files_are_known(stored: str, name: str) -> None:
    assert cohere_asr_config_from_hf({}, {}).name_of(stored) == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_config": {"subsampling_factor": 4}}, "encoder_config's subsampling_factor is 4, expected 8"),
        ({"encoder_config": {"conv_kernel_size": 8}}, "conv_kernel_size is 8, expected an odd number"),
        ({"encoder_config": {"num_mel_bins": 84}}, "num_mel_bins is 84, expected a multiple of 8"),
        ({"encoder_config": {"num_attention_heads": 7}}, "1024 dimensions do not divide among 7 heads"),
        ({"encoder_config": {"hidden_size": 512}}, "encoder_config's hidden_size is 512, expected 1024"),
        ({"decoder_config": {"num_key_value_heads": 2}}, "num_key_value_heads is 2, expected 8"),
        ({"decoder_config": {"head_dim": 64}}, "head_dim is another"),
        ({"decoder_config": {"hidden_act": "silu2"}}, "hidden_act is 'silu2', expected one of"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        canary_config_from_hf(changes, {})
