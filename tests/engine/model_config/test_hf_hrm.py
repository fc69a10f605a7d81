"""config.json files of HRM: what is read, and what is refused."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.tensor_parallel.cuts import Rank
from stentor.engine.model_config.tensor_parallel.split import split_model

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
}


def read(**fields: Any) -> ModelSpec:
    return model_spec_from_hf({"architectures": ["HrmTextForCausalLM"], **SIZES, **fields})


def test_stacks_run_in_turn_on_the_sum_of_what_both_made_last() -> None:
    spec = read(H_cycles=2, L_cycles=2)
    assert spec.runs == (0, 1, 0, 1, 2, 3, 0, 1, 0, 1, 2, 3)
    assert spec.normed_before == (2, 4, 6, 8, 10)
    assert [(blend.layer, blend.source) for blend in spec.blends] == [(2, 0), (4, 0), (6, 4), (8, 6), (10, 6)]
    assert [spec.layer_prefix(layer) for layer in (1, 2, 5, 11)] == [
        *("model.L_module.layers.1", "model.L_module.layers.0"),
        *("model.H_module.layers.1", "model.H_module.layers.1"),
    ]
    assert (spec.layers[0].attention.kv_heads, spec.input.scale, spec.whole_prompts) == (4, 50.0, True)


def test_newer_files_count_all_runs_of_layers() -> None:
    assert read(num_hidden_layers=16, num_layers_per_stack=2) == read()
    assert not read(prefix_lm=False).whole_prompts


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_bias": True}, "attention_bias is true, expected false"),
        ({"L_cycles": 0}, "L_cycles is '0', expected a whole number from 1"),
        ({"num_hidden_layers": 2000}, "2000 layers run 8 times, expected at most 4096 in all"),
    ],
)
def test_what_a_file_asks_for_and_nothing_does_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**fields)


def test_hrm_is_not_given_to_several_workers() -> None:
    with pytest.raises(ConfigError, match="a fused matrix with gates is not split"):
        split_model(read(), Rank(0, 2))
