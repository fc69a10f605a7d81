"""MiniMax-01 and M1 as their authors' files describe them."""

from collections.abc import Mapping
from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.lightning import LightningSpec

TEXT_01: Mapping[str, Any] = {
    "architectures": ["MiniMaxText01ForCausalLM"],
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "layernorm_full_attention_alpha": 3.5565588200778455,
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_alpha": 3.5565588200778455,
    "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_alpha": 3.5565588200778455,
    "layernorm_mlp_beta": 1.0,
    "max_position_embeddings": 10240000,
    "num_attention_heads": 64,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "postnorm": True,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000000,
    "rotary_dim": 64,
    "shared_intermediate_size": 0,
    "vocab_size": 200064,
}


def test_the_published_model_has_the_published_parameters() -> None:
    """In billions; of the active ones its authors leave out the 2.5 of embedding and head."""
    spec = model_spec_from_hf(TEXT_01)
    assert (round(spec.parameters / 1e9, 1), round(spec.active_parameters / 1e9, 1)) == (456.1, 48.4)


def test_seven_of_eight_layers_have_lightning_attention_that_forgets_less_the_later_it_is() -> None:
    spec = model_spec_from_hf(TEXT_01)
    assert [number for number, layer in enumerate(spec.layers) if layer.keeps] == list(range(7, 80, 8))
    first, later = (spec.layers[number].mixer for number in (0, 78))
    assert isinstance(first, LightningSpec)
    assert isinstance(later, LightningSpec)
    assert first.rates[7::8] == pytest.approx([2.0**-power for power in range(1, 9)], rel=1e-4)
    assert later.rates[63] == pytest.approx(2.0**-8 / 79, rel=1e-2)
    rope = spec.layers[7].attention.rope
    assert rope is not None
    assert rope.rotary_dim == 64
    assert {layer.stream_scales for layer in spec.layers} == {(3.5565588200778455,) * 2}
    assert spec.layers[0].norms.renews


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shared_intermediate_size": 64}, "shared_intermediate_size is not 0"),
        ({"attn_type_list": [0, 1]}, "layer_types says what 2 layers are, expected 80"),
        ({"attn_type_list": [2] * 80}, "attn_type_list holds 2, expected 0 or 1"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
    ],
)
def test_what_is_not_served_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**TEXT_01, **change})
