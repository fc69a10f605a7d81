"""Mistral's own files, which have params.json in place of config.json, are read as transformers' are."""

import json
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.download.hub import resolve_model
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.mistral_params import config_from_params
from stentor.engine.model_config.spec.latent_attention import LatentAttentionSpec
from stentor.engine.model_config.towers.vision_hf import vision_spec_from_hf
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import check_whole
from stentor.tests.parity.paged import PagedDecoder

LARGE3: dict[str, Any] = {
    "dim": 7168,
    "head_dim": 192,
    "hidden_dim": 16384,
    "kv_lora_rank": 512,
    "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 8192},
    "max_position_embeddings": 294912,
    "moe": {
        "expert_hidden_dim": 4096,
        "first_k_dense_replace": 3,
        "num_expert_groups": 1,
        "num_expert_groups_per_tok": 1,
        "num_experts": 128,
        "num_experts_per_tok": 4,
        "num_shared_experts": 1,
        "route_every_n": 1,
        "routed_scale": 1.0,
    },
    "n_heads": 128,
    "n_kv_heads": 128,
    "n_layers": 61,
    "norm_eps": 1e-06,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_theta": 10000.0,
    "tied_embeddings": False,
    "v_head_dim": 128,
    "vocab_size": 131072,
    "yarn": {"alpha": 1, "apply_scale": False, "beta": 32, "factor": 36, "original_max_position_embeddings": 8192},
}
"""What the published file says of the language model."""


def params_of(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    return {
        **{name: getattr(config, name) for name in ("kv_lora_rank", "q_lora_rank", "v_head_dim", "vocab_size")},
        **{name: getattr(config, name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "max_position_embeddings")},
        "dim": config.hidden_size,
        "hidden_dim": config.intermediate_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_attention_heads,
        "norm_eps": config.rms_norm_eps,
        "moe": {
            "num_experts": config.n_routed_experts,
            "num_experts_per_tok": config.num_experts_per_tok,
            "num_shared_experts": config.n_shared_experts,
            "expert_hidden_dim": config.moe_intermediate_size,
            "first_k_dense_replace": config.first_k_dense_replace,
            "routed_scale": config.routed_scaling_factor,
        },
        "llama_4_scaling": {"beta": rope["llama_4_scaling_beta"], "original_max_position_embeddings": 32},
        "yarn": {"alpha": 1, "beta": 32, "factor": 4, "original_max_position_embeddings": 32, "apply_scale": False},
        "vision_encoder": {"hidden_size": 2},
    }


def test_a_folder_with_params_json_and_consolidated_weights_gives_transformers_logits(tmp_path: Path) -> None:
    model = tiny.make("mistral-large3", tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "model.safetensors").rename(tmp_path / "consolidated-00001-of-00001.safetensors")
    index = {"weight_map": {"norm.weight": "consolidated-00001-of-00001.safetensors"}}
    (tmp_path / "consolidated.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "params.json").write_text(json.dumps(params_of(model.config)))
    assert resolve_model(str(tmp_path)) == tmp_path
    check_whole(model, PagedDecoder(tmp_path))


def test_the_published_params_json_describes_mistral_large_3() -> None:
    spec = model_spec_from_hf(config_from_params(LARGE3))
    assert (len(spec.layers), spec.max_position, spec.vocab_size) == (61, 294912, 131072)
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    assert mixer.scale == pytest.approx(192**-0.5), "apply_scale is false"
    assert (mixer.temperature_beta, mixer.temperature_floor) == (0.1, 8192)
    scaled = config_from_params({**LARGE3, "yarn": {**LARGE3["yarn"], "apply_scale": True}})
    other = model_spec_from_hf(scaled).layers[0].mixer
    assert isinstance(other, LatentAttentionSpec)
    assert other.scale > mixer.scale


PIXTRAL: dict[str, Any] = {
    **{"dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8},
    **{"rope_theta": 1e9, "norm_eps": 1e-5, "vocab_size": 131072},
    "vision_encoder": {
        **{"hidden_size": 1024, "num_channels": 3, "image_size": 1024, "patch_size": 16, "rope_theta": 10000.0},
        **{"intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "image_token_id": 10},
    },
}
"""What Pixtral 12B's says."""


def test_a_dense_model_with_params_json_gives_transformers_logits(tmp_path: Path) -> None:
    model = tiny.make("mistral-own", tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "model.safetensors").rename(tmp_path / "consolidated.safetensors")
    config = model.config
    told = {
        **{"dim": config.hidden_size, "hidden_dim": config.intermediate_size, "n_layers": config.num_hidden_layers},
        **{"n_heads": config.num_attention_heads, "n_kv_heads": config.num_key_value_heads},
        **{"head_dim": config.head_dim, "norm_eps": config.rms_norm_eps, "vocab_size": config.vocab_size},
        "rope_theta": config.rope_parameters["rope_theta"],
    }
    (tmp_path / "params.json").write_text(json.dumps(told))
    check_whole(model, PagedDecoder(tmp_path))


def test_the_published_params_json_describes_pixtral() -> None:
    spec = model_spec_from_hf(config_from_params(PIXTRAL))
    mixer = spec.layers[0].attention
    assert (len(spec.layers), mixer.heads, mixer.kv_heads, mixer.head_dim, spec.vocab_size) == (40, 32, 8, 128, 131072)
    assert mixer.rope is not None
    assert (mixer.rope.theta, mixer.rope.interleaved, spec.norm_eps) == (1e9, True, 1e-5)
    assert round(spec.parameters / 1e9, 1) == 12.2
    tower = vision_spec_from_hf(config_from_params(PIXTRAL), spec.hidden_size)
    assert (len(tower.layers), tower.merge, round(tower.parameters / 1e6)) == (24, 1, 435)
    assert config_from_params(PIXTRAL)["multimodal_projector_bias"] is True, "the file does not say"


SMALL: dict[str, Any] = {"spatial_merge_size": 2, "mm_projector_id": "patch_merge", "adapter_bias": False}


@pytest.mark.parametrize("field", ["yarn", "llama_4_scaling", "sliding_window", "quantization"])
def test_what_a_dense_model_does_not_have_yet_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} in params.json is .* expected null"):
        config_from_params({**PIXTRAL, field: {"factor": 4}})


@pytest.mark.parametrize("field", ["multimodal", "_sliding_window"])
def test_a_field_of_a_dense_model_that_is_not_known_is_refused_by_its_name(field: str) -> None:
    assert config_from_params({**PIXTRAL, field: None, "use_biases": False, "causal": True, "max_seq_len": 128})
    with pytest.raises(ConfigError, match=f"{field} in params.json is of another kind of model"):
        config_from_params({**PIXTRAL, field: [4096]})


@pytest.mark.parametrize("change", [{"mm_projector_id": ""}, {"add_pre_mm_projector_layer_norm": False}])
def test_a_projector_of_pictures_in_another_form_is_refused(change: dict[str, Any]) -> None:
    encoder = {**PIXTRAL["vision_encoder"], **SMALL, "add_pre_mm_projector_layer_norm": True}
    assert config_from_params({**PIXTRAL, "vision_encoder": encoder})["spatial_merge_size"] == 2
    with pytest.raises(ConfigError, match=r"a spatial_merge_size of 2 with mm_projector_id .* expected 'patch_merge'"):
        config_from_params({**PIXTRAL, "vision_encoder": {**encoder, **change}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_lora_rank": None}, "of a model with one of latent attention and shared experts"),
        ({"moe": {**LARGE3["moe"], "num_shared_experts": 0}}, "take the files of this model that have a config.json"),
        ({"sliding_window": 4096}, "sliding_window in params.json is '4096', expected null"),
        ({"quantization": {"qformat_weight": "fp8_e4m3"}}, "quantization in params.json is .* expected null"),
        ({"moe": {**LARGE3["moe"], "route_every_n": 2}}, "moe_layer_freq is 2, expected 1"),
    ],
)
def test_other_params_are_refused_with_a_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf(config_from_params({**LARGE3, **change}))


def test_a_folder_with_neither_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        open_checkpoint(tmp_path)
