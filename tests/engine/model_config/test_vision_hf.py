"""Towers of media as a config.json describes them."""

from typing import Any

import pytest
import transformers as untyped_transformers

from stentor.engine.model_config.spec.model import dense_mlp
from stentor.engine.model_config.towers.media_spec import tapped_layers
from stentor.engine.model_config.towers.vision_hf import vision_spec_from_hf

transformers: Any = untyped_transformers
HIDDEN = 512
KINDS = (
    *("aya_vision", "cohere2_vision", "deepseek_vl", "exaone4_5", "glm46v", "glm4v", "glm4v_moe", "glm_ocr"),
    *("hyperclovax_vision_v2", "idefics3", "internvl", "kimi_k25", "lfm2_vl", "lighton_ocr", "llava", "mistral3"),
    *("ovis2", "paddleocr_vl", "qianfan_ocr", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl"),
    *("cosmos3_edge", "qwen4_exp", "mistral_large4", "qwen3_vl_moe", "smolvlm"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_that_a_tower_s_part_omits_are_those_of_its_class(kind: str) -> None:
    made = transformers.CONFIG_MAPPING[kind]
    part = {"model_type": made().vision_config.model_type}
    says = made.from_dict({"vision_config": dict(part)}).to_dict()
    assert vision_spec_from_hf({**says, "vision_config": part}, HIDDEN) == vision_spec_from_hf(says, HIDDEN)


def test_layers_of_janus_have_the_inner_size_of_their_ratio() -> None:
    vision = {"hidden_size": 64, "num_attention_heads": 4, "mlp_ratio": 3.0, "intermediate_size": 96}
    spec = vision_spec_from_hf({"model_type": "janus", "vision_config": vision}, HIDDEN)
    assert dense_mlp(spec).inner == 192


@pytest.mark.parametrize(("kind", "most"), [("qwen3_vl", 3), ("qwen3_vl_moe", 3), ("qwen3_5", 0), ("qwen2_5_vl", 0)])
def test_a_decoder_takes_as_many_outputs_of_tapped_layers_as_its_tower_makes(kind: str, most: int) -> None:
    config = {"model_type": kind, "vision_config": {"depth": 27}}
    assert len(tapped_layers(config)) == len(vision_spec_from_hf(config, HIDDEN).deepstack) == most
