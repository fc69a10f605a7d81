"""config.json files of the families that differ from Llama in a layer's shape, against transformers' models of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as untyped_transformers

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.model import ModelSpec, dense_mlp
from stentor.engine.model_config.spec.positions import RopeConfig
from stentor.tests.engine.plain_shapes import plain_shapes
from stentor.tests.parity.variants import configs

transformers: Any = untyped_transformers
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
CONSTANT = (".act_fn.beta", ".act_fn.eps")
"""Stored, and the same in every model."""


@pytest.mark.parametrize("name", configs(SIZES))
def test_the_shapes_of_weights_are_those_of_the_transformers_model(name: str, tmp_path: Path) -> None:
    config = configs({**SIZES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2})[name]()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(tmp_path)
    found = model_spec_from_hf(json.loads((tmp_path / "config.json").read_text()))
    real = {name: tuple(weight.shape) for name, weight in model.state_dict().items() if not name.endswith(CONSTANT)}
    if found.tie_embeddings:
        real.pop("lm_head.weight")
    assert found.shapes() == real
    assert found.eos_token_ids == (2,)
    assert list(plain_shapes(found)) == list(found.shapes()), "and so the model registers them"


def read(architecture: str, **fields: Any) -> ModelSpec:
    """Of a file as it is published, with what it says beside the sizes."""
    return model_spec_from_hf({**SIZES, "architectures": [architecture], **fields})


def test_hunyuans_fixed_alpha_stretches_the_rotary_base() -> None:
    stretch = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}
    found = read("HunYuanDenseV1ForCausalLM", rope_theta=10000.0, rope_scaling=stretch, head_dim=128)
    assert found.layers[0].attention.rope == RopeConfig(theta=10000.0 * 1000.0 ** (128 / 126))
    assert found.max_position == 256


def test_a_cohere2_that_names_no_layer_types_has_every_fourth_layer_see_and_rotate_nothing_but_all() -> None:
    sizes = {"num_hidden_layers": 4, "sliding_window": 64, "sliding_window_pattern": 4, "layer_norm_eps": 1e-6}
    found = read("Cohere2ForCausalLM", rope_theta=50000, logit_scale=0.25, **sizes)
    mixers = [layer.attention for layer in found.layers]
    assert [mixer.window for mixer in mixers] == [64, 64, 64, 0]
    assert [mixer.rope for mixer in mixers] == [RopeConfig(theta=50000.0, interleaved=True)] * 3 + [None]
    assert (found.tie_embeddings, found.logits_divisor, found.norm_eps) == (True, 4.0, 1e-6)


def test_parts_of_heads_rotate_that_files_leave_out() -> None:
    parts = {"GlmForCausalLM": 64, "Glm4ForCausalLM": 64, "NemotronForCausalLM": 4, "StableLmForCausalLM": 2}
    for name, expected in {**parts, "PhiForCausalLM": 4}.items():
        rope = read(name).layers[0].attention.rope
        assert rope is not None
        assert rope.rotary_dim == expected, name


def test_an_apertus_is_stretched_unless_its_file_says_how() -> None:
    rope = RopeConfig(theta=12e6, kind="llama3", factor=8.0, original_max_position=8192)
    assert read("ApertusForCausalLM").layers[0].attention.rope == rope
    plain = read("ApertusForCausalLM", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    assert plain.layers[0].attention.rope == RopeConfig(theta=500.0)


def test_the_temperature_of_queries_is_read_with_the_rotary_settings() -> None:
    stretch = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "rope_theta": 1e6}
    mixer = read("Ministral3ForCausalLM", rope_parameters={**stretch, "llama_4_scaling_beta": 0.1}).layers[0].attention
    assert (mixer.temperature_beta, mixer.temperature_floor, mixer.window) == (0.1, 64, 0)
    assert read("Ministral3ForCausalLM", rope_parameters=stretch).layers[0].attention.temperature_beta == 0.0


def test_published_files_of_internlm3_have_their_own_names_for_biases() -> None:
    spec = read("InternLM3ForCausalLM", qkv_bias=True, bias=True, head_dim=8)
    attention = spec.layers[0].attention
    assert (attention.qkv_bias, attention.output_bias, dense_mlp(spec).bias) == (True, True, True)


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("OlmoForCausalLM", {"clip_qkv": -8.0}, "clip_qkv is '-8.0', expected a number above 0"),
        ("CohereForCausalLM", {"logit_scale": 0}, "logit_scale is '0', expected a number above 0"),
        (
            "Ministral3ForCausalLM",
            {"rope_parameters": {"llama_4_scaling_beta": "hot"}},
            "llama_4_scaling_beta is 'hot'",
        ),
        ("LlamaForCausalLM", {"hidden_act": "xielu"}, "a gated MLP with xielu is not known"),
        ("GlmForCausalLM", {"partial_rotary_factor": 2.0}, "256 dimensions of each head rotate"),
    ],
)
def test_what_cannot_be_served_is_named(architecture: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(architecture, **fields)
