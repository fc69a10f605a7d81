"""What follows from a spec: parameters, cache, work."""

import math

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.spec.cache import CacheSpec
from stentor.engine.model_config.spec.model import ModelSpec, checked, with_mixers
from stentor.engine.model_config.spec.positions import RopeConfig
from stentor.tests.engine.dense_spec import dense_spec

SPEC = dense_spec(
    vocab_size=100,
    hidden_size=8,
    inner=16,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=2,
    max_position=128,
    norm_eps=1e-5,
)


def test_a_prompt_is_as_much_work_as_its_tokens_one_by_one() -> None:
    for spec in (SPEC, with_mixers(SPEC, [True, False, True], window=9)):
        assert spec.flops(20, 5, 0) == sum(spec.flops(1, 5 + i, 0) for i in range(20))
    assert SPEC.flops(1, 0, sampled=1) - SPEC.flops(1, 0, sampled=0) == 2 * 8 * 100
    products = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16
    assert SPEC.products(0) == products
    assert SPEC.flops(1, 0, 0) == 3 * (2 * products + 4 * 8)


def test_a_window_bounds_what_a_token_sees() -> None:
    mixer = with_mixers(SPEC, window=9).layers[0].attention
    for context in (0, 3, 8, 9, 30):
        assert mixer.pairs(10, context) == sum(min(9, context + 1 + i) for i in range(10))


def test_parameters_count_a_tied_head_once() -> None:
    layer = SPEC.products(0) + 2 * 8
    assert SPEC.parameters == 2 * 100 * 8 + 3 * layer + 8
    assert sum(map(math.prod, SPEC.shapes().values())) == SPEC.parameters


def test_sinks_are_a_number_a_head() -> None:
    sunk = with_mixers(SPEC, [True, False, True], sinks=True)
    added = {f"model.layers.{layer}.self_attn.sinks": (4,) for layer in (0, 2)}
    assert sunk.shapes() == SPEC.shapes() | added
    assert sunk.parameters == SPEC.parameters + 2 * 4


def test_layers_that_keep_alike_are_one_cache_group() -> None:
    mixed = with_mixers(SPEC, [True, False, True], window=9)
    window = CacheSpec("window", (0, 2), 9, 2, 2)
    assert mixed.cache_groups == (window, CacheSpec("full", (1,), 0, 2, 2))
    assert window.token_bytes(2) == 2 * 2 * 2 * 2 * 2
    assert window.cached_bytes(5, 2) == 5 * window.token_bytes(2)
    assert window.cached_bytes(500, 2) == 9 * window.token_bytes(2), "what nobody sees any more is not kept"
    wider = with_mixers(mixed, [False, True, False], kv_heads=4)
    assert [group.token_bytes(2) for group in wider.cache_groups] == [32, 32]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (with_mixers(SPEC, [False, True, False], kv_heads=3), "4 query heads do not divide among 3"),
        (with_mixers(SPEC, rope=RopeConfig(rotary_dim=4)), "4 dimensions of each head rotate"),
    ],
)
def test_a_layer_that_contradicts_itself_is_named(spec: ModelSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(spec)


def test_types_for_another_number_of_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="types are given for 2 layers, expected 3"):
        with_mixers(SPEC, [True, False], window=4)
