"""What files leave out is what transformers' classes say it is."""

import json
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from stentor.engine.model_config.config_fields import ConfigError, Fields
from stentor.engine.model_config.hf.config import DECODERS, TEXT_DECODERS, model_spec_from_hf
from stentor.engine.model_config.hf.ends import implied_ends
from stentor.engine.model_config.hf.text_part import MEDIA_FAMILIES
from stentor.engine.model_config.spec.model import ModelSpec

NAMES = [name for name, family in TEXT_DECODERS.items() if family.model_type in CONFIG_MAPPING]
FIELDS = (
    *("num_key_value_heads", "intermediate_size", "shared_intermediate_size", "n_routed_experts", "n_positions"),
    *("layer_types", "rope_parameters"),
)
"""Among others; those that readers have had wrong."""
OF_MAKERS = {"BailingMoeV2_5ForCausalLM", "ExaoneForCausalLM"}
"""Their files are those of code beside them, with defaults of its own."""


def read(name: str, fields: dict[str, Any]) -> ModelSpec:
    return model_spec_from_hf(json.loads(json.dumps({**fields, "architectures": [name]})))


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_is_left_out_has_the_default_of_transformers(name: str) -> None:
    described = CONFIG_MAPPING[TEXT_DECODERS[name].model_type]
    whole = described().to_dict()
    for field in FIELDS:
        less = {each: value for each, value in whole.items() if each != field}
        if field not in whole or name in OF_MAKERS:
            continue
        try:
            found = read(name, less)
        except ConfigError:  # which says that it is missing, or another field
            continue
        told = {each: value for each, value in less.items() if each not in ("model_type", "transformers_version")}
        assert found == read(name, described(**told).to_dict()), field


@pytest.mark.proof
def test_ends_of_turns_that_files_leave_out_are_those_of_transformers() -> None:
    transformers: Any = CONFIG_MAPPING
    kinds = {family.model_type for family in DECODERS.values()} | {family.text for family in MEDIA_FAMILIES.values()}
    for kind in sorted({*CONFIG_MAPPING} & kinds - {"fun_asr_nano"}):  # whose class takes no defaults
        described = transformers[kind]()
        text = next((each.text for each in MEDIA_FAMILIES.values() if each.model_type == kind), "")
        if text in CONFIG_MAPPING and text != kind:
            described = transformers[kind](text_config={"model_type": text})
        found = [getattr(each, "eos_token_id", None) for each in (described, described.get_text_config())]
        ends = Fields({"ends": next((each for each in found if each is not None), None)}).token_ids("ends")
        assert implied_ends({"model_type": kind, "text_config": {"model_type": text}}) == ends, kind


def test_a_text_part_s_ends_count_and_a_class_s_only_where_a_file_says_nothing() -> None:
    text: dict[str, object] = {"model_type": "qwen2_vl_text"}
    assert implied_ends({"model_type": "qwen2_vl", "text_config": text}) == (151_645,)
    assert implied_ends({"model_type": "qwen2_vl", "text_config": {**text, "eos_token_id": 7}}) == ()
    assert implied_ends({"model_type": "llama", "eos_token_id": None}) == ()
    assert implied_ends({"model_type": "qwen3"}) == ()


def test_a_null_number_of_heads_is_that_of_queries() -> None:
    sizes = {"vocab_size": 8, "hidden_size": 32, "intermediate_size": 8, "num_attention_heads": 16}
    sizes |= {"num_hidden_layers": 1, "max_position_embeddings": 8}
    assert read("MistralForCausalLM", sizes).layers[0].attention.kv_heads == 8
    assert read("MistralForCausalLM", {**sizes, "num_key_value_heads": None}).layers[0].attention.kv_heads == 16
