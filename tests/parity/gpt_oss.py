"""A tiny GPT-OSS whose layers have a dense network in place of experts: attention with sinks, biases and windows.

The model is transformers' own but for that network; what reads its configuration is here, for no reader of the engine
knows such a model.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers as untyped_transformers

from stentor.engine.model_config import registry
from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.model_spec import ModelSpec, RopeConfig
from stentor.tests.engine.dense_spec import dense_spec

transformers: Any = untyped_transformers
NAME, MODEL_TYPE = "GptOssForCausalLM", "gpt_oss"
LAYERS, HEADS, HEAD_DIM, WINDOW, EPS = 4, 4, 16, 16, 1e-5
ROPE = RopeConfig(150_000.0, "yarn", factor=4.0, original_max_position=32, truncate=False)


class _Dense(torch.nn.Module):
    """What a layer expects of its experts: an output, and scores that are not looked at."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (
            torch.nn.Linear(config.hidden_size, config.intermediate_size, bias=False) for _ in range(2)
        )
        self.down_proj = torch.nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)), None


def config(shape: Mapping[str, Any]) -> Any:
    return transformers.GptOssConfig(
        **{**shape, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS},
        head_dim=HEAD_DIM,
        sliding_window=WINDOW,
        num_local_experts=2,
        num_experts_per_tok=1,
        rope_parameters={
            "rope_type": ROPE.kind,
            "rope_theta": ROPE.theta,
            "factor": ROPE.factor,
            "beta_fast": ROPE.beta_fast,
            "beta_slow": ROPE.beta_slow,
            "truncate": ROPE.truncate,
            "original_max_position_embeddings": ROPE.original_max_position,
        },
    )


def make_dense(model: Any) -> None:
    """Replaces the experts of every layer."""
    for layer in model.model.layers:
        layer.mlp = _Dense(model.config)


def _read(config: Mapping[str, object], _generation: Mapping[str, object]) -> ModelSpec:
    fields = Fields(config)
    return dense_spec(
        architecture=NAME,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        inner=fields.integer("intermediate_size"),
        layers=LAYERS,
        heads=HEADS,
        kv_heads=fields.integer("num_key_value_heads"),
        head_dim=HEAD_DIM,
        max_position=fields.integer("max_position_embeddings"),
        norm_eps=EPS,
        rope=ROPE,
        slides=[True, False] * (LAYERS // 2),
        window=WINDOW,
        attention={"qkv_bias": True, "output_bias": True, "sinks": True},
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


@contextmanager
def readable() -> Iterator[None]:
    """Such a model can be opened meanwhile, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.ARCHITECTURES, NAME, registry.Architecture(MODEL_TYPE, _read))
        yield
