"""config.json files of families whose layers no other family has: what is read, and what is refused."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.mlp import MoESpec

DBRX: dict[str, Any] = {
    "architectures": ["DbrxForCausalLM"],
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000},
    "d_model": 6144,
    "ffn_config": {
        "ffn_hidden_size": 10752,
        "moe_jitter_eps": 0.01,
        "moe_loss_weight": 0.05,
        "moe_num_experts": 16,
        "moe_top_k": 4,
    },
    "max_seq_len": 32768,
    "n_heads": 48,
    "n_layers": 40,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}


def test_dbrx_has_the_parameters_that_its_authors_publish() -> None:
    spec = model_spec_from_hf(DBRX)
    assert round(spec.parameters / 1e9) == 132
    assert round(spec.active_parameters / 1e9) == 36
    mixer, mlp = spec.layers[0].attention, spec.layers[0].mlp
    assert (mixer.kv_heads, mixer.clip, spec.max_position, spec.norm_eps) == (8, 8.0, 32768, 1e-5)
    assert mixer.rope is not None
    assert mixer.rope.theta == 500_000.0
    assert isinstance(mlp, MoESpec)
    assert mlp.router.renormalize


def test_dbrx_rotates_by_rope_parameters_if_a_file_has_both() -> None:
    spec = model_spec_from_hf({**DBRX, "rope_parameters": {"rope_type": "default", "rope_theta": 10.0}})
    rope = spec.layers[0].attention.rope
    assert rope is not None
    assert rope.theta == 10.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"ffn_config": {**DBRX["ffn_config"], "moe_normalize_expert_weights": 2}},
            r"moe_normalize_expert_weights is 2\.0, expected 1 or null",
        ),
        ({"ffn_config": {**DBRX["ffn_config"], "ffn_act_fn": {"name": "relu"}}}, "hidden_act is 'relu', and experts"),
        ({"attn_config": {"clip_qkv": -1}}, "clip_qkv is '-1', expected a number above 0"),
    ],
)
def test_a_dbrx_that_is_computed_otherwise_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**DBRX, **fields})
