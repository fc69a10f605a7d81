"""config.json files of Inkling 2: what is read, and what is refused."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.attention import AttentionSpec
from stentor.engine.model_config.spec.mlp import MoESpec
from stentor.engine.model_config.spec.model import ModelSpec, with_mixers
from stentor.engine.model_config.spec.streams import BlockResidualSpec
from stentor.engine.model_config.tensor_parallel.cuts import Rank
from stentor.engine.model_config.tensor_parallel.split import split_model
from stentor.engine.model_config.towers.media_spec import media_spec

SIZES: dict[str, Any] = {"architectures": ["Inkling2ForCausalLM"], "model_type": "inkling2_text", "hidden_size": 32}


def read(**fields: Any) -> ModelSpec:
    return model_spec_from_hf({**SIZES, **fields})


def mixers(spec: ModelSpec) -> list[AttentionSpec]:
    return [layer.attention for layer in spec.layers]


def test_a_file_without_sizes_is_the_small_model() -> None:
    spec = read()
    assert (len(spec.layers), spec.vocab_size, spec.unsaid, spec.eos_token_ids) == (48, 201_024, 966, (200_006,))
    assert [number for number, mixer in enumerate(mixers(spec)) if not mixer.window] == [*range(5, 48, 6)]
    near, full = mixers(spec)[0], mixers(spec)[5]
    assert (near.heads, near.kv_heads, near.window, near.apart) == (48, 8, 1024, False)
    assert (full.heads, full.kv_heads, full.temperature_floor, full.apart) == (48, 8, 128_000, True)
    assert near.longest == pytest.approx(22.627417)
    moe = spec.layers[0].mlp
    assert isinstance(moe, MoESpec)
    assert (moe.experts, moe.inner, moe.router.top_k, moe.router.scale, moe.always) == (384, 2304, 8, 8.0, 0)
    assert isinstance(spec.streams, BlockResidualSpec)
    assert (spec.streams.blocks, spec.streams.inputs_of(4), spec.streams.inputs_of(5)) == (8, 1, 3)


MINI: dict[str, Any] = {
    "architectures": ["Inkling2LoopForCausalLM"],
    "model_type": "inkling2_loop_text",
    "hidden_size": 2304,
}


def test_the_middle_layers_of_a_mini_run_three_times() -> None:
    spec = model_spec_from_hf(MINI)
    assert spec.runs == (*range(6), *[*range(6, 18)] * 3, *range(18, 24))
    assert (len(spec.layers), spec.hidden_size) == (48, 2304)
    assert isinstance(spec.streams, BlockResidualSpec)
    assert (spec.streams.blocks, spec.streams.looped, spec.streams.streams) == (4, 2, 7)
    apart = [number for number, mixer in enumerate(mixers(spec)) if mixer.apart]
    assert apart == [5, *range(6, 42), 47], "in a loop also layers with a window"
    assert mixers(spec)[0].heads == 24
    states = spec.states
    assert {*states} == {*range(48)}, "each run of a layer has states of its own"


def test_published_files_have_a_table_of_loops() -> None:
    table = {"core_start": 12, "core_end": 18, "num_passes": 2, "gate_rank": 16}
    spec = model_spec_from_hf({**MINI, "loop_config": table, "num_passes": 9})
    assert spec.runs == (*range(12), *[*range(12, 18)] * 2, *range(18, 24))
    assert isinstance(spec.streams, BlockResidualSpec)
    assert spec.streams.loop is not None
    assert spec.streams.loop.rank == 16


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loop_layer_index_start": 5}, "layers 5 to 17 run several times, expected whole blocks of 6"),
        ({"loop_layer_index_end": 30}, "layers 6 to 29 run several times, expected whole blocks of 6"),
        ({"loop_layer_index_end": 6}, "layers 6 to 5 run several times"),
        ({"loop_num_passes": 5000}, "loop_num_passes is"),
        ({"loop_num_passes": 500}, "12 of 24 layers run 500 times, expected at most"),
        ({"loop_config": {"num_passes": 0}}, "loop_num_passes is '0', expected a whole number"),
    ],
    ids=str,
)
def test_loops_that_are_no_whole_blocks_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**MINI, **fields})


def test_fields_have_second_names() -> None:
    names = {"sconv_kernel_size": 3, "model_max_length": 512, "intermediate_size": 24, "routed_scaling_factor": 2.5}
    spec = read(**names, num_local_experts=16, sliding_window=64)
    moe, mixer = spec.layers[0].mlp, spec.layers[0].attention
    assert isinstance(moe, MoESpec)
    assert (moe.inner, moe.experts, moe.router.scale) == (24, 16, 2.5)
    assert mixer.key_convs is not None
    assert (spec.max_position, mixer.window, mixer.key_convs.width) == (512, 64, 3)


def test_only_convolutions_by_taps_of_tokens_keep_their_inputs_token_by_token() -> None:
    states = [layer.states(32) for layer in read().layers[4:6]]
    assert [[tensor.shape for tensor in each] for each in states] == [
        [(2048, 3), (32, 3), (32, 3)],
        [(3, 2048), (32, 3), (32, 3)],
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', expected 'sigmoid'"),
        ({"mlp_gate_softcap": 5.0}, "mlp_gate_softcap is 5.0, expected 4.0"),
        ({"mlp_up_softcap": 7.0}, "mlp_up_softcap is 7.0, expected 25.0"),
        ({"layer_types": ["hybrid"] * 6}, "layer_types holds 6 types, expected 'hybrid' or 'hybrid_sliding' for 48"),
        ({"conv_kernel_size": 1}, "a convolution sees 1 token, expected at least 2"),
        ({"unpadded_vocab_size": 201_025}, "unpadded_vocab_size is '201025', expected a whole number from 1 to 201024"),
        ({"n_layers_per_attn_res_block": 3}, "make 16 kept streams, expected at most 15"),
        ({"log_scaling_n_floor": 0}, "log_scaling_n_floor is '0', expected a whole number"),
        ({"qk_l2_clip_threshold": 0}, "qk_l2_clip_threshold is"),
        ({"rel_l2_clip_threshold": -1.0}, "rel_l2_clip_threshold is"),
    ],
    ids=str,
)
def test_what_would_be_computed_wrongly_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**fields)


def test_inputs_apart_are_of_plain_matrices() -> None:
    full = with_mixers(read(layer_types=["hybrid"] * 48), key_convs=None, distances=None, fused=True, gated=False)
    with pytest.raises(ConfigError, match="queries, keys and values of inputs of their own, with more than heads"):
        mixers(full)[0].check()


def test_it_is_not_given_to_several_workers() -> None:
    with pytest.raises(ConfigError, match="pass convolutions is not split"):
        split_model(read(), Rank(0, 2))


def test_a_file_that_names_no_placeholder_has_the_usual_one() -> None:
    files = {"model_type": "inkling2", "text_config": {}, "vision_config": {}}
    spec, named = media_spec(files), media_spec({**files, "image_token_id": 7})
    assert spec is not None
    assert named is not None
    assert (spec.placeholders, named.placeholders) == ({"image": 200_054}, {"image": 7})
    assert media_spec({**SIZES}) is None
