"""config.json of DeepSeek V4, with the published names of fields and with transformers'."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.draft_head import mtp_head, mtp_head_stored
from stentor.engine.model_config.spec.compressed_attention import CompressedAttentionSpec
from stentor.engine.model_config.spec.mlp import MoESpec
from stentor.engine.model_config.spec.model import ModelSpec

FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "sliding_window": 128,
    "compress_ratios": [0, 0, *([4, 128] * 20), 4, 0],
    "compress_rope_theta": 160000,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "max_position_embeddings": 1048576,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
"""The published fields of DeepSeek-V4-Flash."""


def mixers(spec: ModelSpec) -> list[CompressedAttentionSpec]:
    found = [layer.mixer for layer in spec.layers]
    return [mixer for mixer in found if isinstance(mixer, CompressedAttentionSpec)]


def test_flash_has_the_published_layers_and_parameters() -> None:
    spec = model_spec_from_hf(FLASH)
    assert [mixer.ratio for mixer in mixers(spec)] == [0, 0, *([4, 128] * 20), 4]
    assert 283e9 < spec.parameters < 286e9, "published as 284 B"
    assert 12.5e9 < spec.active_parameters < 14.5e9, "published as 13 B"
    networks = [layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoESpec)]
    assert [bool(mlp.table) for mlp in networks] == [True] * 3 + [False] * 40


def test_a_token_is_cached_in_a_few_kib_and_a_sequence_in_a_state() -> None:
    spec = model_spec_from_hf(FLASH)
    assert sum(group.token_bytes(2) for group in spec.cache_groups) == 21 * (512 + 128) // 4 * 2 + 20 * 512 * 2 // 128
    window, inputs = 43 * 127 * 512, 21 * 7 * 2 * 2 * (512 + 128) + 20 * 127 * 2 * 512
    assert spec.state_bytes(2, 4) == 2 * (window + inputs)


def test_only_layers_with_entries_have_an_extended_context() -> None:
    first, *_, last = mixers(model_spec_from_hf(FLASH))
    assert (first.rope.kind, first.rope.theta) == ("default", 10_000.0)
    assert (last.rope.kind, last.rope.theta, last.rope.factor) == ("yarn", 160_000.0, 16.0)
    assert last.rope.attention_factor == 1.0


def test_transformers_names_give_the_same_model() -> None:
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    old = ("compress_ratios", "num_hash_layers", "rope_scaling", "qk_rope_head_dim")
    scaling = {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
    newer = {
        **{name: value for name, value in FLASH.items() if name not in old},
        "layer_types": [kinds[ratio] for ratio in FLASH["compress_ratios"][:43]],
        "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
        "partial_rotary_factor": 0.125,
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.125},
            "compress": {**scaling, "rope_theta": 160000.0, "attention_factor": 1.0, "partial_rotary_factor": 0.125},
        },
    }
    assert model_spec_from_hf(newer) == model_spec_from_hf(FLASH)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"swiglu_limit": 7.0}, "swiglu_limit is 7, expected 10"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ({"norm_topk_prob": False}, "norm_topk_prob is false"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy'"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2"),
        ({"attention_bias": True}, "attention_bias is set"),
        ({"compress_ratios": [0] * 42 + [8]}, "compress_ratios holds 8"),
        ({"compress_ratios": [4] * 12}, "for each of 43 layers"),
        ({"mlp_layer_types": ["dense"] * 43}, "mlp_layer_types is not"),
        ({"o_groups": 7}, "64 heads do not divide among o_groups, 7"),
        ({"hc_mult": 1}, "1 residual streams"),
        ({"hc_sinkhorn_iters": 10**6}, "mixed by 1000000 iterations"),
        ({"sliding_window": 1}, "sliding_window is 1"),
        ({"qk_rope_head_dim": 256}, "256 dimensions of each head rotate"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ],
)
def test_what_is_not_computed_is_refused_by_the_field_s_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**FLASH, **changes})


def test_the_head_sees_a_window_whose_vectors_are_cached_and_has_experts_and_streams() -> None:
    head = mtp_head(model_spec_from_hf(FLASH))
    (mixer,) = mixers(head.backbone)
    (network,) = (layer.mlp for layer in head.backbone.layers)
    assert (mixer.ratio, mixer.caches_tokens, mixer.rope.theta, head.taps) == (0, True, 10000.0, (43,))
    assert isinstance(network, MoESpec)
    assert not network.table
    assert not head.backbone.states
    assert [group.token_bytes(2) for group in head.backbone.cache_groups] == [2 * 512]


def test_stages_that_draft_blocks_are_no_head() -> None:
    spec = model_spec_from_hf({**FLASH, "dspark_target_layer_ids": [1, 2]})
    assert not mtp_head_stored(spec)
    with pytest.raises(ConfigError, match="in a form that is not known here for multi-token prediction"):
        mtp_head(spec)
