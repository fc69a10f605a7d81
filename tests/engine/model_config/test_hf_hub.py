"""Descriptions of families whose code comes with their checkpoints, against what their makers publish."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.attention_parts import BlockIndexSpec

EXAONE: dict[str, Any] = {
    "architectures": ["ExaoneForCausalLM"],
    "activation_function": "silu",
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "layer_norm_epsilon": 1e-05,
    "max_position_embeddings": 32768,
    "model_type": "exaone",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_layers": 32,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 102400,
}
"""EXAONE 3.5 7.8B."""
MINICPM: dict[str, Any] = {
    "architectures": ["MiniCPMForCausalLM"],
    "dim_model_base": 256,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "max_position_embeddings": 32768,
    "model_type": "minicpm",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "scale_depth": 1.4,
    "scale_emb": 12,
    "tie_word_embeddings": False,
    "vocab_size": 73448,
}
"""MiniCPM4 8B, without its rotary factors."""
LING: dict[str, Any] = {
    "architectures": ["BailingMoeV2ForCausalLM"],
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "max_position_embeddings": 32768,
    "model_type": "bailing_moe",
    "moe_intermediate_size": 512,
    "moe_router_enable_expert_bias": True,
    "n_group": 8,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 20,
    "num_key_value_heads": 4,
    "num_shared_experts": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-06,
    "rope_theta": 600000,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "use_bias": False,
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "vocab_size": 157184,
}
"""Ling mini 2.0."""
INTERNLM: dict[str, Any] = {
    "architectures": ["InternLM2ForCausalLM"],
    "bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "internlm2",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"type": "dynamic", "factor": 2.0},
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "vocab_size": 92544,
}
"""InternLM 2.5 7B."""
HY3: dict[str, Any] = {
    "architectures": ["HYV3ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 13312,
    "max_position_embeddings": 131072,
    "model_type": "hy_v3",
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "vocab_size": 120832,
}
"""What transformers' class says of Hy3."""
MISTRAL4: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "image_token_index": 10,
    "text_config": {"model_type": "mistral4"},
    "vision_config": {"model_type": "pixtral"},
}
"""Mistral Small 4, whose class says everything of its text."""

AXK1: dict[str, Any] = {
    "architectures": ["AXK1ForCausalLM"],
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 32768,
    "model_type": "axk1",
    "num_attention_heads": 64,
    "num_hidden_layers": 61,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 163840,
}
"""What transformers' class says of A.X K1."""
MINIMAX_M3: dict[str, Any] = {
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
    "model_type": "minimax_m3_vl",
    "text_config": {
        "hidden_act": "swigluoai",
        "hidden_size": 6144,
        "intermediate_size": 3072,
        "max_position_embeddings": 524288,
        "moe_layer_freq": [0] * 3 + [1] * 57,
        "n_shared_experts": 1,
        "num_attention_heads": 64,
        "num_hidden_layers": 60,
        "num_key_value_heads": 4,
        "sparse_attention_config": {
            "sparse_attention_freq": [0] * 3 + [1] * 57,
            "sparse_block_size": 128,
            "sparse_index_dim": 128,
            "sparse_local_block": 1,
            "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16,
        },
        "vocab_size": 200064,
    },
    "vision_config": {},
}
"""What transformers' class says of MiniMax-M3, in its authors' names."""


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        (EXAONE, 7.82, 7.82),
        (MINICPM, 8.19, 8.19),
        (LING, 16.26, 1.43),
        (INTERNLM, 7.74, 7.74),
        (HY3, 295, 21.0),
        (MISTRAL4, 118.6, 6.7),
        (AXK1, 519, 33),
    ],
)
def test_a_published_description_has_the_parameters_that_its_makers_count(
    config: dict[str, Any], billions: float, active: float
) -> None:
    spec = model_spec_from_hf(config)
    assert spec.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert spec.active_parameters / 1e9 == pytest.approx(active, rel=0.05)


BLOCK: dict[str, Any] = {
    "attention": {"n_heads_in_group": 8, "no_op": False, "replace_with_linear": False, "window_length": None},
    "ffn": {"ffn_mult": 2.625, "no_op": False, "replace_with_linear": False, "sparsify": None},
}
NEMOTRON: dict[str, Any] = {
    "architectures": ["DeciLMForCausalLM"],
    "block_configs": [BLOCK, {**BLOCK, "attention": {"n_heads_in_group": None, "no_op": True}}],
    "hidden_size": 8192,
    "intermediate_size": None,
    "max_position_embeddings": 131072,
    "model_type": "nemotron-nas",
    "num_attention_heads": 64,
    "num_hidden_layers": 2,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
"""Two layers as Llama Nemotron Super has them."""


def test_a_multiplier_of_nemotron_is_a_width_in_steps_of_256() -> None:
    first, second = model_spec_from_hf(NEMOTRON).layers
    assert first.attention.kv_heads == 8
    assert (first.mlp, second.mixer) == (second.mlp, None)
    shapes = model_spec_from_hf(NEMOTRON).shapes()
    assert shapes["model.layers.1.mlp.up_proj.weight"] == (14336, 8192)
    assert "model.layers.1.input_layernorm.weight" not in shapes


def test_minicpm_omits_its_factors_as_its_class_does() -> None:
    plain = {name: value for name, value in MINICPM.items() if name not in ("scale_emb", "scale_depth")}
    spec = model_spec_from_hf(plain)
    assert spec.input.scale == 1.0
    assert spec.residual_scale == pytest.approx(32**-0.5)
    assert model_spec_from_hf(MINICPM).logits_divisor == 16


def _with_attention(**changes: object) -> dict[str, Any]:
    changed = {**BLOCK, "attention": {**BLOCK["attention"], **changes}}
    return {**NEMOTRON, "block_configs": [BLOCK, changed]}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**NEMOTRON, "block_configs": None}, "its form of DeciLMForCausalLM, without block_configs, is not native"),
        ({**NEMOTRON, "block_configs": [BLOCK]}, "block_configs is of 1 layers, expected 2"),
        ({**NEMOTRON, "block_configs": [BLOCK, 1]}, "block_configs holds 1, expected a table for each layer"),
        (_with_attention(replace_with_linear=True), "block_configs has replace_with_linear, expected layers of atten"),
        (_with_attention(window_length=8192), "block_configs has window_length, expected layers of attention"),
        (_with_attention(n_heads_in_group=65), "n_heads_in_group is '65', expected a whole number from 1 to 64"),
        ({**MINICPM, "num_experts": 8}, "its form of MiniCPMForCausalLM, with experts, is not native here"),
        ({**LING, "score_function": "softmax"}, "score_function is 'softmax', expected 'sigmoid'"),
    ],
)
def test_a_form_that_is_not_known_is_refused_in_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf(config)


def test_most_layers_of_minimax_m3_attend_to_blocks_that_an_index_chooses() -> None:
    spec = model_spec_from_hf(MINIMAX_M3)
    assert spec.parameters / 1e9 == pytest.approx(428, rel=0.005)
    embedding = spec.vocab_size * spec.hidden_size
    assert (spec.active_parameters - 2 * embedding) / 1e9 == pytest.approx(23, rel=0.05), "counted without both ends"
    assert [layer.attention.index is not None for layer in spec.layers] == [False] * 3 + [True] * 57
    assert spec.layers[3].attention.index == BlockIndexSpec(128, 128, 16)
    rope = spec.layers[0].attention.rope
    assert rope is not None
    assert (rope.theta, rope.rotary_dim) == (5_000_000.0, 64)
    plain, indexed = spec.cache_groups
    assert (plain.widths, indexed.widths) == ((512, 512), (512, 512, 128))
    seen = [spec.layers[3].attention.work(1, context) for context in (2047, 4095)]
    assert seen[1] - seen[0] == 2 * 4 * 128 * 4096, "beyond 2,048 tokens the index alone grows"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit is 5.0, expected 7.0"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'swigluoai'"),
        ({"n_shared_experts": 2}, "n_shared_experts is 2, expected 1"),
        ({"moe_layer_freq": [1]}, "moe_layer_freq says what 1 layers are, expected 60"),
        ({"layer_types": ["sliding_attention"] * 60}, "layer_types holds 'sliding_attention', expected full_attention"),
        ({"num_key_value_heads": 8}, "index_n_heads is 4, expected the 8 key-value heads"),
        ({"sparse_attention_config": {"sparse_attention_freq": [1] * 60, "sparse_local_block": 17}}, "last 17 blocks"),
        ({"sparse_attention_config": {"sparse_attention_freq": [1] * 60, "sparse_index_dim": 32}}, "32 dimensions"),
    ],
)
def test_what_minimax_m3_cannot_be_is_refused_by_its_field(changed: dict[str, Any], message: str) -> None:
    config = {**MINIMAX_M3, "text_config": {**MINIMAX_M3["text_config"], **changed}}
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf(config)
