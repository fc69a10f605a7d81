"""config.json of DeepSeek V4.1."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.draft_head import stages_head
from stentor.engine.model_config.spec.compressed_attention import CompressedAttentionSpec
from stentor.engine.model_config.spec.mlp import MoESpec
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.towers.media_spec import media_spec
from stentor.engine.model_config.towers.vision_hf import vision_spec_from_hf
from stentor.tests.engine.model_config.test_hf_deepseek4 import FLASH as V4

TEXT: dict[str, Any] = {
    **{field: value for field, value in V4.items() if field not in ("architectures", "num_hash_layers")},
    "model_type": "deepseek_v41_text",
    "hidden_size": 5120,
    "moe_intermediate_size": 2304,
    "num_hidden_layers": 40,
    "q_lora_rank": 1280,
    "n_routed_experts": 384,
    "rms_norm_eps": 1e-20,
    "compress_ratios": [0, 0, *[2] * 18, *[1] * 20, 0, 0, 0],
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "index_n_heads": 32,
    "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384_006_168, 384_016_682],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 16_000_000,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 99_092,
    "num_nextn_predict_layers": 3,
    "dspark_target_layer_ids": [37, 38, 39],
    "dspark_block_size": 5,
    "dspark_noise_token_id": 128_799,
    "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128,
    "dspark_num_experts_per_tok": 3,
}
"""The published fields of DeepSeek-V4.1-Flash."""
FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "text_config": TEXT,
    "vision_config": {"num_hidden_layers": 32},
}


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return model_spec_from_hf(FLASH)


def mixers(spec: ModelSpec) -> list[CompressedAttentionSpec]:
    return [layer.mixer for layer in spec.layers if isinstance(layer.mixer, CompressedAttentionSpec)]


def test_flash_has_the_published_parameters(spec: ModelSpec) -> None:
    tables = sum(TEXT["engram_num_embeddings"]) * 256
    assert (spec.parameters - tables) / 1e9 == pytest.approx(552, abs=1), "published as 552 B"
    assert spec.active_parameters / 1e9 == pytest.approx(16, abs=1), "published as 16 B a token of the output"


def test_the_tables_of_n_grams_fill_the_published_rows(spec: ModelSpec) -> None:
    found = {number: layer.ngrams for number, layer in enumerate(spec.layers) if layer.ngrams is not None}
    assert {number: sum(ngrams.sizes) for number, ngrams in found.items()} == {1: 384_006_168, 14: 384_016_682}
    sizes = [size for ngrams in found.values() for size in ngrams.sizes]
    assert len({*sizes}) == 48
    assert all(factor % 2 and factor * 99_092 < 1 << 63 for ngrams in found.values() for factor in ngrams.multipliers)


def test_layers_use_the_entries_of_the_last_source_and_the_choice_of_the_last_index(spec: ModelSpec) -> None:
    every = mixers(spec)
    assert [number for number, mixer in enumerate(every) if mixer.ratio and mixer.shares < 0] == [2, 8, 14, 20]
    assert [every[number].shares for number in (3, 7, 9, 19, 21, 24, 39)] == [2, 2, 8, 14, 20, 20, 20]
    assert [number for number, mixer in enumerate(every) if mixer.own_index] == TEXT["index_source_layer_ids"]
    chosen = {n: mixer.index.candidates for n, mixer in enumerate(every) if mixer.index and mixer.index.candidates}
    assert {number: each.chooses for number, each in chosen.items()} == {
        20: True,
        **dict.fromkeys((24, 28, 32, 36), False),
    }
    assert {each.most for each in chosen.values()} == {16384}


def test_four_layers_cache_entries(spec: ModelSpec) -> None:
    assert sum(group.token_bytes(2) for group in spec.cache_groups) == (3 * 640 // 2 + 640) * 2


def test_layers_of_all_tokens_extend_the_context_too(spec: ModelSpec) -> None:
    assert [mixers(spec)[number].rope.theta for number in (0, 2, 39)] == [10_000.0, 160_000.0, 160_000.0]


def test_three_stages_draft_blocks_of_five_with_experts_of_their_own(spec: ModelSpec) -> None:
    assert spec.stages is not None
    head = stages_head(spec, spec.stages, 5)
    (mixer,) = {layer.mixer for layer in head.backbone.layers}
    networks = [layer.mlp for layer in head.backbone.layers if isinstance(layer.mlp, MoESpec)]
    assert [(mlp.experts, mlp.router.top_k) for mlp in networks] == [(128, 3)] * 3
    assert isinstance(mixer, CompressedAttentionSpec)
    assert (mixer.ratio, mixer.caches_tokens, mixer.rope.theta) == (0, True, 10_000.0)
    assert (head.taps, head.block, head.mask_token, head.markov_rank) == ((37, 38, 39), 5, 128_799, 256)
    assert [head.name_of(f"mtp.{name}") for name in ("0.main_proj.weight", "0.attn.wkv.weight", "2.norm.weight")] == [
        "fc.weight",
        "layers.0.attn.wkv.weight",
        "norm.weight",
    ]


def test_the_tower_has_the_published_sizes() -> None:
    sees = {**FLASH, "image_token_id": 129_264}
    media, tower = media_spec(sees), vision_spec_from_hf(sees, 5120)
    assert media is not None
    assert media.placeholders == {"image": 129_264}
    assert (tower.hidden_size, len(tower.layers), tower.patch, tower.joined_side) == (1024, 32, 14, 3)
    assert tower.embedding_size == 5120


def test_tokens_of_pictures_have_a_correction_of_their_own_and_no_ngrams() -> None:
    seeing, blind = (
        model_spec_from_hf({**FLASH, "image_token_id": 129_264, "vision_config": {"num_hidden_layers": layers}})
        for layers in (32, 0)
    )
    for spec, correction, silent in ((seeing, "ffn.gate.bias_vl", 129_264), (blind, "", None)):
        assert {layer.mlp.media_correction for layer in spec.layers if isinstance(layer.mlp, MoESpec)} == {correction}
        assert {layer.ngrams.silent for layer in spec.layers if layer.ngrams is not None} == {silent}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [0] * 39 + [4]}, "compress_ratios is .* expected \\(0, 1, 2\\) for each of 40 layers"),
        ({"compress_ratios": [2] * 12}, "for each of 40 layers"),
        ({"kv_source_layer_ids": [2, 9, 14, 20]}, "expected some of index_source_layer_ids"),
        ({"kv_source_layer_ids": [8, 2]}, "expected ascending numbers of 40 layers"),
        (
            {"kv_source_layer_ids": [8, 14, 20]},
            "layer 2 has entries of 2 tokens, expected some of as many in the layer",
        ),
        ({"kv_source_layer_ids": [2, 8, 14]}, "layer 20 has entries of 1 tokens"),
        ({"index_source_layer_ids": [1, 2, 8, 14, 20]}, "compress_ratios is 0 for layer 1"),
        ({"candidate_source_layer_id": 21}, "candidate_source_layer_id is 21"),
        ({"candidate_source_layer_id": 8}, "layer 20 has entries of 1 tokens, candidates are of 2"),
        ({"candidate_topk_blocks": 8}, "candidate_topk_blocks of 8 blocks of 8 entries are fewer than the 512"),
        ({"engram_num_embeddings": [384_006_168]}, "expected the rows of each of 2 layers"),
        ({"engram_num_embeddings": [384_006_167, 384_016_682]}, "at least the 384006168 rows"),
        ({"engram_pad_token_id": 130_000}, "engram_pad_token_id is 130000"),
        ({"engram_layer_ids": [1, 40]}, "engram_layer_ids is"),
        ({"num_hash_layers": 3}, "num_hash_layers is 3"),
        ({"dspark_target_layer_ids": [13, 14]}, "expected layers without n-grams"),
        ({"dspark_noise_token_id": 129_280}, "dspark_noise_token_id is 129280"),
        ({"swiglu_limit": 7.0}, "swiglu_limit is 7"),
    ],
)
def test_what_is_not_computed_is_refused_by_the_field_s_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**FLASH, "text_config": {**TEXT, **changes}})
