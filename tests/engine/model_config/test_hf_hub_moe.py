"""Descriptions of mixtures of experts whose code comes with their checkpoints: what is read, and what is refused."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.mlp import MoESpec
from stentor.engine.model_config.stages import stage_ends
from stentor.tests.parity import tiny


def refused(name: str, change: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        model_spec_from_hf({**tiny.described(name), **change})
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ling1", {"use_qk_norm": True}, "use_qk_norm is set without use_rmsnorm, expected both"),
        ("ling1", {"multi_gate": True}, "multi_gate is true, expected false"),
        ("ling1", {"score_function": "sigmoid"}, "score_function is 'sigmoid', expected 'softmax'"),
        ("ling1", {"use_bias": True}, "use_bias is true, expected false"),
        ("ling1", {"tie_word_embeddings": True}, "a head that is the embedding has no norm"),
        ("sarvam-moe", {"score_function": "softmax"}, "score_function is 'softmax', expected 'sigmoid'"),
        ("sarvam-mla", {"moe_layer_freq": 2}, "moe_layer_freq is 2, expected 1"),
        ("pangu-ultra", {"rope_scaling": {"type": "yarn"}}, "rope_scaling is set, expected null"),
        ("arctic", {"sliding_window": 4096}, "sliding_window is set, expected null"),
        ("arctic", {"quantization": {"q_bits": 8}}, "quantization is set, expected null"),
        ("arctic", {"use_residual": False}, "parallel_attn_mlp_res and use_residual differ, expected both or neither"),
        ("arctic", {"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ("grok1", {"hidden_act": "silu"}, "hidden_act is 'silu', expected 'gelu'"),
        ("grok2", {"rope_type": "yarn_log"}, "rope_type is 'yarn_log', expected 'original'"),
        ("grok2", {"sliding_window_size": 4096}, "sliding_window_size is 4096, expected -1"),
        ("grok2", {"attn_logit_softcapping_method": "x"}, "attn_logit_softcapping_method is 'x', expected 'tanh'"),
        ("grok2", {"rope_rotate_half_dims": True}, "rope_rotate_half_dims is true, expected false"),
        ("grok2", {"global_attn_every_n": 4}, "global_attn_every_n is 4, expected 1"),
        ("deepseek", {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid', expected 'softmax'"),
        ("deepseek", {"moe_layer_freq": 2}, "moe_layer_freq is 2, expected 1"),
        ("ling2.5", {"linear_silu": True}, "linear_silu is true, expected false"),
        ("ling2.5", {"use_qkv_bias": True}, "use_qkv_bias is true, expected false"),
        ("ling2.5", {"group_norm_size": 7}, "group_norm_size is 7, expected a divisor of 64"),
        ("ling3", {"no_kda_lora": False}, "no_kda_lora is false, expected true"),
        ("ling3", {"use_mla_nope": True}, "use_mla_nope is true, expected false"),
        ("ling3", {"gated_attention_proj_granularity_type": "x"}, "expected 'head_wise' or 'element_wise'"),
        ("ling3", {"expert_swiglu_limit_list": [5.0] * 5}, "expert_swiglu_limit_list holds 5, expected 0 or 7"),
        ("mimo-v2", {"attention_projection_layout": "x"}, "is 'x', expected 'split' or 'fused_qkv'"),
        ("mimo-v2", {"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias is set, expected false"),
        ("mimo-v2", {"num_key_value_heads": 1, "num_attention_heads": 3}, "swa_num_attention_heads is 4, expected 3"),
        (
            "mimo-v2",
            {"num_key_value_heads": 1, "swa_num_key_value_heads": 3, "num_attention_heads": 4},
            "4 query heads do not divide among 3 key-value heads",
        ),
        ("mimo-v2", {"num_key_value_heads": 4, "swa_num_key_value_heads": 2}, "4 query and 2 key-value heads do not"),
        ("mistral-large3", {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid', expected 'softmax'"),
        ("nemotron-puzzle", {"block_configs": None}, "block_configs is missing or no list of tables"),
        ("nemotron-puzzle", {"block_configs": [{"block_type": "x"}]}, "holds a block of type 'x', expected 'mamba'"),
        (
            "nemotron-puzzle",
            {"block_configs": [{"block_type": "mamba", "ssm_state_size": 5}]},
            "block_configs has ssm_state_size '5', expected '16' as beside it",
        ),
    ],
)
def test_a_field_with_another_meaning_is_refused_by_its_name(name: str, change: dict[str, Any], message: str) -> None:
    assert message in refused(name, change)


def test_arctic_is_what_its_makers_say() -> None:
    """480 billion parameters, 17 of them for a token, in 35 layers with 128 experts beside a dense network."""
    sizes = {"vocab_size": 32_000, "hidden_size": 7168, "intermediate_size": 4864, "num_hidden_layers": 35}
    sizes |= {"num_attention_heads": 56, "num_key_value_heads": 8, "num_local_experts": 128, "moe_layer_frequency": 1}
    spec = model_spec_from_hf({**tiny.described("arctic"), **sizes})
    assert round(spec.parameters / 1e9) == 479
    assert 17 < spec.active_parameters / 1e9 < 17.5
    assert [layer.shortcut is None for layer in spec.layers] == [False, True] * 35
    assert [group.layers for group in spec.cache_groups] == [tuple(range(1, 70, 2))]
    assert spec.layer_prefix(69) == "model.layers.34"
    with pytest.raises(ConfigError, match="their experts or their weights, are not given out"):
        stage_ends(spec, 2)


GROK: dict[str, Any] = {
    "architectures": ["Grok1ModelForCausalLM"],
    **{"model_type": "grok-1", "vocab_size": 131_072, "hidden_size": 6144, "intermediate_size": 32_768},
    **{"num_hidden_layers": 64, "num_attention_heads": 48, "num_key_value_heads": 8, "max_position_embeddings": 8192},
}


def test_grok_1_is_what_its_makers_say() -> None:
    """314 billion parameters, a quarter of them for a token, in 64 layers with 8 experts."""
    spec = model_spec_from_hf(GROK)
    assert round(spec.parameters / 1e9) == 316
    assert 0.25 < spec.active_parameters / spec.parameters < 0.28
    moe, mixer = spec.layers[0].mlp, spec.layers[0].attention
    assert isinstance(moe, MoESpec)
    assert (moe.experts, moe.router.top_k, moe.router.softcap, moe.shared) == (8, 2, 30.0, None)
    assert (mixer.softcap, mixer.scale, spec.input.scale) == (30.0, 128**-0.5, 6144**0.5)
    assert spec.logits_divisor == pytest.approx(3**0.5)
    assert spec.tie_embeddings
    assert spec.max_position == 8192


def test_texts_of_grok_2_end_where_its_scores_change() -> None:
    described = {**GROK, "moe_intermediate_size": 16_384, "residual_moe": True, "attn_temperature_len": 1024}
    spec = model_spec_from_hf({**described, "final_logit_softcapping": 50})
    moe = spec.layers[0].mlp
    assert isinstance(moe, MoESpec)
    assert (moe.inner, moe.shared and moe.shared.inner, spec.max_position) == (16_384, 32_768, 1024)
    assert spec.logits_softcap == 50
    assert model_spec_from_hf({**described, "attn_temperature_len": -1}).max_position == 8192


def test_experts_of_ling_3_may_have_the_limit_of_step() -> None:
    spec = model_spec_from_hf({**tiny.described("ling3"), "expert_swiglu_limit_list": [None, 0, 7, 7.0, None]})
    found = [layer.mlp.activation for layer in spec.layers if isinstance(layer.mlp, MoESpec)]
    assert found == ["silu", "silu_7", "silu_7", "silu"]


def test_layers_of_a_nemotron_puzzle_have_the_experts_of_their_blocks() -> None:
    spec = model_spec_from_hf(tiny.described("nemotron-puzzle"))
    found = [
        (each.router.top_k, each.experts, each.inner)
        for each in (layer.mlp for layer in spec.layers)
        if isinstance(each, MoESpec)
    ]
    assert found == [(3, 8, 32), (1, 6, 16)]


def test_a_deepseek_without_experts_is_dense() -> None:
    spec = model_spec_from_hf({**tiny.described("deepseek"), "n_routed_experts": None})
    assert not any(isinstance(layer.mlp, MoESpec) for layer in spec.layers)


def test_exaone_moe_is_known_by_the_name_that_its_published_files_have() -> None:
    described = tiny.described("exaone-moe")
    published = model_spec_from_hf({**described, "architectures": ["ExaoneMoEForCausalLM"]})
    assert published.layers == model_spec_from_hf(described).layers
