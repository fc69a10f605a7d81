"""Llamas under their authors' names are read as their published configurations say."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.attention_parts import LoopSpec
from stentor.engine.model_config.spec.positions import alibi_slopes
from stentor.engine.model_config.stages import stage_ends
from stentor.engine.model_config.tensor_parallel.cuts import Rank
from stentor.engine.model_config.tensor_parallel.split import split_model

SIZES: dict[str, Any] = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
QWEN: dict[str, Any] = {
    **SIZES,
    "architectures": ["QWenLMHeadModel"],
    "intermediate_size": 22016,
    "kv_channels": 128,
    "layer_norm_epsilon": 1e-06,
    "max_position_embeddings": 32768,
    "model_type": "qwen",
    "no_bias": True,
    "rotary_emb_base": 10000,
    "rotary_pct": 1.0,
    "scale_attn_weights": True,
    "seq_length": 8192,
    "tie_word_embeddings": False,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
    "vocab_size": 151936,
}
"""Qwen 7B."""
CHATGLM: dict[str, Any] = {
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "architectures": ["ChatGLMModel"],
    "ffn_hidden_size": 13696,
    "hidden_size": 4096,
    "kv_channels": 128,
    "layernorm_epsilon": 1.5625e-07,
    "model_type": "chatglm",
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 32,
    "num_layers": 40,
    "original_rope": True,
    "padded_vocab_size": 151552,
    "post_layer_norm": True,
    "rmsnorm": True,
    "rope_ratio": 500,
    "seq_length": 131072,
    "tie_word_embeddings": False,
    "vocab_size": 151552,
}
"""GLM-4-9b-chat."""
BAICHUAN: dict[str, Any] = {
    "architectures": ["BaichuanForCausalLM"],
    "hidden_size": 5120,
    "intermediate_size": 13696,
    "model_max_length": 4096,
    "model_type": "baichuan",
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "tie_word_embeddings": False,
    "vocab_size": 125696,
    "z_loss_weight": 0,
}
"""Baichuan2-13B."""
NANBEIGE: dict[str, Any] = {
    "architectures": ["NanbeigeForCausalLM"],
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "max_position_embeddings": 262144,
    "model_type": "nanbeige",
    "num_attention_heads": 48,
    "num_hidden_layers": 22,
    "num_key_value_heads": 8,
    "num_loops": 2,
    "rope_theta": 70000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 166144,
}
"""Of the shape of Nanbeige 4.2 3B."""
OURO: dict[str, Any] = {
    "architectures": ["OuroForCausalLM"],
    "early_exit_threshold": 1.0,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "max_position_embeddings": 65536,
    "model_type": "ouro",
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "rope_theta": 1000000.0,
    "total_ut_steps": 4,
    "vocab_size": 49152,
}
"""Ouro 1.4B."""


@pytest.mark.parametrize(("config", "billions"), [(QWEN, 7.72), (CHATGLM, 9.40), (BAICHUAN, 13.9), (OURO, 1.43)])
def test_a_published_description_has_the_parameters_that_its_makers_count(
    config: dict[str, Any], billions: float
) -> None:
    assert model_spec_from_hf(config).parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_qwen_1_ends_where_its_angles_would_change() -> None:
    assert model_spec_from_hf(QWEN).max_position == 8192
    still = {**QWEN, "use_dynamic_ntk": False, "use_logn_attn": False}
    assert model_spec_from_hf(still).max_position == 32768


def test_chatglm_rotates_pairs_of_half_of_each_head() -> None:
    mixer = model_spec_from_hf(CHATGLM).layers[0].attention
    assert mixer.rope is not None
    assert (mixer.rope.theta, mixer.rope.rotary_dim, mixer.rope.interleaved) == (5_000_000.0, 64, True)
    assert (mixer.kv_heads, mixer.qkv_bias, mixer.output_bias) == (2, True, False)


def test_baichuan_of_13_billion_parameters_has_alibi_and_that_of_7_rotates() -> None:
    large = model_spec_from_hf(BAICHUAN)
    assert (large.layers[0].attention.slopes, large.head_norm) == (alibi_slopes(40), "rows")
    small = {**BAICHUAN, "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 4096}
    assert model_spec_from_hf(small).layers[0].attention.rope is not None
    first = {**BAICHUAN, "vocab_size": 64000, "z_loss_weight": None}
    assert model_spec_from_hf(first).head_norm is None


def test_layers_that_loop_are_stored_once_and_cached_each_time() -> None:
    spec = model_spec_from_hf(NANBEIGE)
    assert len(spec.layers) == 44
    (group,) = spec.cache_groups
    assert len(group.layers) == 44
    assert "model.layers.21.self_attn.q_proj.weight" in spec.shapes()
    assert "model.layers.22.self_attn.q_proj.weight" not in spec.shapes()
    once = model_spec_from_hf({**NANBEIGE, "num_loops": 1})
    assert spec.parameters == once.parameters
    work = spec.flops(1, 0, 0), once.flops(1, 0, 0)
    assert work[0] == 2 * work[1]


def test_layers_that_loop_are_not_given_out_to_workers() -> None:
    with pytest.raises(ConfigError, match="layers that run several times, or use the stream of earlier ones, are not"):
        stage_ends(model_spec_from_hf(OURO), 2)


LOOP_CODER: dict[str, Any] = {
    "architectures": ["IQuestLoopCoderForCausalLM"],
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "loop_num": 2,
    "loop_window_size": 64,
    "max_position_embeddings": 131072,
    "num_attention_heads": 40,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "vocab_size": 76800,
}
"""Of the shape of IQuest-Coder 40B Loop."""


def test_later_runs_of_a_loop_coder_cache_a_window_and_see_the_first_run() -> None:
    spec = model_spec_from_hf(LOOP_CODER)
    whole, near = spec.cache_groups
    assert (len(whole.layers), len(near.layers), near.window) == (80, 80, 64)
    assert spec.layers[85].attention.loop == LoopSpec(5, "model.gate_projections.5")
    shapes = spec.shapes()
    assert shapes["model.gate_projections.79.weight"] == (40, 128)
    assert "model.layers.80.self_attn.q_proj.weight" not in shapes
    with pytest.raises(ConfigError, match="attention to an earlier loop is not split"):
        split_model(spec, Rank(0, 2))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LOOP_CODER, "dual_chunk_attention_config": {}}, "with attention in two chunks, is not native here"),
        ({**QWEN, "no_bias": False}, "no_bias is false, expected true: no other form is known"),
        ({**CHATGLM, "position_encoding_2d": True}, "with two positions of each token .ChatGLM-6B., is not native"),
        ({**CHATGLM, "quantization_bit": 4}, "quantization_bit is 4, expected 0"),
        ({**CHATGLM, "rmsnorm": False}, "rmsnorm is false, expected true"),
        ({**BAICHUAN, "tie_word_embeddings": True}, "a head that is the embedding has no norm"),
        ({**NANBEIGE, "loop_share_kv": True}, "its form of NanbeigeForCausalLM, with loop_share_kv, is not native"),
        ({**NANBEIGE, "emb_neighbor_num": 2}, "its form of NanbeigeForCausalLM, with emb_neighbor_num, is not"),
        ({**NANBEIGE, "num_loops": 65}, "num_loops is '65', expected a whole number from 1 to 64"),
        ({**OURO, "early_exit_threshold": 0.5}, "early_exit_threshold is 0.5, expected 1.0"),
        ({**OURO, "early_exit_step": 2}, "early_exit_step is 2, expected null"),
    ],
)
def test_a_form_that_is_not_known_is_refused_in_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf(config)


STABLELM: dict[str, Any] = {
    **{"architectures": ["StableLMEpochForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "vocab_size": 320},
    **{"num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 128},
}
PLAMO: dict[str, Any] = {**STABLELM, "architectures": ["Plamo3ForCausalLM"], "window_size": 24, "rope_theta": 10000}
DOMYN: dict[str, Any] = {
    **{**STABLELM, "architectures": ["DomynEdgeForCausalLM"], "num_key_value_heads": 2},
    **{"position_layers": ["rope", "nope"], "window_sizes": [[24, 0], [-1, 0]], "head_sizes": [16, 32]},
}
RNJ: dict[str, Any] = {**STABLELM, "architectures": ["Rnj1ForCausalLM"], "layer_types": ["full_attention"] * 2}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**DOMYN, "head_sizes": [16]}, "head_sizes is not a list of 2 layers"),
        ({**DOMYN, "position_layers": ["rope", "alibi"]}, "position_layers holds 'alibi', expected rope or nope"),
        ({**DOMYN, "window_sizes": [[128, 0], [-1, 0]]}, "expected sizes within the context"),
        ({**DOMYN, "window_sizes": ["x", [-1, 0]]}, "window_sizes is 'x', expected a list of numbers"),
        ({**PLAMO, "rope_theta": None}, "rope_theta is missing, expected a number"),
        ({**PLAMO, "window_size": None}, "sliding_window is missing, expected a whole number"),
        ({**PLAMO, "scale_embedding": True}, "scale_embedding is true, expected false"),
        ({**STABLELM, "rotary_scaling_factor": 2.0}, "rotary_scaling_factor is 2.0, expected 1.0"),
        ({**RNJ, "layer_types": ["full_attention", "chunked_attention"]}, "with layers of chunked_attention .layer_ty"),
        ({**RNJ, "layer_types": None}, "with layers of an unnamed kind .layer_types., is not native here"),
    ],
)
def test_older_names_are_no_other_models(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf(config)


def test_layers_of_domyn_edge_differ_in_heads_windows_and_rotation() -> None:
    first, last = (layer.attention for layer in model_spec_from_hf(DOMYN).layers)
    assert (first.head_dim, first.window, first.rope is None) == (16, 25, False)
    assert (last.head_dim, last.window, last.rope is None) == (32, 0, True)
    own = {"0": {"head_dim": 16}, "1": {"head_dim": 32}}
    assert model_spec_from_hf({**DOMYN, "head_sizes": None, "per_layer_config": own}) == model_spec_from_hf(DOMYN)
