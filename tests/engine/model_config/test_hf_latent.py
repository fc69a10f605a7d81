"""Descriptions of models with latent attention, against what their makers publish and transformers' own models."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from safetensors import safe_open

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.cache import CacheSpec
from stentor.engine.model_config.spec.latent_attention import IndexSpec, LatentAttentionSpec
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec, RouterSpec
from stentor.engine.model_config.spec.model import ModelSpec, with_layers
from stentor.engine.model_config.spec.recurrent import GatedDeltaSpec
from stentor.engine.worker.caches import BlockGroup, block_groups_of
from stentor.tests.engine.plain_shapes import plain_shapes
from stentor.tests.parity import latent, tiny

V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
"""DeepSeek-V3's, as it is published."""


V32 = {
    **V3,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
}
"""DeepSeek-V3.2's, as it is published."""
GLM_5: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "max_position_embeddings": 202752,
    "num_attention_heads": 64,
    "num_hidden_layers": 78,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "vocab_size": 154880,
}
"""GLM-5's, of which transformers knows the rest."""
SIZES = ("hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads", "vocab_size")
DENSE_V2 = {**{name: V3[name] for name in SIZES}, "num_hidden_layers": 4, "first_k_dense_replace": 4}
SHARED = tuple(f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down"))


def mixer_of(spec: ModelSpec) -> LatentAttentionSpec:
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    return mixer


def test_deepseek_v3_is_what_its_makers_say() -> None:
    """Tables 1 and 2 of arXiv:2412.19437: 671 billion parameters, 37 of them for a token."""
    spec = model_spec_from_hf(V3)
    assert round(spec.parameters / 1e9) == 671
    assert round(spec.active_parameters / 1e9) in (37, 38), "their 37 leave the embedding out"
    dense, sparse = spec.layers[2].mlp, spec.layers[3].mlp
    assert isinstance(dense, MLPSpec)
    assert isinstance(sparse, MoESpec)
    assert sparse.router == RouterSpec(8, "sigmoid", True, 2.5, 8, 4, "top2")
    assert sparse.shared == MLPSpec(2048, into=SHARED[:2], out=SHARED[2])
    assert sparse.correction


def test_a_deepseek_v2_without_experts_need_not_say_how_many_a_token_takes() -> None:
    spec = model_spec_from_hf({"model_type": "deepseek_v2", **DENSE_V2})
    assert all(isinstance(layer.mlp, MLPSpec) for layer in spec.layers)
    with pytest.raises(ConfigError, match="num_experts_per_tok is missing"):
        model_spec_from_hf({"model_type": "deepseek_v2", **DENSE_V2, "first_k_dense_replace": 2})


def test_deepseek_v3_keeps_70_kb_of_a_token() -> None:
    spec = model_spec_from_hf(V3)
    assert spec.cache_groups == (CacheSpec("latent", tuple(range(61)), 0, 1, 576),)
    assert spec.cache_groups[0].token_bytes(2) == 61 * 576 * 2
    assert spec.max_position == 163840


def test_deepseek_v32_is_v3_with_an_index_in_every_layer() -> None:
    spec, without = model_spec_from_hf(V32), model_spec_from_hf(V3)
    index = IndexSpec(64, 128, 2048)
    assert spec.layers == with_layers(without, mixer=replace(mixer_of(without), index=index)).layers
    assert spec.cache_groups == (CacheSpec("latent", tuple(range(61)), 0, 1, 576, 128),)
    assert spec.cache_groups[0].token_bytes(2) == 61 * (576 + 128) * 2
    assert spec.parameters - without.parameters == 61 * (1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128)
    assert spec.draft_layers == 1


def test_layers_of_glm_5_share_an_index_as_the_file_says() -> None:
    def shared(**fields: Any) -> list[int]:
        mixers = [layer.mixer for layer in model_spec_from_hf({**GLM_5, **fields}).layers]
        indices = [mixer.index for mixer in mixers if isinstance(mixer, LatentAttentionSpec)]
        assert all(
            index == replace(IndexSpec(32, 128, 2048, interleaved=True), shared=index.shared)
            for index in indices
            if index
        )
        return [number for number, index in enumerate(indices) if index and index.shared]

    assert shared() == []
    five = {"num_hidden_layers": 5}
    assert shared(**five, index_topk_pattern="FSSFS") == [1, 2, 4]
    assert shared(**five, index_topk_pattern=["full", "full", "shared", "full", "full"]) == [2]
    assert shared(**five, index_topk_freq=2) == [2, 4]
    assert shared(**five, index_topk_freq=4, index_skip_topk_offset=1) == [1, 2, 3]
    assert shared(**five, indexer_types=["full"] * 4 + ["shared"], index_topk_pattern="FSSFS") == [4]
    groups = model_spec_from_hf({**GLM_5, **five, "index_topk_pattern": "FSSFS"}).cache_groups
    assert groups == (CacheSpec("latent", (0, 3), 0, 1, 576, 128), CacheSpec("latent", (1, 2, 4), 0, 1, 576))
    assert block_groups_of(groups, 4096) == (BlockGroup((0, 1, 2, 3, 4), 0),), "blocks of one size serve both"


def test_an_index_of_deepseek_turns_halves_and_one_of_glm_neighbours_unless_the_file_says_otherwise() -> None:
    for file, usual in ((V32, False), (GLM_5, True)):
        for said, expected in (({}, usual), ({"indexer_rope_interleave": not usual}, not usual)):
            index = mixer_of(model_spec_from_hf({**file, **said})).index
            assert index is not None
            assert index.interleaved == expected


def test_work_of_a_sparse_layer_stops_growing_but_for_its_index() -> None:
    sparse, dense = (mixer_of(model_spec_from_hf(file)) for file in (V32, V3))
    assert sparse.work(100, 1900) == dense.work(100, 1900), "no token sees more than it may choose"
    assert not sparse.absorbs(512, 0)
    assert sparse.absorbs(512, 2000), "what is chosen is attended to as it is kept"
    pairs = 2 * 2048 + 48 * 2000 + 48 * 49 // 2
    assert sparse.work(50, 2000) == 2 * 128 * (576 + 512) * pairs + 2 * 64 * 128 * (50 * 2000 + 50 * 51 // 2)


def test_scores_are_stretched_twice_by_yarns_factor() -> None:
    factor = 0.1 * math.log(40) + 1
    assert mixer_of(model_spec_from_hf(V3)).scale == pytest.approx(192**-0.5 * factor * factor)
    plain = {name: value for name, value in V3.items() if name != "rope_scaling"}
    assert mixer_of(model_spec_from_hf(plain)).scale == pytest.approx(192**-0.5)


def test_a_null_rank_of_queries_means_none_and_an_absent_one_the_default() -> None:
    assert mixer_of(model_spec_from_hf({**V3, "q_lora_rank": None})).q_lora_rank == 0
    assert mixer_of(model_spec_from_hf({name: V3[name] for name in V3 if name != "q_lora_rank"})).q_lora_rank == 1536


@pytest.mark.parametrize("name", sorted(latent.architectures(tiny.SHAPE)))
def test_the_shapes_of_weights_are_those_of_the_stored_tensors(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    described = open_checkpoint(tmp_path).decoder
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    without_use = re.compile(r"layers\.\d\.mlp\.experts\.[6-9]\." if name == "longcat" else r"\Z.")
    assert described.shapes() == {key: shape for key, shape in stored.items() if not without_use.search(key)}
    optional = "e_score_correction_bias" if name == "axk1" else "\0"
    needed = [(key, shape) for key, shape in described.shapes().items() if not key.endswith(optional)]
    assert list(plain_shapes(described).items()) == needed, "and so the model registers them"


def test_a_form_is_chosen_by_its_work() -> None:
    mixer = mixer_of(model_spec_from_hf(V3))
    assert all(mixer.absorbs(1, context) for context in (1, 100, 100_000)), "a new token never makes keys anew"
    assert not mixer.absorbs(512, 0), "nothing is gained by taking queries where all keys are new"
    assert mixer.absorbs(100, 10_000)
    assert not mixer.absorbs(500, 10_000)
    pairs = 100 * 10_000 + 100 * 101 // 2
    assert mixer.work(100, 10_000) == 2 * 128 * (576 + 512) * pairs
    pairs = 500 * 10_000 + 500 * 501 // 2
    assert mixer.work(500, 10_000) == 2 * 128 * ((128 + 64 + 128) * pairs + 512 * 256 * 10_000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qk_rope_head_dim": 63}, "63 dimensions of each head rotate"),
        ({"kv_lora_rank": 0}, "kv_lora_rank is '0', expected a whole number"),
        ({"architectures": ["DeepseekV2ForCausalLM"]}, "topk_method is 'noaux_tc', expected 'greedy' or"),
        (
            {"architectures": ["DeepseekV2ForCausalLM"], "topk_method": "greedy", "norm_topk_prob": True},
            "norm_topk_prob is set, expected false",
        ),
        ({**V32, "q_lora_rank": None}, "queries of its index are made of the latent of queries"),
        ({**V32, "index_head_dim": 32}, "index_head_dim is 32, expected at least the 64 of qk_rope_head_dim"),
        ({**V32, "index_topk": 0}, "index_topk is '0', expected a whole number from 1"),
        ({**GLM_5, "index_topk_pattern": "FS"}, "is not 'full' or 'shared' for each of 78 layers"),
        ({**GLM_5, "index_topk_pattern": "F" * 77 + "X"}, "is not 'full' or 'shared' for each of 78 layers"),
        ({**GLM_5, "indexer_types": ["shared"] * 78}, "for each of 78 layers, the first 'full'"),
        (
            {"architectures": ["Glm4MoeLiteForCausalLM"], "mlp_layer_types": ["dense", "odd"]},
            "mlp_layer_types is not 'dense' or 'sparse' for each of 61 layers",
        ),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**V3, **change})


LING: dict[str, Any] = {
    "architectures": ["BailingHybridForCausalLM"],
    "head_dim": 128,
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "model_max_length": 262144,
    "moe_renormalize": True,
    "num_attention_heads": 32,
    "num_expert_group": 8,
    "num_experts": 512,
    "num_experts_per_token": 8,
    "num_hidden_layers": 42,
    "num_nextn_predict_layers": 1,
    "num_shared_experts": 1,
    "vocab_size": 157184,
}
"""Ling 3.0's names of fields, with transformers' defaults."""


def test_every_sixth_layer_of_ling_attends_with_a_gate_and_the_others_bound_their_decays() -> None:
    spec = model_spec_from_hf(LING)
    (kept,) = spec.cache_groups
    assert (kept.kind, kept.layers) == ("latent", tuple(range(5, 42, 6)))
    mixers = [spec.layers[layer].mixer for layer in (0, 5)]
    delta, latent = mixers
    assert isinstance(delta, GatedDeltaSpec)
    assert isinstance(latent, LatentAttentionSpec)
    assert (delta.k_dim, delta.least_decay, delta.stored) == (128, -5.0, "full_rank")
    assert (latent.gate, latent.rope and latent.rope.theta) == ("g_proj", 6_000_000.0)
    assert [isinstance(layer.mlp, MoESpec) for layer in spec.layers] == [False] * 2 + [True] * 40
    moe = spec.layers[2].mlp
    assert isinstance(moe, MoESpec)
    assert (moe.router.groups, moe.router.top_groups, moe.router.scale, moe.experts) == (8, 4, 2.5, 512)
    assert spec.draft_prefix == "model.layers.42."
    unbound = model_spec_from_hf({**LING, "kda_safe_gate": False}).layers[0].mixer
    assert isinstance(unbound, GatedDeltaSpec)
    assert unbound.least_decay == 0.0
    with pytest.raises(ConfigError, match=r"logarithms of decays are at least 5\.0, expected less than 0"):
        model_spec_from_hf({**LING, "kda_lower_bound": 5.0})


@pytest.mark.parametrize("name", ["kimi-linear", "ling", "recurrent-gemma"])
def test_shapes_of_mixers_with_a_state_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    spec = open_checkpoint(tmp_path, "auto").decoder
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        stored = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    assert spec.shapes() == stored == plain_shapes(spec)
