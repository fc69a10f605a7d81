"""AliceAI as its files describe it."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.attention import AttentionSpec
from stentor.engine.model_config.spec.mlp import MoESpec
from stentor.engine.model_config.spec.recurrent import GatedDeltaSpec
from stentor.engine.model_config.spec.streams import BlockResidualSpec

ALICE: dict[str, Any] = {
    "architectures": ["AliceAIForCausalLM"],
    "block_attn_res_block_size": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "kda_allow_negative_eigenvalues": False,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 512,
    "mtp_num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "router_bias_correction": True,
    "router_score_function": "sigmoid",
    "shared_expert_intermediate_size": 512,
    "vocab_size": 1024,
}


def test_alice_has_channels_that_decay_apart_and_streams_from_before_each_block() -> None:
    spec = model_spec_from_hf(ALICE)
    assert [isinstance(layer.mixer, AttentionSpec) for layer in spec.layers] == [False, False, False, True] * 2
    delta, attention, experts = spec.layers[0].mixer, spec.layers[3].mixer, spec.layers[0].mlp
    assert isinstance(delta, GatedDeltaSpec)
    assert delta.by_channel
    assert delta.least_decay == 0
    assert isinstance(attention, AttentionSpec)
    assert attention.gated
    assert attention.rope is not None
    assert attention.rope.rotary_dim in (0, 256), "its whole heads rotate where the file does not say"
    assert isinstance(experts, MoESpec)
    assert (experts.router.score, experts.router.renormalize, experts.correction) == ("sigmoid", True, True)
    assert isinstance(spec.streams, BlockResidualSpec)
    assert spec.streams.streams == 3
    assert "mtp.norm.weight".startswith(spec.draft_prefix)


def test_the_first_mixer_of_kept_streams_has_no_mix() -> None:
    shapes = model_spec_from_hf(ALICE).shapes()
    assert "model.layers.0.attn_res_proj.weight" not in shapes
    assert {f"model.layers.{each}_res_proj.weight" for each in ("0.mlp", "1.attn", "1.mlp")} <= shapes.keys()


@pytest.mark.parametrize("field", ["layer_types", "num_experts", "router_score_function", "block_attn_res_block_size"])
def test_a_field_that_alice_needs_is_named_if_it_is_missing(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} is missing"):
        model_spec_from_hf({name: value for name, value in ALICE.items() if name != field})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kda_allow_negative_eigenvalues": True}, "kda_allow_negative_eigenvalues is true, expected false"),
        ({"router_score_function": "softmax"}, "router_score_function is 'softmax', expected 'sigmoid'"),
        ({"router_bias_correction": False}, "router_bias_correction is false, expected true"),
        ({"linear_num_value_heads": 32}, "16 heads of 128 for keys and 32 of 128 for values, expected the same"),
        ({"attention_bias": True}, "attention_bias is true, expected false"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers is .0., expected"),
        ({"layer_types": ["mamba"] * 8}, "layer_types holds 'mamba'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
    ],
)
def test_a_wrong_field_of_alice_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**ALICE, **change})
