"""The text part of models that see images too: what their config.json says of it, and its tensors' names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf_config import model_spec_from_hf
from stentor.engine.model_config.hf_text_part import text_name
from stentor.tests.parity import tiny

GEMMA_3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152},
}


def test_a_published_gemma3_leaves_most_to_its_class() -> None:
    found = model_spec_from_hf(GEMMA_3_4B)
    mixer = found.layers[5].attention
    assert (found.vocab_size, found.hidden_size, len(found.layers), found.max_position) == (262208, 2560, 34, 131072)
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.window) == (8, 4, 256, 0)
    assert (mixer.rope and mixer.rope.factor, found.layers[0].attention.window) == (8.0, 1024)
    assert (found.eos_token_ids, found.tie_embeddings, found.text_part) == ((1, 106), True, True)


def test_a_mistral3_is_read_as_its_text_part_says_it_is() -> None:
    table = {**tiny.SHAPE, "model_type": "ministral3", "rope_parameters": {"llama_4_scaling_beta": 0.1}}
    found = model_spec_from_hf({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": table})
    assert found.layers[0].attention.temperature_beta == 0.1
    table = {**tiny.SHAPE, "model_type": "mistral", "sliding_window": None, "max_position_embeddings": 131072}
    found = model_spec_from_hf({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": table})
    assert found.layers[0].attention.window == 0, "null is no window, and not the class's"
    with pytest.raises(
        ConfigError, match=r"text_config.model_type is 't5', which is not native here, expected such as 'mistral'"
    ):
        model_spec_from_hf({"model_type": "mistral3", "text_config": {**table, "model_type": "t5"}})
    with pytest.raises(ConfigError, match="text_config is missing"):
        model_spec_from_hf({"model_type": "mistral3"})


def test_tensors_are_known_below_either_prefix_and_others_are_not() -> None:
    for prefix in ("language_model.model.", "model.language_model."):
        assert text_name(f"{prefix}layers.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight"
    assert text_name("language_model.lm_head.weight") == text_name("lm_head.weight") == "lm_head.weight"
    for other in (
        "vision_tower.ln_pre.weight",
        "model.vision_tower.ln_pre.weight",
        "multi_modal_projector.norm.weight",
    ):
        assert text_name(other) is None


def test_only_tensors_of_the_text_are_counted_and_read(tmp_path: Path) -> None:
    model = tiny.make("mistral3-seeing", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    read = {name: tensor.nbytes for name, tensor in iterate_weights(checkpoint, torch.float32)}
    assert read.keys() == checkpoint.decoder.shapes().keys()
    assert sum(read.values()) == checkpoint.total_bytes < sum(weight.nbytes for weight in model.state_dict().values())
    save_file({"vision_tower.ln_pre.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="no tensors of a language model"):
        open_checkpoint(tmp_path)
