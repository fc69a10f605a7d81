"""Tiny configurations of the families that :mod:`stentor.engine.model_config.hf_classic` reads."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    plain = {name: value for name, value in shape.items() if name != "num_key_value_heads"}
    inner = plain.pop("intermediate_size")
    opt = {**plain, "ffn_dim": inner}
    grouped = {**plain, "new_decoder_architecture": True, "num_kv_heads": 2}
    return {
        "opt": lambda: transformers.OPTConfig(**opt),
        "opt-galactica": lambda: transformers.OPTConfig(
            **opt, activation_function="gelu", enable_bias=False, layer_norm_elementwise_affine=False
        ),
        "gpt2": lambda: transformers.GPT2Config(**plain),
        "gpt2-scaled": lambda: transformers.GPT2Config(
            **plain, n_inner=inner, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False
        ),
        "gpt-neox": lambda: transformers.GPTNeoXConfig(**plain, intermediate_size=inner),
        "gpt-neox-serial": lambda: transformers.GPTNeoXConfig(
            **plain, intermediate_size=inner, use_parallel_residual=False, attention_bias=False, rotary_pct=1.0
        ),
        "gpt-bigcode": lambda: transformers.GPTBigCodeConfig(**plain),
        "gpt-bigcode-heads": lambda: transformers.GPTBigCodeConfig(**plain, n_inner=inner, multi_query=False),
        "falcon": lambda: transformers.FalconConfig(**plain),
        "falcon-grouped": lambda: transformers.FalconConfig(**grouped, bias=True, ffn_hidden_size=inner),
        "falcon-grouped-alike": lambda: transformers.FalconConfig(**grouped, num_ln_in_parallel_attn=1),
        "falcon-serial": lambda: transformers.FalconConfig(
            **plain, multi_query=False, parallel_attn=False, bias=True, tie_word_embeddings=False
        ),
        "gptj": lambda: transformers.GPTJConfig(**plain, rotary_dim=8),
    }
