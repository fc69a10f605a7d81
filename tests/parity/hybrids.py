"""Tiny configurations of the families that :mod:`stentor.engine.model_config.hf_hybrid` reads."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers
CONVOLVED = ["conv", "full_attention", "conv"]


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    return {
        "lfm2": lambda: transformers.Lfm2Config(**shape, layer_types=CONVOLVED),
        "lfm2-biased": lambda: transformers.Lfm2Config(
            **shape, layer_types=CONVOLVED, conv_bias=True, conv_L_cache=4, block_auto_adjust_ff_dim=False
        ),
    }
