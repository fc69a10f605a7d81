"""Step 1, Step 3, Step 3.5 Flash and Step 5 as their authors' files describe them."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.draft_head import mtp_head
from stentor.engine.model_config.spec.attention_parts import RegionIndexSpec
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec

_WINDOW, _FULL = "sliding_attention", "full_attention"
STEP: Mapping[str, Any] = {
    "architectures": ["Step3p5ForCausalLM"],
    "att_impl_type": "GQA",
    "attention_other_setting": {
        "attention_type": _WINDOW,
        "head_dim": 128,
        "num_attention_groups": 8,
        "num_attention_heads": 96,
    },
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 11264,
    "layer_types": [_FULL, _WINDOW, _WINDOW, _WINDOW] * 12,
    "max_position_embeddings": 262144,
    "model_type": "step3p5",
    "moe_intermediate_size": 1280,
    "moe_layers_enum": ",".join(str(layer) for layer in range(3, 45)),
    "moe_num_experts": 288,
    "moe_router_activation": "sigmoid",
    "moe_router_scaling_factor": 3.0,
    "moe_top_k": 8,
    "norm_expert_weight": True,
    "num_attention_groups": 8,
    "num_attention_heads": 64,
    "num_hidden_layers": 45,
    "num_nextn_predict_layers": 3,
    "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0] * 12,
    "rope_scaling": {
        "factor": 2.0,
        "high_freq_factor": 32.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 131072,
        "rope_type": "llama3",
    },
    "rope_theta": [5_000_000.0, 10_000.0, 10_000.0, 10_000.0] * 12,
    "share_expert_dim": 1280,
    "sliding_window": 512,
    "swiglu_limits": [0.0] * 43 + [7, 7] + [0.0] * 3,
    "swiglu_limits_shared": [0.0] * 44 + [16] + [0.0] * 3,
    "use_head_wise_attn_gate": True,
    "use_moe_router_bias": True,
    "use_rope_layers": [],
    "vocab_size": 128896,
    "yarn_only_types": [_FULL],
    "zero_centered": True,
}


def test_the_published_model_has_the_published_parameters() -> None:
    """196 billions; of the active ones its authors leave out the 1.06 of embedding and head."""
    spec = model_spec_from_hf(STEP)
    assert spec.parameters / 1e9 == pytest.approx(196, rel=0.005)
    assert (spec.active_parameters - 2 * spec.vocab_size * spec.hidden_size) / 1e9 == pytest.approx(11, rel=0.01)


def test_layers_with_a_window_have_more_heads_and_rotate_whole_without_an_extension() -> None:
    spec = model_spec_from_hf(STEP)
    full, window = (spec.layers[number].attention for number in (0, 1))
    assert (full.heads, full.window, window.heads, window.window) == (64, 0, 96, 512)
    assert full.rope is not None
    assert window.rope is not None
    assert (full.rope.kind, full.rope.theta, full.rope.rotary_dim) == ("llama3", 5_000_000.0, 64)
    assert (window.rope.kind, window.rope.theta, window.rope.rotary_dim) == ("default", 10_000.0, 0)
    assert [bool(layer.attention.window) for layer in spec.layers] == [number % 4 != 0 for number in range(45)]


def test_limits_are_of_the_last_layers_alone() -> None:
    spec = model_spec_from_hf(STEP)
    networks = [layer.mlp for layer in spec.layers]
    assert [type(each) for each in networks] == [MLPSpec] * 3 + [MoESpec] * 42
    mixtures = [each for each in networks if isinstance(each, MoESpec)]
    assert [each.activation for each in mixtures] == ["silu"] * 40 + ["silu_7"] * 2
    assert [each.shared.limit for each in mixtures if each.shared] == [0.0] * 41 + [16.0]


def test_its_first_head_for_multi_token_prediction_is_what_lists_say_behind_the_layers() -> None:
    """One with experts is not read."""
    head = mtp_head(model_spec_from_hf(STEP))
    (layer,) = head.backbone.layers
    assert isinstance(layer.mlp, MLPSpec)
    assert (layer.attention.heads, layer.attention.window, layer.mlp.limit) == (96, 512, 0.0)
    assert (head.vocab_size, head.final_norm, head.feeds_normed) == (head.backbone.vocab_size, True, False)
    with pytest.raises(ConfigError, match="in a form that is not known here"):
        mtp_head(model_spec_from_hf({**STEP, "mlp_layer_types": ["sparse"] * 48}))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"swiglu_limits": [10.0] * 45}, "swiglu_limits holds 10, expected 0 or 7"),
        ({"swiglu_limits_shared": [0.5] * 45}, "a limit of 0.5 behind silu is not known"),
        ({"swiglu_limits": [7] * 44}, "swiglu_limits says what 44 layers are, expected 45"),
        ({"layer_types": [_FULL] * 46}, "layer_types says what 46 layers are, expected 45"),
        ({"rope_theta": [1e4, 2e4] * 24}, r"rope_theta differs among layers that see alike: \[10000.0, 20000.0\]"),
        ({"moe_layers_enum": "3,x"}, "moe_layers_enum is '3,x', expected numbers of layers"),
        ({"moe_router_activation": "softmax"}, "moe_router_activation is 'softmax', expected 'sigmoid'"),
        ({"zero_centered": False}, "zero_centered is 'False', expected True"),
        ({"mlp_bias": True}, "mlp_bias is set, expected false"),
        ({"attention_other_setting": {"head_dim": 64}}, "attention_type is missing, expected a text"),
    ],
)
def test_what_step_cannot_be_is_refused_by_its_field(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**STEP, **changed})


def test_a_kind_of_layers_may_have_heads_of_other_sizes_and_layers_no_rotation() -> None:
    other = {"attention_type": _FULL, "head_dim": 256, "num_attention_groups": 4, "num_attention_heads": 32}
    turning = [number != 4 for number in range(48)]
    spec = model_spec_from_hf({**STEP, "attention_other_setting": other, "use_rope_layers": turning})
    full, window, still = (spec.layers[number].attention for number in (0, 1, 4))
    assert (full.heads, full.kv_heads, full.head_dim, full.scale) == (32, 4, 256, 256**-0.5)
    assert (window.heads, window.kv_heads, window.head_dim, window.scale) == (64, 8, 128, 128**-0.5)
    assert still == replace(full, rope=None)


def test_every_layer_has_the_extension_if_the_file_does_not_say_which() -> None:
    """As in vLLM."""
    spec = model_spec_from_hf({**STEP, "yarn_only_types": None})
    assert {layer.attention.rope.kind for layer in spec.layers if layer.attention.rope} == {"llama3"}


STEP5: Mapping[str, Any] = {
    **{name: value for name, value in STEP.items() if name not in ("attention_other_setting", "moe_layers_enum")},
    "architectures": ["Step5ForCausalLM"],
    "fp32_residual_connection": True,
    "head_dim": 192,
    "model_type": "step5",
    "moe_layer_list": [*range(3, 45)],
    "need_fp32_gate": True,
    "sparse_config": {
        "apply_to_layer_types": [_FULL],
        "enabled": True,
        "num_provider_groups": 8,
        "proxy_dim": 256,
        "region_block_size": 8,
        "sparse_indexer_num_heads": 16,
        "sparse_indexer_rope_dim": 32,
        "sparse_indexer_softmax_variant": "ssmax",
        "topk": 512,
    },
    "swa_num_attention_heads": 96,
}


def test_step5_adds_in_float32_where_its_file_says_so() -> None:
    assert model_spec_from_hf(STEP5).float32_stream
    assert not model_spec_from_hf({**STEP5, "fp32_residual_connection": False}).float32_stream


def test_full_attention_of_step_5_sees_the_regions_that_its_index_chooses() -> None:
    spec = model_spec_from_hf(STEP5)
    full, window = (spec.layers[number].attention for number in (0, 1))
    assert isinstance(full.index, RegionIndexSpec)
    assert (full.index.heads, full.index.head_dim, full.index.most) == (2, 256, 8 * 513)
    assert (full.index.rope.rotary_dim, full.index.rope.theta, full.index.rope.kind) == (32, 5_000_000.0, "llama3")
    assert (window.heads, window.window, window.index) == (96, 512, None)
    assert full.keeps is not None
    assert full.keeps.entries(16) == (16, 16, 2)
    assert [isinstance(layer.mlp, MoESpec) for layer in spec.layers] == [number >= 3 for number in range(45)]


def test_the_rotation_of_an_index_is_extended_also_where_that_of_its_layer_is_not() -> None:
    full = model_spec_from_hf({**STEP5, "yarn_only_types": [_WINDOW]}).layers[0].attention
    assert isinstance(full.index, RegionIndexSpec)
    assert full.rope is not None
    assert (full.rope.kind, full.index.rope.kind) == ("default", "llama3")


def test_a_step_5_whose_index_is_disabled_sees_everything_and_passes_its_tensors_over() -> None:
    whole = model_spec_from_hf({**STEP5, "sparse_config": {**STEP5["sparse_config"], "enabled": False}})
    full = whole.layers[0].attention
    indexed = model_spec_from_hf(STEP5)
    stored = {*indexed.shapes()} - {*whole.shapes()}
    assert full.index is None
    assert {name for name in stored if name.startswith("model.layers.0.")} == {
        f"model.layers.0.self_attn.{each}" for each in full.unused if each != "ssmax_s"
    }


def test_the_first_head_of_step_5_is_read_unless_it_has_experts_or_an_index() -> None:
    read = mtp_head(model_spec_from_hf({**STEP5, "layer_types": [*STEP["layer_types"][:45], *[_WINDOW] * 3]}))
    assert read.backbone.layers[0].attention.window == 512
    for other in ({"layer_types": [*STEP["layer_types"][:45], *[_FULL] * 3]}, {"moe_layer_list": [*range(3, 48)]}):
        with pytest.raises(ConfigError, match="in a form that is not known here"):
            mtp_head(model_spec_from_hf({**STEP5, **other}))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"topk": 0}, "topk is '0', expected a whole number from 1"),
        ({"num_provider_groups": 4}, "index_tp_size is 4 .*, expected the 8 key-value heads of full attention"),
        ({"sparse_indexer_num_heads": 12}, "sparse_indexer_num_heads 12, expected the 8 key-value heads"),
        ({"sparse_indexer_num_k_heads": 2}, "sparse_indexer_num_k_heads is 2, expected 1"),
        ({"compression_method": "mean"}, "compression_method is 'mean', expected 'csa_block_compress'"),
        ({"sparse_indexer_softmax_variant": "other"}, "sparse_indexer_softmax_variant is 'other'"),
        ({"softmax_variant": "ssmax"}, "softmax_variant is 'ssmax', expected None"),
        ({"apply_to_layer_types": [_WINDOW]}, "apply_to_layer_types is .*, expected .'full_attention'."),
        ({"region_block_size": 12}, "regions of 12 tokens are not known, expected 2, 4, 8 or 16"),
        ({"sparse_indexer_rope_dim": 512}, "512 dimensions of each head rotate, expected an even number up to 256"),
    ],
)
def test_an_index_that_step_5_cannot_have_is_refused_by_its_field(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**STEP5, "sparse_config": {**STEP5["sparse_config"], **changed}})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layer_types": None}, "layer_types is missing, expected the kind of each layer"),
        ({"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate is missing or false, expected true"),
        ({"use_moe_router_bias": None}, "use_moe_router_bias is missing or false, expected true"),
        ({"moe_layers_enum": "1,2"}, "moe_layers_enum and moe_layer_list are of different layers"),
        ({"step5_sparse_config": {"topk": 1}}, "step5_sparse_config is .*, expected None"),
        (
            {"layer_types": [_WINDOW] * 45, "rope_theta": 1e4, "partial_rotary_factors": None},
            "sparse_config is set, and layer_types has no 'full_attention'",
        ),
    ],
)
def test_what_step_5_cannot_be_is_refused_by_its_field(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**STEP5, **changed})


STEP1: Mapping[str, Any] = {
    "architectures": ["Step1ForCausalLM"],
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_seq_len": 32768,
    "num_attention_groups": 4,
    "num_attention_heads": 48,
    "num_hidden_layers": 2,
    "vocab_size": 74_752,
}


def test_scores_of_step_1_lose_with_the_root_of_the_distance() -> None:
    spec = model_spec_from_hf(STEP1)
    mixer = spec.layers[0].attention
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.rope, mixer.slopes_of_roots) == (48, 4, 64, None, True)
    assert mixer.slopes[:2] == (2**-0.25, 2**-0.5)
    assert mixer.slopes[32] == 2**-0.125
    assert (spec.tie_embeddings, spec.max_position) == (True, 32768)
    assert model_spec_from_hf({**STEP1, "num_attention_groups": None}).layers[0].attention.kv_heads == 1


STEP3: dict[str, Any] = {
    "architectures": ["Step3VLForConditionalGeneration"],
    "model_type": "step3_vl",
    "image_token_id": 128001,
    "text_config": {
        "architectures": ["Step3TextForCausalLM"],
        "head_dim": 256,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "max_position_embedding": 65536,
        "max_seq_len": 65536,
        "moe_intermediate_size": 5120,
        "moe_layers_enum": ",".join(map(str, range(4, 60))),
        "moe_num_experts": 48,
        "moe_top_k": 3,
        "norm_expert_weight": True,
        "num_attention_groups": 1,
        "num_attention_heads": 64,
        "num_hidden_layers": 61,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 500000,
        "share_expert_dim": 5120,
        "share_q_dim": 2048,
        "vocab_size": 128815,
    },
    "vision_config": {"hidden_size": 1792},
}


def test_step_3_has_the_parameters_that_its_authors_publish() -> None:
    spec = model_spec_from_hf(STEP3)
    assert round(spec.parameters / 1e9) == 316
    assert round(spec.active_parameters / 1e9, 1) == 38.8
    mixer = spec.layers[0].attention
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, spec.max_position) == (64, 1, 256, 65536)
    assert [isinstance(layer.mlp, MoESpec) for layer in spec.layers] == [4 <= number < 60 for number in range(61)]


def test_step_3_has_its_experts_in_all_layers_but_the_first_and_last_if_its_file_does_not_say() -> None:
    text = {name: value for name, value in STEP3["text_config"].items() if name != "moe_layers_enum"}
    assert model_spec_from_hf({**STEP3, "text_config": text}).layers == model_spec_from_hf(STEP3).layers


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_attention_groups": 2}, "num_attention_groups is 2, expected 1"),
        ({"attention_bias": True}, "attention_bias is true, expected false"),
        ({"att_impl_type": "GQA"}, "att_impl_type is 'GQA', expected 'MFA'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"share_q_dim": 0}, "share_q_dim"),
    ],
)
def test_a_step_3_that_is_computed_otherwise_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**STEP3, "text_config": {**STEP3["text_config"], **fields}})
