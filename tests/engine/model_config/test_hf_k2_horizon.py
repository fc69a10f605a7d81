"""K2 Horizon as its fields describe it."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec

K2: dict[str, Any] = {
    "architectures": ["K2HorizonForCausalLM"],
    "attention_gate_func": "softplus",
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "layernorm_num_groups": 8,
    "max_position_embeddings": 8192,
    "mlp_only_layers": [0],
    "moe_gate_bias": True,
    "moe_intermediate_size": 768,
    "mova_num_experts": 0,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "num_shared_experts": 1,
    "query_key_norm": True,
    "rope_head_dim": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "router_scaling_factor": 2.5,
    "router_score_func": "sigmoid",
    "vocab_size": 250_112,
}


def test_some_dimensions_of_both_halves_of_a_head_rotate() -> None:
    rope = model_spec_from_hf(K2).layers[0].attention.rope
    assert rope is not None
    assert (rope.rotating, rope.rotary_dim, rope.theta) == (64, 0, 1e6)
    whole = model_spec_from_hf({**K2, "rope_head_dim": None}).layers[0].attention.rope
    assert whole is not None
    assert whole.rotating == 0


def test_gates_and_norms_are_those_that_its_fields_name() -> None:
    spec = model_spec_from_hf(K2)
    mixer = spec.layers[0].attention
    assert (mixer.gate, mixer.gates, mixer.gate_activation, mixer.qk_norm) == (
        "gate_proj",
        2048,
        "softplus2",
        "head_own",
    )
    assert spec.layers[0].norms.groups == 8
    plain = model_spec_from_hf({**K2, "attention_gate_func": None, "query_key_norm": False}).layers[0].attention
    assert (plain.gated, plain.qk_norm) == (False, "none")
    assert spec.shapes()["model.layers.0.self_attn.q_norm.weight"] == (2048,)


def test_experts_are_in_all_layers_that_its_lists_do_not_leave_out() -> None:
    networks = [layer.mlp for layer in model_spec_from_hf(K2).layers]
    assert [type(each) for each in networks] == [MLPSpec, MoESpec, MoESpec, MoESpec]
    moe = networks[1]
    assert isinstance(moe, MoESpec)
    assert (moe.router.scale, moe.router.score, moe.correction) == (2.5, "sigmoid", True)
    assert moe.shared is not None
    assert moe.shared.inner == 768
    assert all(isinstance(layer.mlp, MLPSpec) for layer in model_spec_from_hf({**K2, "num_experts": 0}).layers)


def test_values_of_layers_with_experts_are_made_by_experts_too() -> None:
    spec = model_spec_from_hf({**K2, "mova_num_experts": 8, "mova_num_experts_per_tok": 2})
    first, second = (layer.attention.value_experts for layer in spec.layers[:2])
    assert first is None
    assert second is not None
    assert (second.experts, second.top_k, second.score, second.scale, second.correction) == (8, 2, "sigmoid", 2.5, True)
    shapes = spec.shapes()
    assert shapes["model.layers.1.self_attn.v_experts.7.weight"] == (512, 2048)
    assert shapes["model.layers.1.self_attn.v_router.bias"] == (8,)
    assert "model.layers.1.self_attn.v_proj.weight" not in shapes


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mova_num_experts": 4, "mova_num_experts_per_tok": 5}, "a token chooses 5 of the 4 experts of values"),
        ({"attention_gate_func": "tanh"}, "attention_gate_func is 'tanh', expected one of softplus, silu"),
        ({"dual_chunk_attention_config": {}}, "dual_chunk_attention_config is .*, expected None"),
        ({"layernorm_num_groups": 3}, "layernorm_num_groups is 3, expected a divisor of hidden_size, 2048"),
        ({"rope_head_dim": 63}, "63 dimensions of 128 rotate, expected an even number up to all"),
        ({"rope_head_dim": 256}, "256 dimensions of 128 rotate"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' of some dimensions"),
        ({"router_score_func": "relu"}, "router_score_func is 'relu', expected one of softmax, sigmoid"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
    ],
)
def test_what_it_cannot_be_is_refused_by_its_field(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**K2, **changed})


@pytest.mark.parametrize("field", ["attention_gate_func", "layernorm_num_groups", "query_key_norm", "rope_head_dim"])
def test_fields_without_which_nothing_says_what_it_is_are_asked_for(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} is missing: nothing else says what it is"):
        model_spec_from_hf({name: value for name, value in K2.items() if name != field})
