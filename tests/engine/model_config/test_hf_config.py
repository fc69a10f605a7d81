"""config.json files as transformers writes them, and as it used to, against transformers' own reading of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import PreTrainedConfig

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.model import POST, SANDWICH, alternating_layers
from stentor.engine.model_config.spec.positions import RopeConfig
from stentor.engine.model_config.spec.token_input import TokenInputSpec
from stentor.tests.engine.dense_spec import dense_spec
from stentor.tests.engine.plain_shapes import plain_shapes

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

EXPECTED_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "inner": 48,
    "layers": 3,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "max_position": 256,
    "norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_ids": (2,),
}

GEMMA: dict[str, Any] = {
    "head_dim": 16,
    "norm_eps": 1e-6,
    "activation": "gelu_tanh",
    "tie_embeddings": True,
    "norms": SANDWICH,
    "norm_plus_one": True,
    "input": TokenInputSpec(scale=32**0.5),
}

GRANITE4 = ("shared_mlp.input_linear", "shared_mlp.output_linear")

CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("LlamaConfig", "LlamaForCausalLM", {}, {}),
    (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 12, "eos_token_id": [7, 2]},
        {
            "attention": {"qkv_bias": True, "output_bias": True},
            "mlp_bias": True,
            "tie_embeddings": True,
            "head_dim": 12,
            "eos_token_ids": (2, 7),
        },
    ),
    (
        "MistralConfig",
        "MistralForCausalLM",
        {"sliding_window": 64},
        {"window": 64, "slides": (True,) * 3},
    ),
    ("MistralConfig", "MistralForCausalLM", {"sliding_window": None}, {}),
    ("Qwen2Config", "Qwen2ForCausalLM", {}, {"attention": {"qkv_bias": True}}),
    (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
        {"attention": {"qkv_bias": True}, "window": 64, "slides": (False, False, True)},
    ),
    (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {"head_dim": 16, "tie_word_embeddings": True},
        {"head_dim": 16, "attention": {"qk_norm": "head"}, "tie_embeddings": True},
    ),
    (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {"attention_bias": True},
        {"head_dim": 128, "attention": {"qk_norm": "head", "qkv_bias": True, "output_bias": True}},
    ),
    (
        "Phi3Config",
        "Phi3ForCausalLM",
        {"sliding_window": 32, "original_max_position_embeddings": 256},
        {
            "fused": True,
            "norm_eps": 1e-5,
            "window": 32,
            "slides": (True,) * 3,
        },
    ),
    (
        "Phi3Config",
        "Phi3ForCausalLM",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 5000.0,
                "partial_rotary_factor": 0.5,
                "short_factor": [1.0, 1.5],
                "long_factor": [2.0, 4.0],
            },
        },
        {
            "fused": True,
            "norm_eps": 1e-5,
            "rope": RopeConfig(
                theta=5000.0,
                kind="longrope",
                rotary_dim=4,
                factor=4.0,
                original_max_position=64,
                short_factor=(1.0, 1.5),
                long_factor=(2.0, 4.0),
            ),
        },
    ),
    (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {"head_dim": 16, "sliding_window": 64, "query_pre_attn_scalar": 24},
        {
            **GEMMA,
            "scale": 24**-0.5,
            "attention": {"softcap": 50.0},
            "logits_softcap": 30.0,
            "window": 64,
            "slides": (True, False, True),
        },
    ),
    (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {"head_dim": 16, "attn_logit_softcapping": None, "final_logit_softcapping": 5.0},
        {**GEMMA, "scale": 1 / 16, "logits_softcap": 5.0},
    ),
    (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"head_dim": 16, "sliding_window": 64, "num_hidden_layers": 7},
        {
            **GEMMA,
            "layers": 7,
            "attention": {"qk_norm": "head"},
            "scale": 1 / 16,
            "window": 64,
            "slides": (True,) * 5 + (False, True),
            "rope": RopeConfig(theta=1_000_000.0),
            "rope_sliding": RopeConfig(theta=10000.0),
        },
    ),
    (
        "Gemma3TextConfig",
        "Gemma3TextForCausalLM",
        {
            "head_dim": 16,
            "sliding_window": 64,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
            },
        },
        {
            **GEMMA,
            "attention": {"qk_norm": "head"},
            "scale": 1 / 16,
            "window": 64,
            "slides": (False, True, False),
            "rope": RopeConfig(theta=500000.0, kind="linear", factor=8.0),
            "rope_sliding": RopeConfig(theta=20000.0),
        },
    ),
    ("Olmo2Config", "Olmo2ForCausalLM", {}, {"norm_eps": 1e-5, "attention": {"qk_norm": "full"}, "norms": POST}),
    (
        "GraniteConfig",
        "GraniteForCausalLM",
        {
            **{"embedding_multiplier": 12.0, "residual_multiplier": 0.22},
            **{"attention_multiplier": 0.0625, "logits_scaling": 8.0},
        },
        {
            **{"input": TokenInputSpec(scale=12.0), "scales_media": True},
            **{"residual_scale": 0.22, "scale": 0.0625, "logits_divisor": 8.0},
        },
    ),
    ("GraniteConfig", "GraniteForCausalLM", {}, {"scale": 1.0, "scales_media": True}),
    (
        "Olmo3Config",
        "Olmo3ForCausalLM",
        {
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 500.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 400.0},
            },
        },
        {
            "norm_eps": 1e-5,
            "attention": {"qk_norm": "full"},
            "norms": POST,
            "window": 64,
            "slides": (True, False, True),
            "rope": RopeConfig(theta=500.0, kind="yarn", factor=4.0, original_max_position=64),
            "rope_sliding": RopeConfig(theta=400.0),
        },
    ),
    (
        "SmolLM3Config",
        "SmolLM3ForCausalLM",
        {"no_rope_layers": [1, 0, 1]},
        {"tie_embeddings": True, "rope": RopeConfig(theta=2e6), "still": (False, True, False)},
    ),
    (
        "Exaone4Config",
        "Exaone4ForCausalLM",
        {"sliding_window": 64, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        {
            "norm_eps": 1e-5,
            "attention": {"qk_norm": "head"},
            "norms": POST,
            "window": 64,
            "slides": (True, True, False),
            "still": (False, False, True),
        },
    ),
    (
        "Exaone4Config",
        "Exaone4ForCausalLM",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3},
        {"norm_eps": 1e-5, "attention": {"qk_norm": "head"}, "norms": POST},
    ),
    ("SeedOssConfig", "SeedOssForCausalLM", {}, {"head_dim": 128, "attention": {"qkv_bias": True}}),
    (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 80,
            "layer_types": ["full_attention"] * 3,
            "position_embedding_type": "nope",
            "mamba_n_heads": 8,
        },
        {
            **{"inner": 80, "scale": 1.0, "scales_media": True, "still": (True,) * 3},
            **{"mlp_into": GRANITE4[:1], "mlp_out": GRANITE4[1]},
        },
    ),
]


def written(config: PreTrainedConfig, architecture: str, folder: Path) -> dict[str, Any]:
    """What save_pretrained of a model of this config leaves in config.json."""
    config.architectures = [architecture]
    config.save_pretrained(folder)
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


@pytest.mark.parametrize(("kind", "architecture", "options", "expected"), CASES)
def test_a_config_that_transformers_writes_is_understood(
    kind: str, architecture: str, options: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    config = getattr(transformers, kind)(**{**SIZES, **options})
    found = model_spec_from_hf(written(config, architecture, tmp_path))
    assert found == dense_spec(architecture=architecture, **{**EXPECTED_SIZES, **expected})


@pytest.mark.parametrize(("kind", "architecture", "options", "expected"), CASES)
def test_the_shapes_of_weights_are_those_of_the_transformers_model(
    kind: str, architecture: str, options: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    import torch

    config = getattr(transformers, kind)(**{**SIZES, **options})
    described = model_spec_from_hf(written(config, architecture, tmp_path))
    name = "Gemma3ForCausalLM" if architecture == "Gemma3TextForCausalLM" else architecture
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    real = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    if described.tie_embeddings:
        real.pop("lm_head.weight")
    assert described.shapes() == real
    assert list(plain_shapes(described).items()) == list(described.shapes().items()), "and so the model registers them"


ROPES: list[tuple[dict[str, Any], RopeConfig, int]] = [
    ({"rope_type": "linear", "factor": 4.0}, RopeConfig(theta=500.0, kind="linear", factor=4.0), 1024),
    (
        {"rope_type": "dynamic", "factor": 2.0},
        RopeConfig(theta=500.0, kind="dynamic", factor=2.0, original_max_position=256),
        512,
    ),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        RopeConfig(theta=500.0, kind="llama3", factor=8.0, original_max_position=64),
        256,
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "beta_fast": 16.0},
        RopeConfig(theta=500.0, kind="yarn", factor=4.0, original_max_position=256, beta_fast=16.0),
        1024,
    ),
    (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.7,
            "mscale_all_dim": 0.9,
            "truncate": False,
            "attention_factor": 1.25,
        },
        RopeConfig(
            theta=500.0,
            kind="yarn",
            factor=4.0,
            original_max_position=64,
            mscale=0.7,
            mscale_all_dim=0.9,
            truncate=False,
            attention_factor=1.25,
        ),
        256,
    ),
    (
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [2.0, 3.0, 4.0, 5.0],
            "original_max_position_embeddings": 128,
            "factor": 32.0,
        },
        RopeConfig(
            theta=500.0,
            kind="longrope",
            factor=32.0,
            original_max_position=128,
            short_factor=(1.0,) * 4,
            long_factor=(2.0, 3.0, 4.0, 5.0),
        ),
        256,
    ),
]


@pytest.mark.parametrize(("settings", "expected", "longest"), ROPES)
def test_every_kind_of_stretched_rope_reads_alike_in_both_generations(
    settings: dict[str, Any], expected: RopeConfig, longest: int, tmp_path: Path
) -> None:
    config = transformers.LlamaConfig(**SIZES, rope_parameters={**settings, "rope_theta": 500.0})
    new = model_spec_from_hf(written(config, "LlamaForCausalLM", tmp_path))
    old_settings = {"type": settings["rope_type"], **{k: v for k, v in settings.items() if k != "rope_type"}}
    old = model_spec_from_hf(
        {**SIZES, "architectures": ["LlamaForCausalLM"], "rope_theta": 500.0, "rope_scaling": old_settings}
    )
    assert new.layers[0].attention.rope == expected
    assert new.max_position == longest
    assert old == new


def test_an_old_gemma3_config_is_understood() -> None:
    found = model_spec_from_hf(
        {
            **SIZES,
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "head_dim": 16,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 16,
            "rope_theta": 1000000,
            "rope_local_base_freq": 10000,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window": 64,
            "sliding_window_pattern": 2,
        }
    )
    mixers = [layer.attention for layer in found.layers]
    full, sliding = RopeConfig(theta=1e6, kind="linear", factor=8.0), RopeConfig(theta=1e4)
    assert [mixer.rope for mixer in mixers] == [sliding, full, sliding]
    assert [mixer.window for mixer in mixers] == [64, 0, 64]
    assert found.max_position == 256
    assert mixers[0].scale == 0.25


def test_an_early_phi3_config_is_understood() -> None:
    found = model_spec_from_hf(
        {
            **SIZES,
            "architectures": ["Phi3ForCausalLM"],
            "model_type": "phi3",
            "original_max_position_embeddings": 64,
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
            "sliding_window": 262144,
        }
    )
    mixer = found.layers[0].attention
    assert mixer.rope is not None
    assert (mixer.rope.kind, mixer.rope.factor, mixer.rope.original_max_position) == ("longrope", 4.0, 64)
    assert mixer.window == 0, "a window longer than the context is none"


def test_a_config_without_architectures_is_known_by_its_model_type() -> None:
    assert model_spec_from_hf({**SIZES, "model_type": "qwen3"}).architecture == "Qwen3ForCausalLM"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["CodeLlamaForCausalLM"]}, "'CodeLlamaForCausalLM' is not native here (nearest: "),
        ({"architectures": None}, "has neither architectures nor model_type"),
        ({"architectures": None, "model_type": "foo"}, "names no architecture and its model type 'foo' is not native"),
        ({"architectures": 3}, "architectures is '3', expected a list of texts"),
        ({"hidden_size": None}, "hidden_size is missing, expected a whole number"),
        ({"hidden_size": "big"}, "hidden_size is 'big'"),
        ({"hidden_size": True}, "hidden_size is 'True'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is '0'"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers is"),
        ({"num_key_value_heads": 3}, "4 query heads do not divide among 3"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is 'nan', expected a number"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is '1000"),
        ({"max_position_embeddings": 1 << 30, "rope_scaling": {"type": "linear", "factor": 1e30}}, "its context is"),
        (
            {
                "architectures": ["GraniteMoeHybridForCausalLM"],
                "num_local_experts": 0,
                "layer_types": ["attention", "rwkv", "attention"],
            },
            "layer_types holds 'rwkv', expected 'mamba' or",
        ),
        (
            {"architectures": ["Lfm2ForCausalLM"], "layer_types": ["conv", "full_attention"]},
            "layer_types says what 2 layers are, expected 3",
        ),
        (
            {
                "architectures": ["GraniteMoeHybridForCausalLM"],
                "num_local_experts": 0,
                "mamba_n_heads": 4,
                "time_step_limit": [0, "much"],
            },
            "time_step_limit is",
        ),
        ({"architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 0}, "expected a number above 0"),
        ({"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
        ({"rope_scaling": {"type": "spiral"}}, "rope_type is 'spiral', expected one of default"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": [1]}, "rope_scaling is"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "rotary factors are 1 numbers, expected 4",
        ),
        ({"rope_theta": -1.0}, "rotary base and factor are -1.0"),
        ({"partial_rotary_factor": 0.1}, "0 dimensions of each head rotate"),
        ({"partial_rotary_factor": 0.4}, "3 dimensions of each head rotate"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    config = {**SIZES, "architectures": ["LlamaForCausalLM"], **change}
    with pytest.raises(ConfigError, match="(?s)" + message.replace("(", r"\(")) as caught:
        model_spec_from_hf({name: value for name, value in config.items() if value is not None})
    assert "\n" not in str(caught.value)


def test_layers_alternate_with_the_full_one_last() -> None:
    assert alternating_layers(5, 2) == ("sliding", "full", "sliding", "full", "sliding")
    assert alternating_layers(2, 1) == ("full", "full")
