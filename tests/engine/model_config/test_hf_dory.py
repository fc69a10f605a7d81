"""config.json files of Dory: what is read, and what is refused."""

from typing import Any, Final

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.stages import stage_ends
from stentor.engine.model_config.tensor_parallel.cuts import Rank
from stentor.engine.model_config.tensor_parallel.split import split_model

KINDS: Final = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "n_input_layers": 1,
    "n_output_layers": 1,
    "layer_types": KINDS,
}
BLOCKS: Final = [each for kind in KINDS for each in (kind, "mlp")]
TWICE: Final[dict[str, Any]] = {
    "num_hidden_layers": 8,
    "n_input_layers": 2,
    "n_output_layers": 2,
    "n_recurrent_layers": 4,
    "layer_types": BLOCKS,
}
"""As files have them."""


def read(**fields: Any) -> ModelSpec:
    return model_spec_from_hf({"architectures": ["DoryForCausalLM"], **SIZES, **fields})


def test_the_middle_layers_run_with_caches_of_their_own() -> None:
    spec = read(n_recurrent_loops=3)
    assert spec.runs == (0, 1, 2, 1, 2, 1, 2, 3)
    assert [layer.attention.window for layer in spec.layers] == [1024, 1024, 0, 1024, 0, 1024, 0, 1024]
    assert [spec.cache_index(layer) for layer in range(8)] == [*range(8)]
    assert (spec.normed_before, [(blend.layer, blend.source) for blend in spec.blends]) == ((1, 3, 5), [(3, 1), (5, 1)])
    assert {name.split(".")[2] for name in spec.shapes() if name.startswith("backbone.layers.")} == set("0123")
    assert read(n_recurrent_loops=1).runs == ()


def test_files_may_count_attention_and_network_of_a_layer_one_by_one() -> None:
    assert read(**TWICE) == read()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"recurrent_kv_cache_mode": "last_loop"}, "recurrent_kv_cache_mode is 'last_loop', expected 'per_loop'"),
        ({"attention_bias": True}, "attention_bias is true, expected false"),
        ({"n_recurrent_layers": 3}, "1 layers before, 3 that run several times and 1 behind are not the 4"),
        ({"n_input_layers": 3}, "3 layers before, 0 that run several times and 1 behind"),
        ({"layer_types": KINDS[:3]}, "layer_types has 3 types, expected 4"),
        ({**TWICE, "layer_types": ["mlp", *BLOCKS[1:]]}, "is not a type of attention and 'mlp' in turn"),
        ({**TWICE, "n_input_layers": 3}, "n_input_layers is 3, expected an even number"),
        ({"n_recurrent_loops": 4096}, "2 layers run 4096 times, expected at most 4096 in all"),
    ],
)
def test_what_a_file_asks_for_and_nothing_does_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**fields)


def test_dory_is_not_given_to_several_workers() -> None:
    with pytest.raises(ConfigError, match="learned factors on queries and gates is not split"):
        split_model(read(), Rank(0, 2))
    with pytest.raises(ConfigError, match="are not given out"):
        stage_ends(read(), 2)
