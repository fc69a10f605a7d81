"""config.json files of families whose layers no other family has: what is read, and what is refused."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.mlp import MoESpec
from stentor.engine.model_config.tensor_parallel.cuts import Rank
from stentor.engine.model_config.tensor_parallel.split import split_model

DBRX: dict[str, Any] = {
    "architectures": ["DbrxForCausalLM"],
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000},
    "d_model": 6144,
    "ffn_config": {
        "ffn_hidden_size": 10752,
        "moe_jitter_eps": 0.01,
        "moe_loss_weight": 0.05,
        "moe_num_experts": 16,
        "moe_top_k": 4,
    },
    "max_seq_len": 32768,
    "n_heads": 48,
    "n_layers": 40,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}


def test_dbrx_has_the_parameters_that_its_authors_publish() -> None:
    spec = model_spec_from_hf(DBRX)
    assert round(spec.parameters / 1e9) == 132
    assert round(spec.active_parameters / 1e9) == 36
    mixer, mlp = spec.layers[0].attention, spec.layers[0].mlp
    assert (mixer.kv_heads, mixer.clip, spec.max_position, spec.norm_eps) == (8, 8.0, 32768, 1e-5)
    assert mixer.rope is not None
    assert mixer.rope.theta == 500_000.0
    assert isinstance(mlp, MoESpec)
    assert mlp.router.renormalize


def test_dbrx_rotates_by_rope_parameters_if_a_file_has_both() -> None:
    spec = model_spec_from_hf({**DBRX, "rope_parameters": {"rope_type": "default", "rope_theta": 10.0}})
    rope = spec.layers[0].attention.rope
    assert rope is not None
    assert rope.theta == 10.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"ffn_config": {**DBRX["ffn_config"], "moe_normalize_expert_weights": 2}},
            r"moe_normalize_expert_weights is 2\.0, expected 1 or null",
        ),
        ({"ffn_config": {**DBRX["ffn_config"], "ffn_act_fn": {"name": "relu"}}}, "hidden_act is 'relu', and experts"),
        ({"attn_config": {"clip_qkv": -1}}, "clip_qkv is '-1', expected a number above 0"),
    ],
)
def test_a_dbrx_that_is_computed_otherwise_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**DBRX, **fields})


JETMOE: dict[str, Any] = {
    "architectures": ["JetMoeForCausalLM"],
    "activation_function": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "kv_channels": 128,
    "max_position_embeddings": 4096,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": 32000,
}
DIFFLLAMA: dict[str, Any] = {
    "architectures": ["DiffLlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 96,
}


def test_jetmoe_has_the_parameters_that_its_authors_publish() -> None:
    spec = model_spec_from_hf(JETMOE)
    assert round(spec.parameters / 1e9, 1) == 8.5
    mixer = spec.layers[0].attention
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim) == (32, 16, 128)
    assert (spec.norm_eps, spec.layers[0].norms.in_eps) == (1e-5, 1e-6)


ZAMBA: dict[str, Any] = {
    "architectures": ["ZambaForCausalLM"],
    "attention_head_dim": 464,
    "attention_hidden_size": 7424,
    "attn_layer_offset": 4,
    "attn_layer_period": 6,
    "hidden_act": "gelu",
    "hidden_mamba_act": "silu",
    "hidden_size": 3712,
    "intermediate_size": 14848,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_dt_rank": 232,
    "mamba_expand": 2,
    "mamba_proj_bias": False,
    "max_position_embeddings": 4096,
    "n_mamba_heads": 2,
    "num_attention_heads": 16,
    "num_hidden_layers": 76,
    "num_key_value_heads": 16,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": True,
    "vocab_size": 32000,
}


def test_zamba_has_one_block_of_seven_billion_parameters_in_all() -> None:
    spec = model_spec_from_hf(ZAMBA)
    assert 7.1 < spec.parameters / 1e9 < 7.4
    blocks = [number for number, layer in enumerate(spec.layers) if layer.block is not None]
    assert blocks == [2, *range(7, 76, 6)]
    assert {layer.block.source for layer in spec.layers if layer.block is not None} == {2}
    assert len(spec.states[0]) == 3


MODERNBERT: dict[str, Any] = {
    "architectures": ["ModernBertDecoderForCausalLM"],
    "classifier_activation": "gelu",
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "intermediate_size": 1152,
    "local_attention": 128,
    "local_rope_theta": 160000.0,
    "max_position_embeddings": 7999,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "tie_word_embeddings": True,
    "vocab_size": 50368,
}


def test_the_decoder_of_modernbert_sees_half_of_the_window_of_its_file() -> None:
    spec = model_spec_from_hf(MODERNBERT)
    assert [layer.attention.window for layer in spec.layers[:4]] == [0, 64, 64, 0]
    assert {layer.attention.rope.theta for layer in spec.layers if layer.attention.rope} == {160_000.0}
    assert (spec.tie_embeddings, spec.head_bias) == (True, True)


def test_a_difference_of_heads_caches_each_key_with_both_of_its_values() -> None:
    spec = model_spec_from_hf(DIFFLLAMA)
    (group,) = spec.cache_groups
    assert (group.kv_heads, group.head_dim) == (4, 16)
    assert spec.shapes()["model.layers.0.self_attn.k_proj.weight"] == (32, 64)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**JETMOE, "num_attention_heads": 16}, "num_attention_heads is 16, expected 32"),
        ({**JETMOE, "activation_function": "relu"}, "hidden_act is 'relu', and experts are gated by"),
        ({**ZAMBA, "attention_hidden_size": 3712}, "attention_hidden_size is 3712, expected 7424"),
        ({**ZAMBA, "hidden_mamba_act": "gelu"}, "hidden_mamba_act is 'gelu', expected 'silu'"),
        ({**ZAMBA, "tie_word_embeddings": False}, "tie_word_embeddings is false, expected true"),
        ({**ZAMBA, "n_mamba_heads": 3}, "7424 channels of a state space do not divide among 3 heads"),
        ({**MODERNBERT, "classifier_activation": "selu"}, "classifier_activation is 'selu', expected one of"),
        ({**MODERNBERT, "classifier_activation": "xielu"}, "xielu before the head is not known"),
        ({**DIFFLLAMA, "num_key_value_heads": 1}, "1 key-value heads have no halves to subtract"),
    ],
)
def test_heads_that_are_computed_otherwise_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (JETMOE, "attention whose heads are chosen, or subtracted from others, is not split"),
        (DIFFLLAMA, "attention whose heads are chosen, or subtracted from others, is not split"),
        (ZAMBA, "is not split"),
    ],
)
def test_heads_of_these_kinds_are_not_split(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split_model(model_spec_from_hf(config), Rank(0, 2))
