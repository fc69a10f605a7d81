"""Published files of Llama 4, Gemma 3n and 4, and mixtures: what they say in their own words, and what is refused."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec
from stentor.engine.model_config.spec.model import ModelSpec

SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131_072,
}

QWEN4 = {
    "ple_layer_ids": [1, 2],
    "eos_token_id": 2,
    "ngram_vocab_size_base": 50,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 32,
}


def read(architecture: str, **fields: Any) -> ModelSpec:
    return model_spec_from_hf({"architectures": [architecture], **SIZES, **fields})


def test_llama_4_sees_chunks_in_three_layers_of_four_and_all_in_the_fourth() -> None:
    spec = read("Llama4ForCausalLM", attn_temperature_tuning=4, no_rope_layers=[], moe_layers=None)
    first, fourth = spec.layers[0].attention, spec.layers[3].attention
    assert (first.window, first.chunked, first.qk_norm, first.qk_norm_names) == (8192, True, "head", None)
    assert (fourth.window, fourth.chunked, fourth.rope, fourth.qk_norm) == (0, False, None, "none")
    assert (fourth.temperature_beta, fourth.temperature_floor, fourth.temperature_first) == (0.1, 8192, 1)
    assert first.temperature_beta == 0.0
    assert [group.window for group in spec.cache_groups] == [8192, 0]


def test_llama_4_may_have_experts_in_every_second_layer() -> None:
    spec = read("Llama4ForCausalLM", interleave_moe_layer_step=2, num_local_experts=8)
    dense, sparse = spec.layers[0].mlp, spec.layers[1].mlp
    assert isinstance(dense, MLPSpec)
    assert dense.inner == 16384
    assert isinstance(sparse, MoESpec)
    assert (sparse.experts, sparse.inner, sparse.weight_input) == (8, 96, True)


def test_a_chunk_that_no_sequence_outgrows_is_none() -> None:
    spec = read("Llama4ForCausalLM", max_position_embeddings=8192)
    assert not any(layer.attention.chunked for layer in spec.layers)


def test_a_token_is_compared_with_those_of_its_chunk() -> None:
    mixer = read("Llama4ForCausalLM", attention_chunk_size=10).layers[0].attention
    assert mixer.pairs(25, 0) == 55 + 55 + 15
    assert mixer.pairs(4, 8) == 9 + 10 + 1 + 2


def test_a_published_gemma_4_says_once_what_heads_of_full_layers_are() -> None:
    fields = {"global_head_dim": 512, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0}
    spec = read("Gemma4ForCausalLM", **fields, attention_k_eq_v=True, use_bidirectional_attention="vision")
    sliding, full = spec.layers[0].attention, spec.layers[5].attention
    assert (sliding.head_dim, sliding.kv_heads, sliding.window, sliding.tied_values) == (256, 2, 512, False)
    assert (full.head_dim, full.kv_heads, full.window, full.tied_values) == (512, 1, 0, True)
    assert full.rope is not None
    assert (full.rope.kind, full.rope.rotary_dim, full.rope.rotating, full.rope.theta) == ("proportional", 0, 128, 1e6)
    assert spec.per_layer is None


def test_a_gemma_4_of_transformers_lists_no_layer_where_all_heads_are_alike() -> None:
    alike = read("Gemma4ForCausalLM", per_layer_config={}).layers[5].attention
    assert (alike.head_dim, alike.kv_heads, alike.window) == (256, 2, 0)


@pytest.mark.parametrize("key", ["5", "05"])
def test_a_gemma_4_of_transformers_lists_layers_by_numbers_with_zeros_before_them(key: str) -> None:
    layers = read("Gemma4ForCausalLM", per_layer_config={key: {"head_dim": 64}}).layers
    assert [layer.attention.head_dim for layer in layers[:6]] == [256] * 5 + [64]


def test_the_last_layers_of_a_small_gemma_4_see_keys_of_the_last_of_their_kind() -> None:
    spec = read("Gemma4ForCausalLM", num_kv_shared_layers=5, use_double_wide_mlp=True)
    assert [layer.attention.shares for layer in spec.layers] == [-1] * 7 + [6, 6, 6, 6, 5]
    inner = [0 if layer.mlp is None else layer.mlp.products(64) // (3 * 64) for layer in spec.layers]
    assert inner == [96] * 7 + [192] * 5
    assert {layer for group in spec.cache_groups for layer in group.layers} == set(range(7))
    assert spec.per_layer is not None
    assert spec.shapes()["model.embed_tokens_per_layer.weight"] == (262_144, 12 * 256)


def test_a_published_gemma_3n_says_layer_by_layer_how_wide_and_how_sparse_it_is() -> None:
    sparsity, rope = (
        [0.95] * 2 + [0.0] * 10,
        {"rope_theta": 1e6, "rope_local_base_freq": 10_000.0, "rope_scaling": None},
    )
    told = {"intermediate_size": [96] * 11 + [64], "activation_sparsity_pattern": sparsity, **rope}
    spec = read("Gemma3nForCausalLM", **told, num_kv_shared_layers=5)
    networks = [layer.mlp for layer in spec.layers if isinstance(layer.mlp, MLPSpec)]
    assert [mlp.inner for mlp in networks] == [96] * 11 + [64]
    assert [mlp.gate_cutoff for mlp in networks] == [pytest.approx(1.6448536)] * 2 + [None] * 10
    assert [layer.attention.window for layer in spec.layers] == [512, 512, 512, 512, 0] * 2 + [512, 512]
    assert [layer.attention.shares for layer in spec.layers] == [-1] * 7 + [6, 6, 4, 6, 6]
    assert [layer.attention.rope and layer.attention.rope.theta for layer in spec.layers[3:5]] == [10_000.0, 1e6]
    shapes = spec.shapes()
    assert shapes["model.embed_tokens_per_layer.weight"] == (262_144, 12 * 256)
    assert shapes["model.altup_unembed_projections.2.weight"] == (64, 64)
    assert shapes["model.layers.11.laurel.linear_left.weight"] == (64, 64)
    assert shapes["model.layers.11.altup.prediction_coefs.weight"] == (16, 4)


def test_a_deep_gemma_3n_that_says_nothing_of_it_has_ten_sparse_layers() -> None:
    spec = read("Gemma3nForCausalLM", num_kv_shared_layers=0)
    cutoffs = [layer.mlp.gate_cutoff for layer in spec.layers if isinstance(layer.mlp, MLPSpec)]
    assert [each is not None for each in cutoffs] == [True] * 10 + [False] * 2


def test_two_of_three_layers_of_recurrent_gemma_have_a_gated_recurrence() -> None:
    """The 2B's file, and its published parameters."""
    file = {
        "attention_window_size": 2048,
        "block_types": ["recurrent", "recurrent", "attention"],
        "conv1d_width": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2560,
        "intermediate_size": 15360,
        "logits_soft_cap": 30.0,
        "lru_width": 2560,
        "num_attention_heads": 10,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "vocab_size": 256000,
    }
    spec = model_spec_from_hf({"architectures": ["RecurrentGemmaForCausalLM"], **file})
    assert round(spec.parameters / 1e9, 2) == 2.68
    attends = [number for number, layer in enumerate(spec.layers) if layer.keeps]
    assert attends == list(range(2, 26, 3))
    assert {spec.layers[number].attention.window for number in attends} == {2048}
    assert spec.input.scale == 50.5, "as bfloat16 has the root of 2560"
    assert spec.max_position == 1 << 20


def test_qwen4_has_no_longer_context_than_its_index_sees_whole() -> None:
    spec = read("Qwen4ExpForCausalLM", **QWEN4)
    assert spec.max_position == 2048 + 31
    assert [number for number, layer in enumerate(spec.layers) if layer.keeps] == [3, 7, 11]
    first, second = spec.layers[0].ngrams, spec.layers[1].ngrams
    assert first is not None
    assert second is not None
    assert first.sizes[:3] == (53, 59, 61)
    assert first.sizes + second.sizes == tuple(sorted({*first.sizes, *second.sizes}))
    ended = read("Qwen4ExpForCausalLM", **{**QWEN4, "eos_token_id": [7, 2]}).layers[0].ngrams
    assert ended is not None
    assert ended.eos == 7, "the first that is listed"


def test_hunyuan_says_its_sizes_layer_by_layer() -> None:
    lists = {"moe_topk": [8] * 12, "num_experts": 64, "moe_intermediate_size": [96] * 12, "num_shared_expert": [1] * 12}
    moe = read("HunYuanMoEV1ForCausalLM", **lists).layers[0].mlp
    assert isinstance(moe, MoESpec)
    assert (moe.experts, moe.router.top_k, moe.inner) == (64, 8, 96)


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("Llama4ForCausalLM", {"layer_types": ["sliding_attention"] * 12}, "layer_types holds 'sliding_attention'"),
        ("Gemma4ForCausalLM", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
        ("GemmaForCausalLM", {"hidden_act": "silu"}, "hidden_act is 'silu', expected 'gelu_pytorch_tanh'"),
        ("Gemma4ForCausalLM", {"hidden_activation": "silu"}, "hidden_activation is 'silu', expected 'gelu_py"),
        ("Qwen3_5ForCausalLM", {"hidden_act": "relu"}, "hidden_act is 'relu', expected 'silu'"),
        ("BambaForCausalLM", {"hidden_act": "relu"}, "hidden_act is 'relu', expected 'silu'"),
        ("OlmoHybridForCausalLM", {"hidden_act": "relu"}, "hidden_act is 'relu', expected 'silu'"),
        (
            "KimiLinearForCausalLM",
            {"hidden_act": "relu", "num_key_value_heads": 4},
            "hidden_act is 'relu', expected 'silu'",
        ),
        (
            "NemotronHForCausalLM",
            {"mamba_hidden_act": "relu", "layers_block_type": ["mamba"] * 12},
            "mamba_hidden_act is 'relu', expected 'silu'",
        ),
        ("RecurrentGemmaForCausalLM", {"hidden_activation": "silu"}, "hidden_activation is 'silu', expected 'gelu_py"),
        ("RecurrentGemmaForCausalLM", {"lru_width": 63}, "lru_width is 63, expected a multiple of num_attention_heads"),
        ("RecurrentGemmaForCausalLM", {"block_types": ["conv"]}, "block_types holds 'conv', expected 'recurrent' or"),
        ("PhimoeForCausalLM", {"num_experts_per_tok": 1}, "num_experts_per_tok is 1, expected 2"),
        ("Gemma4ForCausalLM", {"layer_types": ["conv"] * 12}, "layer_types is not sliding_attention or full_attention"),
        ("Gemma4ForCausalLM", {"num_kv_shared_layers": 8}, "leaves no layer of full_attention"),
        ("Gemma3nForCausalLM", {}, "num_kv_shared_layers leaves no layer of sliding_attention"),
        ("Gemma3nForCausalLM", {"hidden_activation": "silu"}, "hidden_activation is 'silu', expected 'gelu_py"),
        ("Gemma3nForCausalLM", {"intermediate_size": [96, 96], "num_kv_shared_layers": 5}, "size is of 2 layers, exp"),
        (
            "Gemma3nForCausalLM",
            {"activation_sparsity_pattern": [1.0] * 12, "num_kv_shared_layers": 5},
            "expected numbers from 0 to less than 1",
        ),
        ("Gemma3nForCausalLM", {"altup_num_inputs": 1, "num_kv_shared_layers": 5}, "it has 1 residual streams, exp"),
        ("Gemma3nForCausalLM", {"altup_active_idx": 4, "num_kv_shared_layers": 5}, "layers compute stream 4 of 4"),
        ("Ernie4_5_MoeForCausalLM", {"use_bias": True}, "use_bias is set, expected false"),
        ("HunYuanMoEV1ForCausalLM", {"moe_topk": [8, 4]}, "moe_topk is .8, 4., expected the same number"),
        ("HunYuanMoEV1ForCausalLM", {"moe_intermediate_size": 32}, "moe_intermediate_size is not intermediate_size"),
        ("ExaoneMoeForCausalLM", {"mlp_layer_types": ["dense"]}, "mlp_layer_types is not 'dense' or 'sparse'"),
        ("LagunaForCausalLM", {"gating": "none"}, "gating is 'none', expected true, 'per-head' or 'per-element'"),
        ("LagunaForCausalLM", {"moe_apply_router_weight_on_input": True}, "weight_on_input is set, expected false"),
        ("LagunaForCausalLM", {"num_attention_heads_per_layer": [4, 8]}, "is no count for each of 12 layers"),
        ("Qwen4ExpForCausalLM", {**QWEN4, "ple_layer_ids": [13]}, "ple_layer_ids holds 13, expected numbers of layers"),
        ("Qwen4ExpForCausalLM", {**QWEN4, "ple_layer_ids": [4]}, "ple_layer_ids holds 4, expected layers with linear"),
        ("Qwen4ExpForCausalLM", {**QWEN4, "eos_token_id": None}, "eos_token_id is missing, expected the token"),
        ("Qwen4ExpForCausalLM", {**QWEN4, "ple_embed_dim": 63}, "63 dimensions do not divide among 16 embeddings"),
        ("Qwen4ExpForCausalLM", {**QWEN4, "indexer_budget": 2047}, "indexer_budget is 2047, expected a multiple of"),
        ("Qwen4ExpForCausalLM", {**QWEN4, "indexer_budget": None}, "indexer_budget is missing"),
        ("Qwen4ExpForCausalLM", {**QWEN4, "hc_count": 1}, "it has 1 residual streams, expected 2 to 16"),
        ("Qwen4ExpForCausalLM", {**QWEN4, "output_gate_type": "relu"}, "output_gate_type is 'relu', expected 'silu'"),
        ("Cohere2MoeForCausalLM", {"expert_selection_fn": "top"}, "expert_selection_fn is 'top', expected 'softmax'"),
    ],
)
def test_what_is_not_served_is_refused_by_name(architecture: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(architecture, **fields)
