"""Kimi Linear and Kimi K3 as their authors' files describe them."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.block_drafter import block_head
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.draft_head import eagle_head, mtp_head
from stentor.engine.model_config.spec.latent_attention import LatentAttentionSpec
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.spec.recurrent import GatedDeltaSpec
from stentor.engine.model_config.spec.streams import BlockResidualSpec
from stentor.engine.quantization.formats import FP4Format
from stentor.engine.quantization.parse import parse_quantization

KIMI: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "first_k_dense_replace": 1,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "model_max_length": 1048576,
    "moe_intermediate_size": 1024,
    "moe_renormalize": True,
    "num_attention_heads": 32,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "routed_scaling_factor": 2.446,
    "v_head_dim": 128,
    "vocab_size": 163840,
}
"""Kimi Linear 48B A3B."""


def test_kimi_linear_attends_in_the_layers_that_its_file_counts_from_one() -> None:
    spec = model_spec_from_hf(KIMI)
    (kept,) = spec.cache_groups
    assert (kept.kind, kept.layers) == ("latent", (3, 7, 11, 15, 19, 23, 26))
    assert all(layer.mixer.rope is None for layer in spec.layers if isinstance(layer.mixer, LatentAttentionSpec))
    assert len(spec.states) == 20
    assert [isinstance(layer.mlp, MoESpec) for layer in spec.layers] == [False] + [True] * 26
    assert round(spec.parameters / 1e9) == 49
    assert round(spec.active_parameters / 1e9) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mla_use_nope": False}, "mla_use_nope is false, expected true"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2, expected 1"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8, expected 32, as num_attention_heads"),
        (
            {"num_expert_group": 2, "use_grouped_topk": False},
            "num_expert_group is 2, expected 1 where use_grouped_topk is false",
        ),
        ({"hidden_act": "situ"}, "activation_situ_beta is 0, expected 4, which the kernels of 'situ' are made for"),
        ({"latent_moe_use_norm": True}, "routed_expert_hidden_size, the norm's, is missing"),
        ({"attn_res_block_size": 1}, "blocks of 1 among 27 layers make 27 kept streams, expected at most 15"),
        ({"linear_attn_config": {"gate_lower_bound": -5.0}}, "expected null without use_full_rank_gate"),
        ({"linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2]}}, "do not name each of layers 1 to 27"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func is 'softmax', expected 'sigmoid'"),
        ({"layer_types": ["full_attention"] * 26 + ["mamba"]}, "layer_types holds 'mamba'"),
        ({"layer_types": ["full_attention"] * 26}, "layer_types says what 26 layers are, expected 27"),
        ({"linear_attn_config": {"num_heads": "32"}}, "num_heads is '32'"),
    ],
)
def test_a_wrong_field_of_kimi_linear_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**KIMI, **change})


K3: dict[str, Any] = {
    **{"activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "attn_res_block_size": 12},
    **{"first_k_dense_replace": 1, "hidden_act": "situ", "hidden_size": 7168, "intermediate_size": 33792},
    **{"kv_lora_rank": 512, "latent_moe_use_norm": True, "mla_use_nope": True, "mla_use_output_gate": True},
    **{"model_type": "kimi_linear", "moe_intermediate_size": 3072, "moe_layer_freq": 1, "moe_renormalize": True},
    **{"moe_router_activation_func": "sigmoid", "num_attention_heads": 96, "num_expert_group": 1, "num_experts": 896},
    **{"num_experts_per_token": 16, "num_hidden_layers": 93, "num_key_value_heads": 96, "num_nextn_predict_layers": 0},
    **{"num_shared_experts": 2, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
    **{"rms_norm_eps": 1e-5, "routed_expert_hidden_size": 3584, "tie_word_embeddings": False, "topk_group": 1},
    **{"topk_method": "noaux_tc", "use_grouped_topk": True, "v_head_dim": 128, "vocab_size": 163840},
    "linear_attn_config": {
        "full_attn_layers": [*range(4, 93, 4), 93],
        "kda_layers": [layer for layer in range(1, 93) if layer % 4],
        **{"gate_lower_bound": -5.0, "head_dim": 128, "num_heads": 96, "short_conv_kernel_size": 4},
        "use_full_rank_gate": True,
    },
}
"""The text of Kimi K3."""


def read(**changed: Any) -> ModelSpec:
    config = {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3"}
    return model_spec_from_hf({**config, "text_config": {**K3, **changed}})


def test_kimi_k3_has_as_many_parameters_as_its_authors_say() -> None:
    spec = read()
    assert round(spec.parameters / 1e11) == 28
    assert round((spec.active_parameters - spec.vocab_size * spec.hidden_size) / 1e9) == 104  # without embeddings


def test_a_quarter_of_kimi_k3s_layers_and_the_last_attend_with_gates_and_without_positions() -> None:
    spec = read()
    attending = [n for n, layer in enumerate(spec.layers) if isinstance(layer.mixer, LatentAttentionSpec)]
    assert attending == [*range(3, 92, 4), 92]
    mixer, delta = spec.layers[3].mixer, spec.layers[0].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    assert (mixer.rope, mixer.gate_count, mixer.norm_eps, mixer.scale) == (None, 96 * 128, 1e-6, 192**-0.5)
    assert isinstance(delta, GatedDeltaSpec)
    assert (delta.stored, delta.least_decay, delta.by_channel) == ("full_gates", -5.0, True)
    shapes = spec.shapes()
    assert shapes["model.layers.0.self_attn.g_proj.weight"] == (12288, 7168)
    assert shapes["model.layers.0.self_attn.f_b_proj.weight"] == (12288, 128)
    assert "model.layers.0.self_attn.g_a_proj.weight" not in shapes


def test_experts_of_kimi_k3_work_on_a_projection_whose_sum_is_normed() -> None:
    spec = read()
    dense, sparse = spec.layers[0].mlp, spec.layers[1].mlp
    assert isinstance(dense, MLPSpec)
    assert isinstance(sparse, MoESpec)
    assert sparse.shared is not None
    assert {dense.activation, sparse.activation, sparse.shared.activation} == {"situ"}
    assert (sparse.latent, sparse.shared.inner, sparse.router.top_k) == (3584, 6144, 16)
    shapes = spec.shapes()
    assert shapes["model.layers.1.block_sparse_moe.experts.895.w1.weight"] == (3072, 3584)
    assert shapes["model.layers.1.block_sparse_moe.routed_expert_norm.weight"] == (3584,)
    assert shapes["model.layers.1.block_sparse_moe.routed_expert_up_proj.weight"] == (7168, 3584)


def test_kimi_k3_keeps_its_stream_before_each_12_layers() -> None:
    streams = read().streams
    assert isinstance(streams, BlockResidualSpec)
    assert streams.streams == 9
    assert [streams.kept(layer) for layer in (0, 1, 12, 13, 92)] == [0, 1, 1, 2, 8]
    assert [layer for layer in range(93) if streams.begins(layer)] == [*range(0, 93, 12)]


def test_a_head_of_kimi_k3_takes_its_stream_and_keeps_none_of_its_own() -> None:
    head = mtp_head(read(num_nextn_predict_layers=1))
    (layer,) = head.backbone.layers
    assert isinstance(layer.mixer, LatentAttentionSpec)
    assert isinstance(layer.mlp, MoESpec)
    assert (head.takes_stream, head.feeds_normed, head.skips_first) == (True, False, True)
    assert {"mlp_res_proj.weight", "self_attention_res_norm.weight"} <= {*layer.unused}


def test_a_head_that_copies_streams_is_refused_over_several() -> None:
    why = "KimiK3ForConditionalGeneration has 9 residual streams, expected one to copy"
    with pytest.raises(ConfigError, match=why):
        eagle_head({}, (), read(), third=True)
    with pytest.raises(ConfigError, match=why):
        block_head({}, (), read(), 4)


def test_the_formats_of_weights_may_be_told_with_the_text_alone() -> None:
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    table = {
        **{"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "ignore": ["re:.*self_attn.*"]},
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
    }
    found = parse_quantization({"text_config": {**K3, "quantization_config": table}})
    assert found is not None
    assert [rule.format for rule in found.rules] == [FP4Format("mxfp4", "compressed-tensors")]
