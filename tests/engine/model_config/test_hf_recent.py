"""config.json files of the families of 2026: what is read, and what is refused."""

from math import sqrt
from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.mlp import MoESpec
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.stages import stage_ends
from stentor.engine.model_config.tensor_parallel.cuts import Rank
from stentor.engine.model_config.tensor_parallel.split import split_model

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "num_experts_per_tok": 1,
    "num_experts": 16,
}


def read(architecture: str, **fields: Any) -> ModelSpec:
    return model_spec_from_hf({"architectures": [architecture], **SIZES, **fields})


def test_flint_is_full_and_dense_in_the_layers_of_its_class_if_nothing_is_listed() -> None:
    spec = read("FlintForCausalLM")
    assert [layer.attention.window for layer in spec.layers] == [0, 0, 513, 513, 513, 0, 513, 0]
    assert [layer.attention.rope is None for layer in spec.layers] == [True, True, *[False] * 3, True, False, True]
    assert [isinstance(layer.mlp, MoESpec) for layer in spec.layers] == [False, False, *[True] * 6]


def test_parts_of_beam_add_up_with_equal_weights() -> None:
    spec = read("BeamForCausalLM")
    first, last = spec.layers[0], spec.layers[-1]
    assert (first.mixer_scale, first.mlp_scale) == (1 / sqrt(2), 1 / sqrt(3))
    assert last.stream_scales == (sqrt(15 / 16), sqrt(16 / 17))
    assert (first.attention.temperature_power, last.attention.temperature_power) == (0.0, 0.1)
    assert (first.attention.rope is None, last.attention.rope is None) == (False, True)


def test_sums_and_norms_of_muse_spark_are_its_own() -> None:
    spec = read("MuseSparkForConditionalGeneration", mlp_layer_types=["dense", *["sparse"] * 7], moe_hidden_size=24)
    layer, moe = spec.layers[1], spec.layers[1].mlp
    assert isinstance(moe, MoESpec)
    assert (moe.latent, moe.correction, moe.logit_scale) == (24, True, 0.1767766952966369)
    assert (layer.sum_temperature, layer.attention.head_out_norm) == (0.3, True)
    shapes = dict(layer.shapes("l", 32))
    assert "l.post_attention_layernorm.weight" not in shapes
    assert shapes["l.post_attention_residual_gate.gate"] == (32,)
    assert shapes["l.mlp.experts.post_expert_norm.weight"] == (24,)
    with pytest.raises(ConfigError, match="experts whose outputs are normed one by one are not split"):
        split_model(spec, Rank(0, 2))


def test_zaya_rotates_by_the_kind_of_a_layer() -> None:
    spec = read("ZayaForCausalLM", layer_types=["hybrid", "hybrid_sliding"] * 4, sliding_window=64)
    thetas = [layer.attention.rope.theta for layer in spec.layers[:2] if layer.attention.rope]
    assert thetas == [5_000_000.0, 10_000.0]
    assert [layer.attention.window for layer in spec.layers[:2]] == [0, 64]


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("ZayaForCausalLM", {"num_experts_per_tok": 2}, "num_experts_per_tok is 2, expected 1"),
        ("ZayaForCausalLM", {"attention_bias": True}, "attention_bias is true, expected false"),
        ("ZayaForCausalLM", {"layer_types": ["mamba"] * 8}, "layer_types holds 'mamba', expected 'hybrid' or"),
        ("ZayaForCausalLM", {"cca_time0": 1, "cca_time1": 1}, "convolutions see 0 tokens before each"),
        (
            "BeamForCausalLM",
            {"rope_parameters": {"full_attention": None}},
            "rope_parameters lacks sliding_attention, expected a table or null",
        ),
        ("XGLMForCausalLM", {"pad_token_id": 5}, "pad_token_id is 5, expected 0 or 1"),
        ("CodeGenForCausalLM", {"num_attention_heads": 2, "rotary_dim": 8}, "2 heads do not divide among the 4 parts"),
        (
            "MuseGlimmerForConditionalGeneration",
            {"layer_rope_theta": [500.0] * 8},
            r"layer_rope_theta is not 0 or rope_theta \(10000\) for each of 8 layers",
        ),
    ],
)
def test_what_a_file_asks_for_and_nothing_does_is_refused(
    architecture: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(architecture, **fields)


def test_zaya_is_not_given_to_several_workers() -> None:
    spec = read("ZayaForCausalLM")
    with pytest.raises(ConfigError, match="queries and keys pass convolutions is not split"):
        split_model(spec, Rank(0, 2))
    with pytest.raises(ConfigError, match="are not given out"):
        stage_ends(spec, 2)


def test_parts_of_a_matrix_are_given_out_whole() -> None:
    fields = {"n_head": 4, "rotary_dim": 8}
    part, cuts = split_model(read("CodeGenForCausalLM", **fields), Rank(1, 2))
    assert (part.layers[0].attention.heads, part.layers[0].attention.shards) == (2, 2)
    assert cuts["transformer.h.0.attn.qkv_proj.weight"].ranges == ((48, 48),)
    with pytest.raises(ConfigError, match="parts of a matrix of queries, values and keys do not divide among 8"):
        split_model(read("CodeGenForCausalLM", **{"n_head": 8, "rotary_dim": 4}), Rank(0, 8))
