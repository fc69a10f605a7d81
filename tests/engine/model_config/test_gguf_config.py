"""GGUF metadata that tiny converted models do not show: stretched ropes, odd windows, what is refused."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.gguf.config import model_spec_from_gguf
from stentor.engine.model_config.spec.attention import AttentionSpec
from stentor.engine.model_config.spec.model import ModelSpec, with_mixers
from stentor.engine.model_config.spec.positions import RopeConfig

FACTORS = {"rope_factors_short.weight": (1.0,) * 4, "rope_factors_long.weight": (2.0,) * 4}


def read(arch: str, tensors: dict[str, tuple[int, ...]] | None = None, **changes: Any) -> ModelSpec:
    """The config of a small file of ``arch``; changes are metadata, dots written as double underscores."""
    metadata: dict[str, object] = {
        "general.architecture": arch,
        f"{arch}.context_length": 1024,
        f"{arch}.embedding_length": 32,
        f"{arch}.block_count": 4,
        f"{arch}.feed_forward_length": 64,
        f"{arch}.attention.head_count": 4,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
    }
    for name, value in changes.items():
        metadata[f"{arch}.{name.replace('__', '.')}"] = value
    shapes = {"token_embd.weight": (32, 100), "output.weight": (32, 100), **(tensors or {})}
    return model_spec_from_gguf(
        {name: value for name, value in metadata.items() if value is not None}, shapes, lambda name: FACTORS[name]
    )


def mixer(*given: Any, **changes: Any) -> AttentionSpec:
    """Of the first layer of what :func:`read` reads."""
    return read(*given, **changes).layers[0].attention


def windows(spec: ModelSpec) -> list[int]:
    return [layer.attention.window for layer in spec.layers]


def ropes(spec: ModelSpec) -> list[RopeConfig | None]:
    return [layer.attention.rope for layer in spec.layers]


def test_the_vocabulary_is_as_large_as_the_embedding() -> None:
    assert read("llama", vocab_size=7).vocab_size == 100


def test_heads_may_be_wider_than_the_hidden_size_allows() -> None:
    assert mixer("llama").head_dim == 8
    assert mixer("llama", {"blk.0.attn_q.weight": (32, 64)}).head_dim == 16
    assert mixer("llama", attention__key_length=20).head_dim == 20


def test_counts_stored_once_per_layer_must_agree() -> None:
    assert mixer("llama", attention__head_count_kv=[2] * 4).kv_heads == 2
    with pytest.raises(ConfigError, match=r"llama.attention.head_count_kv is '\[2, 1, 2, 2\]', expected a whole"):
        read("llama", attention__head_count_kv=[2, 1, 2, 2])


def test_scaled_ropes_are_understood() -> None:
    assert mixer("llama", rope__scaling__type="linear", rope__scaling__factor=4.0).rope == RopeConfig(
        kind="linear", factor=4.0
    )
    assert mixer("llama", rope__scale_linear=2.0).rope == RopeConfig(kind="linear", factor=2.0)
    assert mixer(
        "qwen2", rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=256
    ).rope == RopeConfig(kind="yarn", factor=4.0, original_max_position=256)
    assert mixer("llama", rope__scaling__type="none").rope == RopeConfig()


def test_long_and_short_factors_are_longrope() -> None:
    found = mixer(
        "phi3",
        dict.fromkeys(FACTORS, (4,)),
        rope__scaling__original_context_length=256,
        rope__scaling__attn_factor=1.5,
    )
    assert found.rope == RopeConfig(
        kind="longrope",
        factor=4.0,
        original_max_position=256,
        attention_factor=1.5,
        short_factor=(1.0,) * 4,
        long_factor=(2.0,) * 4,
    )


def test_factors_that_do_not_fit_the_head_are_refused() -> None:
    with pytest.raises(ConfigError, match="rotary factors are 4 numbers, expected 2"):
        read("phi3", dict.fromkeys(FACTORS, (4,)), rope__dimension_count=4)


def test_gemma_27b_scales_attention_by_its_hidden_size() -> None:
    assert mixer("gemma2", attention__key_length=16).scale == 16**-0.5
    assert mixer("gemma2", attention__key_length=16, block_count=46).scale == (32 / 4) ** -0.5
    assert mixer("gemma3", attention__key_length=16, block_count=62).scale == (32 / 4) ** -0.5


def test_gemma2_has_its_softcaps_without_being_told() -> None:
    config = read("gemma2")
    assert (config.layers[0].attention.softcap, config.logits_softcap) == (50.0, 30.0)
    assert read("gemma2", final_logit_softcapping=0.0).logits_softcap == 0.0


def test_gemma3_keeps_its_layer_types_even_under_a_window_that_never_binds() -> None:
    config = read(
        "gemma3",
        block_count=6,
        attention__sliding_window=4096,
        rope__freq_base=1e6,
        rope__scaling__type="linear",
        rope__scaling__factor=8.0,
    )
    assert windows(config) == [0] * 6
    assert ropes(config) == [RopeConfig(theta=1e4)] * 5 + [RopeConfig(theta=1e6, kind="linear", factor=8.0)]


def test_a_window_pattern_in_the_file_wins() -> None:
    pattern = [True, False, False, True]
    config = read("olmo2", attention__sliding_window=64, attention__sliding_window_pattern=pattern)
    assert windows(config) == [64, 0, 0, 64]
    assert ropes(config) == [RopeConfig()] * 4
    stretched = read(
        "olmo2",
        attention__sliding_window=64,
        attention__sliding_window_pattern=pattern,
        rope__scaling__type="yarn",
        rope__scaling__factor=8.0,
    )
    assert [rope is not None and rope.kind for rope in ropes(stretched)] == ["default", "yarn", "yarn", "default"]
    assert with_mixers(stretched, rope=RopeConfig()) == config
    with pytest.raises(ConfigError, match="names 2 layers, expected 4"):
        read("olmo2", attention__sliding_window=64, attention__sliding_window_pattern=[True, False])


def test_a_window_no_sequence_outgrows_is_none() -> None:
    assert windows(read("phi3", attention__sliding_window=512)) == [512] * 4
    assert windows(read("phi3", attention__sliding_window=1024)) == [0] * 4


def test_one_norm_for_both_parts_has_them_run_side_by_side() -> None:
    eps: dict[str, Any] = {"attention__layer_norm_epsilon": 1e-5}
    apart = read("stablelm", {"blk.0.ffn_norm.weight": (32,)}, **eps).layers[0]
    beside = read("stablelm", **eps).layers[0]
    assert [(layer.parallel, bool(layer.norms.mlp_in)) for layer in (apart, beside)] == [(False, True), (True, False)]


def test_layer_norms_of_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="norms the heads of queries and keys in a way that is not supported"):
        read("command-r", {"blk.0.attn_q_norm.weight": (8, 4)}, attention__layer_norm_epsilon=1e-5)


@pytest.mark.parametrize(
    ("arch", "changes", "message"),
    [
        ("rwkv6", {}, "its architecture 'rwkv6' is not supported, expected one of llama, qwen2, qwen3, phi3, gemma2"),
        ("llama", {"block_count": None}, "llama.block_count is missing"),
        ("llama", {"block_count": "four"}, "llama.block_count is 'four'"),
        (
            "qwen2",
            {"expert_count": 8},
            "expected a dense model or one of llama, qwen3moe, olmoe",
        ),
        ("llama", {"expert_count": 8}, "llama.expert_used_count is missing"),
        ("llama", {"expert_count": 8, "expert_used_count": 2, "expert_gating_func": 2}, "expert_gating_func is 2"),
        ("llama", {"expert_count": 4, "expert_used_count": 5}, "a token takes 5 experts of the 4"),
        ("llama", {"rope__scaling__type": "spiral"}, "rope.scaling.type is 'spiral'"),
        ("llama", {"attention__head_count": 5}, "32 hidden columns do not divide among 5 heads"),
        ("llama", {"attention__head_count_kv": 3}, "4 query heads do not divide among 3"),
        ("llama", {"rope__dimension_count": 64}, "64 dimensions of each head rotate"),
    ],
)
def test_what_cannot_be_served_is_named(arch: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(arch, **changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
