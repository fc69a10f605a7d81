"""Mixtures of experts as published files describe them, with the counts that their authors publish."""

from collections.abc import Mapping
from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec, RouterSpec

MIXTRAL_8X7B: Mapping[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "vocab_size": 32000,
}
QWEN3_30B_A3B: Mapping[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
GPT_OSS_20B: Mapping[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "vocab_size": 201088,
}
GLM_4_5_AIR: Mapping[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 46,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.0,
    "topk_group": 1,
    "use_qk_norm": False,
    "vocab_size": 151552,
}

MIMO_V2_FLASH: Mapping[str, Any] = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "add_full_attention_sink_bias": False,
    "add_swa_attention_sink_bias": True,
    "attention_bias": False,
    "attention_value_scale": 0.707,
    "head_dim": 192,
    "hidden_size": 4096,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1] + [0, 1, 1, 1, 1, 1] * 7 + [0],
    "intermediate_size": 16384,
    "layernorm_epsilon": 1e-05,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": [0] + [1] * 47,
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5000000,
    "routed_scaling_factor": None,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "swa_head_dim": 192,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_rope_theta": 10000,
    "swa_v_head_dim": 128,
    "topk_group": 1,
    "v_head_dim": 128,
    "vocab_size": 152576,
}
PHI_3_5_MOE: Mapping[str, Any] = {
    "architectures": ["PhiMoEForCausalLM"],
    "attention_bias": True,
    "hidden_size": 4096,
    "intermediate_size": 6400,
    "lm_head_bias": True,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "original_max_position_embeddings": 4096,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0] * 64,
        "long_factor": [2.0] * 64,
        "short_mscale": 1.243163121016122,
        "long_mscale": 1.243163121016122,
        "original_max_position_embeddings": 4096,
    },
    "rope_theta": 10000.0,
    "router_jitter_noise": 0.01,
    "sliding_window": 131072,
    "vocab_size": 32064,
}


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (MIMO_V2_FLASH, 308.8, 15.4),
        (PHI_3_5_MOE, 41.9, 6.6),
        (MIXTRAL_8X7B, 46.7, 12.9),
        (QWEN3_30B_A3B, 30.5, 3.4),
        (GPT_OSS_20B, 20.9, 4.2),
        (GLM_4_5_AIR, 106.9, 13.4),
    ],
)
def test_published_models_have_the_published_parameters(config: Mapping[str, Any], total: float, active: float) -> None:
    """In billions. Of the active ones embedding and head are some, which authors count or not: gpt-oss's 3.6 are these
    without an embedding."""
    spec = model_spec_from_hf(config)
    assert (round(spec.parameters / 1e9, 1), round(spec.active_parameters / 1e9, 1)) == (total, active)


def test_layers_that_are_dense_keep_their_network() -> None:
    first, *others = model_spec_from_hf(GLM_4_5_AIR).layers
    assert first.mlp == MLPSpec(10944)
    assert {type(layer.mlp) for layer in others} == {MoESpec}
    stepped = model_spec_from_hf({**QWEN3_30B_A3B, "decoder_sparse_step": 3, "mlp_only_layers": [5]})
    sparse = [number for number, layer in enumerate(stepped.layers) if isinstance(layer.mlp, MoESpec)]
    assert sparse == [number for number in range(2, 48, 3) if number != 5]


def test_gpt_oss_rotates_as_its_kind_where_a_file_does_not_say() -> None:
    silent = {name: value for name, value in GPT_OSS_20B.items() if not name.startswith("rope")}
    assert model_spec_from_hf(silent) == model_spec_from_hf(GPT_OSS_20B)
    mixers = [layer.attention for layer in model_spec_from_hf(GPT_OSS_20B).layers[:2]]
    assert [(mixer.window, mixer.sinks, mixer.output_bias) for mixer in mixers] == [(128, True, True), (0, True, True)]


def test_layers_of_mimo_with_a_window_have_sinks_a_rotation_and_heads_of_their_own() -> None:
    full, sliding = (model_spec_from_hf(MIMO_V2_FLASH).layers[layer] for layer in (0, 1))
    assert isinstance(full.mlp, MLPSpec)
    assert isinstance(sliding.mlp, MoESpec)
    assert (full.mixer_scale, sliding.mixer_scale) == (0.707, 0.707)
    seen = [(each.window, each.sinks, each.kv_heads, each.v_dim) for each in (full.attention, sliding.attention)]
    assert seen == [(0, False, 4, 128), (129, True, 8, 128)]
    turned = [each.rope and (each.rope.theta, each.rope.rotary_dim) for each in (full.attention, sliding.attention)]
    assert turned == [(5_000_000.0, 64), (10_000.0, 64)]


def test_phi_weighs_choices_by_experts_near_them_and_rotates_by_one_factor() -> None:
    spec = model_spec_from_hf(PHI_3_5_MOE)
    mixer, moe = spec.layers[0].attention, spec.layers[0].mlp
    assert isinstance(moe, MoESpec)
    assert moe.router == RouterSpec(2, score="sparsemixer", renormalize=False, nearness=0.02)
    assert mixer.rope is not None
    assert (mixer.rope.kind, mixer.rope.attention_factor, mixer.window) == ("longrope", 1.243163121016122, 0)
    other = {**PHI_3_5_MOE["rope_scaling"], "long_mscale": 1.5}
    with pytest.raises(
        ConfigError, match=r"short_mscale is 1\.243163121016122 and long_mscale 1\.5, expected the same"
    ):
        model_spec_from_hf({**PHI_3_5_MOE, "rope_scaling": other})


def test_minimax_rotates_the_dimensions_that_its_file_counts() -> None:
    spec = model_spec_from_hf(
        {**MIXTRAL_8X7B, "architectures": ["MiniMaxM2ForCausalLM"], "head_dim": 128, "rotary_dim": 64}
    )
    rope = spec.layers[0].attention.rope
    assert rope is not None
    assert rope.rotary_dim == 64


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (MIXTRAL_8X7B, {"num_experts_per_tok": 9}, "a token takes 9 experts of the 8 that are looked at"),
        (MIXTRAL_8X7B, {"num_local_experts": 5000}, "it has 5000 experts in a layer, expected at most 4096"),
        (MIXTRAL_8X7B, {"num_local_experts": 0}, "num_local_experts is '0', expected a whole number from 1"),
        (QWEN3_30B_A3B, {"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
        (GLM_4_5_AIR, {"n_group": 3}, "128 experts do not divide into 3 groups"),
        (GLM_4_5_AIR, {"topk_group": 2}, "into 1 groups, of which 2 are looked at"),
        (GLM_4_5_AIR, {"n_group": 32, "topk_group": 1}, "a token takes 8 experts of the 4 that are looked at"),
        (GLM_4_5_AIR, {"n_group": 128, "topk_group": 64}, "a group of 1 expert has no two best scores"),
        (MIMO_V2_FLASH, {"swa_head_dim": 128}, "swa_head_dim is 128, expected 192 as in layers without a window"),
        (MIMO_V2_FLASH, {"moe_layer_freq": [1, 0]}, "moe_layer_freq is [1.0, 0.0], expected 0 or 1 for each of 48"),
        (MIMO_V2_FLASH, {"v_head_dim": 256, "swa_v_head_dim": 256}, "values of 256 dimensions, of keys of 192"),
        (GPT_OSS_20B, {"swiglu_limit": 10.0}, "swiglu_limit is 10.0, expected 7.0"),
        ({**MIXTRAL_8X7B, "architectures": ["OlmoeForCausalLM"]}, {"clip_qkv": 8.0}, "clip_qkv is 8.0, expected null"),
    ],
)
def test_what_cannot_be_served_is_named(config: Mapping[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model_spec_from_hf({**config, **change})
    assert message in str(caught.value)
