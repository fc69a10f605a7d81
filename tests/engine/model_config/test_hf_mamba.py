"""Descriptions of Nemotron-H, Falcon-H1, Bamba and Zamba2, against what makers publish and transformers' models."""

import math
from pathlib import Path
from typing import Any

import pytest
import transformers as untyped_transformers
from safetensors import safe_open

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.spec.recurrent import Mamba2Spec, MambaSpec
from stentor.engine.model_config.stages import stage_ends
from stentor.engine.model_config.tensor_parallel.cuts import Rank
from stentor.engine.model_config.tensor_parallel.split import split_model
from stentor.server.options.model_facts import describe_model
from stentor.tests.engine.plain_shapes import plain_shapes
from stentor.tests.parity import tiny

transformers: Any = untyped_transformers

NANO: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "head_dim": 128,
    "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "intermediate_size": 1856,
    "mamba_head_dim": 64,
    "mamba_num_heads": 64,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_groups": 8,
    "n_routed_experts": 128,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts_per_tok": 6,
    "num_key_value_heads": 2,
    "routed_scaling_factor": 2.5,
    "ssm_state_size": 128,
    "vocab_size": 131072,
}
"""Nemotron 3 Nano."""
FALCON: dict[str, Any] = {
    "architectures": ["FalconH1ForCausalLM"],
    "hidden_size": 64,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 320,
}

MAMBA: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"],
    "hidden_size": 64,
    "num_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 320,
}

JAMBA: dict[str, Any] = {
    "architectures": ["JambaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 65536,
}
"""Jamba v0.1, by the defaults of its architecture."""


def spec_of(config: dict[str, Any], **changes: Any) -> ModelSpec:
    return model_spec_from_hf({**config, **changes})


def test_nemotron_3_nano_has_one_part_in_each_of_52_layers() -> None:
    spec = spec_of(NANO)
    parts = [layer.mlp if layer.mixer is None else layer.mixer for layer in spec.layers]
    assert len(parts) == 52
    assert sum(isinstance(part, Mamba2Spec) for part in parts) == 23
    assert sum(isinstance(part, MoESpec) for part in parts) == 23
    assert [group.layers for group in spec.cache_groups] == [(5, 12, 19, 26, 33, 42)]
    assert round(spec.parameters / 1e9, 1) == 31.6
    assert round(spec.active_parameters / 1e9, 1) == 3.6


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, (0.001, math.inf)),
        ({"time_step_min": 0.01, "time_step_limit": [0.0, math.inf]}, (0.01, math.inf)),
        ({"time_step_min": 0.0}, (0.0, math.inf)),
        ({"time_step_limit": [0.02, 0.1]}, (0.02, 0.1)),
    ],
)
def test_steps_of_nemotron_h_have_bounds(changes: dict[str, Any], steps: tuple[float, float]) -> None:
    mixer = spec_of(NANO, **changes).layers[0].mixer
    assert isinstance(mixer, Mamba2Spec)
    assert (mixer.least_step, mixer.most_step) == steps


def test_layers_are_named_by_pattern_or_by_word() -> None:
    words = spec_of(NANO, hybrid_override_pattern=None, layers_block_type=["mamba", "attention", "mlp"])
    assert words.layers == spec_of(NANO, hybrid_override_pattern="M*-").layers
    assert isinstance(words.layers[2].mlp, MLPSpec)
    assert words.layers[2].mlp.activation == "relu2"


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (NANO, {"hybrid_override_pattern": "M*X"}, "hybrid_override_pattern holds 'X', expected 'linear_attention'"),
        (NANO, {"mlp_hidden_act": "xielu"}, "mlp_hidden_act is 'xielu', and experts take"),
        (NANO, {"mlp_bias": True}, "mlp_bias is set, expected false"),
        (FALCON, {"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers is 2 numbers, expected 5"),
        (FALCON, {"mlp_multipliers": [1.0]}, "mlp_multipliers is 1 numbers, expected 2"),
        (FALCON, {"mamba_n_heads": 7}, "mamba_n_heads is 7, expected a divisor of the 96 channels"),
        (FALCON, {"attention_in_multiplier": 0.5, "attention_bias": True}, "attention_in_multiplier is 0.5 where"),
        (
            FALCON,
            {"ssm_in_multiplier": 0.5, "mamba_proj_bias": True, "projectors_bias": True},
            "ssm_in_multiplier is 0.5 where",
        ),
        (FALCON, {"projectors_bias": True}, "projectors_bias differs from mamba_proj_bias"),
        (MAMBA, {"num_heads": 3}, "num_heads is 3, expected 128 channels among heads of head_dim"),
        (MAMBA, {"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        (MAMBA, {"architectures": ["MambaForCausalLM"], "hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        (
            MAMBA,
            {"architectures": ["MambaForCausalLM"], "time_step_rank": "most"},
            "time_step_rank is 'most', expected",
        ),
        (JAMBA, {"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        (JAMBA, {"attn_layer_period": 0}, "attn_layer_period is '0', expected a whole number"),
    ],
)
def test_what_cannot_be_served_is_refused(config: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(config, **changes)


def test_a_null_size_of_falcons_state_space_follows_from_its_expansion() -> None:
    beside = [spec_of({**FALCON, **size}).layers[0].beside for size in ({"mamba_d_ssm": None, "mamba_n_heads": 8}, {})]
    assert [mixer.inner for mixer in beside if isinstance(mixer, Mamba2Spec)] == [128, 96]


@pytest.mark.parametrize(
    "name",
    [
        "mamba2",
        "mamba2-biased",
        "mamba",
        "mamba-biased",
        "falcon-mamba",
        "jamba",
        "jamba-dense",
        "nemotron-h-moe",
        "nemotron-h-latent",
        "nemotron-h",
        "falcon-h1",
        "falcon-h1-normed",
        "bamba",
        "olmo-hybrid",
        "zamba2",
        "zamba2-plain",
    ],
)
def test_described_and_registered_shapes_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    spec = open_checkpoint(tmp_path, "auto").decoder
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        stored = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    assert spec.shapes() == stored == plain_shapes(spec)


def test_jamba_attends_once_in_eight_layers_and_has_experts_in_every_other() -> None:
    spec = spec_of(JAMBA)
    assert [number for number, layer in enumerate(spec.layers) if layer.keeps] == [4, 12, 20, 28]
    assert [isinstance(layer.mlp, MoESpec) for layer in spec.layers] == [False, True] * 16
    assert (spec.parameters // 10**8, spec.active_parameters // 10**8) == (515, 121)
    assert not any(isinstance(layer.mlp, MoESpec) for layer in spec_of(JAMBA, num_experts=1).layers)


@pytest.mark.parametrize(("sizes", "channels"), [({"expand": 16, "intermediate_size": 8192}, 8192), ({}, 4096 * 2)])
def test_a_mamba_has_the_channels_that_its_file_says_or_that_follow(sizes: dict[str, int], channels: int) -> None:
    files = {"hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 65024, "tie_word_embeddings": False, **sizes}
    spec = spec_of({"architectures": ["FalconMambaForCausalLM"]}, **files)
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, MambaSpec)
    assert (mixer.inner, mixer.rank, mixer.state_dim) == (channels, 256, 16)
    assert spec.parameters // 10**7 == 727
    tied = spec_of({"architectures": ["MambaForCausalLM"]})
    assert (tied.parameters // 10**5, tied.tie_embeddings) == (1593, True)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("mamba2", "a state space (Mamba-2) of 8 heads, states of 16 by 16"),
        ("mamba", "a state space (Mamba) of 128 channels, states of 12"),
    ],
)
def test_a_model_of_recurrent_layers_alone_keeps_nothing_of_a_token(name: str, layers: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    spec = open_checkpoint(tmp_path, "auto").decoder
    assert spec.cache_groups == ()
    assert spec.max_position == 1 << 20
    told = describe_model(tmp_path, ())
    assert layers in told
    assert "states in" in told
    assert "KV" not in told


def test_what_a_layer_lacks_or_has_side_by_side_is_told(tmp_path: Path) -> None:
    for name in ("nemotron-h", "falcon-h1"):
        tiny.make(name, tmp_path / name)
    lacking = describe_model(tmp_path / "nemotron-h", ())
    assert "1 of relu2 of 96\n" in lacking
    assert "states of 16 by 16\n" in lacking
    beside = describe_model(tmp_path / "falcon-h1", ())
    assert "sees all before beside a state space (Mamba-2) of 6 heads, states of 16 by 16; silu of 96" in beside


ZAMBA2: dict[str, Any] = {
    "architectures": ["Zamba2ForCausalLM"],
    "adapter_rank": 128,
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "hybrid", "mamba", "hybrid"],
    "mamba_ngroups": 2,
    "n_mamba_heads": 112,
    "num_attention_heads": 32,
    "num_hidden_layers": 7,
    "num_mem_blocks": 2,
    "use_mem_rope": True,
}
"""Zamba2 7B's, with fewer layers."""


def test_layers_of_zamba2_take_turns_with_two_blocks_that_are_stored_once() -> None:
    spec = model_spec_from_hf(ZAMBA2)
    blocks = [layer.block for layer in spec.layers]
    assert [block and (block.source, block.use) for block in blocks] == [None, None, (2, 0), None, (4, 1), None, (2, 2)]
    (kept,) = spec.cache_groups
    assert (kept.kind, kept.layers, kept.kv_heads, kept.head_dim) == ("full", (2, 4, 6), 32, 224)
    assert len(spec.states) == 7
    shapes = spec.shapes()
    block = "model.layers.2.shared_transformer"
    assert shapes[f"{block}.self_attn.q_proj.weight"] == (7168, 7168)
    assert shapes[f"{block}.feed_forward.gate_up_proj_adapter_list.2.0.weight"] == (128, 3584)
    assert f"{block}.feed_forward.gate_up_proj_adapter_list.1.0.weight" not in shapes
    assert not any(name.startswith("model.layers.6.shared_transformer") for name in shapes)
    assert shapes["model.layers.6.linear.weight"] == (3584, 3584)
    third = spec.layers[2].block
    assert third is not None
    assert third.attention.scale == 112**-0.5
    for split in (lambda: stage_ends(spec, 2), lambda: split_model(spec, Rank(0, 2))):
        with pytest.raises(ConfigError, match=r"are not given out|is not split"):
            split()


def test_the_default_layers_of_zamba2_are_those_of_transformers() -> None:
    config = transformers.Zamba2Config()
    spec = model_spec_from_hf({"architectures": ["Zamba2ForCausalLM"]})
    assert [layer.block is not None for layer in spec.layers] == [kind == "hybrid" for kind in config.layers_block_type]
    assert (spec.vocab_size, spec.hidden_size, spec.tie_embeddings) == (32_000, 2560, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers_block_type": ["mamba", "attention"]}, "layers_block_type holds 'attention', expected"),
        ({"num_hidden_layers": 8}, "says what 7 layers are, expected as many as num_hidden_layers"),
        ({"add_bias_linear": True}, "add_bias_linear is set, expected false"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is false, expected true"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps is 1e-06, expected 1e-05"),
        ({"num_attention_heads": 30}, "num_attention_heads is 30, expected a divisor of twice hidden_size, 7168"),
        ({"num_key_value_heads": 8, "use_shared_attention_adapter": True}, "num_key_value_heads is 8, expected 32"),
        ({"hidden_act": "relu2x"}, "hidden_act is 'relu2x', expected one of"),
        ({"num_mem_blocks": 0}, "num_mem_blocks is '0', expected a whole number"),
    ],
)
def test_a_wrong_field_of_zamba2_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**ZAMBA2, **change})
