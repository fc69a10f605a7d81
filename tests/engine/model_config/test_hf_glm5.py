"""GLM 5.3 Flash as its authors' file and transformers' describe it."""

from collections.abc import Mapping
from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.latent_attention import LatentAttentionSpec
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.spec.recurrent import GatedDeltaSpec
from stentor.engine.model_config.spec.streams import HyperSpec

GLM5: Mapping[str, Any] = {
    "mhc": True,
    "mla_use_nope": True,
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
    "rope_theta": 10000.0,
    "linear_attn_config": {"head_dim": 128, "num_heads": 64, "short_conv_kernel_size": 4, "gate_lower_bound": -4.0},
}
"""Beside the sizes, which are its class's defaults."""


def read(**changed: Any) -> ModelSpec:
    config = {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next"}
    return model_spec_from_hf({**config, "text_config": {"model_type": "glm5_next_text", **GLM5, **changed}})


def deltas(spec: ModelSpec) -> list[GatedDeltaSpec]:
    return [layer.mixer for layer in spec.layers if isinstance(layer.mixer, GatedDeltaSpec)]


def test_every_fourth_layer_attends_with_an_index_of_pools_of_its_own() -> None:
    spec = read()
    attending = [n for n, layer in enumerate(spec.layers) if isinstance(layer.mixer, LatentAttentionSpec)]
    assert attending == [*range(3, 45, 4)]
    mixer = spec.layers[3].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    assert (mixer.latent_dim, mixer.rope, mixer.scale) == (512, None, 256**-0.5)
    assert mixer.index is not None
    assert (mixer.index.pool, mixer.index.top_k, mixer.most) == (16, 2048, 2063)
    shapes = spec.shapes()
    assert shapes["model.layers.3.self_attn.indexer.index_kpool_compress_ape"] == (16, 128)
    assert shapes["model.layers.3.self_attn.indexer.index_kpool_compress_gate"] == (128, 4096)


def test_a_key_of_the_index_is_cached_for_every_16_tokens_and_the_inputs_of_the_next_are_a_state() -> None:
    spec = read()
    (group,) = spec.cache_groups
    assert group.entries(64) == (64, 4)
    assert group.token_bytes(2) == 11 * 2 * (512 + 128 // 16)
    (inputs,) = spec.states[3]
    assert (inputs.shape, inputs.recurrent) == ((15, 256), False)


def test_an_index_scores_a_sixteenth_of_the_pairs() -> None:
    mixer = read().layers[3].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    assert mixer.index is not None
    assert mixer.index.work(1, 4095) == 2 * 32 * 128 * 4096 // 16
    assert not mixer.chooses(1, 2062)
    assert mixer.chooses(1, 2063)


def test_streams_are_mixed_and_their_mean_is_taken_behind_the_last_layer() -> None:
    spec = read()
    assert isinstance(spec.streams, HyperSpec)
    assert (spec.streams.mixes, spec.streams.head, spec.streams.iterations) == (True, "", 20)
    assert [name for name in spec.shapes() if "hc_head" in name] == []
    assert spec.shapes()["model.layers.0.hc_attn_fn"] == (24, 4 * 4096)


def test_all_but_the_first_three_layers_have_experts_and_all_networks_a_limit() -> None:
    spec = read()
    assert [type(layer.mlp) for layer in spec.layers] == [*[MLPSpec] * 3, *[MoESpec] * 42]
    dense, mixture = spec.layers[0].mlp, spec.layers[3].mlp
    assert isinstance(dense, MLPSpec)
    assert isinstance(mixture, MoESpec)
    assert mixture.shared is not None
    assert (dense.limit, mixture.activation, mixture.shared.limit) == (10.0, "swiglu_10", 10.0)
    assert (mixture.experts, mixture.router.top_k, mixture.router.scale) == (288, 8, 2.5)


@pytest.mark.parametrize(
    ("changed", "least"),
    [
        ({}, -4.0),
        ({"linear_attn_config": {"gate_lower_bound": None}}, -5.0),
        ({"linear_attn_config": {"gate_lower_bound": None, "safe_gate": False}}, 0.0),
        ({"linear_attn_config": None}, -5.0),
        ({"linear_attn_config": None, "linear_lower_bound": None}, 0.0),
        ({"linear_attn_config": None, "linear_lower_bound": -2.0}, -2.0),
    ],
)
def test_decays_are_bounded_as_published_files_and_transformers_say(changed: dict[str, Any], least: float) -> None:
    delta = deltas(read(**changed))[0]
    assert (delta.least_decay, delta.rates, delta.width) == (least, (64,), 4)


def test_a_parameter_count_is_that_of_the_published_model() -> None:
    """320 billion, 18 billion of them active."""
    spec = read()
    assert 310e9 < spec.parameters < 325e9
    assert 16e9 < spec.active_parameters < 19e9


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"swiglu_limit": 7.0}, "swiglu_limit is 7.0, expected 10.0"),
        ({"mhc": False}, "mhc is false, expected true"),
        ({"mla_use_nope": False}, "mla_use_nope is false, expected true"),
        ({"index_kpool_always_select_tail": False}, "index_kpool_always_select_tail is false, expected true"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy', expected 'noaux_tc'"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', expected 'sigmoid'"),
        ({"qk_rope_head_dim": 64}, "qk_rope_head_dim is 64, expected 0"),
        ({"index_kpool": 24}, "index_topk is 2048, expected a multiple of index_kpool, 24"),
        ({"index_kpool": 0}, "index_kpool is '0', expected a whole number from 1"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8, expected 64"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"layer_types": ["mamba"] * 45}, "layer_types holds 'mamba', expected 'linear_attention'"),
        ({"layer_types": ["indexed_attention"]}, "layer_types says what 1 layers are, expected 45"),
        ({"indexer_types": ["full"] * 7 + ["shared"] * 38}, "layer 7 uses the index of the layer before, which has"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types is not 'dense' or 'sparse' for each of 45 layers"),
        ({"hc_mult": 1}, "it has 1 residual streams, expected 2"),
        ({"linear_attn_config": {"gate_lower_bound": 1.0}}, "logarithms of decays are at least 1.0"),
    ],
)
def test_what_glm5_cannot_be_is_refused_by_its_field(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**changed)
