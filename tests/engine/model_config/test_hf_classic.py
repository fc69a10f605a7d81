"""config.json files of the families before Llama, against transformers' models of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as untyped_transformers

from stentor.engine.model_config.config_fields import ConfigError, UnknownArchitectureError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.registry import read_config
from stentor.engine.model_config.spec.model import ModelSpec, dense_mlp
from stentor.engine.model_config.spec.positions import alibi_slopes
from stentor.engine.model_config.transformers_config import TransformersSpec
from stentor.tests.engine.plain_shapes import plain_shapes
from stentor.tests.parity.classic import configs

transformers: Any = untyped_transformers
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize("name", configs(SIZES))
def test_the_shapes_of_weights_are_those_of_the_transformers_model(name: str, tmp_path: Path) -> None:
    config = configs({**SIZES, **TOKENS})[name]()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(tmp_path)
    found = model_spec_from_hf(json.loads((tmp_path / "config.json").read_text()))
    real = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    if name == "gpt-neox-japanese":  # whose only bias is stored beside its matrix
        real = {name.replace("dense_bias", "dense.bias"): shape for name, shape in real.items()}
    if found.tie_embeddings:
        heads = {"biogpt": "output_projection.weight", "gpt-neox-japanese": "embed_out.weight"}
        real.pop(heads.get(name, "lm_head.weight"))
    assert found.shapes() == real
    assert found.eos_token_ids == (2,)
    assert list(plain_shapes(found).items()) == list(found.shapes().items()), "and so the model registers them"


def read(architecture: str, **fields: Any) -> ModelSpec:
    return model_spec_from_hf({"architectures": [architecture], **fields})


@pytest.mark.parametrize("architecture", ["GPTJForCausalLM", "PhiForCausalLM"])
def test_a_head_with_a_bias_is_not_the_embedding(architecture: str) -> None:
    with pytest.raises(ConfigError, match="tie_word_embeddings is true, expected false"):
        read(architecture, **SIZES, rotary_dim=8, tie_word_embeddings=True)


def test_published_files_say_sizes_in_words_of_their_own() -> None:
    small = {"vocab_size": 96, "n_embd": 32, "n_head": 4, "n_layer": 3, "n_ctx": 64, "n_positions": 64}
    spec = read("GPT2LMHeadModel", **small, activation_function="gelu_new", layer_norm_epsilon=1e-6)
    assert (spec.max_position, spec.hidden_size, len(spec.layers), spec.norm_eps) == (64, 32, 3, 1e-6)
    assert (dense_mlp(spec).inner, dense_mlp(spec).activation, spec.tie_embeddings) == (128, "gelu_tanh", True)
    neox = read("GPTNeoXForCausalLM", **SIZES, rotary_pct=0.5, rotary_emb_base=5000, use_parallel_residual=True)
    rope = neox.layers[0].attention.rope
    assert rope is not None
    assert (rope.rotary_dim, rope.theta, neox.layers[0].parallel) == (4, 5000.0, True)
    assert (neox.tie_embeddings, dense_mlp(neox).activation) == (False, "gelu")


def test_positions_are_learned_up_to_the_longest_context_and_none_is_turned() -> None:
    spec = read("OPTForCausalLM", **SIZES)
    assert spec.layers[0].attention.rope is None
    assert spec.shapes()["model.decoder.embed_positions.weight"] == (258, 32)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"word_embed_proj_dim": 16, "do_layer_norm_before": False}, "with norms behind the parts of a layer or embed"),
        ({"_remove_final_layer_norm": True}, "without a last norm"),
    ],
)
def test_a_form_that_has_no_native_layers_runs_on_transformers(fields: dict[str, Any], message: str) -> None:
    config = {"architectures": ["OPTForCausalLM"], "model_type": "opt", **SIZES, **fields}
    with pytest.raises(UnknownArchitectureError, match=f"its form of OPTForCausalLM, {message}.* is not native here"):
        model_spec_from_hf(config)
    assert isinstance(read_config(config, {}), TransformersSpec)
    with pytest.raises(ConfigError, match="leave --model-impl native out"):
        read_config(config, {}, "native")


def test_slopes_are_powers_of_two_and_between_them_those_of_twice_as_many_heads() -> None:
    assert alibi_slopes(4) == (1 / 4, 1 / 16, 1 / 64, 1 / 256)
    assert alibi_slopes(6) == (1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8)
    assert alibi_slopes(2, steepest=16.0) == (1 / 256, 1 / 65536)


def test_falcon_adds_slopes_before_it_scales_scores() -> None:
    mixer = read("FalconForCausalLM", **SIZES, alibi=True, multi_query=False).layers[0].attention
    assert mixer.rope is None
    assert mixer.slopes == tuple(mixer.scale * slope for slope in alibi_slopes(4))


def test_mpt_reads_the_fields_of_its_attention() -> None:
    told = {"clip_qkv": 6, "alibi_bias_max": 16, "softmax_scale": 0.5}
    spec = read("MPTForCausalLM", d_model=32, n_heads=4, n_layers=2, max_seq_len=64, attn_config=told)
    mixer = spec.layers[0].attention
    assert (mixer.clip, mixer.slopes, mixer.scale) == (6.0, alibi_slopes(4, 16.0), 0.5)
    assert (spec.max_position, dense_mlp(spec).inner, len(spec.layers)) == (64, 128, 2)


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("MptForCausalLM", {"attn_config": {"alibi": False}}, "learned positions"),
        ("MptForCausalLM", {"attn_config": {"attn_type": "multiquery_attention"}}, "one key-value head"),
        ("MptForCausalLM", {"attn_config": {"qk_ln": True}}, "qk_ln is true"),
        ("MptForCausalLM", {"attn_config": {"prefix_lm": True}}, "prefix_lm is true"),
        ("MptForCausalLM", {"attn_config": {"clip_qkv": -1}}, "clip_qkv is '-1', expected a number above 0"),
        ("MptForCausalLM", {"no_bias": False}, "no_bias is false"),
        ("MptForCausalLM", {"logit_scale": 0.5}, "logit_scale is 0.5"),
        ("BloomForCausalLM", {"apply_residual_connection_post_layernorm": True}, "whose stream goes on from norms"),
        ("GPTNeoForCausalLM", {"attention_types": [[["global", "local"], 1]]}, "gives 2 layers, expected 3"),
        ("GPTNeoForCausalLM", {"attention_types": [[["global", "far"], 1], [["local"], 1]]}, "global or local"),
        ("GPTNeoForCausalLM", {"attention_types": [[["global"], 1 << 40]]}, "expected a pattern and its repeats"),
    ],
)
def test_what_a_file_asks_for_and_nothing_does_is_refused(
    architecture: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(architecture, **SIZES, **fields)


def test_gpt_neo_has_a_window_in_every_other_layer_if_nothing_else_is_said() -> None:
    windows = [layer.attention.window for layer in read("GPTNeoForCausalLM", **SIZES, window_size=24).layers]
    assert windows == [0, 24, 0]
