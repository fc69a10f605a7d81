"""config.json files of Inkling: what is read, what is refused, and the names of published files."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.text_names import is_of_tower, text_name
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.tensor_parallel.cuts import Rank
from stentor.engine.model_config.tensor_parallel.split import split_model

SIZES: dict[str, Any] = {
    "architectures": ["InklingForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 7,
    "max_position_embeddings": 2048,
    "n_routed_experts": 16,
}


def read(**fields: Any) -> ModelSpec:
    return model_spec_from_hf({**SIZES, **fields})


def test_every_sixth_layer_is_full_with_heads_of_its_own_if_none_is_listed() -> None:
    spec = read(swa_num_key_value_heads=4, num_key_value_heads=2, head_dim=64, rel_extent=99, log_scaling_n_floor=7)
    mixers = [layer.attention for layer in spec.layers]
    assert [mixer.window for mixer in mixers] == [512, 512, 512, 512, 512, 0, 512]
    near, full = mixers[0], mixers[5]
    assert (near.kv_heads, near.head_dim, near.scale) == (4, 128, 1 / 128)
    assert (full.kv_heads, full.head_dim, full.scale) == (2, 64, 1 / 64)
    assert near.distances is not None
    assert full.distances is not None
    assert (near.distances.extent, full.distances.extent) == (512, 99)
    assert (near.temperature_floor, full.temperature_floor) == (0, 7)


def test_published_fields_have_other_names_and_widths() -> None:
    spec = read(
        dense_intermediate_size=40,
        intermediate_size=24,
        dense_mlp_idx=1,
        sconv_kernel_size=3,
        model_max_length=512,
        max_position_embeddings=None,
        local_layer_ids=[0, 2],
        tie_word_embeddings=True,
    )
    dense, moe = spec.layers[0].mlp, spec.layers[1].mlp
    assert isinstance(dense, MLPSpec)
    assert isinstance(moe, MoESpec)
    assert (dense.inner, moe.inner, moe.experts, moe.always) == (40, 24, 18, 2)
    assert (spec.max_position, spec.tie_embeddings) == (512, False)
    assert [bool(layer.attention.window) for layer in spec.layers] == [True, False, True, *[False] * 4]
    conv, _ = spec.layers[0].out_convs
    assert conv is not None
    assert conv.width == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shared_expert_sink": False}, "shared_expert_sink is false, expected true"),
        ({"layer_types": ["hybrid"] * 6}, "layer_types holds 6 types, expected 'hybrid' or 'hybrid_sliding' for 7"),
        ({"layer_types": ["mamba"] * 7}, "layer_types holds 'mamba', expected 'hybrid' or"),
        ({"conv_kernel_size": 1}, "a convolution sees 1 token, expected at least 2"),
        ({"num_experts_per_tok": 17}, "a token takes 17 experts of the 16"),
        ({"unpadded_vocab_size": 97}, "unpadded_vocab_size is '97', expected a whole number from 1 to 96"),
    ],
    ids=str,
)
def test_what_would_be_computed_wrongly_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**fields)


def test_it_is_not_given_to_several_workers() -> None:
    with pytest.raises(ConfigError, match="pass convolutions is not split"):
        split_model(read(), Rank(0, 2))


@pytest.mark.parametrize(
    ("stored", "usual"),
    [
        ("model.llm.embed.weight", "model.embed_tokens.weight"),
        ("model.llm.embed_norm.weight", "model.embed_tokens.embed_norm.weight"),
        ("model.llm.norm.weight", "model.norm.weight"),
        ("model.llm.unembed.weight", "lm_head.weight"),
        ("model.llm.layers.3.attn.wq_du.weight", "model.layers.3.self_attn.q_proj.weight"),
        ("model.llm.layers.3.attn.k_sconv.weight", "model.layers.3.self_attn.k_sconv.conv1d.weight"),
        ("model.llm.layers.3.attn_sconv.weight", "model.layers.3.attn_sconv.conv1d.weight"),
        ("model.llm.layers.3.attn.rel_logits_proj.proj", "model.layers.3.self_attn.rel_logits_proj.proj"),
        ("model.llm.layers.3.mlp_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
        ("model.llm.layers.3.mlp.w2_md.weight", "model.layers.3.mlp.down_proj.weight"),
        ("model.llm.layers.3.mlp.gate.bias", "model.layers.3.mlp.gate.e_score_correction_bias"),
        ("model.mtp.layers.0.norm.weight", "model.mtp.layers.0.norm.weight"),
        ("model.llm.layers.5.attn.k_sconv.weight_proj", "model.layers.5.self_attn.k_sconv.weight_proj.weight"),
        ("model.llm.attn_res.attn_queries.4", "model.layers.5.attention_input.query"),
        ("model.llm.attn_res.mlp_queries.4", "model.layers.4.mlp_input.query"),
        ("model.llm.attn_res.output_query", "model.final_input.query"),
    ],
)
def test_published_names_stand_for_those_of_transformers(stored: str, usual: str) -> None:
    assert text_name(stored) == usual


def test_encoders_of_pictures_and_sounds_are_no_part_of_the_text() -> None:
    assert is_of_tower("model.visual.layers.linear_0.weight")
    assert is_of_tower("model.audio.encoder.weight")
