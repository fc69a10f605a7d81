"""Tiny configurations of the families that :mod:`stentor.engine.model_config.hf_variants` reads."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    return {
        "glm": lambda: transformers.GlmConfig(**shape, head_dim=16),
        "glm4": lambda: transformers.Glm4Config(**shape, head_dim=32),
        "ernie": lambda: transformers.Ernie4_5Config(**shape, head_dim=32),
        "ernie-biased": lambda: transformers.Ernie4_5Config(**shape, head_dim=16, use_bias=True),
        "ministral3": lambda: transformers.Ministral3Config(
            **shape,
            head_dim=16,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.4,
            },
        ),
        "cohere": lambda: transformers.CohereConfig(**shape, logit_scale=0.25, attention_bias=True),
        "cohere2": lambda: transformers.Cohere2Config(**shape, logit_scale=0.3, sliding_window=24, layer_types=SLIDING),
        "hunyuan": lambda: transformers.HunYuanDenseV1Config(**shape, head_dim=32),
        "hunyuan-alpha": lambda: transformers.HunYuanDenseV1Config(
            **shape,
            head_dim=16,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0},
        ),
        "arcee": lambda: transformers.ArceeConfig(**shape, mlp_bias=True),
        "nemotron": lambda: transformers.NemotronConfig(**shape, head_dim=16),
        "apertus": lambda: transformers.ApertusConfig(
            **shape,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
        "starcoder2": lambda: transformers.Starcoder2Config(**shape, sliding_window=24),
        "stablelm": lambda: transformers.StableLmConfig(**shape, use_qkv_bias=True),
        "stablelm-parallel": lambda: transformers.StableLmConfig(**shape, use_parallel_residual=True),
        "phi": lambda: transformers.PhiConfig(**shape),
    }
