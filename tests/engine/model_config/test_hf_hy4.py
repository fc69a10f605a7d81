"""Hy4 as its authors' file describes it."""

from collections.abc import Mapping
from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.text_names import is_of_tower, text_name
from stentor.engine.model_config.spec.latent_attention import LatentAttentionSpec
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec
from stentor.engine.model_config.spec.streams import HyperSpec
from stentor.engine.model_config.towers.media_spec import MediaSpec, media_spec

HY4: Mapping[str, Any] = {
    "architectures": ["HYV4ForCausalLM"],
    "enable_ihc": True,
    "hc_mult": 4,
    "hidden_size": 6144,
    "index_n_heads": 32,
    "intermediate_size": 18432,
    "learnable_sink": True,
    "max_position_embeddings": 262144,
    "model_type": "hy_v4",
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 78,
    "num_key_value_heads": 8,
    "q_lora_rank": 2048,
    "rope_theta": 10_000_000.0,
    "vocab_size": 120832,
}


def test_every_fourth_layer_has_an_index_behind_the_first_two() -> None:
    spec = model_spec_from_hf(HY4)
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentAttentionSpec)]
    own = [number for number, mixer in enumerate(mixers) if mixer.index and not mixer.index.shared]
    assert own == [0, *range(1, 78, 4)]
    first = mixers[0]
    assert (first.latent_dim, first.gate_count, first.interleaved) == (576, 64 * 256, False)
    assert first.rope is not None
    assert first.rope.theta == 10_000_000.0
    full, shared = spec.cache_groups
    assert (full.widths, shared.widths) == ((576, 128), (576,))


def test_streams_are_not_mixed_and_the_first_layer_is_dense() -> None:
    spec = model_spec_from_hf(HY4)
    assert isinstance(spec.streams, HyperSpec)
    assert (spec.streams.weights, spec.streams.scales) == (8, 2)
    assert spec.shapes()["model.layers.0.hc_attn_layer.hc_pre.hc_fn"] == (8, 4 * 6144)
    assert [type(layer.mlp) for layer in spec.layers] == [MLPSpec, *[MoESpec] * 77]
    mixture = spec.layers[1].mlp
    assert isinstance(mixture, MoESpec)
    assert (mixture.activation, mixture.router.score, mixture.router.scale) == ("swiglu_10", "sigmoid", 2.827)
    assert mixture.shared is not None
    assert mixture.shared.limit == 0.0


VL: Mapping[str, Any] = {
    "architectures": ["HYV4VLForConditionalGeneration"],
    "model_type": "hy_v4_vl",
    "text_config": {"model_type": "hy_v4_vl_text", "rms_norm_eps": 3e-5, "num_hidden_layers": 6},
    "image_token_id": 120_120,
    "video_token_id": 120_124,
}


def test_neighbours_turn_together_by_frame_row_and_column_in_models_that_see() -> None:
    spec = model_spec_from_hf(VL)
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentAttentionSpec)]
    assert len(mixers) == 6
    for mixer in mixers:
        assert mixer.rope is not None
        assert mixer.rope.axes == (*(0, 1, 2) * 10, 0, 0)
        assert mixer.interleaved
        assert mixer.norm_eps == 3e-5
        assert mixer.index is not None
        assert (mixer.index.heads, mixer.index.interleaved) == (32, True)
    assert (spec.hidden_size, mixers[0].heads, mixers[0].q_lora_rank) == (6144, 64, 2048)
    assert media_spec(VL) == MediaSpec({"image": 120_120, "video": 120_124}, axes="blocks")


@pytest.mark.parametrize("name", ["hc_head.hc_head_fn", "mtp_layers.0.eh_proj.weight", "layers.1.mlp.gate.weight"])
def test_parts_of_the_text_have_the_names_of_a_model_of_texts_beside_a_tower(name: str) -> None:
    assert text_name(f"model.{name}") == text_name(f"model.language_model.{name}") == f"model.{name}"
    assert is_of_tower("vit.perceive.image_newline")


def test_pairs_without_an_axis_are_refused() -> None:
    text = {**VL["text_config"], "rope_parameters": {"rope_type": "default", "mrope_section": [12, 10, 9]}}
    with pytest.raises(ConfigError, match=r"mrope_section is \[12, 10, 9\], expected 32 rotating pairs in all"):
        model_spec_from_hf({**VL, "text_config": text})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"swiglu_limit": 7.0}, "swiglu_limit is 7, expected 10"),
        ({"enable_ihc": False}, "enable_ihc is false, expected true"),
        ({"learnable_sink": False}, "learnable_sink is false, expected true"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"indexer_types": ["shared"] * 78}, "indexer_types or index_topk_pattern is not 'full' or 'shared'"),
        ({"hc_mult": 1}, "it has 1 residual streams, expected 2"),
        ({"hc_magnitude": 0.0}, "hc_magnitude is '0.0', expected a number above 0"),
        ({"index_head_dim": 32}, "index_head_dim is 32, expected at least the 64"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types is not 'dense' or 'sparse' for each of 78 layers"),
    ],
)
def test_what_hy4_cannot_be_is_refused_by_its_field(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**HY4, **changed})
