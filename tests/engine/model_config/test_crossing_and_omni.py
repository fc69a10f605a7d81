"""Llama 3.2 Vision's layers of cross-attention, and Nemotron 3 Omni's fields of published files."""

import pytest
import torch

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf import nemotron_omni
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.stages import stage_ends
from stentor.engine.model_config.towers.media_spec import MediaSpec, media_spec
from stentor.engine.models.transformers.tower import TransformersTower
from stentor.tests.parity import tiny
from stentor.tests.parity.seeing import CONFIGS


def _mllama(**text: object) -> dict[str, object]:
    described = {**tiny.SHAPE, "num_hidden_layers": 4, "cross_attention_layers": [1], **text}
    return {"model_type": "mllama", "image_token_index": tiny.SHAPE["vocab_size"], "text_config": described}


def test_layers_that_attend_to_pictures_cache_nothing_and_their_tokens_have_no_logits() -> None:
    spec = model_spec_from_hf(_mllama())
    assert [layer.keeps is None for layer in spec.layers] == [False, True, False, False]
    shapes = spec.shapes()
    vocab, hidden = int(str(tiny.SHAPE["vocab_size"])), spec.hidden_size
    assert shapes["model.embed_tokens.weight"] == (vocab + 8, hidden)
    assert shapes["lm_head.weight"] == (vocab, hidden)
    assert shapes["model.layers.1.cross_attn_attn_gate"] == (1,)
    with pytest.raises(ConfigError, match="layers that attend to media are not given out"):
        stage_ends(spec, 2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ({"cross_attention_layers": [9]}, "cross_attention_layers are 9, expected some of the layers 0 to 3"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is true, expected a head of its own"),
    ],
)
def test_a_text_part_that_attends_to_pictures_otherwise_is_refused(text: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        model_spec_from_hf(_mllama(**text))


@pytest.mark.parametrize("name", nemotron_omni.PUBLISHED)
def test_published_files_of_nemotron_3_omni_name_their_parts_otherwise(name: str) -> None:
    published = {
        **{"model_type": name, "architectures": [name], "img_context_token_id": 18, "sound_context_token_id": 27},
        "sound_config": {"model_type": "parakeet"},
    }
    assert media_spec(published) == MediaSpec({"image": 18, "video": 18, "audio": 27})
    assert media_spec({**published, "sound_config": None}) == MediaSpec({"image": 18, "video": 18})
    text = CONFIGS["nemotron_omni"]().text_config.to_dict()
    spec = model_spec_from_hf({**published, "llm_config": text})
    assert (spec.architecture, spec.text_part) == (name, True)
    described = {**CONFIGS["nemotron_omni"]().to_dict(), "model_type": name, "architectures": [name]}
    tower = TransformersTower(described, torch.float32, torch.device("cpu"), shapes_only=True)
    assert type(tower._model).__name__ == nemotron_omni.CLASS


def test_what_files_may_leave_out_of_a_tower_keeps_its_first_values() -> None:
    described = CONFIGS["nemotron_omni"]().to_dict()
    tower = TransformersTower(described, torch.float32, torch.device("cpu"))
    left_out = "vision_model.encoder.layer.0.layer_scale1.lambda1"
    tower.load((name, torch.zeros(shape)) for name, shape in tower.shapes.items() if name != left_out)
    assert (tower._tensors[left_out] == 1).all()
